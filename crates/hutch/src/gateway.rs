//! `hutch egress --cluster`: the proxy of the Sandboxes of a cluster.
//!
//! This process follows policies and Pods, and knows the key of tokens. What clients send is parsed by the process that it
//! starts, which has no privilege, no file, only hashes of tokens, and the key of the authority by which TLS ends.

mod closing;
mod condition;
mod credentials;
mod news;
mod peers;
pub(crate) mod probe;
mod replicas;
mod secrets;
mod served;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt;
use hutch_api::{Sandbox, SandboxTemplate, label};
use hutch_attach::{
    Events, Objects, SandboxFacts, ServiceFacts, TemplateFacts, in_small_pages, logged, policies_of_kind,
    provider, watch, watch_metadata,
};
use hutch_controller::TokenKey;
use hutch_egress::AuthorityKeys;
use hutch_egress::control::Order;
use hutch_jail::{IdRange, IdRanges};
use hutch_privsep::Channel;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;

use self::closing::Closing;
use self::condition::Plugin;
use self::credentials::Credentials;
use self::peers::{Dialed, Dials};
use self::replicas::Replica;
use self::secrets::{Found, Secrets};
use self::served::Served;
use crate::audit_log::ProxyLog;
use crate::cli::{AuditMode, EgressArguments};
use crate::egress::{Audience, Outside, spawn};
use crate::{signals, upstream_proxy};

/// Maximum time until the levels are applied again when one of them ends: the clock of the machine may be set.
const RECHECK: Duration = Duration::from_secs(10);
/// Time for the first list of NetworkPolicies.
const CLOSINGS: Duration = Duration::from_secs(10);
/// Maximum values of credentials that wait to be taken.
const SECRETS: usize = 64;
/// Maximum time for news of the process of the proxy that have not been taken when it ends.
const LAST: Duration = Duration::from_secs(2);

/// Runs the command with a key file, whose presence the command line requires.
pub(crate) fn serve(arguments: &EgressArguments, key: TokenKey) -> anyhow::Result<()> {
    crate::runtime::log("warn,hutch=info");
    let upstream = upstream_proxy::of(arguments.upstream_proxy.as_ref())?;
    let (listener, address) = bind(arguments.listen).context("--listen")?;
    let metrics = arguments.metrics_listen.map(bind).transpose().context("--metrics-listen")?;
    let folder = arguments.ca_dir.as_deref();
    let authority = folder.map(authority).transpose()?;
    let audit = open_log(arguments)?;
    let ids = match rustix::process::geteuid().is_root() {
        true => Some(IdRanges::open(std::process::id())?.take()?),
        false => None,
    };
    // On this thread, with which the process ends.
    let id = ids.as_ref().map(IdRange::base);
    let (process, channel) =
        spawn(id, Audience::Starter, Outside::new(upstream), (authority.is_some(), false))?;
    let runtime = crate::runtime::one_thread()?;
    runtime.block_on(async {
        let stop = signals::to_stop()?;
        let mut config = crate::cluster::config(arguments.kubeconfig.as_deref()).await?;
        // A watch is silent while nothing changes.
        config.read_timeout = None;
        let own = probe::own_address(&config.cluster_url).context("the address of this Pod")?;
        let client = hutch_serve::retry::client(config).context("the Kubernetes API")?;
        let channel = Channel::new(channel)?;
        if let Some((metrics, address)) = &metrics {
            channel.send(&Order::Metrics, &[metrics.as_fd()]).await.context("the proxy")?;
            eprintln!("hutch: metrics at http://{address}/metrics");
        }
        // Before the first sandbox.
        if let Some(keys) = &authority {
            channel.send(&Order::CommonAuthority { keys: keys.clone() }, &[]).await.context("the proxy")?;
        }
        if let Some(log) = &audit {
            channel.send(&Order::Record { durable: log.is_strict() }, &[]).await.context("the proxy")?;
        }
        let (results, probed) = mpsc::channel(1);
        match arguments.probe_image.clone() {
            Some(image) => drop(tokio::spawn(probe::repeat(client.clone(), own, image, results))),
            None => results.send(Plugin::Unknown).await.context("the probe")?,
        }
        let (worst, plugin) = mpsc::channel(1);
        let replica = Replica::new(client.clone());
        tokio::spawn(replica.clone().share(probed, worst));
        let (found, secrets) = mpsc::channel(SECRETS);
        let (limit, limited) = mpsc::channel(1);
        tokio::spawn(credentials::follow_limit(client.clone(), limit));
        let credentials = Credentials::new(key.clone(), Secrets::new(client.clone(), found));
        let mut served = Served::new(client.clone(), key, credentials, authority.is_some());
        served.awaits_probe = arguments.probe_image.is_some();
        let mut gateway = Gateway::new(client, channel, served, (plugin, secrets, limited), audit);
        let ended = tokio::select! {
            () = stop.wait() => Ok(()),
            ended = gateway.run(listener, address) => ended,
        };
        drop(process);
        gateway.close().await;
        replica.leave().await;
        ended
    })
}

/// Opens the audit log, if there is to be one.
fn open_log(arguments: &EgressArguments) -> anyhow::Result<Option<Arc<ProxyLog>>> {
    let Some(folder) = arguments.data_dir.as_deref().filter(|_| arguments.audit != AuditMode::Off) else {
        return Ok(None);
    };
    let log = ProxyLog::open(&folder.join("audit"), arguments.audit == AuditMode::Strict);
    log.map(|log| Some(Arc::new(log))).with_context(|| format!("--data-dir {}", folder.display()))
}

fn bind(address: SocketAddr) -> anyhow::Result<(OwnedFd, SocketAddr)> {
    let listener = TcpListener::bind(address).with_context(|| address.to_string())?;
    let address = listener.local_addr()?;
    Ok((listener.into(), address))
}

/// Reads the authority by which TLS ends here: certificate and key, in the files of a Secret of type `kubernetes.io/tls`.
fn authority(folder: &Path) -> anyhow::Result<AuthorityKeys> {
    let named = || format!("--ca-dir {}", folder.display());
    let read = |file: &str| {
        std::fs::read_to_string(folder.join(file)).with_context(|| format!("{}: {file}", named()))
    };
    AuthorityKeys::read(&read("tls.crt")?, &read("tls.key")?).with_context(named)
}

/// Watches the Pods of Sandboxes.
fn watch_pods(client: &Client) -> Events<Pod> {
    let config = in_small_pages().labels(label::SANDBOX_NAME_HASH);
    logged(watcher(Api::all(client.clone()), config))
}

/// Watches the Services of all namespaces.
fn watch_services(client: &Client) -> Events<Service> {
    logged(watcher(Api::all(client.clone()), in_small_pages()))
}

/// The gateway.
struct Gateway {
    client: Client,
    channel: Channel,
    objects: Objects,
    served: Served,
    unidentified: HashMap<IpAddr, Instant>,
    dials: Dials,
    dialed: mpsc::UnboundedReceiver<Dialed>,
    /// Worst results of the probes of all gateways.
    plugin: mpsc::Receiver<Plugin>,
    /// Values of credentials.
    secrets: mpsc::Receiver<Found>,
    /// News whether the API server limits who uses providers of credentials.
    limited: mpsc::Receiver<bool>,
    audit: Option<Arc<ProxyLog>>,
    /// Answers of the audit log about what waits for its record.
    answers: (mpsc::UnboundedSender<Order>, mpsc::UnboundedReceiver<Order>),
}

impl Gateway {
    fn new(
        client: Client,
        channel: Channel,
        served: Served,
        (plugin, secrets, limited): (mpsc::Receiver<Plugin>, mpsc::Receiver<Found>, mpsc::Receiver<bool>),
        audit: Option<Arc<ProxyLog>>,
    ) -> Gateway {
        let (objects, unidentified) = (Objects::default(), HashMap::new());
        let ((dials, dialed), answers) = (Dials::new(), mpsc::unbounded_channel());
        Gateway {
            client,
            channel,
            objects,
            served,
            unidentified,
            dials,
            dialed,
            plugin,
            secrets,
            limited,
            audit,
            answers,
        }
    }

    /// Serves until the process of the proxy has ended, which is a failure.
    async fn run(&mut self, listener: OwnedFd, address: SocketAddr) -> anyhow::Result<()> {
        let client = self.client.clone();
        let mut own = watch(&client, &policies_of_kind("SandboxPolicy"));
        let mut cluster = watch(&client, &policies_of_kind("ClusterSandboxPolicy"));
        let mut templates = watch(&client, &ApiResource::erase::<SandboxTemplate>(&()));
        let mut namespaces = watch_metadata::<Namespace>(&client);
        let mut sandboxes = watch_metadata::<Sandbox>(&client);
        let mut pods = watch_pods(&client);
        let mut services = watch_services(&client);
        let mut closings: Events<NetworkPolicy> = logged(watcher(Api::all(client.clone()), in_small_pages()));
        let mut late = std::pin::pin!(tokio::time::sleep(CLOSINGS));
        let mut providers = watch(&client, &policies_of_kind("CredentialProvider"));
        let mut listener = Some(listener);
        loop {
            let objects = &mut self.objects;
            let changed = tokio::select! {
                Some(event) = own.next() => objects.policies.take_policy(event),
                Some(event) = cluster.next() => objects.cluster_policies.take_policy(event),
                Some(event) = namespaces.next() => {
                    objects.namespaces.take(event, |object| object.labels().clone())
                }
                Some(event) = templates.next() => objects.templates.take(event, TemplateFacts::of),
                Some(event) = sandboxes.next() => {
                    objects.sandboxes.take(event, |object| SandboxFacts::of(&object))
                }
                Some(event) = pods.next() => self.served.take(event),
                Some(event) = services.next() => self.served.services.take(event, ServiceFacts::of),
                Some(event) = closings.next() => self.served.closings.take(event, Closing::of),
                // Without the right to list them, the gateway serves and reports that.
                () = &mut late, if !late.is_elapsed() => true,
                Some(event) = providers.next() => self.served.credentials.providers.take(event, provider),
                Some(found) = self.secrets.recv() => self.served.credentials.take(found),
                Some(limited) = self.limited.recv() => {
                    self.served.credentials.limited = limited;
                    true
                }
                () = self.served.wait(RECHECK) => true,
                Some(dialed) = self.dialed.recv() => {
                    dialed.send(&self.channel).await.context("the proxy")?;
                    false
                }
                Some(plugin) = self.plugin.recv() => {
                    (self.served.plugin, self.served.awaits_probe) = (plugin, false);
                    true
                }
                Some(answer) = self.answers.1.recv() => {
                    self.channel.send(&answer, &[]).await.context("the proxy")?;
                    false
                }
                received = self.channel.receive_bare() => {
                    let Some(message) = received.context("the proxy")? else { bail!("the proxy has ended") };
                    self.heed(message.decode().context("the proxy")?);
                    false
                }
            };
            let closes = self.served.closings.complete || late.is_elapsed();
            if !changed || !closes || !self.objects.is_complete() || !self.served.is_complete() {
                continue;
            }
            self.served.decide(&self.objects, Timestamp::now(), &self.channel).await.context("the proxy")?;
            // Not before: until then no Pod may reach anything, and connections wait.
            if let Some(listener) = listener.take() {
                self.channel.send(&Order::Gateway, &[listener.as_fd()]).await.context("the proxy")?;
                eprintln!("hutch: gateway at http://{address}");
            }
        }
    }

    /// Records what the process has decided, which has ended, and closes the log.
    async fn close(mut self) {
        let Some(log) = self.audit.clone() else { return };
        let taking = async {
            while let Ok(Some(message)) = self.channel.receive_bare().await {
                let Ok(news) = message.decode() else { return };
                self.heed(news);
            }
        };
        // It may have left very many.
        let _ = tokio::time::timeout(LAST, taking).await;
        log.close().await;
    }
}
