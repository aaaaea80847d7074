//! WebSockets: what both sides send once they have become one.

use std::sync::Arc;

use http::HeaderMap;
use hutch_scan::Direction;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::standing::Standing;
use super::{Exchange, Line};
use crate::credentials::Placeholders;
use crate::refusal::Reason;
use crate::sandbox::{Rules, Sandbox};
use crate::scan::{Frames, Scan};
use crate::websocket::{Gate, join};

impl Exchange {
    /// Passes bytes on in both directions once both sides have become a WebSocket, as long as these rules hold.
    pub(super) fn connect(
        &self,
        (client, server): (OnUpgrade, OnUpgrade),
        line: Arc<Line>,
        (rules, standing): (Rules, Option<Arc<Standing>>),
        (of, scan): (&HeaderMap, Option<Scan>),
    ) {
        if let Some(heads) = &self.heads {
            heads.end();
        }
        let frames = scan.map(|scan| {
            let frames = |direction| Frames::new(scan.clone(), self.talk(of), direction, &self.sandbox.room);
            (frames(Direction::Outbound), frames(Direction::Inbound))
        });
        let (outbound, inbound) = frames.unzip();
        let side = |frames| Side { sandbox: self.sandbox.clone(), line: line.clone(), frames };
        let sent = Sent { side: side(outbound), placeholders: Placeholders::of(&rules.credentials) };
        let received = Received(side(inbound));
        let sandbox = self.sandbox.clone();
        self.tunnel.set(async move {
            let (Ok(client), Ok(server)) = (client.await, server.await) else { return };
            let denied = async {
                match &standing {
                    Some(standing) => standing.denied().await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                tokio::select! {
                    () = sandbox.changed(&line.origin.destination, rules) => "other rules decide about it now".to_owned(),
                    reason = denied => {
                        let text = reason.to_string();
                        line.end(&sandbox, reason);
                        text
                    }
                }
            };
            join(TokioIo::new(client), TokioIo::new(server), sent, received, changed).await;
        });
    }
}

/// One side of a WebSocket, whose bytes are judged.
struct Side {
    sandbox: Arc<Sandbox>,
    line: Arc<Line>,
    /// `None` if nothing is scanned.
    frames: Option<Frames>,
}

impl Side {
    /// Records a refusal, and returns its text.
    fn refuse(&self, reason: Reason) -> String {
        let text = reason.to_string();
        self.sandbox.refused_request(self.line.refusal(reason, &[]), &self.line.asked(&[]));
        text
    }

    async fn scan(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let Some(frames) = &mut self.frames else { return Ok(None) };
        let mut recorded = Vec::new();
        let passed = frames.pass(bytes, &mut recorded).await;
        recorded.into_iter().for_each(|reason| drop(self.refuse(reason)));
        passed.map(Some).map_err(|found| self.refuse(Reason::Found(found.into())))
    }
}

/// Judges what the client sends.
struct Sent {
    side: Side,
    placeholders: Placeholders,
}

impl Gate for Sent {
    async fn pass(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let side = &mut self.side;
        side.sandbox.counters().sent(bytes.len());
        if let Some(name) = self.placeholders.find(bytes) {
            // A WebSocket to a host of a credential is refused.
            let why = "it is not bound to this host and port".to_owned();
            return Err(side.refuse(Reason::Credential(name.to_owned(), why)));
        }
        let counted = side.sandbox.usage.sent(&side.sandbox.rules().levels, bytes.len());
        counted.map_err(|reason| side.refuse(reason))?;
        side.scan(bytes).await
    }
}

/// Judges what the server sends.
struct Received(Side);

impl Gate for Received {
    async fn pass(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.0.sandbox.counters().received(bytes.len());
        self.0.scan(bytes).await
    }
}
