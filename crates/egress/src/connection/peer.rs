//! A connection to another sandbox.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Destination, Host, Peer};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::Door;
use crate::descriptors::Places;
use crate::peers::Connected;
use crate::records::Open;
use crate::refusal::{Denial, Reason, Refusal, reset};
use crate::relay;
use crate::sandbox::Sandbox;

/// Maximum time for which news of a closed peer may come after the end of its connection.
const NEWS: Duration = Duration::from_millis(20);

/// A connection to a peer, and what is kept until its end.
pub(crate) struct Peered {
    pub(crate) server: TcpStream,
    pub(crate) kept: Kept,
}

/// Keeps the other sandbox awake.
pub(crate) struct Kept {
    /// Closed by the other side when the connection is no longer allowed.
    awake: UnixStream,
    _place: Places,
}

impl Kept {
    /// Waits until the connection is no longer allowed.
    async fn revoked(&self) {
        // Nothing is written to it, so it is readable when it is closed.
        let _ = self.awake.readable().await;
    }
}

impl Sandbox {
    /// Returns the peer that a destination names.
    pub(crate) fn peer(&self, destination: &Destination) -> Option<Arc<Peer>> {
        match &destination.host {
            Host::Name(name) => self.peers.find(name),
            Host::Address(_) => None,
        }
    }

    /// Connects to a peer.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) async fn connect_peer(
        &self,
        peer: &Peer,
        destination: &Destination,
    ) -> Result<Peered, Refusal> {
        let refusal = |reason| Refusal { destination: destination.to_string(), reason };
        let counted = self.descriptors.take(1).map_err(|shortage| refusal(shortage.into()))?;
        let (server, awake) = self.connect_recorded(peer, destination).await.map_err(refusal)?;
        let awake = std::os::unix::net::UnixStream::from(awake);
        let awake = awake.set_nonblocking(true).and_then(|()| UnixStream::from_std(awake));
        let awake = awake.map_err(|error| refusal(Reason::Unreachable(error.to_string())))?;
        Ok(Peered { server, kept: Kept { awake, _place: counted } })
    }

    /// Connects to a peer, and records what allows it: before that where the log must have it first, else once.
    async fn connect_recorded(&self, peer: &Peer, destination: &Destination) -> Result<Connected, Reason> {
        let first = self.records.come_first();
        if first {
            let by = self.peers.judge(peer, destination.port).await?;
            self.allowed(destination, None, Some(&by)).await?;
        }
        let (by, connected) = self.peers.connect(peer, destination.port).await?;
        if !first {
            self.allowed(destination, None, Some(&by)).await?;
        }
        Ok(connected)
    }

    /// Waits until a connection to a peer is no longer allowed, or the sandbox has ended. Reports a peer that is closed.
    pub(crate) async fn peer_closed(&self, destination: &Destination, kept: &Kept) {
        let Host::Name(name) = &destination.host else { return };
        let mut rules = self.rules.subscribe();
        let revoked = tokio::select! {
            () = self.peers.closed(name, destination.port) => false,
            () = kept.revoked() => true,
            _ = rules.wait_for(Option::is_none) => return,
        };
        // Perhaps the other one ends, which is no denial of this one. News of a closed peer come at the same time.
        if revoked && timeout(NEWS, self.peers.closed(name, destination.port)).await.is_err() {
            return;
        }
        let reason = Reason::Denied(Denial::default());
        self.refused(Refusal { destination: destination.to_string(), reason });
    }

    /// Serves a connection to a peer until its end. Returns the connection if it is for something else.
    pub(super) async fn serve_peer(&self, client: TcpStream, destination: &Destination) -> Option<TcpStream> {
        let Some(peer) = self.peer(destination) else { return Some(client) };
        match self.connect_peer(&peer, destination).await {
            Err(refusal) => self.refuse(client, &mut Vec::new(), refusal).await,
            Ok(peered) => self.join_peer(client, peered, destination, Vec::new()).await,
        }
        None
    }

    /// Serves a connection to a peer whose client has named it, until its end.
    pub(super) async fn serve_named_peer(
        &self,
        mut client: TcpStream,
        peer: &Peer,
        destination: Destination,
        door: impl Door,
        first: Vec<u8>,
    ) {
        match self.connect_peer(peer, &destination).await {
            Err(refusal) => {
                self.refused(refusal.clone());
                door.refuse(client, &refusal, &self.advice(&refusal)).await;
            }
            Ok(peered) if door.accept(&mut client).await => {
                self.join_peer(client, peered, &destination, first).await;
            }
            Ok(_) => {}
        }
    }

    async fn join_peer(
        &self,
        mut client: TcpStream,
        peered: Peered,
        destination: &Destination,
        first: Vec<u8>,
    ) {
        let Peered { mut server, kept } = peered;
        let open = Open::new(&self.records, destination);
        let sent = |bytes| {
            self.counters().sent(bytes);
            open.sent(bytes);
            Ok::<_, io::Error>(())
        };
        let received = |bytes| {
            self.counters().received(bytes);
            open.received(bytes);
        };
        tokio::select! {
            joined = relay::join(&self.descriptors, &mut client, &mut server, first, sent, received) => {
                if joined.is_ok() {
                    open.closed();
                }
                return;
            }
            () = self.peer_closed(destination, &kept) => {}
        }
        reset(&client);
        reset(&server);
    }
}
