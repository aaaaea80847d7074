//! One sandbox: its policy, its names and its connections.

mod peers;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hutch_policy::{
    Decision, Destination, Host, HostName, Level, Mode, Moment, Opinion, Traffic, Verdict, decide, may_dial,
    may_resolve,
};
use rustix::net::sockopt::set_socket_linger;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::dial::{dial, own};
use crate::dns;
use crate::first::{self, First, classify};
use crate::names::{Names, is_synthetic};

pub(crate) use peers::Peers;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Destination, as the sandbox named it.
    pub destination: String,
    /// Reason.
    pub reason: Reason,
}

/// Reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Reason {
    /// A level does not allow it.
    #[error("{0}")]
    Denied(Denial),
    /// A policy does not allow the other sandbox.
    #[error("{0}")]
    Closed(String),
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
pub(crate) type Report = Box<dyn Fn(Refusal) + Send + Sync>;
/// Receives each name that has got an address.
pub(crate) type Named = Box<dyn Fn(&HostName) + Send + Sync>;
/// Levels of a sandbox.
pub(crate) type Levels = Arc<[Arc<Level>]>;

/// A sandbox.
pub(crate) struct Sandbox {
    /// None once it has ended.
    levels: watch::Sender<Option<Levels>>,
    names: Mutex<Names>,
    connections: Semaphore,
    report: Report,
    named: Named,
    pub(crate) peers: Peers,
}

/// An open connection: what was decided about it.
struct Connection {
    destination: Destination,
    /// Permitted traffic when it began.
    traffic: Traffic,
    server: TcpStream,
}

impl Sandbox {
    pub(crate) fn new(levels: Levels, report: Report, named: Named, peers: Peers) -> Arc<Sandbox> {
        let connections = Semaphore::new(CONNECTIONS);
        let levels = watch::Sender::new(Some(levels));
        Arc::new(Sandbox { levels, names: Mutex::default(), connections, report, named, peers })
    }

    /// Replaces the levels. Open connections that they do not allow end.
    pub(crate) fn set_levels(&self, levels: Levels) {
        self.levels.send_replace(Some(levels));
    }

    /// Ends all connections.
    pub(crate) fn end(&self) {
        self.levels.send_replace(None);
    }

    /// Gives the next synthetic addresses to these names.
    pub(crate) fn add_names(&self, names: &[HostName]) {
        let mut known = self.names();
        for name in names {
            known.address_of(name);
        }
    }

    /// Waits until the sandbox has ended.
    async fn ended(&self) {
        let _ = self.levels.subscribe().wait_for(Option::is_none).await;
    }

    fn moment(&self) -> Moment<'static> {
        Moment::default()
    }

    fn levels(&self) -> Levels {
        self.levels.borrow().clone().unwrap_or_default()
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a DNS message.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        let levels = self.levels();
        let mut names = self.names();
        let before = names.count();
        let exists = |name: &HostName| self.peers.contains(name) || may_resolve(&levels, name);
        let answer = dns::answer(message, &mut names, exists);
        // With the lock, so that names are reported in the order of their addresses.
        names.since(before).for_each(|name| (self.named)(name));
        answer
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
        let Some(client) = self.serve_peer(client, target).await else { return };
        let mut first = Vec::new();
        match self.connect(&client, target, &mut first).await {
            Ok(connection) => self.join(client, connection, &first).await,
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
    ) -> Result<Connection, Refusal> {
        let Some(destination) = self.destination(target) else {
            let reason = Reason::Denied(Denial::default());
            return Err(Refusal { destination: target.to_string(), reason });
        };
        let refused = |reason| Err(Refusal { destination: destination.to_string(), reason });
        let levels = self.levels();
        let verdict = decide(&levels, &destination, &self.moment());
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
        match dial(&destination, &levels, &self.moment()).await {
            Ok(server) => Ok(Connection { traffic: verdict.traffic, server, destination }),
            Err(error) => refused(Reason::Unreachable(error.to_string())),
        }
    }

    /// Passes bytes on until both sides have ended, or the levels no longer allow it.
    async fn join(&self, mut client: TcpStream, connection: Connection, first: &[u8]) {
        let Connection { destination, traffic, mut server } = connection;
        let Ok(address) = server.peer_addr() else { return reset(&client) };
        let revoked = tokio::select! {
            () = join(&mut client, &mut server, first) => return,
            denial = self.revoked(&destination, traffic, address) => denial,
        };
        reset(&client);
        reset(&server);
        if let Some(denial) = revoked {
            (self.report)(Refusal { destination: destination.to_string(), reason: Reason::Denied(denial) });
        }
    }

    /// Waits until the levels no longer allow what an open connection does. `None` if the sandbox has ended.
    async fn revoked(
        &self,
        destination: &Destination,
        traffic: Traffic,
        address: SocketAddr,
    ) -> Option<Denial> {
        // Changed at first: the levels may have changed since the decision.
        let mut changes = self.levels.subscribe();
        loop {
            let levels = changes.borrow_and_update().clone()?;
            let verdict = decide(&levels, destination, &self.moment());
            let allowed = verdict.decision == Decision::Allow && verdict.traffic >= traffic;
            if !allowed
                || may_dial(&levels, destination, address.ip(), &own(address), &self.moment()).is_err()
            {
                return Some(Denial::first(&verdict, Mode::Enforce).unwrap_or_default());
            }
            changes.changed().await.ok()?;
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
async fn join(client: &mut TcpStream, server: &mut TcpStream, first: &[u8]) {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    if server.write_all(first).await.is_ok() {
        // An error of one side ends both.
        let _ = tokio::io::copy_bidirectional_with_sizes(client, server, BUFFER, BUFFER).await;
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

    fn no_peers() -> Peers {
        Peers::new(Box::new(|_, _, _| ()))
    }

    /// Levels with one rule for addresses of loopback, at this port.
    fn loopback(port: u16, decision: &str, protocol: &str) -> Levels {
        let rule = serde_json::json!({
            "name": "test", "cidrs": ["127.0.0.0/8"], "ports": [port], "decision": decision, "protocol": protocol,
            "private": ["127.0.0.0/8"],
        });
        let egress = serde_json::from_value(serde_json::json!({ "rules": [rule] })).unwrap();
        let authority = hutch_policy::Authority::Invocation;
        let level = Level { authority, name: "test".into(), mode: Mode::Enforce, egress: Some(egress) };
        [Arc::new(level)].into()
    }

    #[tokio::test]
    async fn connection_ends_when_its_rule_is_taken_away() {
        for taken in [Some(("Deny", "TCP")), Some(("Allow", "Auto")), None] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            let captured = listener.accept().await.unwrap().0;
            // The destination has the address at which the connection was captured.
            drop(listener);
            let server = tokio::net::TcpListener::bind(address).await.unwrap();
            let (refusals, mut refused) = tokio::sync::mpsc::unbounded_channel();
            let report: Report = Box::new(move |refusal| refusals.send(refusal).unwrap());
            let allows = || loopback(address.port(), "Allow", "TCP");
            let sandbox = Sandbox::new(allows(), report, Box::new(|_| ()), no_peers());
            let served = sandbox.clone();
            let task = tokio::spawn(async move { served.serve(captured).await });
            let mut server = server.accept().await.unwrap().0;
            for _ in 0..2 {
                client.write_all(b"x").await.unwrap();
                assert_eq!(server.read_u8().await.unwrap(), b'x');
                sandbox.set_levels(allows());
            }
            match taken {
                Some((decision, protocol)) => {
                    sandbox.set_levels(loopback(address.port(), decision, protocol));
                }
                None => sandbox.end(),
            }
            let error = client.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{taken:?}");
            assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            task.await.unwrap();
            assert_eq!(refused.try_recv().is_ok(), taken.is_some());
        }
    }

    #[test]
    fn new_names_are_reported_once_in_the_order_of_their_addresses() {
        let (names, named) = std::sync::mpsc::channel();
        let report = move |name: &HostName| names.send(name.clone()).unwrap();
        let rule = serde_json::json!({ "rules": [{"name": "any", "any": true}] });
        let level = Level {
            authority: hutch_policy::Authority::Invocation,
            name: "test".into(),
            mode: Mode::Enforce,
            egress: Some(serde_json::from_value(rule).unwrap()),
        };
        let sandbox = Sandbox::new([Arc::new(level)].into(), Box::new(|_| ()), Box::new(report), no_peers());
        let known: HostName = "known.example".parse().unwrap();
        sandbox.add_names(std::slice::from_ref(&known));
        for name in ["b.example.", "a.example.", "known.example.", "b.example."] {
            let query =
                hickory_proto::op::Query::query(name.parse().unwrap(), hickory_proto::rr::RecordType::A);
            let mut message = hickory_proto::op::Message::query();
            message.add_query(query);
            sandbox.answer(&message.to_vec().unwrap()).unwrap();
        }
        let found: Vec<_> = named.try_iter().map(|name| name.to_string()).collect();
        assert_eq!(found, ["b.example", "a.example"]);
        assert_eq!(sandbox.name_of(Ipv4Addr::new(198, 18, 1, 0)), Some(known));
    }
}
