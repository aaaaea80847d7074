//! The front of `hutch up`: everything that parses what clients send. TLS, the API server with its store, the controllers
//! and the router run here, as a user of their own, without capabilities, with the `store` and `ca` folders alone.
//!
//! [`super::root`] starts it and passes every socket to it. The front requests all work in Pods from there.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hutch_apiserver::{ApiServer, Identity};
use hutch_jail::service::{Confinement, confine};
use hutch_kubelet::Kubelet;
use hutch_node::ServiceKind;
use hutch_privsep::{Channel, RemoteKubelet, Service};
use hutch_router::{Access, ApiWake, Directory, Inside, Router, Scope, Token};
use hutch_serve::{Authority, Listener, Shutdown};
use kube::Client;
use tokio::task::JoinSet;

use super::audit::{FrontLog, RequestLog};
use super::callouts::Callouts;
use super::messages::{Credentials, FromFront, RouterListener, Start, ToFront, receive_start};
use super::screens::{ScreenedKubelet, Screens};
use super::{NODE, STOP_LIMIT};
use crate::cli::AuditMode;
use crate::runtime::{log, runtime};
use crate::services::{ControllerService, RouterService};
use crate::{bootstrap, kubeconfig, roles};

/// Name of the program as the root process starts it. Not a command for users.
pub(crate) const NAME: &str = "hutch-front";
/// Maximum time for requests at the router's own address after the shutdown.
const ROUTER_GRACE: Duration = Duration::from_secs(2);
/// Maximum pause before the controllers reconcile an object again after a failure.
const LONGEST_BACKOFF: Duration = Duration::from_secs(15);
/// Interval of readiness checks of the services in this process.
const READY_INTERVAL: Duration = Duration::from_millis(5);

/// Serves until the root process closes the channel.
pub(crate) fn main() -> ExitCode {
    log("warn,hutch=info");
    crate::runtime::program(NAME, front)
}

fn front() -> anyhow::Result<()> {
    let input = rustix::io::dup(rustix::stdio::stdin()).context("standard input")?;
    rustix::io::fcntl_setfd(&input, rustix::io::FdFlags::CLOEXEC).context("standard input")?;
    let (start, descriptors) = receive_start(&input).context("started by hutch up alone")?;
    // Without it `ps` shows the name of the link by which it was started, `exe`.
    rustix::thread::set_name(c"hutch-front").context("name")?;
    // An interrupt of the terminal goes to the root process, which then stops this one in order.
    rustix::process::setsid().context("session")?;
    // The folders are opened by relative paths: the front may not search the parents of the data folder.
    std::env::set_current_dir(&start.folder).context("the data folder")?;
    let (store, authority) = (Path::new("store"), Path::new("ca"));
    // A static program reads random numbers from these files.
    let random = [Path::new("/dev/random"), Path::new("/dev/urandom")];
    // Before the first thread: Landlock and seccomp confine a thread and those that it starts.
    let landlock = confine(&Confinement {
        uid: start.id,
        gid: start.id,
        writable: &[store, authority],
        readable: &random,
        connects: false,
    })
    .context("cannot be confined")?;
    if !landlock {
        tracing::warn!(
            "this kernel has no Landlock: file permissions alone bound what the front reads and writes"
        );
    }
    runtime()?.block_on(async {
        let root = Arc::new(Channel::new(input)?);
        let mut front = match Front::start(start, descriptors, &root).await {
            Ok(front) => front,
            Err(error) => {
                root.send(&FromFront::Failed(format!("{error:#}")), &[]).await?;
                // The root process reports it.
                return Ok(());
            }
        };
        crate::lean::stay();
        let outcome = tokio::select! {
            told = next(&root) => Ok(told),
            failed = front.failed() => Err(failed),
        };
        if let Ok(Some(ToFront::Stop)) = outcome {
            front.shutdown.trigger();
            // The node of the root process still writes to the API.
            while next(&root).await.is_some() {}
        }
        front.stop().await;
        outcome.map(drop)
    })
}

/// Receives the next message of the root process; `None` when it has closed its end.
async fn next(root: &Channel) -> Option<ToFront> {
    root.receive_bare().await.ok()??.decode().ok()
}

/// The services of the front.
struct Front {
    api: ApiServer,
    services: JoinSet<anyhow::Result<()>>,
    shutdown: Shutdown,
    // Held until the store is closed: the lock of the data folder.
    _lock: OwnedFd,
}

/// Descriptors in the order of [`Start`].
struct Sockets {
    api: TcpListener,
    kubelet: OwnedFd,
    node: OwnedFd,
    router: Option<TcpListener>,
    audit: Option<OwnedFd>,
    callouts: Option<OwnedFd>,
    lock: OwnedFd,
}

impl Sockets {
    fn of(start: &Start, descriptors: Vec<OwnedFd>) -> anyhow::Result<Sockets> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().context("a descriptor is missing");
        let (api, kubelet, node) = (next()?, next()?, next()?);
        let router = if start.router.is_some() { Some(next()?.into()) } else { None };
        let audit = if start.audit == AuditMode::Off { None } else { Some(next()?) };
        let callouts = if start.webhook_hosts.is_empty() { None } else { Some(next()?) };
        Ok(Sockets { api: api.into(), kubelet, node, router, audit, callouts, lock: next()? })
    }
}

impl Front {
    async fn start(start: Start, descriptors: Vec<OwnedFd>, root: &Arc<Channel>) -> anyhow::Result<Front> {
        let sockets = Sockets::of(&start, descriptors)?;
        let authority = Arc::new(Authority::open(Path::new("ca")).context("the certificate authority")?);
        // Clients compare the address by which they connect.
        let tls = authority.server_config(&start.reached_at).context("the server's certificate")?;
        let api = ApiServer::open(hutch_apiserver::Config {
            data: Some(".".into()),
            default_node: Some(NODE.to_owned()),
            address: start.api.to_string(),
            roles: roles::all()?,
            authority: Some(authority.clone()),
            ..hutch_apiserver::Config::default()
        })
        .await
        .with_context(|| format!("--data-dir {}", start.folder.display()))?;
        let log = sockets.audit.map(|socket| FrontLog::new(socket, start.audit == AuditMode::Strict));
        let log = log.transpose().context("the audit log")?.map(Arc::new);
        if let Some(log) = &log {
            api.set_audit(log.clone());
        }
        let token = kubeconfig::admin_token(Path::new("ca/admin.token"))?;
        api.accept_token(&token, Identity::admin());

        let shutdown = Shutdown::new();
        let mut services = JoinSet::new();
        let (router_service, controller_service) =
            (Arc::new(RouterService::default()), Arc::new(ControllerService::default()));
        let embedded = [
            (ServiceKind::Router.name().to_owned(), router_service.clone() as Arc<dyn Service>),
            (ServiceKind::Controller.name().to_owned(), controller_service.clone()),
        ];
        let screens = Screens::start(api.client(roles::screens(), "default"), log.clone(), &shutdown);
        let node: Arc<dyn Kubelet> = Arc::new(RemoteKubelet::new(sockets.kubelet, embedded)?);
        let kubelet: Arc<dyn Kubelet> = Arc::new(ScreenedKubelet::new(node, screens.clone()));
        api.set_kubelet(kubelet.clone());
        if let Some(socket) = sockets.callouts {
            api.set_connector(Arc::new(
                Callouts::new(socket, start.webhook_hosts).context("--webhook-host")?,
            ));
        }
        let node_app = api.router_of_node(roles::node(NODE));
        // It ends when the root process closes its socket, after everything else.
        tokio::spawn(hutch_serve::pair::serve(sockets.node, node_app));

        let client = api.client(roles::router(), "default");
        let router = router(client, kubelet, (screens, log), &shutdown);
        router_service.is(router.clone());
        controllers(&mut services, &api, &controller_service, authority.certificate_pem(), &shutdown);
        let (app, stop) = (api.authenticated(), shutdown.clone());
        let listener = Listener::over(listener(sockets.api)?).context("--api-listen")?;
        services.spawn(async move {
            listener.serve_tls(app, tls, stop).await;
            Ok(())
        });
        if let (Some(socket), Some(how)) = (sockets.router, start.router) {
            listen(&mut services, listener_of_router(socket)?, &router, how, &shutdown)?;
        }
        bootstrap::run(&api.client_unhooked(roles::bootstrap(), "default")).await?;
        let credentials = Credentials { authority: authority.certificate_pem().to_owned(), token };
        root.send(&FromFront::Serving(credentials), &[]).await?;
        tokio::spawn(report_ready(root.clone(), router_service, controller_service));
        Ok(Front { api, services, shutdown, _lock: sockets.lock })
    }

    /// Resolves when a service ended unexpectedly.
    async fn failed(&mut self) -> anyhow::Error {
        match self.services.join_next().await {
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a service ended by itself"),
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::anyhow!("a service panicked: {error}"),
        }
    }

    /// Ends the services, then the store.
    async fn stop(mut self) {
        self.shutdown.trigger();
        let stopped = async { while self.services.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_LIMIT, stopped).await.is_err() {
            tracing::warn!("services did not stop within {STOP_LIMIT:?}");
        }
        self.api.close().await;
    }
}

fn listener(socket: TcpListener) -> anyhow::Result<tokio::net::TcpListener> {
    socket.set_nonblocking(true)?;
    Ok(tokio::net::TcpListener::from_std(socket)?)
}

fn listener_of_router(socket: TcpListener) -> anyhow::Result<tokio::net::TcpListener> {
    listener(socket).context("--router-listen")
}

/// Reports each service that Pods represent when it is ready.
async fn report_ready(
    root: Arc<Channel>,
    router: Arc<RouterService>,
    controller: Arc<ControllerService>,
) -> anyhow::Result<()> {
    let mut waiting = vec![
        (ServiceKind::Router, Box::new(move || router.is_ready()) as Box<dyn Fn() -> bool + Send + Sync>),
        (ServiceKind::Controller, Box::new(move || controller.is_ready())),
    ];
    while !waiting.is_empty() {
        let ready: Vec<ServiceKind> =
            waiting.iter().filter(|(_, ready)| ready()).map(|(kind, _)| *kind).collect();
        for kind in ready {
            root.send(&FromFront::Ready(kind.name().to_owned()), &[]).await?;
            waiting.retain(|(other, _)| *other != kind);
        }
        tokio::time::sleep(READY_INTERVAL).await;
    }
    Ok(())
}

/// Starts the router, which connects from inside a sandbox's network namespace and wakes Sandboxes.
fn router(
    client: Client,
    kubelet: Arc<dyn Kubelet>,
    (screens, log): (Arc<Screens>, Option<Arc<FrontLog>>),
    shutdown: &Shutdown,
) -> Router {
    let directory = Directory::start(client.clone(), Scope::default(), shutdown);
    let wake = Arc::new(ApiWake::new(client));
    let audit = log.map(|log| Arc::new(RequestLog::new(log)) as Arc<dyn hutch_router::Audit>);
    let config = hutch_router::Config { audit, screens: Some(screens), ..hutch_router::Config::default() };
    Router::waking(config, directory, Arc::new(Inside(kubelet)), Some(wake), shutdown.clone())
}

/// Starts the controllers of the four kinds, and those of kube-controller-manager.
fn controllers(
    services: &mut JoinSet<anyhow::Result<()>>,
    api: &ApiServer,
    service: &Arc<ControllerService>,
    root_ca: &str,
    shutdown: &Shutdown,
) {
    // They only write to the API, so they need not wait for the disk between two writes.
    let ahead = |identity| api.client_ahead(identity, "default");
    let (client, stop, service) = (ahead(roles::controller()), shutdown.clone(), service.clone());
    services.spawn(async move {
        service.set_ready(true);
        // Writes are cheap here, and the next claim needs a refilled pool.
        let config = hutch_controller::Config {
            late_env: true,
            snapshots: true,
            give_way: Duration::ZERO,
            // A try costs little here, and no event reports that a quota or a disk has room again.
            longest_backoff: LONGEST_BACKOFF,
            retry_refused_claims: true,
            ..hutch_controller::Config::default()
        };
        hutch_controller::run(client, config, stop).await;
        service.set_ready(false);
        Ok(())
    });
    let (client, stop) = (ahead(roles::controller_manager()), shutdown.wait());
    let settings =
        hutch_upkeep::Settings { root_ca: root_ca.to_owned(), ..hutch_upkeep::Settings::default() };
    services
        .spawn(async move { hutch_upkeep::run(client, settings, stop).await.context("controller manager") });
}

/// Starts the router's own TCP listener, which requires a token unless a flag disables that.
fn listen(
    services: &mut JoinSet<anyhow::Result<()>>,
    socket: tokio::net::TcpListener,
    router: &Router,
    how: RouterListener,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let access = if how.unauthenticated {
        Access::Anyone
    } else {
        Access::Token(Token::new(&kubeconfig::admin_token(Path::new("ca/router.token"))?)?)
    };
    let (router, shutdown) = (router.clone(), shutdown.clone());
    services.spawn(async move {
        router.serve(socket, None, access, shutdown, ROUTER_GRACE).await;
        Ok(())
    });
    Ok(())
}
