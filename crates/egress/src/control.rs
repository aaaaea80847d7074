//! Orders to the process that serves sandboxes, and its news.
//!
//! The other end keeps the listeners and knows every name that has an address. So a process that takes the place of one
//! that died serves the same sandboxes, and the addresses stay valid that programs inside have resolved.

mod news;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Facts, HostName, Level, Peer};
use hutch_privsep::{Channel, Message};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::authority::{Authority, AuthorityKeys};
use crate::credentials::Issued;
use crate::descriptors::LISTENERS;
use crate::gateway::{self, Clients, TokenHash};
use crate::ground::Ground;
use crate::record::Recorder;
use crate::records::{Entry, Sink};
use crate::refusal::{Reason, Refusal};
use crate::sandbox::{Levels, Report, Sandbox};
use crate::server::serve;
use crate::used::{AllUsed, Used};
use crate::way::Way;
use crate::{explicit, metrics, peers};

pub use news::{News, Reporter};

/// Maximum sandboxes that wait for descriptors before they are served: their sockets take most of the reserve.
static WAITING: Semaphore = Semaphore::const_new(20);

/// Order to the process. Numbers are chosen by who sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Keep a level.
    Level {
        /// Number of the level.
        id: u64,
        /// Level.
        level: Level,
    },
    /// Forget a level that no sandbox has.
    Forget {
        /// Number of the level.
        id: u64,
    },
    /// Set the levels of a sandbox, a new one or one that is served. Connections that they do not allow end.
    Levels {
        /// Number of the sandbox.
        sandbox: u64,
        /// Numbers of its levels.
        levels: Vec<u64>,
    },
    /// Have the next sandbox of this number continue the counters of earlier ones of this name. Comes before its levels.
    Continue {
        /// Number of the sandbox.
        sandbox: u64,
        /// Name.
        name: String,
    },
    /// Forget the counters of a name.
    ForgetName {
        /// Name.
        name: String,
    },
    /// Set the authority of a sandbox that has levels. Without one, no request can be read, and what needs that is refused.
    Authority {
        /// Number of the sandbox.
        sandbox: u64,
        /// Certificate and key.
        keys: AuthorityKeys,
    },
    /// Set the authority of every sandbox whose first levels follow. Such sandboxes trust one authority together.
    CommonAuthority {
        /// Certificate and key.
        keys: AuthorityKeys,
    },
    /// Set the facts about a sandbox that has levels.
    Facts {
        /// Number of the sandbox.
        sandbox: u64,
        /// Facts.
        facts: Facts,
    },
    /// Set the credentials of a sandbox that has levels. Connections to the hosts of earlier and new ones end.
    Credentials {
        /// Number of the sandbox.
        sandbox: u64,
        /// Credentials.
        credentials: Vec<Issued>,
    },
    /// Give the next synthetic addresses to these names.
    Names {
        /// Number of the sandbox.
        sandbox: u64,
        /// Names.
        names: Vec<HostName>,
    },
    /// Set the Services through which a sandbox of a namespace reaches other ones. Connections through others end.
    Peers {
        /// Number of the sandbox.
        sandbox: u64,
        /// Its namespace.
        namespace: String,
        /// Services.
        peers: Vec<Peer>,
    },
    /// Take the answer to [`News::Dial`]. With it come the connection and a socket that is to be closed with it, if it is
    /// allowed and was to be made.
    Dialed {
        /// Number of the sandbox.
        sandbox: u64,
        /// Number of the request.
        dial: u64,
        /// Policy that allows the connection, or the reason of a refusal.
        answer: Result<Ground, Reason>,
    },
    /// Serve a sandbox. Its listeners, those of [`crate::plan()`], come with the order.
    Serve {
        /// Number of the sandbox.
        sandbox: u64,
    },
    /// Serve the clients of an explicit proxy by the rules of a sandbox. The listener comes with the order.
    Explicit {
        /// Number of the sandbox.
        sandbox: u64,
    },
    /// Report each decision from now on, about sandboxes whose levels follow.
    Record {
        /// Have connections and requests wait until [`Order::Recorded`] says that their record is written.
        durable: bool,
    },
    /// Take the answer to news that wait until they are written.
    Recorded {
        /// Number of the sandbox.
        sandbox: u64,
        /// Number of the record.
        wait: u64,
        /// The record is on the disk. Otherwise what it allows is refused.
        written: bool,
    },
    /// Take connections from these addresses with this token for those of a sandbox that has levels.
    Client {
        /// Number of the sandbox.
        sandbox: u64,
        /// Addresses of its Pod.
        addresses: Vec<IpAddr>,
        /// Hash of the token.
        token: TokenHash,
    },
    /// Serve the clients of an explicit proxy, each by the rules of its sandbox. The listener comes with the order.
    Gateway,
    /// Serve the counters of the process, for Prometheus. The listener comes with the order.
    Metrics,
    /// Forget a sandbox, and end its connections.
    End {
        /// Number of the sandbox.
        sandbox: u64,
    },
}

/// Maximum time for connections to end after the programs that opened them.
pub const LAST: Duration = Duration::from_secs(1);

/// Follows the orders of a channel until its end. Needs a tokio runtime.
///
/// # Errors
/// An order that has no meaning; the process must then end.
pub async fn follow(channel: &Channel, way: Way, reporter: Reporter) -> io::Result<()> {
    follow_recorded(channel, way, reporter, None).await
}

/// Follows the orders of a channel as [`follow`] does, and passes each decision to a recorder.
///
/// # Errors
/// As [`follow`].
pub async fn follow_recorded(
    channel: &Channel,
    way: Way,
    reporter: Reporter,
    recorder: Option<Recorder>,
) -> io::Result<()> {
    let mut proxy = Proxy::new(way, reporter, recorder);
    if let Some(awake) = proxy.way.awake.clone() {
        let way = proxy.way.clone();
        tokio::spawn(async move { awake.keep(&way.counters).await });
    }
    while let Some(message) = channel.receive().await? {
        proxy.obey(message)?;
    }
    // The programs inside have ended. What they have sent is passed on.
    proxy.ending.send_replace(true);
    let _ = timeout(LAST, proxy.ending.closed()).await;
    Ok(())
}

/// Everything that is served.
struct Proxy {
    way: Arc<Way>,
    reporter: Reporter,
    recorder: Option<Recorder>,
    /// Decisions are news; with true, what is allowed waits until they are written.
    records: Option<bool>,
    /// Authority of new sandboxes.
    authority: Option<Arc<Authority>>,
    levels: HashMap<u64, Arc<Level>>,
    sandboxes: HashMap<u64, Served>,
    /// Names of sandboxes whose levels follow.
    continued: HashMap<u64, String>,
    used: AllUsed,
    /// True at the end. Listeners and connections hold receivers.
    ending: watch::Sender<bool>,
    /// Clients of a gateway.
    clients: Arc<Clients>,
}

/// A sandbox and the task that serves it. Dropping it ends both.
struct Served {
    sandbox: Arc<Sandbox>,
    task: Option<AbortHandle>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.sandbox.end();
    }
}

impl Proxy {
    fn new(way: Way, reporter: Reporter, recorder: Option<Recorder>) -> Proxy {
        Proxy {
            way: Arc::new(way),
            reporter,
            recorder,
            records: None,
            authority: None,
            levels: HashMap::new(),
            sandboxes: HashMap::new(),
            continued: HashMap::new(),
            used: AllUsed::default(),
            ending: watch::Sender::new(false),
            clients: Arc::default(),
        }
    }

    fn obey(&mut self, message: Message) -> io::Result<()> {
        match message.decode()? {
            Order::Level { id, level } => drop(self.levels.insert(id, Arc::new(level))),
            Order::Forget { id } => drop(self.levels.remove(&id)),
            Order::Levels { sandbox, levels } => self.set_levels(sandbox, &levels)?,
            Order::Continue { sandbox, name } => drop(self.continued.insert(sandbox, name)),
            Order::ForgetName { name } => self.used.forget(&name),
            Order::Peers { sandbox, namespace, peers } => {
                self.find(sandbox)?.sandbox.peers.set(&namespace, peers);
            }
            Order::Dialed { sandbox, dial, answer } => {
                // The sandbox may have ended meanwhile.
                if let Some(served) = self.sandboxes.get(&sandbox) {
                    served.sandbox.peers.answer(dial, peers::answer(answer, message.descriptors)?);
                }
            }
            Order::Authority { sandbox, keys } => {
                self.find(sandbox)?.sandbox.set_authority_keys(keys);
            }
            Order::CommonAuthority { keys } => self.authority = Some(authority(&keys)?),
            Order::Facts { sandbox, facts } => self.find(sandbox)?.sandbox.set_facts(facts),
            Order::Credentials { sandbox, credentials } => {
                self.find(sandbox)?.sandbox.set_credentials(credentials);
            }
            Order::Names { sandbox, names } => self.find(sandbox)?.sandbox.add_names(&names),
            Order::Serve { sandbox } => self.serve(sandbox, message.descriptors)?,
            Order::Explicit { sandbox } => {
                let served = self.find(sandbox)?;
                let listener = listener(message.descriptors)?;
                let task = tokio::spawn(explicit::serve(listener, served.sandbox.clone()));
                served.task = Some(task.abort_handle());
            }
            Order::Record { durable } => self.records = Some(durable),
            Order::Recorded { sandbox, wait, written } => {
                // The sandbox may have ended meanwhile.
                if let Some(served) = self.sandboxes.get(&sandbox) {
                    served.sandbox.records.answer(wait, written);
                }
            }
            Order::Metrics => {
                tokio::spawn(metrics::serve(listener(message.descriptors)?, self.way.clone()));
            }
            Order::Client { sandbox, addresses, token } => {
                let of = self.find(sandbox)?.sandbox.clone();
                self.clients.set(sandbox, &addresses, token, &of);
            }
            Order::Gateway => {
                let (clients, reporter) = (self.clients.clone(), self.reporter.clone());
                let known = Arc::downgrade(&clients);
                let is_sandbox = move |address| known.upgrade().is_some_and(|all| all.contains(address));
                self.way.set_sandboxes(Box::new(is_sandbox));
                let unidentified = move |address| reporter(News::Unidentified { address });
                let listener = listener(message.descriptors)?;
                tokio::spawn(gateway::serve(listener, clients, self.way.clone(), unidentified));
            }
            Order::End { sandbox } => {
                self.clients.forget(sandbox);
                drop(self.sandboxes.remove(&sandbox));
            }
        }
        Ok(())
    }

    fn set_levels(&mut self, sandbox: u64, levels: &[u64]) -> io::Result<()> {
        let levels: Option<Levels> = levels.iter().map(|id| self.levels.get(id).cloned()).collect();
        let levels = levels.ok_or_else(|| meaningless("levels that it was not given"))?;
        match self.sandboxes.get(&sandbox) {
            Some(served) => served.sandbox.set_levels(levels),
            None => {
                let name = self.continued.remove(&sandbox);
                let used = name.map(|name| self.used.of(name)).unwrap_or_default();
                self.sandboxes.insert(sandbox, self.sandbox(sandbox, levels, used));
            }
        }
        Ok(())
    }

    fn serve(&mut self, sandbox: u64, sockets: Vec<OwnedFd>) -> io::Result<()> {
        let of = self.find(sandbox)?.sandbox.clone();
        let listeners = self.way.descriptors.take(LISTENERS);
        let mut place = None;
        if let Err(shortage) = listeners {
            let refusal = Refusal { destination: "every destination".to_owned(), reason: shortage.into() };
            (self.reporter)(News::Refused { sandbox, refusal });
            // They have descriptors of the reserve.
            let Ok(free) = WAITING.try_acquire() else { return self.serve_later(sandbox) };
            place = Some(free);
        }
        let serving = serve(sockets, of, self.ending.subscribe());
        let descriptors = self.way.descriptors.clone();
        let task = tokio::spawn(async move {
            // Until there are places, its connections wait.
            let listeners = match listeners {
                Ok(places) => Some(places),
                Err(_) => descriptors.wait(LISTENERS).await,
            };
            drop(place);
            if let Err(error) = serving.await {
                tracing::warn!(sandbox, %error, "a sandbox is no longer served");
            }
            drop(listeners);
        });
        self.find(sandbox)?.task = Some(task.abort_handle());
        Ok(())
    }

    /// Has a sandbox served that waits without descriptors, when fewer others wait.
    fn serve_later(&mut self, sandbox: u64) -> io::Result<()> {
        let reporter = self.reporter.clone();
        let task = tokio::spawn(async move {
            // Never closed. Another one may take the place meanwhile; then this waits again.
            drop(WAITING.acquire().await);
            reporter(News::Unserved { sandbox });
        });
        self.find(sandbox)?.task = Some(task.abort_handle());
        Ok(())
    }

    fn find(&mut self, sandbox: u64) -> io::Result<&mut Served> {
        self.sandboxes.get_mut(&sandbox).ok_or_else(|| meaningless("a sandbox without levels"))
    }

    fn sandbox(&self, number: u64, levels: Levels, used: Used) -> Served {
        let reporter = self.reporter.clone();
        let report: Report = Box::new(move |refusal| reporter(News::Refused { sandbox: number, refusal }));
        let reporter = self.reporter.clone();
        let named = Box::new(move |name: &HostName| {
            reporter(News::Named { sandbox: number, name: name.clone() });
        });
        let reporter = self.reporter.clone();
        let request = Box::new(move |dial, peer: &Peer, port, connects| {
            let (namespace, service) = (peer.namespace.clone(), peer.service.clone());
            reporter(News::Dial { sandbox: number, dial, namespace, service, port, connects });
        });
        let sandbox = Sandbox::continuing(used, levels, self.way.clone(), report, named);
        sandbox.peers.set_request(request);
        sandbox.set_credentials(self.way.issued.clone());
        self.authority.iter().for_each(|authority| sandbox.set_authority(authority.clone()));
        if let Some(recorder) = self.recorder.clone() {
            let sink = move |entry: Entry<'_>, _| match entry {
                Entry::Decided(record) => recorder(record),
                // A request that uses one, and a connection to a name, have records of their own.
                Entry::Used(..) | Entry::Named(_) | Entry::Ended(_) => {}
            };
            sandbox.records.set(Box::new(sink), false);
        } else if let Some(durable) = self.records {
            sandbox.records.set(as_news(number, self.reporter.clone()), durable);
        }
        Served { sandbox, task: None }
    }
}

/// Returns a receiver of records of a sandbox that sends them as news.
fn as_news(sandbox: u64, reporter: Reporter) -> Sink {
    Box::new(move |entry, wait| match entry {
        Entry::Decided(record) => reporter(News::Decided { sandbox, decided: record.decided(), wait }),
        Entry::Used(credential, destination) => {
            let (credential, destination) = (credential.to_owned(), destination.to_string());
            reporter(News::Used { sandbox, credential, destination, wait });
        }
        Entry::Named(name) => reporter(News::Resolved { sandbox, name: name.clone(), wait }),
        Entry::Ended(ended) => reporter(News::Ended { sandbox, ended }),
    })
}

fn authority(keys: &AuthorityKeys) -> io::Result<Arc<Authority>> {
    let authority = Authority::new(keys);
    authority.map(Arc::new).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns the listener that came with an order.
fn listener(descriptors: Vec<OwnedFd>) -> io::Result<TcpListener> {
    let [socket]: [OwnedFd; 1] =
        descriptors.try_into().map_err(|_| meaningless("a listener that did not come with it"))?;
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn meaningless(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an order names {what}"))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::descriptors::{Descriptors, RESERVE};

    /// The listeners of a sandbox.
    fn listeners() -> Vec<OwnedFd> {
        let tcp = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            OwnedFd::from(listener)
        };
        let udp = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            OwnedFd::from(socket)
        };
        vec![udp(), udp(), tcp(), tcp()]
    }

    /// Those beyond 20 were never served.
    #[tokio::test]
    async fn every_sandbox_that_waits_for_descriptors_is_served_in_the_end() {
        const SANDBOXES: u64 = 25;
        let places = LISTENERS * SANDBOXES as u32;
        let descriptors = Descriptors::of(Some(u64::from(places) + RESERVE as u64));
        let free = || descriptors.of_sandbox();
        let held = descriptors.take(places).unwrap();
        let (news, mut reported) = tokio::sync::mpsc::unbounded_channel();
        let mut way = Way::default();
        drop(std::mem::replace(&mut way.descriptors, descriptors.clone()));
        let mut proxy = Proxy::new(way, Arc::new(move |one| drop(news.send(one))), None);
        for number in 0..SANDBOXES {
            let served = proxy.sandbox(number, [].into(), Used::default());
            proxy.sandboxes.insert(number, served);
            proxy.serve(number, listeners()).unwrap();
        }
        drop(held);
        let mut again = std::collections::BTreeSet::new();
        let serving = async {
            while free().take(1).is_ok() {
                // Perhaps there are no more news, and their tasks take the last places.
                let news = timeout(Duration::from_millis(20), reported.recv()).await;
                if let Ok(Some(News::Unserved { sandbox })) = news {
                    again.insert(sandbox);
                    proxy.serve(sandbox, listeners()).unwrap();
                }
            }
        };
        timeout(Duration::from_secs(60), serving).await.expect("all places are taken by listeners");
        assert_eq!(again, (20..SANDBOXES).collect());
    }
}
