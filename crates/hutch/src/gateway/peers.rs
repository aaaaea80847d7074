//! Connections between Sandboxes. This process decides and connects: the process of the proxy knows names and ports, and no
//! address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hutch_attach::{AllBehind, Chosen, Ground, Objects, PeerRefusal, Reachable, Services};
use hutch_egress::Reason;
use hutch_egress::control::Order;
use hutch_privsep::Channel;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::egress::peers::{ground, reason};

/// Maximum connections that are being made, and those of one Pod.
const DIALS: usize = 2048;
const DIALS_OF_ONE: usize = 64;
/// Maximum time to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// Returns the Services that Pods reach. `served` are Pods that have an address.
pub(super) fn reachable<'a>(
    objects: &Objects,
    services: &'a Services,
    served: impl Iterator<Item = &'a Arc<Pod>>,
) -> Reachable<'a, IpAddr> {
    // Nothing new leads to a Pod that is being deleted: it may lose its address at any time.
    let live = served.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Reachable::new(services, behind(objects, services, None, live))
}

/// Returns the Pods behind a Service, or behind each, of these.
pub(super) fn behind<'a>(
    objects: &Objects,
    services: &Services,
    only: Option<&(String, String)>,
    served: impl Iterator<Item = &'a Arc<Pod>>,
) -> AllBehind<IpAddr> {
    objects.behind(services, only, served.filter_map(|pod| Some((address(pod)?, pod.clone()))))
}

/// Returns the address at which a Pod is reached.
fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Answer to a request for a connection.
pub(super) struct Dialed {
    sandbox: u64,
    dial: u64,
    answer: Result<Answer, Reason>,
}

/// Policy that allows a connection, and the connection with a socket that is closed with it, if it was to be made.
type Answer = (Ground, Option<[OwnedFd; 2]>);

impl Dialed {
    pub(super) async fn send(self, channel: &Channel) -> std::io::Result<()> {
        let Dialed { sandbox, dial, answer } = self;
        let (answer, sockets) = match answer {
            Ok((by, sockets)) => (Ok(ground(by)), sockets),
            Err(reason) => (Err(reason), None),
        };
        let sockets: Vec<_> = sockets.iter().flatten().map(AsFd::as_fd).collect();
        channel.send(&Order::Dialed { sandbox, dial, answer }, &sockets).await
    }
}

/// Answers a request with a refusal if nothing else has answered it: its task ends early when the connection is no longer
/// allowed, or a Pod has ended.
struct Unanswered {
    done: mpsc::UnboundedSender<Dialed>,
    request: Option<(u64, u64)>,
}

impl Unanswered {
    fn answer(&mut self, answer: Result<Answer, Reason>) {
        if let Some((sandbox, dial)) = self.request.take() {
            // Its receiver ends with the gateway.
            let _ = self.done.send(Dialed { sandbox, dial, answer });
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let why = "it is no longer allowed, or a Pod has ended";
        self.answer(Err(reason(PeerRefusal::denied(why))));
    }
}

/// Connections that are being made.
pub(super) struct Dials {
    places: Arc<Semaphore>,
    /// Places of single Pods that have one, by their number.
    own: HashMap<u64, Arc<Semaphore>>,
    done: mpsc::UnboundedSender<Dialed>,
}

impl Dials {
    pub(super) fn new() -> (Dials, mpsc::UnboundedReceiver<Dialed>) {
        let (done, dialed) = mpsc::unbounded_channel();
        (Dials { places: Arc::new(Semaphore::new(DIALS)), own: HashMap::new(), done }, dialed)
    }

    /// Answers a request of the proxy by what was chosen. Returns that, and the task of the connection. Without `connects`, only
    /// the decision is requested.
    pub(super) fn start(
        &mut self,
        request: (u64, u64),
        connects: bool,
        chosen: Result<Chosen<IpAddr>, PeerRefusal>,
    ) -> Option<(Chosen<IpAddr>, JoinHandle<()>)> {
        let mut unanswered = Unanswered { done: self.done.clone(), request: Some(request) };
        let mut send = |answer| {
            unanswered.answer(answer);
            None
        };
        let chosen = match chosen {
            Ok(chosen) if !connects => return send(Ok((chosen.by, None))),
            Ok(chosen) => chosen,
            Err(refusal) => return send(Err(reason(refusal))),
        };
        // Its own first, so that one Pod leaves places to others.
        self.own.retain(|_, places| places.available_permits() < DIALS_OF_ONE);
        let own = self.own.entry(request.0).or_insert_with(|| Arc::new(Semaphore::new(DIALS_OF_ONE)));
        let own = own.clone().try_acquire_owned();
        let place = own.and_then(|own| Ok((own, self.places.clone().try_acquire_owned()?)));
        let Ok(place) = place else {
            return send(Err(Reason::Unreachable("too many connections are being made".to_owned())));
        };
        let (by, address, port) = (chosen.by.clone(), chosen.place, chosen.port);
        let task = tokio::spawn(async move {
            let connected = timeout(CONNECT, connect(address, port)).await;
            drop(place);
            let (answer, held) = match connected {
                Ok(Ok((sockets, held))) => (Ok((by, Some(sockets))), Some(held)),
                Ok(Err(error)) => (Err(Reason::Unreachable(error.to_string())), None),
                Err(_) => (Err(Reason::Unreachable("it did not answer in time".to_owned())), None),
            };
            unanswered.answer(answer);
            if let Some(held) = held {
                // Nothing is written to it, so it is readable when it is closed.
                let _ = held.readable().await;
            }
        });
        Some((chosen, task))
    }
}

/// Returns a connection and a socket that is closed with it, and the other end of that: closing it ends the connection.
async fn connect(address: IpAddr, port: u16) -> std::io::Result<([OwnedFd; 2], UnixStream)> {
    let stream = TcpStream::connect((address, port)).await?.into_std()?;
    let (ours, theirs) = UnixStream::pair()?;
    Ok(([stream.into(), theirs.into_std()?.into()], ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client waited for 20 seconds.
    #[tokio::test]
    async fn connection_that_is_no_longer_allowed_while_it_is_made_is_refused_at_once() {
        let (mut dials, mut done) = Dials::new();
        let place = "127.0.0.1".parse().expect("an address");
        let chosen = || Ok(Chosen { place, port: 1, observed: None, by: Ground::default() });
        let (_, task) = dials.start((1, 2), true, chosen()).expect("a task");
        // Its rule has been removed.
        task.abort();
        let answered = timeout(Duration::from_secs(10), done.recv()).await.expect("an answer").expect("one");
        assert_eq!((answered.sandbox, answered.dial), (1, 2));
        let reason = answered.answer.expect_err("a refusal");
        assert_eq!(reason.to_string(), "it is no longer allowed, or a Pod has ended");
        assert!(dials.start((1, 3), false, chosen()).is_none(), "only the decision");
        let decided = done.recv().await.expect("an answer").answer.expect("allowed");
        assert!(decided.1.is_none());
    }
}
