//! Connections of Pods to other Pods, which the node makes.

use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};

use hutch_egress::Reason;
use hutch_egress::control::Order;
use hutch_node::{EgressNews, PeerRefusal, PeerRequest};
use hutch_privsep::Channel;
use tokio::sync::oneshot;

use super::{Change, Supervisor};

/// Answer to a request for a connection to another Pod.
pub(in crate::up) struct Dialed {
    /// Number of the process that made the request: numbers of requests mean nothing to the next one.
    pub(super) process: u64,
    sandbox: u64,
    dial: u64,
    answer: Result<[OwnedFd; 2], PeerRefusal>,
}

impl Dialed {
    pub(super) async fn send(self, channel: &Channel) -> std::io::Result<()> {
        let Dialed { sandbox, dial, answer, .. } = self;
        let (failed, sockets) = match answer {
            Ok(sockets) => (None, Vec::from(sockets)),
            Err(PeerRefusal::Denied(why)) => (Some(Reason::Closed(why)), Vec::new()),
            Err(PeerRefusal::Unreachable(why)) => (Some(Reason::Unreachable(why)), Vec::new()),
        };
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        channel.send(&Order::Dialed { sandbox, dial, failed }, &sockets).await
    }
}

impl Supervisor {
    /// Passes a request for a connection on to the node, and its answer back.
    pub(super) fn request(
        &self,
        (sandbox, dial): (u64, u64),
        pod: String,
        service: (String, String),
        port: NonZeroU16,
    ) {
        let (answer, answered) = oneshot::channel();
        let request = EgressNews::Dial(PeerRequest { pod, service, port, answer });
        let busy = self.news.try_send(request).is_err();
        let (process, changes) = (self.process, self.changes.clone());
        tokio::spawn(async move {
            let refusal = |text: &str| Err(PeerRefusal::Unreachable(text.to_owned()));
            let answer = match busy {
                true => refusal("too many connections are being made"),
                false => answered.await.unwrap_or_else(|_| refusal("the Pod has ended")),
            };
            if let Some(changes) = changes.upgrade() {
                let _ = changes.send(Change::Dialed(Dialed { process, sandbox, dial, answer }));
            }
        });
    }
}
