//! One sandbox: its policy, its names and its connections.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hutch_policy::{
    Decision, Destination, Host, HostName, Level, Mode, Opinion, Traffic, Verdict, decide, may_resolve,
};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::dial::dial;
use crate::dns;
use crate::first::{self, First, classify};
use crate::names::{Names, is_synthetic};

/// Maximum open connections.
const CONNECTIONS: usize = 512;
/// Maximum time in which a client says for which name it connects.
const FIRST_BYTES: Duration = Duration::from_secs(5);
/// Maximum time to wait for the first bytes of a client that is refused, and to send it the reason.
const SPEAKS: Duration = Duration::from_millis(200);
/// Maximum bytes that are read after a request that was refused.
const REST: u64 = 1 << 20;
/// Maximum time without a query on a connection to the DNS server.
const DNS_IDLE: Duration = Duration::from_secs(10);
/// Port of DNS.
pub(crate) const DNS: u16 = 53;
/// Buffer of one direction of a connection.
const BUFFER: usize = 32 << 10;

/// A connection that was refused, or that a level would have refused that only observes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Destination, as the sandbox named it.
    pub destination: String,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A level does not allow it.
    #[error("{0}")]
    Denied(Denial),
    /// A level would not allow it, but it only observes.
    #[error("{0}, but it only observes")]
    Observed(Denial),
    /// The connection is for another name, or does not say for which.
    #[error("{0}")]
    OtherName(String),
    /// The destination cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The sandbox has too many connections.
    #[error("too many connections are open")]
    TooMany,
}

/// Name of the level that the flags of `hutch run` make.
pub const FLAGS: &str = "--allow";

/// The level that does not allow a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Denial {
    /// Name of the level; empty if no level has rules.
    pub level: String,
    /// The rule that denies it; without one, no rule allows it.
    pub rule: Option<String>,
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denial { level, rule } = self;
        match rule {
            Some(rule) => write!(formatter, "rule {rule:?} of policy {level:?} denies it"),
            None if level.is_empty() => formatter.write_str("nothing allows it"),
            None if level == FLAGS => formatter.write_str("no --allow names it"),
            None => write!(formatter, "no rule of policy {level:?} allows it"),
        }
    }
}

impl Denial {
    /// Returns the first of these opinions that denies, of the levels with this effect.
    fn first(verdict: &Verdict<'_>, mode: Mode) -> Option<Denial> {
        let denies =
            |opinion: &&Opinion<'_>| opinion.decision == Decision::Deny && opinion.level.mode == mode;
        let opinion = verdict.opinions.iter().find(denies)?;
        Some(Denial { level: opinion.level.name.clone(), rule: opinion.rule.map(str::to_owned) })
    }
}

/// Receives refusals.
pub type Report = Box<dyn Fn(Refusal) + Send + Sync>;

/// A sandbox.
pub(crate) struct Sandbox {
    levels: Vec<Level>,
    names: Mutex<Names>,
    connections: Semaphore,
    report: Report,
}

impl Sandbox {
    pub(crate) fn new(levels: Vec<Level>, report: Report) -> Arc<Sandbox> {
        let connections = Semaphore::new(CONNECTIONS);
        Arc::new(Sandbox { levels, names: Mutex::default(), connections, report })
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a DNS message.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        dns::answer(message, &mut self.names(), |name| may_resolve(&self.levels, name))
    }

    /// Serves a captured connection until its end.
    pub(crate) async fn serve(&self, client: TcpStream) {
        // The address at which it was captured is that to which the program connected.
        let Ok(target) = client.local_addr() else { return };
        let Ok(_place) = self.connections.try_acquire() else {
            (self.report)(Refusal { destination: target.to_string(), reason: Reason::TooMany });
            return reset(&client);
        };
        if target.port() == DNS {
            return self.serve_dns(client).await;
        }
        let mut first = Vec::new();
        match self.connect(&client, target, &mut first).await {
            Ok(server) => join(client, server, &first).await,
            Err(refusal) => {
                let text = format!("{}: {}", refusal.destination, refusal.reason);
                (self.report)(refusal);
                refuse(client, &mut first, &text).await;
            }
        }
    }

    /// Decides about a connection and makes it. Puts what it has read of the client into `first`.
    async fn connect(
        &self,
        client: &TcpStream,
        target: SocketAddr,
        first: &mut Vec<u8>,
    ) -> Result<TcpStream, Refusal> {
        let Some(destination) = self.destination(target) else {
            let reason = Reason::Denied(Denial::default());
            return Err(Refusal { destination: target.to_string(), reason });
        };
        let refused = |reason| Err(Refusal { destination: destination.to_string(), reason });
        let verdict = decide(&self.levels, &destination);
        if let Some(denial) = Denial::first(&verdict, Mode::Observe) {
            (self.report)(Refusal { destination: destination.to_string(), reason: Reason::Observed(denial) });
        }
        if verdict.decision != Decision::Allow {
            return refused(Reason::Denied(Denial::first(&verdict, Mode::Enforce).unwrap_or_default()));
        }
        if verdict.traffic < Traffic::Any
            && let Err(why) = first_bytes(client, &destination, verdict.traffic, first).await
        {
            return refused(Reason::OtherName(why));
        }
        dial(&destination, &self.levels)
            .await
            .or_else(|error| refused(Reason::Unreachable(error.to_string())))
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

/// Reads the first bytes of a client until they say for which name it connects, and checks it.
async fn first_bytes(
    client: &TcpStream,
    destination: &Destination,
    traffic: Traffic,
    bytes: &mut Vec<u8>,
) -> Result<(), String> {
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
            match classify(bytes) {
                First::Incomplete if bytes.len() < first::LIMIT => {}
                found => return is_for(&found, destination, traffic),
            }
        }
    };
    let silent = "it does not say for which name it is; a rule with `protocol: TCP` allows that";
    timeout(FIRST_BYTES, read).await.map_err(|_| silent.to_owned())?
}

/// Checks that a connection is for its destination.
fn is_for(first: &First, destination: &Destination, traffic: Traffic) -> Result<(), String> {
    let other = |name: &str| Err(format!("it is for {name:?}"));
    match (first, &destination.host) {
        (First::Tls(Some(name)), host) if name.parse().as_ref() != Ok(host) => other(name),
        (First::Tls(None), Host::Name(_)) => Err("its TLS names no server".to_owned()),
        (First::Tls(_), _) => Ok(()),
        (First::Http(_), _) if traffic < Traffic::Web => {
            Err("it is HTTP without TLS; a rule with `plaintext: true` allows that".to_owned())
        }
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

/// Sends the reason of a refusal to a client that speaks HTTP without TLS, and resets any other connection.
async fn refuse(mut client: TcpStream, first: &mut Vec<u8>, text: &str) {
    if first.is_empty() {
        let mut piece = [0; 4096];
        // A client that waits for the server to speak is not kept waiting.
        let read = timeout(SPEAKS, client.read(&mut piece)).await;
        first.extend_from_slice(&piece[..read.unwrap_or(Ok(0)).unwrap_or(0)]);
    }
    let First::Http(_) = classify(first) else { return reset(&client) };
    let problem = serde_json::json!({
        "type": "about:blank", "title": "Forbidden", "status": 403, "detail": format!("refused {text}"),
    });
    let body = problem.to_string();
    let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nConnection: close";
    let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    if let Ok(Ok(())) = timeout(SPEAKS, client.write_all(answer.as_bytes())).await {
        let _ = client.shutdown().await;
        // Closing before everything is read would be a reset, which takes the answer from the client.
        let mut rest = tokio::io::sink();
        let _ = timeout(FIRST_BYTES, tokio::io::copy(&mut client.take(REST), &mut rest)).await;
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
            assert_eq!(is_for(&first, &https, Traffic::Web), Ok(()), "{first:?}");
        }
        for host in ["a.example", "A.example.", "a.example:80"] {
            assert_eq!(is_for(&http(host), &plain, Traffic::Web), Ok(()), "{host}");
        }
        assert_eq!(is_for(&First::Tls(None), &address, Traffic::Tls), Ok(()));
        assert_eq!(is_for(&http("192.0.2.1"), &address, Traffic::Web), Ok(()));
        for first in [tls("b.example"), tls("x.a.example"), First::Tls(None), First::Other, First::Incomplete]
        {
            assert!(is_for(&first, &https, Traffic::Web).is_err(), "{first:?}");
        }
        for host in ["b.example", "a.example:81", "a.example:", "", "a.example:80:80", "192.0.2.1"] {
            assert!(is_for(&http(host), &plain, Traffic::Web).is_err(), "{host}");
        }
        assert!(is_for(&tls("a.example"), &address, Traffic::Web).is_err());
        assert!(is_for(&http("a.example"), &https, Traffic::Tls).unwrap_err().contains("plaintext"));
    }
}
