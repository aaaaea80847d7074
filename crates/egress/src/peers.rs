//! Connections to other sandboxes, by the names of Services.
//!
//! This process knows which names and ports are open. The one that started it connects, after it has decided again: no
//! address leads from one sandbox to another.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hutch_policy::{HostName, Peer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::ground::Ground;
use crate::pending::Pending;
use crate::refusal::{Denial, Reason};

/// Maximum time to wait for a connection.
const DIAL: Duration = Duration::from_secs(20);

/// Peers of a sandbox by their names.
type ByName = HashMap<HostName, Arc<Peer>>;
/// A connection, and a socket that is closed with it.
pub(crate) type Connected = (TcpStream, OwnedFd);
/// Result of a request: what allows it, and the connection unless only the decision was requested.
pub(crate) type Answer = Result<(Ground, Option<Connected>), Reason>;
/// Requests a connection to a port of a peer, by a number; with false only the decision.
pub(crate) type Request = Box<dyn Fn(u64, &Peer, NonZeroU16, bool) + Send + Sync>;

/// Other sandboxes that a sandbox reaches.
#[derive(Default)]
pub(crate) struct Peers {
    by_name: watch::Sender<Arc<ByName>>,
    /// Set where there may be peers.
    request: OnceLock<Request>,
    pending: Pending<Answer>,
}

impl Peers {
    /// Sets what requests a connection.
    pub(crate) fn set_request(&self, request: Request) {
        let _ = self.request.set(request);
    }

    /// Replaces the peers of a sandbox of the namespace `from`. Connections to others end.
    pub(crate) fn set(&self, from: &str, peers: Vec<Peer>) {
        let named = peers.into_iter().map(Arc::new).flat_map(|peer| {
            let names = peer.names(from);
            names.into_iter().map(move |name| (name, peer.clone()))
        });
        self.by_name.send_replace(Arc::new(named.collect()));
    }

    /// Returns true if the name is that of a peer.
    pub(crate) fn contains(&self, name: &HostName) -> bool {
        self.by_name.borrow().contains_key(name)
    }

    pub(crate) fn find(&self, name: &HostName) -> Option<Arc<Peer>> {
        self.by_name.borrow().get(name).cloned()
    }

    /// Takes the answer to a request. An answer that comes too late is closed.
    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        self.pending.answer(number, answer);
    }

    /// Returns what allows a connection to a port of a peer, which is not made.
    pub(crate) async fn judge(&self, peer: &Peer, port: NonZeroU16) -> Result<Ground, Reason> {
        self.request(peer, port, false).await.map(|(by, _)| by)
    }

    /// Connects to a port of a peer.
    pub(crate) async fn connect(&self, peer: &Peer, port: NonZeroU16) -> Result<(Ground, Connected), Reason> {
        let (by, connected) = self.request(peer, port, true).await?;
        let missing = || Reason::Unreachable("it was not made".to_owned());
        Ok((by, connected.ok_or_else(missing)?))
    }

    async fn request(&self, peer: &Peer, port: NonZeroU16, connects: bool) -> Answer {
        let Some(request) = self.request.get() else { return Err(Reason::Denied(Denial::default())) };
        let answer = self.pending.ask(DIAL, |number| request(number, peer, port, connects)).await;
        answer.unwrap_or_else(|| Err(Reason::Unreachable("it did not answer in time".to_owned())))
    }

    /// Waits until a port of a peer is no longer open.
    pub(crate) async fn closed(&self, name: &HostName, port: NonZeroU16) {
        let mut changes = self.by_name.subscribe();
        loop {
            let open = changes.borrow_and_update().get(name).is_some_and(|peer| is_open(peer, port));
            if !open || changes.changed().await.is_err() {
                return;
            }
        }
    }
}

fn is_open(peer: &Peer, port: NonZeroU16) -> bool {
    peer.ports.iter().any(|range| range.contains(port.get()))
}

/// Returns the answer to a request for a connection, which comes with these descriptors.
///
/// # Errors
/// Descriptors that are no connection.
pub(crate) fn answer(answer: Result<Ground, Reason>, descriptors: Vec<OwnedFd>) -> io::Result<Answer> {
    let by = match answer {
        Ok(by) => by,
        Err(reason) => return Ok(Err(reason)),
    };
    if descriptors.is_empty() {
        return Ok(Ok((by, None)));
    }
    let missing = |_| io::Error::new(io::ErrorKind::InvalidData, "a connection did not come with its order");
    let [connection, kept]: [OwnedFd; 2] = descriptors.try_into().map_err(missing)?;
    let connection = std::net::TcpStream::from(connection);
    connection.set_nonblocking(true)?;
    Ok(Ok((by, Some((TcpStream::from_std(connection)?, kept)))))
}
