//! WebSockets: what both sides send once they have become one.

use std::sync::Arc;

use http::HeaderMap;
use hutch_scan::Direction;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::{Exchange, Line};
use crate::credentials::Placeholders;
use crate::refusal::Reason;
use crate::sandbox::Rules;
use crate::scan::Frames;
use crate::websocket;

impl Exchange {
    /// Passes bytes on in both directions once both sides have become a WebSocket, as long as these rules hold.
    pub(super) fn connect(
        &self,
        (client, server): (OnUpgrade, OnUpgrade),
        line: Arc<Line>,
        rules: Rules,
        of: &HeaderMap,
    ) {
        if let Some(heads) = &self.heads {
            heads.end();
        }
        let frames = self.scan(&rules).map(|scan| {
            let frames = |direction| Frames::new(scan.clone(), self.talk(of), direction);
            (frames(Direction::Outbound), frames(Direction::Inbound))
        });
        let (mut outbound, mut inbound) = frames.unzip();
        let (sandbox, mut placeholders) = (self.sandbox.clone(), Placeholders::of(&rules.credentials));
        self.tunnel.set(async move {
            let (Ok(client), Ok(server)) = (client.await, server.await) else { return };
            let refused = |reason: Reason| {
                let text = reason.to_string();
                sandbox.refused_request(line.refusal(reason, &[]), &line.asked(&[]));
                text
            };
            let scanned = |frames: &mut Option<Frames>, bytes: &[u8]| match frames {
                None => Ok(None),
                Some(frames) => {
                    let passed = frames.pass(bytes, |reason| drop(refused(reason)));
                    passed.map(Some).map_err(|found| refused(Reason::Found(found.into())))
                }
            };
            let sent = |bytes: &[u8]| {
                sandbox.counters().sent(bytes.len());
                if let Some(name) = placeholders.find(bytes) {
                    // A WebSocket to a host of a credential is refused.
                    let why = "it is not bound to this host and port".to_owned();
                    return Err(refused(Reason::Credential(name.to_owned(), why)));
                }
                sandbox.usage.sent(&sandbox.rules().levels, bytes.len()).map_err(refused)?;
                scanned(&mut outbound, bytes)
            };
            let received = |bytes: &[u8]| {
                sandbox.counters().received(bytes.len());
                scanned(&mut inbound, bytes)
            };
            let changed = async {
                sandbox.changed(&line.destination, rules).await;
                "other rules decide about it now".to_owned()
            };
            websocket::join(TokioIo::new(client), TokioIo::new(server), sent, received, changed).await;
        });
    }
}
