//! Connections of Pods to other Pods, which the node makes.

use std::num::NonZeroU16;
use std::os::fd::AsFd;

use hutch_egress::control::Order;
use hutch_node::{EgressNews, PeerAnswer, PeerRefusal, PeerRequest};
use hutch_privsep::Channel;
use tokio::sync::oneshot;

use super::{Change, Supervisor};
use crate::egress::peers::{ground, reason};

/// Answer to a request for a connection to another Pod.
pub(in crate::up) struct Dialed {
    /// Number of the process that made the request: numbers of requests mean nothing to the next one.
    pub(super) process: u64,
    sandbox: u64,
    dial: u64,
    answer: Result<PeerAnswer, PeerRefusal>,
}

impl Dialed {
    pub(super) async fn send(self, channel: &Channel) -> std::io::Result<()> {
        let Dialed { sandbox, dial, answer, .. } = self;
        let (answer, sockets) = match answer {
            Ok(PeerAnswer { by, sockets }) => (Ok(ground(by)), sockets),
            Err(refusal) => (Err(reason(refusal)), None),
        };
        let sockets: Vec<_> = sockets.iter().flatten().map(AsFd::as_fd).collect();
        channel.send(&Order::Dialed { sandbox, dial, answer }, &sockets).await
    }
}

impl Supervisor {
    /// Passes a request for a connection on to the node, and its answer back.
    pub(super) fn request(
        &self,
        (sandbox, dial): (u64, u64),
        (pod, connects): (String, bool),
        service: (String, String),
        port: NonZeroU16,
    ) {
        let place = self.pods.get(&pod).and_then(|pod| pod.requests.clone().try_acquire_owned().ok());
        let (answer, answered) = oneshot::channel();
        let request = EgressNews::Dial(PeerRequest { pod, service, port, connects, answer });
        let busy = place.is_none() || self.news.try_send(request).is_err();
        let (process, changes) = (self.process, self.changes.clone());
        tokio::spawn(async move {
            let refusal = |text: &str| Err(PeerRefusal::Unreachable(text.to_owned()));
            let answer = match busy {
                true => refusal("too many connections are being made"),
                false => answered.await.unwrap_or_else(|_| refusal("the Pod has ended")),
            };
            drop(place);
            if let Some(changes) = changes.upgrade() {
                let _ = changes.send(Change::Dialed(Dialed { process, sandbox, dial, answer }));
            }
        });
    }
}
