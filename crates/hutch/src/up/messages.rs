//! Messages between root process and front at start and end, over the front's standard input.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::callout::Destination;
use crate::cli::AuditMode;

/// The first message to the front. Descriptors: the API's listener, the channel of the kubelet contract, the socket for
/// the node's requests to the API, the router's listener if there is one, the socket of the audit log if there is one, the
/// channel of the process that connects to webhooks if there is one, and the lock of the data folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Start {
    /// The data folder, which the front enters before it is confined.
    pub(super) folder: PathBuf,
    /// User and group id of the front.
    pub(super) id: u32,
    /// Address of the API.
    pub(super) api: SocketAddr,
    /// Addresses by which clients reach the API.
    pub(super) reached_at: Vec<String>,
    /// Listener of the router, if it has one.
    pub(super) router: Option<RouterListener>,
    /// Mode of the audit log.
    pub(super) audit: AuditMode,
    /// Hosts of webhooks.
    pub(super) webhook_hosts: Vec<Destination>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RouterListener {
    pub(super) unauthenticated: bool,
}

/// Further messages to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToFront {
    /// Take no further requests of clients. The node's are served until its socket is closed.
    Stop,
}

/// Messages of the front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromFront {
    /// The front serves.
    Serving(Credentials),
    /// The service of this name, which Pods represent, is ready.
    Ready(String),
    /// The front cannot start.
    Failed(String),
}

/// Credentials of an administrator.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Credentials {
    /// Certificate of the authority, PEM.
    pub(super) authority: String,
    /// Bearer token.
    pub(super) token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// Maximum bytes of a token and of a certificate.
const MAX_TOKEN: usize = 256;
const MAX_AUTHORITY: usize = 16 << 10;

impl Credentials {
    /// Checks what becomes part of the kubeconfig, a file of root.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if self.token.is_empty() || self.token.len() > MAX_TOKEN || !self.token.bytes().all(plain) {
            return Err("the front's token is not a token");
        }
        if self.authority.len() > MAX_AUTHORITY
            || !self.authority.starts_with("-----BEGIN CERTIFICATE-----\n")
        {
            return Err("the front's authority is not a certificate");
        }
        Ok(())
    }
}

/// Sends the first message, before there is a runtime.
pub(super) fn send_start(socket: &OwnedFd, start: &Start, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    hutch_privsep::send_now(socket.as_fd(), start, descriptors)
}

/// Waits for the first message.
pub(super) fn receive_start(socket: &OwnedFd) -> io::Result<(Start, Vec<OwnedFd>)> {
    let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "hutch up has ended");
    let message = hutch_privsep::receive_now(socket.as_fd())?.ok_or_else(closed)?;
    Ok((message.decode()?, message.descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_would_change_the_kubeconfig_are_refused() {
        let authority = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n";
        let given =
            |authority: &str, token: &str| Credentials { authority: authority.into(), token: token.into() };
        assert_eq!(given(authority, "Abc-_09").check(), Ok(()));
        for (authority, token) in [
            (authority, ""),
            (authority, "a\nusers:"),
            (authority, "a}"),
            (authority, &"a".repeat(MAX_TOKEN + 1)),
            ("", "a"),
            (&format!("{authority}{}", "x".repeat(MAX_AUTHORITY)), "a"),
        ] {
            assert!(given(authority, token).check().is_err(), "{token:?}");
        }
        assert!(!format!("{:?}", given(authority, "secret")).contains("secret"));
    }
}
