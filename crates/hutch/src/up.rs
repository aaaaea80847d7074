//! `hutch up`: opens the data folder, starts every service in this process, says where they listen.
//!
//! The services know each other only through the API and the contract of [`hutch_remote::Kubelet`]; this is the one
//! place that knows all of them.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_apiserver::{ApiServer, Identity};
use hutch_node::{Handler, Node, ServiceKind};
use hutch_remote::Kubelet;
use hutch_router::{Access, ApiWake, Directory, Inside, Router, Scope, Token};
use hutch_serve::{Authority, Listener, Shutdown};
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::cli::UpArguments;
use crate::folder::DataFolder;
use crate::services::{ControllerService, RouterService};
use crate::{bootstrap, kubeconfig, programs, roles, signals};

/// Name of the one Node.
const NODE: &str = "hutch";
/// How long requests at the router's own address may go on after the shutdown.
const ROUTER_GRACE: Duration = Duration::from_secs(2);
/// How long services may take to stop before the process ends without them.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Runs it until SIGTERM or SIGINT.
pub(crate) fn main(arguments: UpArguments) -> ExitCode {
    log("warn,hutch=info");
    match up(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch up: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard error what `HUTCH_LOG` says, else what is given.
pub(crate) fn log(default: &str) {
    let wanted = tracing_subscriber::EnvFilter::try_from_env("HUTCH_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(wanted.unwrap_or_else(|_| default.into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

fn up(arguments: &UpArguments) -> anyhow::Result<()> {
    check_root("up")?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let told = signals::to_stop()?;
        let mut server = start(arguments).await?;
        server.announce();
        crate::lean::stay();
        let outcome = tokio::select! {
            () = told.wait() => Ok(()),
            failed = server.failed() => Err(failed),
        };
        server.stop().await;
        outcome
    })
}

/// Jails with id ranges, idmapped volumes and cgroups need root; the API server alone would be of no use.
pub(crate) fn check_root(command: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to give each sandbox its own ids and limits: sudo hutch {command}");
    }
    Ok(())
}

/// The runtime of all services, which may have as many descriptors as the system allows.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    hutch_serve::raise_descriptor_limit();
    choose_tls();
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")
}

/// To be called before TLS is used anywhere.
pub(crate) fn choose_tls() {
    // Two TLS providers could be compiled in; everything here uses this one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// All services of one process.
pub(crate) struct Server {
    api: ApiServer,
    client: Client,
    node: Arc<Node>,
    services: JoinSet<anyhow::Result<()>>,
    shutdown: Shutdown,
    said: Vec<(&'static str, String)>,
    // Last, so that the folder is locked until everything else has gone.
    _folder: DataFolder,
}

impl Server {
    /// A client of the API in this process, as admin.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Where everything is; the last line is `ready`.
    fn announce(&self) {
        for (name, value) in &self.said {
            println!("{name:<12}{value}");
        }
        println!("ready");
    }

    /// Resolves when a service ended that should not have.
    async fn failed(&mut self) -> anyhow::Error {
        match self.services.join_next().await {
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a service ended by itself"),
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::anyhow!("a service panicked: {error}"),
        }
    }

    /// Stops in order: no new requests, then the jails, then the store.
    pub(crate) async fn stop(mut self) {
        self.shutdown.trigger();
        let stopped = async {
            self.node.stopped().await;
            while self.services.join_next().await.is_some() {}
        };
        if tokio::time::timeout(STOP_LIMIT, stopped).await.is_err() {
            tracing::warn!("services did not stop within {STOP_LIMIT:?}");
        }
        self.api.close().await;
    }
}

/// Starts everything; returns when the API answers.
pub(crate) async fn start(arguments: &UpArguments) -> anyhow::Result<Server> {
    let runtime_classes = runtime_classes(&arguments.runtime_class)?;
    let folder = DataFolder::open(&arguments.data_dir)?;
    // Ports first: a start that fails for one has changed nothing.
    let api_listener = Listener::bind(arguments.api_listen).await.context("--api-listen")?;
    let router_listener = match arguments.router_listen {
        Some(address) => Some(bind_router(address).await?),
        None => None,
    };
    let programs = programs::install(&folder.join("bin"))?;
    let authority = Arc::new(Authority::open(&folder.join("ca")).context("the certificate authority")?);
    let tls = authority.server_config(&[]).context("the server's certificate")?;
    let address = api_listener.address();
    let api = ApiServer::open(hutch_apiserver::Config {
        data: Some(folder.path().to_owned()),
        default_node: Some(NODE.to_owned()),
        address: address.to_string(),
        roles: roles::all()?,
        authority: Some(authority.clone()),
        ..hutch_apiserver::Config::default()
    })
    .await
    .with_context(|| format!("--data-dir {}", folder.path().display()))?;
    let token = kubeconfig::admin_token(&folder.join("ca/admin.token"))?;
    api.accept_token(&token, Identity::admin()).context("the admin credential")?;

    let shutdown = Shutdown::new();
    let mut services = JoinSet::new();
    let router_service = Arc::new(RouterService::default());
    let controller_service = Arc::new(ControllerService::default());
    let embedded = BTreeMap::from([
        (ServiceKind::Router, router_service.clone() as Arc<dyn hutch_node::EmbeddedService>),
        (ServiceKind::Controller, controller_service.clone()),
    ]);
    let config = node_config(arguments, &folder, programs, runtime_classes, embedded)?;
    let node = Node::start(api.client(roles::node(NODE), "default"), config, shutdown.clone())
        .await
        .context("the node")?;
    let node = Arc::new(node);
    let kubelet: Arc<dyn Kubelet> = node.clone();
    api.set_kubelet(kubelet.clone());

    let router = router(api.client(roles::router(), "default"), kubelet, &shutdown);
    router_service.is(router.clone());
    controllers(&mut services, &api, &controller_service, authority.certificate_pem(), &shutdown);

    let mut said = vec![("API", format!("https://{address}"))];
    let app = api.authenticated();
    services.spawn({
        let shutdown = shutdown.clone();
        async move {
            api_listener.serve_tls(app, tls, shutdown).await;
            Ok(())
        }
    });
    said.push((
        "router",
        match router_listener {
            Some(socket) => listen(&mut services, socket, &router, arguments, &folder, &shutdown)?,
            None => "kubectl port-forward -n agent-sandbox-system svc/sandbox-router-svc 8080".to_owned(),
        },
    ));
    bootstrap::run(&api.client(roles::bootstrap(), "default")).await?;
    let client = api.client(Identity::admin(), "default");
    let file = arguments.kubeconfig.clone().unwrap_or_else(|| folder.join("kubeconfig"));
    kubeconfig::write(&file, address, authority.certificate_pem(), &token)?;
    said.extend([("kubeconfig", file.display().to_string()), ("data", folder.path().display().to_string())]);
    Ok(Server { api, client, node, services, shutdown, said, _folder: folder })
}

/// The router: it connects from inside a sandbox's network namespace, and wakes what wants to be woken.
fn router(client: Client, kubelet: Arc<dyn Kubelet>, shutdown: &Shutdown) -> Router {
    let directory = Directory::start(client.clone(), Scope::default(), shutdown);
    let wake = Arc::new(ApiWake::new(client));
    let config = hutch_router::Config::default();
    Router::waking(config, directory, Arc::new(Inside(kubelet)), Some(wake), shutdown.clone())
}

fn node_config(
    arguments: &UpArguments,
    folder: &DataFolder,
    programs: programs::Programs,
    runtime_classes: BTreeMap<String, Handler>,
    services: BTreeMap<ServiceKind, Arc<dyn hutch_node::EmbeddedService>>,
) -> anyhow::Result<hutch_node::Config> {
    let image_dir = arguments.image_dir.as_deref().map(image_dir).transpose()?;
    Ok(hutch_node::Config {
        node_name: NODE.to_owned(),
        data_dir: folder.path().to_owned(),
        pod_cidr: arguments.pod_cidr.clone(),
        warden_program: programs.warden,
        sandboxd_program: programs.sandboxd,
        runtime_classes,
        defaults: hutch_node::DefaultLimits::default(),
        services,
        substitute_images: !arguments.no_builtin_runtime_images,
        image_dir,
    })
}

/// The absolute path of `--image-dir`, which must be a folder.
fn image_dir(given: &Path) -> anyhow::Result<PathBuf> {
    let named = || format!("--image-dir {}", given.display());
    if !given.metadata().with_context(named)?.is_dir() {
        bail!("{}: not a folder; name one that holds folders in the OCI layout", named());
    }
    std::path::absolute(given).with_context(named)
}

/// The controllers of the four kinds, and those that Kubernetes itself would bring.
fn controllers(
    services: &mut JoinSet<anyhow::Result<()>>,
    api: &ApiServer,
    service: &Arc<ControllerService>,
    root_ca: &str,
    shutdown: &Shutdown,
) {
    // All that they do is to write to the API, so they need not wait for the disk between a cause and its effect.
    let ahead = |identity| api.client_ahead(identity, "default");
    let (client, stop, service) = (ahead(roles::controller()), shutdown.clone(), service.clone());
    services.spawn(async move {
        service.set_ready(true);
        // Writes cost little here, and a pool that is refilled at once is what the next claim needs.
        let config = hutch_controller::Config {
            late_env: true,
            give_way: Duration::ZERO,
            ..hutch_controller::Config::default()
        };
        hutch_controller::run(client, config, stop).await;
        service.set_ready(false);
        Ok(())
    });
    let (client, stop) = (ahead(roles::upkeep()), shutdown.wait());
    let settings =
        hutch_upkeep::Settings { root_ca: root_ca.to_owned(), ..hutch_upkeep::Settings::default() };
    services.spawn(async move { hutch_upkeep::run(client, settings, stop).await.context("upkeep") });
}

async fn bind_router(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("--router-listen: cannot listen on {address}"))
}

/// The router's own TCP listener: only when asked for, with a token unless that too was declined in so many words.
fn listen(
    services: &mut JoinSet<anyhow::Result<()>>,
    socket: TcpListener,
    router: &Router,
    arguments: &UpArguments,
    folder: &DataFolder,
    shutdown: &Shutdown,
) -> anyhow::Result<String> {
    let address = socket.local_addr().context("--router-listen")?;
    let (access, how) = if arguments.router_allow_unauthenticated {
        (Access::Anyone, "anybody who reaches it may use every sandbox".to_owned())
    } else {
        let file: PathBuf = folder.join("ca/router.token");
        let token = kubeconfig::admin_token(&file)?;
        (Access::Token(Token::new(&token)?), format!("bearer token in {}", file.display()))
    };
    let (router, shutdown) = (router.clone(), shutdown.clone());
    services.spawn(async move {
        router.serve(socket, None, access, shutdown, ROUTER_GRACE).await;
        Ok(())
    });
    Ok(format!("http://{address} ({how})"))
}

fn runtime_classes(given: &[(String, String)]) -> anyhow::Result<BTreeMap<String, Handler>> {
    let mut classes = Handler::defaults();
    for (name, handler) in given {
        let Some(parsed) = Handler::parse(handler) else {
            bail!("--runtime-class {name}={handler}: no handler `{handler}`; there are hutch and gvisor");
        };
        classes.insert(name.clone(), parsed);
    }
    Ok(classes)
}
