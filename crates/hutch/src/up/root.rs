//! The root process of `hutch up`: the node and its jails. It opens the data folder and every socket, starts the front
//! ([`super::front`]), and acts on the objects of the front's API server after it has checked each one again.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_jail::{IdRange, IdRanges};
use hutch_kubelet::{Duplex, StreamError};
use hutch_node::{EmbeddedService, Handler, Node, ServiceKind};
use hutch_privsep::Channel;
use hutch_serve::Shutdown;
use tokio::task::JoinHandle;

use super::audit::AuditLog;
use super::egress::Egress;
use super::image_gc::ImageGc;
use super::messages::{Credentials, FromFront, RouterListener, Start, ToFront, send_start};
use super::pulls::Pulls;
use super::sources::{Allowed, Sources};
use super::vault::Vault;
use super::{NODE, STOP_LIMIT, addresses, callouts, front};
use crate::cli::{AuditMode, UpArguments};
use crate::folder::DataFolder;
use crate::programs::Programs;
use crate::{kubeconfig, programs};

/// Interval of checks for the end of the front.
const END_INTERVAL: Duration = Duration::from_millis(2);

/// Both processes.
pub(crate) struct Server {
    audit: Option<Arc<AuditLog>>,
    node: Arc<Node>,
    shutdown: Shutdown,
    front: Front,
    kubeconfig: PathBuf,
    /// Printed lines.
    lines: Vec<(&'static str, String)>,
    // Last, so that the folder is locked and the ids are taken until everything else has gone.
    _ids: IdRange,
    _folder: DataFolder,
}

/// A process that is killed on drop, if it still runs.
struct Process(Child);

impl Process {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It may have ended meanwhile.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// The front process.
struct Front {
    process: Process,
    channel: Arc<Channel>,
    /// Task that receives its messages and ends with it.
    messages: JoinHandle<anyhow::Error>,
    /// Task that answers its requests into Pods.
    streams: JoinHandle<std::io::Result<()>>,
    /// Task that receives its records for the audit log.
    records: Option<JoinHandle<std::io::Result<()>>>,
}

/// A service of the front, for the Pods that represent it.
#[derive(Default)]
struct FrontService(AtomicBool);

impl EmbeddedService for FrontService {
    fn ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn connect(&self, _port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>> {
        // The front connects to its own services.
        async { Err(StreamError::Unavailable("the service runs in the front".into())) }.boxed()
    }
}

type FrontServices = BTreeMap<ServiceKind, Arc<FrontService>>;

impl Server {
    /// Returns the addresses and paths that `hutch up` prints.
    pub(super) fn lines(&self) -> &[(&'static str, String)] {
        &self.lines
    }

    /// Returns a client of the API, as admin.
    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        let file = kube::config::Kubeconfig::read_from(&self.kubeconfig).context("the kubeconfig")?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await.context("the kubeconfig")?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Resolves when the front has ended, or can no longer be relied on.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        let streams = async {
            match (&mut self.front.streams).await {
                Ok(Err(error)) => anyhow::anyhow!("the front broke the protocol: {error}"),
                // Its end shows on the other channel.
                _ => std::future::pending().await,
            }
        };
        let records = async {
            match &mut self.front.records {
                Some(records) => match records.await {
                    Ok(Err(error)) => anyhow::anyhow!("the front broke the protocol: {error}"),
                    _ => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            broken = records => broken,
            ended = &mut self.front.messages => {
                ended.unwrap_or_else(|error| anyhow::anyhow!("the front is not followed: {error}"))
            }
            broken = streams => broken,
        }
    }

    /// Stops in order: no new requests, then the jails, then the store.
    pub(crate) async fn stop(mut self) {
        // A front that has ended already needs no message.
        let _ = self.front.channel.try_send(&ToFront::Stop);
        self.shutdown.trigger();
        if tokio::time::timeout(STOP_LIMIT, self.node.stopped()).await.is_err() {
            tracing::warn!("the node did not stop within {STOP_LIMIT:?}");
        }
        self.front.messages.abort();
        self.front.streams.abort();
        // The front ends when the last descriptor of this channel is closed.
        drop(self.front.channel);
        // It holds the channel too. `failed` has seen the end of a finished one.
        if !self.front.messages.is_finished() {
            let _ = (&mut self.front.messages).await;
        }
        end(self.front.process).await;
        // `failed` has seen the end of a finished one.
        if let Some(records) = self.front.records.filter(|records| !records.is_finished()) {
            // The front has ended, so what it has sent is read soon.
            let _ = tokio::time::timeout(STOP_LIMIT, records).await;
        }
        if let Some(log) = &self.audit {
            log.close().await;
        }
    }
}

/// Waits for the end of the front, and kills it after a timeout.
async fn end(mut process: Process) {
    let until = Instant::now() + STOP_LIMIT;
    while !process.has_ended() {
        if Instant::now() > until {
            tracing::warn!("the front did not stop within {STOP_LIMIT:?}");
            return;
        }
        tokio::time::sleep(END_INTERVAL).await;
    }
}

/// Starts both processes; returns when the API answers and Pods can be started. To be called on the main thread: the
/// kernel ends the front with the thread that started it.
pub(crate) async fn start(arguments: &UpArguments) -> anyhow::Result<Server> {
    let allowed = Allowed::new(arguments.credentials_dir.as_deref(), &arguments.credential_env)?;
    let runtime_classes = runtime_classes(&arguments.runtime_class)?;
    let image_dir = arguments.image_dir.as_deref().map(image_dir).transpose()?;
    let upstream = crate::upstream_proxy::of(arguments.upstream_proxy.as_ref())?;
    let folder = DataFolder::open(&arguments.data_dir)?;
    let image_gc = ImageGc::new(arguments, &folder)?;
    // Binds the ports first: a start that fails here has changed nothing.
    let (api, address) = bind(arguments.api_listen).context("--api-listen")?;
    let router = arguments.router_listen.map(bind).transpose().context("--router-listen")?;
    let metrics = arguments.metrics_listen.map(bind).transpose().context("--metrics-listen")?;
    let programs = programs::install(&folder.join("bin"))?;
    let ids = IdRanges::open(rand::random())?.take()?;
    folder.give(&["store", "ca"], ids.base())?;

    let ((router, router_address), (metrics, metrics_address)) = (router.unzip(), metrics.unzip());
    let unauthenticated = arguments.router_allow_unauthenticated;
    let audit = open_log(&folder, arguments.audit)?;
    let start = first_message(arguments, &folder, (ids.base(), address), router.is_some());
    let (kubelet, front_kubelet) = hutch_privsep::pair()?;
    let (requests, front_requests) = hutch_serve::pair::pair()?;
    let mut sockets = vec![api, front_kubelet, front_requests];
    sockets.extend(router);
    let (records, front_records) = audit.as_ref().map(|_| UnixStream::pair()).transpose()?.unzip();
    sockets.extend(front_records.map(OwnedFd::from));
    sockets.extend(callouts::start(&arguments.webhook_host)?);
    // Last: when the front is killed, the kernel closes it after the listeners, so the next start finds their ports free.
    sockets.push(folder.lock()?);
    let (process, channel) = spawn(&start, &sockets, &arguments.credential_env)?;
    drop(sockets);
    let channel = Arc::new(channel);
    let records = audit.clone().zip(records).map(|(log, records)| tokio::spawn(log.receive(records.into())));
    let credentials = serving(&channel).await?;
    credentials.check().map_err(anyhow::Error::msg)?;

    let client = hutch_serve::pair::client(requests, "default").await.context("the front")?;
    let sources = Sources::new(client.clone(), allowed, Vault::start(arguments)?);
    let egress = Egress::start(&folder, upstream, metrics, audit.clone(), sources).await;
    let egress = egress.context("the proxy of the sandboxes")?;
    let services: FrontServices = ServiceKind::ALL.map(|kind| (kind, Arc::default())).into();
    let embedded = services.iter().map(|(kind, service)| (*kind, service.clone() as _));
    let pulls = Pulls::start(arguments, &folder)?;
    let config = hutch_node::Config {
        runtime_classes,
        services: embedded.collect(),
        image_dir,
        puller: pulls.map(|pulls| Arc::new(pulls) as Arc<dyn hutch_node::ImagePuller>),
        egress: Some(Arc::new(egress)),
        journal: audit.clone().map(|log| log as Arc<dyn hutch_node::Journal>),
        ..node_config(arguments, &folder, programs)
    };
    let (shutdown, messages) = (Shutdown::new(), tokio::spawn(follow(channel.clone(), services)));
    let node = Node::start(client.clone(), config, shutdown.clone()).await;
    let node = Arc::new(node.context("the node")?);
    tokio::spawn(image_gc.run(client));
    let streams = tokio::spawn(hutch_privsep::serve(kubelet, node.clone()));
    let file = arguments.kubeconfig.clone().unwrap_or_else(|| folder.join("kubeconfig"));
    kubeconfig::write(&file, address, &credentials.authority, &credentials.token)?;
    let lines = lines(&folder, (address, router_address, metrics_address), unauthenticated, &file);
    let front = Front { process, channel, messages, streams, records };
    Ok(Server { audit, node, shutdown, front, kubeconfig: file, lines, _ids: ids, _folder: folder })
}

/// Returns the part of the node's configuration that is known before anything runs.
fn node_config(arguments: &UpArguments, folder: &DataFolder, programs: Programs) -> hutch_node::Config {
    let private = [&arguments.credentials_dir, &arguments.vault_token_file, &arguments.kubeconfig];
    hutch_node::Config {
        node_name: NODE.to_owned(),
        data_dir: folder.path().to_owned(),
        pod_cidr: arguments.pod_cidr.clone(),
        meminfo: "/proc/meminfo".into(),
        warden_program: programs.warden,
        sandboxd_program: programs.sandboxd,
        runtime_classes: BTreeMap::new(),
        defaults: hutch_node::DefaultLimits::default(),
        services: BTreeMap::new(),
        substitute_images: !arguments.no_builtin_runtime_images,
        image_dir: None,
        snapshot_disk_high: arguments.snapshot_disk_high,
        host_paths: arguments.host_path.clone(),
        private_paths: private.into_iter().flatten().cloned().collect(),
        unpacker: Some(crate::unpack::unpacker()),
        pulled: folder.join(crate::image::PULLED),
        puller: None,
        egress: None,
        journal: None,
    }
}

/// Returns the first message to the front, which has this id and serves the API at this address.
fn first_message(
    arguments: &UpArguments,
    folder: &DataFolder,
    (id, api): (u32, SocketAddr),
    has_router: bool,
) -> Start {
    let unauthenticated = arguments.router_allow_unauthenticated;
    Start {
        folder: folder.path().to_owned(),
        id,
        api,
        reached_at: addresses::reaching(api.ip()),
        router: has_router.then_some(RouterListener { unauthenticated }),
        audit: arguments.audit,
        webhook_hosts: arguments.webhook_host.clone(),
    }
}

/// Opens the audit log, if there is to be one.
fn open_log(folder: &DataFolder, mode: AuditMode) -> anyhow::Result<Option<Arc<AuditLog>>> {
    match mode {
        AuditMode::Off => Ok(None),
        mode => AuditLog::open(&folder.join("audit"), mode == AuditMode::Strict).map(Some),
    }
}

/// Returns the lines that are printed, with the addresses of the API, the router and the metrics.
fn lines(
    folder: &DataFolder,
    (api, router, metrics): (SocketAddr, Option<SocketAddr>, Option<SocketAddr>),
    unauthenticated: bool,
    kubeconfig: &Path,
) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("API", format!("https://{api}")),
        ("router", router_line(router, unauthenticated, folder)),
        ("kubeconfig", kubeconfig.display().to_string()),
        ("data", folder.path().display().to_string()),
    ];
    lines.extend(metrics.map(|address| ("metrics", format!("http://{address}/metrics"))));
    lines
}

/// Starts the front with its first message. Its further standard streams are those of this process, and so is its
/// environment, without what is secret.
fn spawn(start: &Start, sockets: &[OwnedFd], secret: &[String]) -> anyhow::Result<(Process, Channel)> {
    let (ours, theirs) = hutch_privsep::pair()?;
    let program = "/proc/self/exe";
    let mut command = Command::new(program);
    command.arg0(front::NAME).stdin(theirs).env_remove(crate::upstream_proxy::VARIABLE);
    // Proxies have passwords, too; only the process that pulls images uses one.
    for name in secret.iter().map(String::as_str).chain(hutch_registry::PROXY_VARIABLES) {
        command.env_remove(name);
    }
    let process = Process(command.spawn().context("cannot start the front")?);
    // Dropping the command closes this process's copy of the front's end of the channel, so its end is visible.
    drop(command);
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    send_start(&ours, start, &sockets).context("the front")?;
    Ok((process, Channel::new(ours)?))
}

/// Waits until the front serves.
async fn serving(channel: &Channel) -> anyhow::Result<Credentials> {
    match channel.receive_bare().await.context("the front")? {
        Some(message) => match message.decode().context("the front")? {
            FromFront::Serving(credentials) => Ok(credentials),
            FromFront::Failed(why) => bail!("{why}"),
            FromFront::Ready(_) => bail!("the front is ready before it serves"),
        },
        None => bail!("the front ended while it started"),
    }
}

/// Handles the messages of the front until its end. Returns the reason of the end.
async fn follow(channel: Arc<Channel>, services: FrontServices) -> anyhow::Error {
    loop {
        let received = channel.receive_bare().await.map(|message| message.map(|message| message.decode()));
        match received {
            Ok(Some(Ok(FromFront::Ready(name)))) => {
                for (_, service) in services.iter().filter(|(kind, _)| kind.name() == name) {
                    service.0.store(true, Ordering::Relaxed);
                }
            }
            Ok(Some(Ok(other))) => return anyhow::anyhow!("the front sent {other:?} while it serves"),
            Ok(Some(Err(error))) => return anyhow::anyhow!("the front broke the protocol: {error}"),
            Ok(None) => return anyhow::anyhow!("the front has ended"),
            Err(error) => return anyhow::anyhow!("the front: {error}"),
        }
    }
}

/// Returns a listener at an address, and the address with the port that it has got.
fn bind(address: SocketAddr) -> anyhow::Result<(OwnedFd, SocketAddr)> {
    match TcpListener::bind(address) {
        Ok(socket) => {
            let address = socket.local_addr()?;
            Ok((socket.into(), address))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(hutch_serve::Error::AddressInUse(address).into())
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

fn router_line(address: Option<SocketAddr>, unauthenticated: bool, folder: &DataFolder) -> String {
    let Some(address) = address else {
        return "kubectl port-forward -n agent-sandbox-system svc/sandbox-router-svc 8080".to_owned();
    };
    let how = match unauthenticated {
        true => "every client may use every sandbox".to_owned(),
        false => format!("bearer token in {}", folder.join("ca/router.token").display()),
    };
    format!("http://{address} ({how})")
}

/// Returns the absolute path of `--image-dir`, which must be a folder.
fn image_dir(given: &Path) -> anyhow::Result<PathBuf> {
    let named = || format!("--image-dir {}", given.display());
    if !given.metadata().with_context(named)?.is_dir() {
        bail!("{}: not a folder; name one that holds folders in the OCI layout", named());
    }
    std::path::absolute(given).with_context(named)
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
