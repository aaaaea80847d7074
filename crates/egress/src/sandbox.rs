//! One sandbox: its policy, its names and its connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hutch_policy::{Cidr, Decision, Destination, Host, HostName, Level, Protocol, decide, may_resolve};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::dial::{Unreachable, dial};
use crate::dns;
use crate::first::{self, First, classify};
use crate::names::{Names, is_synthetic};

/// Maximum open connections.
const CONNECTIONS: usize = 512;
/// Maximum time in which a client says for which name it connects.
const FIRST_BYTES: Duration = Duration::from_secs(5);
/// Maximum time without a query on a connection to the DNS server.
const DNS_IDLE: Duration = Duration::from_secs(10);
/// Port of DNS.
pub(crate) const DNS: u16 = 53;
/// Buffer of one direction of a connection.
const BUFFER: usize = 32 << 10;

/// Policy of a sandbox.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Policy {
    /// Levels; all that have egress rules must allow a connection.
    pub levels: Vec<Level>,
    /// Ranges that may be dialed although they do not belong to the internet.
    pub private: Vec<Cidr>,
}

/// A connection that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Destination, as the sandbox named it.
    pub destination: String,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// No rule allows it, or one denies it.
    Denied,
    /// The connection is for another name, or does not say for which.
    OtherName(String),
    /// The destination cannot be reached.
    Unreachable(String),
    /// The sandbox has too many connections.
    TooMany,
}

/// Receives refusals.
pub type Report = Box<dyn Fn(Refusal) + Send + Sync>;

/// A sandbox.
pub(crate) struct Sandbox {
    policy: Policy,
    names: Mutex<Names>,
    connections: Semaphore,
    report: Report,
}

impl Sandbox {
    pub(crate) fn new(policy: Policy, report: Report) -> Arc<Sandbox> {
        let connections = Semaphore::new(CONNECTIONS);
        Arc::new(Sandbox { policy, names: Mutex::default(), connections, report })
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a DNS message.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        dns::answer(message, &mut self.names(), |name| may_resolve(&self.policy.levels, name))
    }

    /// Serves a captured connection until its end.
    pub(crate) async fn serve(&self, client: TcpStream) {
        // The address at which it was captured is that to which the program connected.
        let Ok(target) = client.local_addr() else { return };
        let refusal = match self.connections.try_acquire() {
            Ok(_place) if target.port() == DNS => return self.serve_dns(client).await,
            Ok(_place) => match self.connect(&client, target).await {
                Ok((server, first)) => return join(client, server, &first).await,
                Err(refusal) => refusal,
            },
            Err(_) => Refusal { destination: target.to_string(), reason: Reason::TooMany },
        };
        (self.report)(refusal);
        reset(&client);
    }

    /// Decides about a connection and makes it. Returns it with the first bytes of the client.
    async fn connect(&self, client: &TcpStream, target: SocketAddr) -> Result<(TcpStream, Vec<u8>), Refusal> {
        let refused = |destination: String, reason| Err(Refusal { destination, reason });
        let Some(destination) = self.destination(target) else {
            return refused(target.to_string(), Reason::Denied);
        };
        let verdict = decide(&self.policy.levels, &destination);
        if verdict.decision != Decision::Allow {
            return refused(destination.to_string(), Reason::Denied);
        }
        let first = match verdict.protocol {
            Protocol::Tcp => Vec::new(),
            Protocol::Auto => match first_bytes(client, &destination).await {
                Ok(first) => first,
                Err(why) => return refused(destination.to_string(), Reason::OtherName(why)),
            },
        };
        match dial(&destination, &self.policy.private).await {
            Ok(server) => Ok((server, first)),
            Err(error @ Unreachable::Closed(..)) => {
                refused(destination.to_string(), Reason::Unreachable(error.to_string()))
            }
            Err(error) => refused(destination.to_string(), Reason::Unreachable(error.to_string())),
        }
    }

    /// Returns what an address means; `None` for one that means no name.
    fn destination(&self, target: SocketAddr) -> Option<Destination> {
        let port = NonZeroU16::new(target.port())?;
        let host = match target.ip().to_canonical() {
            IpAddr::V4(address) if is_synthetic(address) => Host::Name(self.name_of(address)?),
            address => Host::from(address),
        };
        Some(Destination { host, port })
    }

    fn name_of(&self, address: Ipv4Addr) -> Option<HostName> {
        self.names().name_of(address).cloned()
    }

    /// Answers queries, each after two bytes with its length.
    async fn serve_dns(&self, mut client: TcpStream) {
        loop {
            let Ok(Ok(length)) = timeout(DNS_IDLE, client.read_u16()).await else { return };
            let mut message = vec![0; length.into()];
            let Ok(Ok(_)) = timeout(DNS_IDLE, client.read_exact(&mut message)).await else { return };
            let Some(answer) = self.answer(&message) else { return };
            let Ok(length) = u16::try_from(answer.len()) else { return };
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            let Ok(Ok(())) = timeout(DNS_IDLE, client.write_all(&framed)).await else { return };
        }
    }
}

/// Reads the first bytes of a client until they say for which name it connects, and checks that.
async fn first_bytes(client: &TcpStream, destination: &Destination) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = async {
        loop {
            client.readable().await.map_err(|error| error.to_string())?;
            let mut piece = [0; 4096];
            match client.try_read(&mut piece) {
                Ok(0) => return Err("it ended before it named its host".to_owned()),
                Ok(length) => bytes.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.to_string()),
            }
            match classify(&bytes) {
                First::Incomplete if bytes.len() < first::LIMIT => {}
                found => return is_for(&found, destination),
            }
        }
    };
    let silent = "it does not say for which name it is; a rule with `protocol: TCP` allows that";
    timeout(FIRST_BYTES, read).await.map_err(|_| silent.to_owned())??;
    Ok(bytes)
}

/// Checks that a connection is for its destination.
fn is_for(first: &First, destination: &Destination) -> Result<(), String> {
    let other = |name: &str| Err(format!("it is for {name:?}"));
    match (first, &destination.host) {
        (First::Tls(Some(name)), host) if name.parse().as_ref() != Ok(host) => other(name),
        (First::Tls(None), Host::Name(_)) => Err("its TLS names no server".to_owned()),
        (First::Tls(_), _) => Ok(()),
        (First::Http(named), host) => {
            let (name, port) = match named.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
                _ => (named.as_str(), None),
            };
            let same_port = port.is_none_or(|port| port.parse() == Ok(destination.port));
            if name.parse().as_ref() == Ok(host) && same_port { Ok(()) } else { other(named) }
        }
        (First::Other | First::Incomplete, _) => {
            Err("it is neither TLS nor HTTP; a rule with `protocol: TCP` allows that".to_owned())
        }
    }
}

/// Passes bytes on in both directions until both have ended.
async fn join(mut client: TcpStream, mut server: TcpStream, first: &[u8]) {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    if server.write_all(first).await.is_ok() {
        // An error of one side ends both.
        let _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await;
    }
}

/// Makes the end of a connection an error for its client, so that it does not look like an empty answer.
fn reset(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(text: &str) -> Destination {
        text.parse().unwrap()
    }

    #[test]
    fn connection_must_be_for_the_name_of_its_destination() {
        let tls = |name: &str| First::Tls(Some(name.to_owned()));
        let http = |host: &str| First::Http(host.to_owned());
        let (https, plain, address) =
            (destination("a.example"), destination("a.example:80"), destination("192.0.2.1:443"));
        for first in [tls("a.example"), tls("A.Example")] {
            assert_eq!(is_for(&first, &https), Ok(()), "{first:?}");
        }
        for host in ["a.example", "A.example.", "a.example:80"] {
            assert_eq!(is_for(&http(host), &plain), Ok(()), "{host}");
        }
        assert_eq!(is_for(&First::Tls(None), &address), Ok(()));
        assert_eq!(is_for(&http("192.0.2.1"), &address), Ok(()));
        for first in [tls("b.example"), tls("x.a.example"), First::Tls(None), First::Other, First::Incomplete]
        {
            assert!(is_for(&first, &https).is_err(), "{first:?}");
        }
        for host in ["b.example", "a.example:81", "a.example:", "", "a.example:80:80", "192.0.2.1"] {
            assert!(is_for(&http(host), &plain).is_err(), "{host}");
        }
        assert!(is_for(&tls("a.example"), &address).is_err());
    }
}
