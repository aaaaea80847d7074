//! The way to the network outside: the machine's authorities, and a proxy that may be between.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hutch_policy::{Authority, Destination, Forbidden, Level, judged_as};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::awake::Awake;
use crate::credentials::Issued;
use crate::descriptors::{Descriptors, Shortage};
use crate::record::Counters;
use crate::refusal::{Reason, private_advice};

/// Maximum time to connect to the proxy, and for each part of its answer.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum bytes of the answer of a proxy.
const HEAD: usize = 8 << 10;
/// Lookups of the name of a proxy at once: each takes a thread of those of all sandboxes.
static LOOKUPS: Semaphore = Semaphore::const_new(8);

/// Reason why a destination cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    /// Every address is closed.
    #[error("{0}: {1}{2}")]
    Closed(IpAddr, Forbidden, Remedy),
    /// The address is that of a sandbox.
    #[error(
        "{0}: it is the address of a sandbox, which a rule with `sandboxes` opens by the name of a Service"
    )]
    Sandbox(IpAddr),
    /// The name has no address.
    #[error("the name does not resolve: {0}")]
    Name(io::Error),
    /// No address accepts.
    #[error("{0}")]
    Connect(io::Error),
    /// The proxy outside does not connect.
    #[error("the proxy outside: {0}")]
    Proxy(String),
    /// The sandbox has too many connections to servers.
    #[error("too many connections to servers are open")]
    TooMany,
    /// The process has no descriptors left.
    #[error("{}", Reason::Full)]
    Full,
    /// The server cannot be trusted, or does not speak TLS.
    #[error("TLS to the server: {0}")]
    Tls(String),
}

/// Change that would open a closed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing opens it.
    None,
    /// A flag of the command.
    Flag(IpAddr),
    /// A field of each rule that allows the host. With true, only an administrator's policy can have it.
    Field(IpAddr, bool),
}

impl Remedy {
    pub(crate) fn of(levels: &[Arc<Level>], address: IpAddr, reason: &Forbidden) -> Remedy {
        let address = judged_as(address);
        match reason {
            Forbidden::Metadata | Forbidden::NoHost | Forbidden::NetworkPolicy | Forbidden::Denied { .. } => {
                Remedy::None
            }
            _ if levels.iter().all(|level| level.authority == Authority::Invocation) => Remedy::Flag(address),
            reason => Remedy::Field(address, *reason != Forbidden::Private),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::None => Ok(()),
            Remedy::Flag(address) => formatter.write_str(&private_advice(*address)),
            Remedy::Field(address, administrators) => {
                let only = if *administrators { ", each of a ClusterSandboxPolicy" } else { "" };
                write!(
                    formatter,
                    "; to open it: `private: [{address}]` in the rules that allow the host{only}"
                )
            }
        }
    }
}

impl From<Shortage> for Unreachable {
    fn from(shortage: Shortage) -> Unreachable {
        match shortage {
            Shortage::Own => Unreachable::TooMany,
            Shortage::All => Unreachable::Full,
        }
    }
}

impl From<&Unreachable> for Reason {
    fn from(error: &Unreachable) -> Reason {
        match error {
            Unreachable::Closed(..) | Unreachable::Sandbox(_) => Reason::Forbidden(error.to_string()),
            Unreachable::Full => Reason::Full,
            _ => Reason::Unreachable(error.to_string()),
        }
    }
}

impl From<Unreachable> for Reason {
    fn from(error: Unreachable) -> Reason {
        Reason::from(&error)
    }
}

/// A proxy outside, such as that of a company, through which everything goes. It resolves names, so the addresses to which
/// they lead cannot be judged here.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    /// Name or address, and port.
    pub address: String,
    /// Value of `Proxy-Authorization`, if the proxy needs one. Secret.
    pub authorization: Option<String>,
}

/// Without the credential.
impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UpstreamProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl UpstreamProxy {
    pub(crate) async fn connect(&self, destination: &Destination) -> Result<TcpStream, Unreachable> {
        let failed = |error: io::Error| Unreachable::Proxy(error.to_string());
        let connected = timeout(CONNECT, self.open()).await;
        let mut stream = connected.map_err(|_| failed(io::ErrorKind::TimedOut.into()))?.map_err(failed)?;
        let mut request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n");
        if let Some(value) = &self.authorization {
            request.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut head = Vec::new();
        // One byte at a time: what follows the head belongs to the connection.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= HEAD {
                return Err(Unreachable::Proxy("its answer is too long".to_owned()));
            }
            let read = timeout(CONNECT, stream.read_u8()).await;
            head.push(read.map_err(|_| failed(io::ErrorKind::TimedOut.into()))?.map_err(failed)?);
        }
        opened(&head).map(|()| stream)
    }

    /// Connects to the proxy itself.
    async fn open(&self) -> io::Result<TcpStream> {
        if let Ok(address) = self.address.parse::<SocketAddr>() {
            return TcpStream::connect(address).await;
        }
        let turn = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let address = self.address.clone();
        let resolve = move || {
            let found = address.to_socket_addrs().map(Vec::from_iter);
            // A thread that waits for a slow server keeps its turn after the time has passed.
            drop(turn);
            found
        };
        let found = tokio::task::spawn_blocking(resolve).await.map_err(io::Error::other)??;
        TcpStream::connect(&found[..]).await
    }
}

/// Reads the answer of a proxy outside to CONNECT.
///
/// # Errors
/// The reason why the connection is not open.
pub(crate) fn opened(head: &[u8]) -> Result<(), Unreachable> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut answer = httparse::Response::new(&mut headers);
    match answer.parse(head).map(|_| answer.code) {
        Ok(Some(200..300)) => Ok(()),
        Ok(code) => Err(Unreachable::Proxy(format!("it answers with status {}", code.unwrap_or(0)))),
        Err(error) => Err(Unreachable::Proxy(error.to_string())),
    }
}

/// Recognizes the addresses of sandboxes.
pub(crate) type IsSandbox = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// How the network outside is reached: the same for all sandboxes.
#[derive(Default)]
pub struct Way {
    /// Certificates of authorities that servers are judged by, PEM.
    authorities: Vec<u8>,
    /// Proxy through which everything goes, by host and port.
    pub(crate) proxy: Option<UpstreamProxy>,
    /// Credentials that every sandbox has.
    pub(crate) issued: Vec<Issued>,
    /// Parsed at the first use.
    tls: Mutex<Option<Arc<ClientConfig>>>,
    /// Counters of all sandboxes.
    pub(crate) counters: Counters,
    /// Descriptors that they share.
    pub(crate) descriptors: Descriptors,
    /// The thread of the runtime, if it stays awake for near servers.
    pub(crate) awake: Option<Arc<Awake>>,
    /// Returns true for the address of a sandbox.
    sandboxes: OnceLock<IsSandbox>,
}

impl Way {
    /// Returns the way with the machine's authorities, PEM, and through a proxy if one is given.
    pub fn new(authorities: Vec<u8>, proxy: Option<UpstreamProxy>) -> Way {
        Way { authorities, proxy, ..Way::default() }
    }

    /// Gives every sandbox these credentials.
    #[must_use]
    pub fn with_credentials(self, issued: Vec<Issued>) -> Way {
        Way { issued, ..self }
    }

    /// Has the thread of a runtime with one thread stay awake while near servers answer.
    #[must_use]
    pub fn with_awake(self, awake: Option<Arc<Awake>>) -> Way {
        Way { awake, ..self }
    }

    /// Has the addresses of sandboxes refused that are dialed. Set once, where sandboxes have addresses of the network.
    pub(crate) fn set_sandboxes(&self, is_sandbox: IsSandbox) {
        let _ = self.sandboxes.set(is_sandbox);
    }

    /// Returns true if an address is that of a sandbox, or stands for one.
    pub(crate) fn is_sandbox(&self, address: IpAddr) -> bool {
        let forms = [address.to_canonical(), judged_as(address)];
        self.sandboxes.get().is_some_and(|is_sandbox| forms.into_iter().any(is_sandbox))
    }

    /// Returns true if sandboxes have addresses of the network: any address may become one of them, also one of the internet.
    pub(crate) fn knows_sandboxes(&self) -> bool {
        self.sandboxes.get().is_some()
    }

    /// Returns the TLS of clients, without an application protocol.
    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, Unreachable> {
        let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &*tls {
            return Ok(config.clone());
        }
        let mut roots = RootCertStore::empty();
        // A certificate that cannot be read is not trusted; machines have some.
        let certificates = CertificateDer::pem_slice_iter(&self.authorities).flatten();
        roots.add_parsable_certificates(certificates);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Unreachable::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = Arc::new(config);
        *tls = Some(config.clone());
        Ok(config)
    }
}
