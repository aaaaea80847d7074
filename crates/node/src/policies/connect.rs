//! Makes connections between Pods.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hutch_attach::PeerRefusal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::dial::enter;
use crate::live::Live;
use crate::sleep::Busy;
use crate::stdio::register as watch_descriptor;

/// A connection to a Pod.
pub(super) struct Connected {
    /// The connection, and a socket that is closed with it.
    pub(super) sockets: [OwnedFd; 2],
    pub(super) held: HeldOpen,
}

/// The other end of that socket. Closing it ends the connection.
pub(super) struct HeldOpen {
    open: AsyncFd<OwnedFd>,
    /// Keeps the Pod awake.
    _busy: Busy,
}

impl HeldOpen {
    /// Waits until the connection has ended.
    pub(super) async fn end(self) {
        // Nothing is written to it, so it is readable when it is closed.
        let _ = self.open.readable().await;
    }
}

/// Connects to a port of a Pod.
pub(super) async fn connect(live: &Arc<Live>, port: u16) -> Result<Connected, PeerRefusal> {
    let failed = |text: String| PeerRefusal::Unreachable(text);
    let busy = live.enter().await.map_err(|error| failed(error.to_string()))?;
    let stream = enter(live, port).await.map_err(|error| failed(error.to_string()))?;
    let stream = stream.into_std().map_err(|error| failed(error.to_string()))?;
    let pair = std::os::unix::net::UnixStream::pair().map_err(|error| failed(error.to_string()))?;
    let (ours, theirs) = (OwnedFd::from(pair.0), OwnedFd::from(pair.1));
    let open = watch_descriptor(ours, Interest::READABLE).map_err(|error| failed(error.to_string()))?;
    Ok(Connected { sockets: [stream.into(), theirs], held: HeldOpen { open, _busy: busy } })
}
