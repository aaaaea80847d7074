//! Wires the router to a cluster's API and to its listeners.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hutch_router::{
    Access, AccessLog, ApiWake, Config, Direct, Directory, LogSink, PodKey, Reporting, ReviewConfig,
    Reviewer, Router, Scope, Threads, Tls, TlsFiles, TokenKey, Wake,
};
use hutch_serve::{Listener, Shutdown};
use kube::Client;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::options::{Mode, Options};
use crate::address::BindAddress;
use crate::signals;
use crate::telemetry::Exporter;

/// Name of the service in traces.
const SERVICE: &str = "sandbox-router";
/// Maximum time of the first list of Sandboxes and Pods.
const SYNC_LIMIT: Duration = Duration::from_secs(60);
/// Interval of checks for its end.
const SYNC_PAUSE: Duration = Duration::from_millis(20);

/// Serves until SIGTERM or SIGINT, and then until requests in progress have been answered.
pub(super) async fn serve(options: Options, log: Arc<LogSink>) -> anyhow::Result<()> {
    let told = signals::to_stop()?;
    hutch_serve::raise_descriptor_limit();
    let (shutdown, drain) = (Shutdown::new(), Shutdown::new());
    let exporter = options.tracing.then(|| Exporter::start(SERVICE)).transpose()?;
    let mut config = config(&options, log)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = Threads::start(processors).context("cannot start threads")?;
    config.threads = Some(threads.clone());
    config.tracer = exporter.as_ref().map(Exporter::tracer);
    tokio::select! {
        started = start(&options, config, &drain, &shutdown) => {
            let (router, mut listeners) = started?;
            println!("ready");
            crate::lean::stay();
            told.wait().await;
            router.drain();
            drain.trigger();
            while listeners.join_next().await.is_some() {}
        }
        () = told.wait() => {}
    }
    shutdown.trigger();
    // Their last lines and spans are written at the end.
    threads.stop();
    if let Some(exporter) = exporter {
        exporter.end().await;
    }
    Ok(())
}

async fn start(
    options: &Options,
    config: Config,
    drain: &Shutdown,
    shutdown: &Shutdown,
) -> anyhow::Result<(Router, JoinSet<()>)> {
    // Files and ports first: a start that fails for one of them sends no request.
    let client = client(options).await?;
    let access = access(options, &client)?;
    let tls = match &options.https {
        None => None,
        Some((address, files)) => {
            let files = TlsFiles {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                client_authority: files.client_authority.clone(),
                client: files.client,
            };
            Some((bind("--https-bind-address", address).await?, Tls::open(files)?))
        }
    };
    let http = match &options.http {
        Some(address) => Some(bind("--http-bind-address", address).await?),
        None => None,
    };
    let scope = Scope {
        namespace: options.cache_namespace.clone(),
        without_watches: !options.cache,
        pods_alone: false,
    };
    let scope = scope.find_out(&client).await.context("cannot list Sandboxes through the Kubernetes API")?;
    if scope.pods_alone {
        tracing::warn!("Sandboxes may not be read: each is reached by the Pod of its name");
    }
    let directory = Directory::start(client.clone(), scope, shutdown);
    let wake = options.wake_on_connect.then(|| Arc::new(ApiWake::new(client.clone())) as Arc<dyn Wake>);
    let direct = Direct { allow_loopback: options.allow_loopback };
    let dial = Arc::new(Reporting::start(direct, client, shutdown.clone()));
    dial.poll_activity(directory.clone(), config.pod_key.clone());
    let router = Router::waking(config, directory, dial, wake, shutdown.clone());
    for (flag, address, app) in [
        ("--health-probe-bind-address", &options.health, hutch_router::health(&router)),
        ("--metrics-bind-address", &options.metrics, hutch_router::metrics_page(&router)),
    ] {
        if let Some(address) = address {
            let listener = Listener::over(bind(flag, address).await?)?;
            say(flag, listener.address());
            tokio::spawn(listener.serve(app, shutdown.clone()));
        }
    }
    synced(&router).await?;
    let mut listeners = JoinSet::new();
    let grace = options.shutdown_timeout;
    if let Some(socket) = http {
        say("--http-bind-address", socket.local_addr()?);
        listeners.spawn(router.clone().serve(socket, None, access.clone(), drain.clone(), grace));
    }
    if let Some((socket, tls)) = tls {
        say("--https-bind-address", socket.local_addr()?);
        tokio::spawn(tls.clone().follow(router.metrics().clone(), shutdown.clone()));
        listeners.spawn(router.clone().serve(socket, Some(tls), access, drain.clone(), grace));
    }
    Ok((router, listeners))
}

fn config(options: &Options, log: Arc<LogSink>) -> anyhow::Result<Config> {
    let default = Config::default();
    let pod_key =
        options.sandboxd_key.as_deref().map(|file| pod_key(file, "--sandboxd-key-file")).transpose()?;
    Ok(Config {
        retry_delays: options.retry_delays.clone(),
        header_timeout: options.response_header_timeout.unwrap_or(default.header_timeout),
        header_timeout_limit: options.response_header_timeout.unwrap_or(default.header_timeout_limit),
        exchange_timeout: options.proxy_timeout,
        body_limit: options.body_limit,
        allow_loopback: options.allow_loopback,
        access_log: if options.access_log { AccessLog::Lines(log) } else { AccessLog::Off },
        pod_key: pod_key.map(Arc::new),
        ..default
    })
}

async fn client(options: &Options) -> anyhow::Result<Client> {
    let mut config = crate::cluster::config(options.kubeconfig.as_deref()).await?;
    // A watch is silent while nothing changes.
    config.read_timeout = None;
    hutch_serve::retry::client(config).context("the Kubernetes API")
}

fn access(options: &Options, client: &Client) -> anyhow::Result<Access> {
    Ok(match &options.mode {
        Mode::AllowAll => Access::Anyone,
        Mode::ScopedToken(file) => Access::Scoped(Arc::new(key(file, "--authz-scoped-token-secret-file")?)),
        Mode::TokenReview { ttl, cache_size, audiences } => {
            let config = ReviewConfig { ttl: *ttl, cache_size: *cache_size, audiences: audiences.clone() };
            Access::Reviewed(Arc::new(Reviewer::new(client.clone(), config)))
        }
    })
}

/// Reads the key of scoped tokens from its file; `flag` named it.
pub(crate) fn key(file: &std::path::Path, flag: &str) -> anyhow::Result<TokenKey> {
    TokenKey::new(&secret(file, flag)?).with_context(|| format!("{flag}: {}", file.display()))
}

/// Reads the key of the tokens that sandboxd in Pods demand from its file; `flag` named it.
pub(crate) fn pod_key(file: &std::path::Path, flag: &str) -> anyhow::Result<PodKey> {
    PodKey::new(&secret(file, flag)?).with_context(|| format!("{flag}: {}", file.display()))
}

fn secret(file: &std::path::Path, flag: &str) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{flag}: cannot read {}", file.display()))
}

async fn bind(flag: &str, address: &BindAddress) -> anyhow::Result<TcpListener> {
    address.bind().await.with_context(|| format!("{flag}: cannot listen on {address}"))
}

fn say(flag: &str, address: std::net::SocketAddr) {
    let name = flag.trim_start_matches("--").trim_end_matches("-bind-address");
    println!("{name:<14}{address}");
}

async fn synced(router: &Router) -> anyhow::Result<()> {
    let known = async {
        while !router.ready() {
            tokio::time::sleep(SYNC_PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(SYNC_LIMIT, known).await;
    waited
        .with_context(|| format!("the API did not list Sandboxes and Pods within {} s", SYNC_LIMIT.as_secs()))
}
