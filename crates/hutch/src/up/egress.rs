//! The proxy of all Pods: a process of its own, which is started again when it dies.
//!
//! This side keeps the listeners, the levels and the names, so the next process serves what the last one did. Meanwhile
//! connections wait at the listeners.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_egress::UpstreamProxy;
use hutch_egress::control::{News, Order};
use hutch_jail::{IdRange, IdRanges, NetworkPlan};
use hutch_policy::{HostName, Level};
use hutch_privsep::Channel;
use tokio::sync::{Mutex, mpsc};

use crate::egress::{Audience, Outside, Process, line, spawn};

/// Pause before the process is started again.
const PAUSE: Duration = Duration::from_millis(100);
/// Names in one message.
const NAMES: usize = 256;
/// Maximum names of a Pod; the proxy gives addresses to no more.
const MOST_NAMES: usize = 4096;
/// Refusals that wait to be read.
const REFUSALS: usize = 64;

/// The proxy of all Pods.
pub(super) struct Egress {
    changes: mpsc::UnboundedSender<Change>,
    refused: Mutex<mpsc::Receiver<(String, String)>>,
}

/// Change of what is served, for a Pod.
enum Change {
    Serve(String, Vec<OwnedFd>),
    Levels(String, Vec<Arc<Level>>),
    End(String),
}

impl Egress {
    /// Starts the process. To be called on a thread that lasts: the kernel ends the process with it.
    /// Everything goes through the proxy `upstream`, if there is one.
    pub(super) fn start(upstream: Option<UpstreamProxy>) -> anyhow::Result<Egress> {
        let ids = IdRanges::open(rand::random())?.take()?;
        let (process, channel) = start_process(&ids, upstream.clone())?;
        let (changes, receiver) = mpsc::unbounded_channel();
        let (refusals, refused) = mpsc::channel(REFUSALS);
        let supervisor =
            Supervisor { ids, upstream, refusals, pods: HashMap::new(), levels: HashMap::new(), last: 0 };
        tokio::spawn(supervisor.run(process, channel, receiver));
        Ok(Egress { changes, refused: Mutex::new(refused) })
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

    fn serve(&self, pod: &str, listeners: Vec<OwnedFd>) {
        self.change(Change::Serve(pod.to_owned(), listeners));
    }

    fn set_levels(&self, pod: &str, levels: Vec<Arc<Level>>) {
        self.change(Change::Levels(pod.to_owned(), levels));
    }

    fn end(&self, pod: &str) {
        self.change(Change::End(pod.to_owned()));
    }

    fn refused(&self) -> BoxFuture<'_, (String, String)> {
        async {
            match self.refused.lock().await.recv().await {
                Some(refused) => refused,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// Returns the place of a level in memory.
fn address(level: &Arc<Level>) -> usize {
    Arc::as_ptr(level).addr()
}

fn start_process(ids: &IdRange, upstream: Option<UpstreamProxy>) -> std::io::Result<(Process, Channel)> {
    let (process, channel) = spawn(Some(ids.base()), Audience::Starter, Outside::new(upstream))?;
    Ok((process, Channel::new(channel)?))
}

/// A Pod that is served.
struct Pod {
    number: u64,
    listeners: Vec<OwnedFd>,
    levels: Vec<Arc<Level>>,
    names: Vec<HostName>,
}

/// A level that the process knows, and the number of Pods that have it.
struct Known {
    // Held, so that no other level gets its place in memory, by which it is found.
    level: Arc<Level>,
    number: u64,
    pods: usize,
}

/// Knows everything that the process serves.
struct Supervisor {
    ids: IdRange,
    upstream: Option<UpstreamProxy>,
    refusals: mpsc::Sender<(String, String)>,
    pods: HashMap<String, Pod>,
    /// By their place in memory.
    levels: HashMap<usize, Known>,
    last: u64,
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
                received = channel.receive_bare() => match received {
                    Ok(Some(message)) => message.decode().map(|news| self.learn(news)),
                    Ok(None) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => Err(error),
                },
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
                failed = self.send_everything(&channel).await.err();
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Takes news of the process, which it may have made up.
    fn learn(&mut self, news: News) {
        let of = |number: u64| move |pod: &(&String, &mut Pod)| pod.1.number == number;
        match news {
            News::Named { sandbox, name } => {
                if let Some((_, pod)) = self.pods.iter_mut().find(of(sandbox))
                    && pod.names.len() < MOST_NAMES
                {
                    pod.names.push(name);
                }
            }
            News::Refused { sandbox, refusal } => {
                if let Some((uid, _)) = self.pods.iter_mut().find(of(sandbox)) {
                    // Many refusals say no more than some.
                    let _ = self.refusals.try_send((uid.clone(), line(&refusal)));
                }
            }
        }
    }

    async fn apply(&mut self, change: Change, channel: &Channel) -> std::io::Result<()> {
        match change {
            Change::Serve(uid, listeners) => {
                self.end(&uid, channel).await?;
                let pod = Pod { number: self.number(), listeners, levels: Vec::new(), names: Vec::new() };
                let sent = self.serve(&pod, channel).await;
                self.pods.insert(uid, pod);
                sent
            }
            Change::Levels(uid, levels) => {
                let Some(pod) = self.pods.get_mut(&uid) else { return Ok(()) };
                let (number, old) = (pod.number, std::mem::replace(&mut pod.levels, levels.clone()));
                // All of this side first: what follows may fail, and everything is then sent again.
                let new: Vec<Order> = levels.iter().filter_map(|level| self.hold(level)).collect();
                let gone: Vec<Order> = old.iter().filter_map(|level| self.release(level)).collect();
                let order = Order::Levels { sandbox: number, levels: self.numbers(&levels) };
                for order in new.into_iter().chain([order]).chain(gone) {
                    channel.send(&order, &[]).await?;
                }
                Ok(())
            }
            Change::End(uid) => self.end(&uid, channel).await,
        }
    }

    async fn end(&mut self, uid: &str, channel: &Channel) -> std::io::Result<()> {
        let Some(pod) = self.pods.remove(uid) else { return Ok(()) };
        let gone: Vec<Order> = pod.levels.iter().filter_map(|level| self.release(level)).collect();
        for order in [Order::End { sandbox: pod.number }].into_iter().chain(gone) {
            channel.send(&order, &[]).await?;
        }
        Ok(())
    }

    /// Counts a use of a level. Returns the order that makes it known, if it is new.
    fn hold(&mut self, level: &Arc<Level>) -> Option<Order> {
        if let Some(known) = self.levels.get_mut(&address(level)) {
            known.pods += 1;
            return None;
        }
        let number = self.number();
        self.levels.insert(address(level), Known { level: level.clone(), number, pods: 1 });
        Some(Order::Level { id: number, level: Level::clone(level) })
    }

    /// Counts the end of a use. Returns the order that forgets the level, if it was the last.
    fn release(&mut self, level: &Arc<Level>) -> Option<Order> {
        let known = self.levels.get_mut(&address(level))?;
        known.pods -= 1;
        if known.pods > 0 {
            return None;
        }
        let known = self.levels.remove(&address(level))?;
        Some(Order::Forget { id: known.number })
    }

    fn numbers(&self, levels: &[Arc<Level>]) -> Vec<u64> {
        levels.iter().filter_map(|level| Some(self.levels.get(&address(level))?.number)).collect()
    }

    /// Audience a new process of everything.
    async fn send_everything(&self, channel: &Channel) -> std::io::Result<()> {
        for known in self.levels.values() {
            let order = Order::Level { id: known.number, level: Level::clone(&known.level) };
            channel.send(&order, &[]).await?;
        }
        for pod in self.pods.values() {
            self.serve(pod, channel).await?;
        }
        Ok(())
    }

    /// Has a Pod served whose levels are known.
    async fn serve(&self, pod: &Pod, channel: &Channel) -> std::io::Result<()> {
        let (sandbox, levels) = (pod.number, self.numbers(&pod.levels));
        channel.send(&Order::Levels { sandbox, levels }, &[]).await?;
        for names in pod.names.chunks(NAMES) {
            channel.send(&Order::Names { sandbox, names: names.to_vec() }, &[]).await?;
        }
        let listeners: Vec<_> = pod.listeners.iter().map(AsFd::as_fd).collect();
        channel.send(&Order::Serve { sandbox }, &listeners).await
    }
}
