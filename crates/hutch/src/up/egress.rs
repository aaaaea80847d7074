//! The proxy of all Pods: a process of its own, which is started again when it dies.
//!
//! This side keeps the listeners, the levels and the names, so the next process serves what the last one did. Meanwhile
//! connections wait at the listeners.

mod dialed;
mod kept;
mod levels;
mod names;
mod news;
mod recorded;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_egress::control::Order;
use hutch_egress::{AuthorityKeys, Issued, UpstreamProxy};
use hutch_jail::{IdRange, IdRanges, NetworkPlan};
use hutch_node::{Bundle, EgressNews, Holder, Offer};
use hutch_policy::{Facts, HostName, Level, Peer};
use hutch_privsep::Channel;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};

use self::dialed::Dialed;
use self::kept::Kept;
use self::levels::Known;
use self::recorded::Recorded;
use super::audit::AuditLog;
use super::broker::Broker;
use super::issuer::{Issuer, key};
use super::recent::Recent;
use super::sources::Sources;
use crate::egress::orders::send;
use crate::egress::{Audience, Outside, Process, spawn};
use crate::folder::DataFolder;

/// Pause before the process is started again.
const PAUSE: Duration = Duration::from_millis(100);
/// Minimum time between two lines of the log about descriptors.
const QUIET: Duration = Duration::from_secs(60);
/// Maximum names of a Pod; the proxy gives addresses to no more.
const MOST_NAMES: usize = 4096;
/// Refusals, and requests for connections to other Pods, that wait to be read.
const NEWS: usize = 64;
/// Maximum requests of one Pod for connections to other Pods that wait, so that it leaves places to others.
const REQUESTS: usize = 16;

/// The proxy of all Pods.
pub(super) struct Egress {
    broker: Arc<Broker>,
    issuer: Issuer,
    /// Sandboxes that had an authority or names before this program started and may be gone.
    earlier: HashSet<String>,
    /// Certificates of the machine's authorities, PEM.
    public: Arc<[u8]>,
    changes: mpsc::UnboundedSender<Change>,
    news: Mutex<mpsc::Receiver<EgressNews>>,
}

/// Change of what is served, for a Pod.
pub(super) enum Change {
    /// Serves a Pod of a sandbox.
    Serve(String, String, Vec<OwnedFd>),
    Levels(String, Vec<Arc<Level>>),
    Peers(String, String, Vec<Peer>),
    Dialed(Dialed),
    /// Repeats the order to serve a Pod, by the number of the process and of the Pod.
    Again(u64, u64),
    Recorded(Recorded),
    Authority(String, AuthorityKeys),
    Facts(String, Facts),
    /// With the number of the task that issues them: those of an earlier one no longer count.
    Credentials(String, u64, Vec<Issued>),
    /// Requests the names of a Pod.
    Named(String, oneshot::Sender<Vec<HostName>>),
    /// Gives the first addresses to these names.
    Names(String, Vec<HostName>),
    /// Forgets the names of a sandbox.
    Forget(String),
    End(String),
}

impl Egress {
    /// Starts the process, and the broker. To be called on a thread that lasts: the kernel ends the processes with it.
    /// Everything goes through the proxy `upstream`, if there is one. `metrics` is the listener of its counters.
    pub(super) async fn start(
        data: &DataFolder,
        upstream: Option<UpstreamProxy>,
        metrics: Option<OwnedFd>,
        audit: Option<Arc<AuditLog>>,
        sources: Sources,
    ) -> anyhow::Result<Egress> {
        let (broker, mut earlier) = Broker::start(data).await?;
        let broker = Arc::new(broker);
        let public = Outside::new(None).bundle().context("the machine's authorities")?.into();
        let kept = Kept::open(data.join(kept::FOLDER)).context("the names of sandboxes")?;
        earlier.extend(kept.sandboxes().context("the names of sandboxes")?);
        let ids = IdRanges::open(rand::random())?.take()?;
        let (process, channel) = start_process(&ids, upstream.clone())?;
        let (changes, receiver) = mpsc::unbounded_channel();
        let (news, received) = mpsc::channel(NEWS);
        let issuer = Issuer::new(broker.clone(), Arc::new(sources), changes.clone(), news.clone());
        let supervisor = Supervisor {
            ids,
            upstream,
            metrics,
            audit,
            news,
            changes: changes.downgrade(),
            kept,
            pods: HashMap::new(),
            about: HashMap::new(),
            ended: Recent::default(),
            levels: HashMap::new(),
            last: 0,
            process: 0,
            full: None,
        };
        supervisor.begin(&channel).await?;
        tokio::spawn(supervisor.run(process, channel, receiver));
        Ok(Egress { broker, issuer, earlier, public, changes, news: Mutex::new(received) })
    }

    fn change(&self, change: Change) {
        // Its task ends with this only.
        let _ = self.changes.send(change);
    }
}

impl hutch_node::Egress for Egress {
    fn plan(&self, address: IpAddr) -> NetworkPlan {
        hutch_egress::plan(vec![address])
    }

    fn serve(&self, pod: &str, sandbox: &str, listeners: Vec<OwnedFd>) {
        self.change(Change::Serve(pod.to_owned(), sandbox.to_owned(), listeners));
    }

    fn trust(&self, pod: &str, sandbox: &str) -> BoxFuture<'_, Result<Bundle, String>> {
        let (pod, sandbox) = (pod.to_owned(), sandbox.to_owned());
        async move {
            let keys = self.broker.authority(&sandbox).await?;
            let own = keys.certificate.clone();
            self.change(Change::Authority(pod, keys));
            Ok(Bundle { public: self.public.clone(), own })
        }
        .boxed()
    }

    fn forget(&self, sandbox: &str) {
        self.broker.forget(sandbox);
        self.change(Change::Forget(sandbox.to_owned()));
    }

    fn forget_others(&self, sandboxes: &HashSet<String>) {
        self.earlier.difference(sandboxes).for_each(|sandbox| hutch_node::Egress::forget(self, sandbox));
    }

    fn set_facts(&self, pod: &str, facts: Facts) {
        self.change(Change::Facts(pod.to_owned(), facts));
    }

    fn set_levels(&self, pod: &str, levels: Vec<Arc<Level>>) {
        self.change(Change::Levels(pod.to_owned(), levels));
    }

    fn set_peers(&self, pod: &str, namespace: &str, peers: Vec<Peer>) {
        self.change(Change::Peers(pod.to_owned(), namespace.to_owned(), peers));
    }

    fn placeholders(&self, sandbox: &str, offers: &[Offer]) -> BoxFuture<'_, Result<Vec<String>, String>> {
        let (sandbox, keys) = (sandbox.to_owned(), offers.iter().map(key).collect());
        async move { self.broker.placeholders(&sandbox, keys).await }.boxed()
    }

    fn set_credentials(&self, holder: Holder, offers: Vec<Offer>) {
        self.issuer.set(holder, offers);
    }

    fn names(&self, pod: &str) -> BoxFuture<'_, Vec<HostName>> {
        let (answer, answered) = oneshot::channel();
        self.change(Change::Named(pod.to_owned(), answer));
        // Without an answer the Pod is gone.
        async { answered.await.unwrap_or_default() }.boxed()
    }

    fn set_names(&self, pod: &str, names: Vec<HostName>) {
        self.change(Change::Names(pod.to_owned(), names));
    }

    fn end(&self, pod: &str) {
        self.issuer.end(pod);
        self.change(Change::End(pod.to_owned()));
    }

    fn news(&self) -> BoxFuture<'_, EgressNews> {
        async {
            match self.news.lock().await.recv().await {
                Some(news) => news,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

fn start_process(ids: &IdRange, upstream: Option<UpstreamProxy>) -> std::io::Result<(Process, Channel)> {
    let (process, channel) =
        spawn(Some(ids.base()), Audience::Starter, Outside::new(upstream), (false, false))?;
    Ok((process, Channel::new(channel)?))
}

/// A Pod that is served.
struct Pod {
    number: u64,
    /// Name of its sandbox.
    sandbox: String,
    listeners: Vec<OwnedFd>,
    levels: Vec<Arc<Level>>,
    namespace: String,
    peers: Vec<Peer>,
    names: Vec<HostName>,
    /// `true` if the file of the sandbox lacks some of them.
    unkept: bool,
    /// Places of its requests for connections to other Pods.
    requests: Arc<Semaphore>,
}

impl Pod {
    fn peers(&self) -> Order {
        let (namespace, peers) = (self.namespace.clone(), self.peers.clone());
        Order::Peers { sandbox: self.number, namespace, peers }
    }

    async fn serve(&self, channel: &Channel) -> std::io::Result<()> {
        let listeners: Vec<_> = self.listeners.iter().map(AsFd::as_fd).collect();
        channel.send(&Order::Serve { sandbox: self.number }, &listeners).await
    }
}

/// Authority, facts and credentials of a Pod, served or not yet.
#[derive(Default)]
struct About {
    authority: Option<AuthorityKeys>,
    facts: Facts,
    credentials: Vec<Issued>,
    /// Earlier ones, for a process that takes the place of one that knew them.
    former: Vec<Issued>,
    /// Number of the task that has issued them.
    issued_by: u64,
}

/// Knows everything that the process serves.
struct Supervisor {
    ids: IdRange,
    upstream: Option<UpstreamProxy>,
    /// Listener for the metrics of the process.
    metrics: Option<OwnedFd>,
    /// Receives what the process decides.
    audit: Option<Arc<AuditLog>>,
    news: mpsc::Sender<EgressNews>,
    changes: mpsc::WeakUnboundedSender<Change>,
    kept: Kept,
    pods: HashMap<String, Pod>,
    about: HashMap<String, About>,
    /// Uids of Pods that have ended, by number.
    ended: Recent<u64, String>,
    /// By their place in memory.
    levels: HashMap<usize, Known>,
    last: u64,
    /// Number of the process.
    process: u64,
    /// Time of the last line about descriptors.
    full: Option<Instant>,
}

impl Supervisor {
    async fn run(
        mut self,
        mut process: Process,
        mut channel: Channel,
        mut changes: mpsc::UnboundedReceiver<Change>,
    ) {
        loop {
            let done = tokio::select! {
                change = changes.recv() => match change {
                    None => return,
                    Some(change) => self.apply(change, &channel).await,
                },
                news = channel.receive_next() => news.map(|news| self.learn(news)),
            };
            let mut failed = done.err();
            while let Some(error) = failed {
                tracing::error!(%error, "the proxy of the sandboxes failed and is started again");
                drop(process);
                tokio::time::sleep(PAUSE).await;
                (process, channel) = loop {
                    match start_process(&self.ids, self.upstream.clone()) {
                        Ok(started) => break started,
                        Err(error) => tracing::error!(%error, "the proxy cannot be started"),
                    }
                    tokio::time::sleep(PAUSE).await;
                };
                self.process += 1;
                failed = self.send_everything(&channel).await.err();
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    async fn apply(&mut self, change: Change, channel: &Channel) -> std::io::Result<()> {
        match change {
            Change::Serve(uid, sandbox, listeners) => self.start(uid, sandbox, listeners, channel).await,
            Change::Levels(uid, levels) => {
                let Some(pod) = self.pods.get_mut(&uid) else { return Ok(()) };
                let (number, old) = (pod.number, std::mem::replace(&mut pod.levels, levels.clone()));
                // All of this side first: what follows may fail, and everything is then sent again.
                let new: Vec<Order> = levels.iter().filter_map(|level| self.hold(level)).collect();
                let gone: Vec<Order> = old.iter().filter_map(|level| self.release(level)).collect();
                let order = Order::Levels { sandbox: number, levels: self.numbers(&levels) };
                for order in new.into_iter().chain([order]).chain(gone) {
                    send(channel, order).await?;
                }
                Ok(())
            }
            Change::Peers(uid, namespace, peers) => {
                let Some(pod) = self.pods.get_mut(&uid) else { return Ok(()) };
                (pod.namespace, pod.peers) = (namespace, peers);
                send(channel, pod.peers()).await
            }
            Change::Dialed(dialed) if dialed.process == self.process => dialed.send(channel).await,
            Change::Recorded(recorded) if recorded.process == self.process => {
                send(channel, recorded.order).await
            }
            Change::Again(process, number) if process == self.process => match self.pod(number) {
                Some((_, pod)) => pod.serve(channel).await,
                None => Ok(()),
            },
            Change::Dialed(_) | Change::Recorded(_) | Change::Again(..) => Ok(()),
            Change::Authority(uid, keys) => {
                self.about.entry(uid.clone()).or_default().authority = Some(keys.clone());
                match self.pods.get(&uid) {
                    Some(pod) => send(channel, Order::Authority { sandbox: pod.number, keys }).await,
                    None => Ok(()),
                }
            }
            Change::Facts(uid, facts) => {
                let about = self.about.entry(uid.clone()).or_default();
                about.facts = facts.clone();
                match self.pods.get(&uid) {
                    Some(pod) => send(channel, Order::Facts { sandbox: pod.number, facts }).await,
                    None => Ok(()),
                }
            }
            Change::Credentials(uid, task, issued) => self.issue(&uid, task, issued, channel).await,
            Change::Named(uid, answer) => {
                self.report_names(&uid, answer);
                Ok(())
            }
            Change::Names(uid, names) => self.set_names(&uid, names, channel).await,
            Change::Forget(sandbox) => {
                self.kept.forget(&sandbox);
                send(channel, Order::ForgetName { name: sandbox }).await
            }
            Change::End(uid) => {
                self.about.remove(&uid);
                self.end(&uid, channel).await
            }
        }
    }

    /// Has a new Pod served, which has the names of earlier ones of its sandbox.
    async fn start(
        &mut self,
        uid: String,
        sandbox: String,
        listeners: Vec<OwnedFd>,
        channel: &Channel,
    ) -> std::io::Result<()> {
        // Its error is that of the channel, after which the next proxy is sent everything: also this Pod.
        let ended = self.end(&uid, channel).await;
        let pod = Pod {
            number: self.number(),
            listeners,
            levels: Vec::new(),
            namespace: String::new(),
            peers: Vec::new(),
            names: self.kept.names(&sandbox),
            sandbox,
            // The file is written anew at first: it may have an end that was not read.
            unkept: true,
            requests: Arc::new(Semaphore::new(REQUESTS)),
        };
        let sent = self.serve(&uid, &pod, channel).await;
        self.pods.insert(uid, pod);
        ended.and(sent)
    }

    /// Gives a Pod the credentials that a task has issued, unless a later one has issued others.
    async fn issue(
        &mut self,
        uid: &str,
        task: u64,
        issued: Vec<Issued>,
        channel: &Channel,
    ) -> std::io::Result<()> {
        // One that has ended needs none.
        let Some(pod) = self.pods.get(uid) else { return Ok(()) };
        let about = self.about.entry(uid.to_owned()).or_default();
        if task < about.issued_by || (about.issued_by, &about.credentials) == (task, &issued) {
            return Ok(());
        }
        about.former = Issued::former(about.former.iter().chain(&about.credentials), &issued);
        (about.issued_by, about.credentials) = (task, issued.clone());
        send(channel, Order::Credentials { sandbox: pod.number, credentials: issued }).await
    }

    async fn end(&mut self, uid: &str, channel: &Channel) -> std::io::Result<()> {
        let Some(pod) = self.pods.remove(uid) else { return Ok(()) };
        self.ended.push(pod.number, uid.to_owned());
        let gone: Vec<Order> = pod.levels.iter().filter_map(|level| self.release(level)).collect();
        for order in [Order::End { sandbox: pod.number }].into_iter().chain(gone) {
            send(channel, order).await?;
        }
        Ok(())
    }

    /// Informs a new process of everything.
    async fn send_everything(&self, channel: &Channel) -> std::io::Result<()> {
        self.begin(channel).await?;
        for known in self.levels.values() {
            let order = Order::Level { id: known.number, level: Level::clone(&known.level) };
            send(channel, order).await?;
        }
        for (uid, pod) in &self.pods {
            self.serve(uid, pod, channel).await?;
        }
        Ok(())
    }

    /// Has a Pod served whose levels are known.
    async fn serve(&self, uid: &str, pod: &Pod, channel: &Channel) -> std::io::Result<()> {
        let (sandbox, levels) = (pod.number, self.numbers(&pod.levels));
        send(channel, Order::Continue { sandbox, name: pod.sandbox.clone() }).await?;
        channel.send(&Order::Levels { sandbox, levels }, &[]).await?;
        send(channel, pod.peers()).await?;
        let about = self.about.get(uid).into_iter().flat_map(|about| {
            // What is followed by others is former.
            let [former, credentials] = [&about.former, &about.credentials].map(Clone::clone);
            // Refused clients of TLS are answered by it, so every Pod needs it.
            let authority = about.authority.clone().map(|keys| Order::Authority { sandbox, keys });
            [
                Order::Facts { sandbox, facts: about.facts.clone() },
                Order::Credentials { sandbox, credentials: former },
                Order::Credentials { sandbox, credentials },
            ]
            .into_iter()
            .chain(authority)
        });
        let about: Vec<_> = about.collect();
        for order in about {
            send(channel, order).await?;
        }
        pod.send_names(0, channel).await?;
        pod.serve(channel).await
    }
}
