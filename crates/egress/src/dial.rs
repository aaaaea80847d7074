//! Connections to the outside: a name is resolved once, and an address is judged before it is dialed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Destination, Forbidden, Host, Level, Moment, may_dial};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::refusal::Reason;
use crate::upstream::Way;

/// Maximum time to resolve a name.
const RESOLVE: Duration = Duration::from_secs(10);
/// Maximum time for one address.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum bytes of the answer of a proxy.
const HEAD: usize = 8 << 10;
/// Maximum number of addresses of a name that are tried.
const ADDRESSES: usize = 8;

/// Reason why a destination cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    /// Every address is closed.
    #[error("{0}: {1}")]
    Closed(IpAddr, Forbidden),
    /// The name has no address.
    #[error("the name does not resolve: {0}")]
    Name(io::Error),
    /// No address accepts.
    #[error("{0}")]
    Connect(io::Error),
    /// The proxy outside does not connect.
    #[error("the proxy outside: {0}")]
    Proxy(String),
    /// The server cannot be trusted, or does not speak TLS.
    #[error("TLS to the server: {0}")]
    Tls(String),
}

impl From<&Unreachable> for Reason {
    fn from(error: &Unreachable) -> Reason {
        match error {
            Unreachable::Closed(..) => Reason::Forbidden(error.to_string()),
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
impl std::fmt::Debug for UpstreamProxy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("UpstreamProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl UpstreamProxy {
    async fn connect(&self, destination: &Destination) -> Result<TcpStream, Unreachable> {
        let failed = |error: io::Error| Unreachable::Proxy(error.to_string());
        let connected = timeout(CONNECT, TcpStream::connect(&self.address)).await;
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
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        match answer.parse(&head).map(|_| answer.code) {
            Ok(Some(200..300)) => Ok(stream),
            Ok(code) => Err(Unreachable::Proxy(format!("it answers with status {}", code.unwrap_or(0)))),
            Err(error) => Err(Unreachable::Proxy(error.to_string())),
        }
    }
}

/// Connects to a destination that these levels allow.
pub(crate) async fn dial(
    way: &Way,
    destination: &Destination,
    levels: &[Arc<Level>],
    moment: &Moment<'_>,
) -> Result<TcpStream, Unreachable> {
    if let Some(proxy) = &way.proxy {
        if let Host::Address(address) = destination.host {
            may_dial(levels, destination, address, &[], moment)
                .map_err(|reason| Unreachable::Closed(address, reason))?;
        }
        return proxy.connect(destination).await;
    }
    let mut last = Unreachable::Name(io::ErrorKind::NotFound.into());
    for address in resolve(destination).await.map_err(Unreachable::Name)? {
        if let Err(reason) = may_dial(levels, destination, address.ip(), &own(address), moment) {
            last = Unreachable::Closed(address.ip(), reason);
            continue;
        }
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Unreachable::Connect(error),
            Err(_) => last = Unreachable::Connect(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(last)
}

async fn resolve(destination: &Destination) -> io::Result<Vec<SocketAddr>> {
    let port = destination.port.get();
    match &destination.host {
        Host::Address(address) => Ok(vec![SocketAddr::new(*address, port)]),
        Host::Name(name) => {
            let found = timeout(RESOLVE, tokio::net::lookup_host((name.as_str(), port))).await??;
            Ok(found.take(ADDRESSES).collect())
        }
    }
}

/// Returns the address if it is one of this machine: then a UDP socket that is connected to it has it too. No packet is sent.
pub(crate) fn own(address: SocketAddr) -> Vec<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    local.map(|local| local.ip()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Mode, Moment};

    use super::*;

    /// A level that opens these ranges for the destination.
    fn levels(destination: &Destination, private: &[&str]) -> Vec<Arc<Level>> {
        let rule = serde_json::json!({
            "name": "test", "any": true, "cidrs": ["0.0.0.0/0"], "ports": [destination.port], "private": private,
        });
        let egress = serde_json::from_value(serde_json::json!({ "rules": [rule] })).unwrap();
        vec![Arc::new(Level {
            authority: Authority::Invocation,
            name: "test".into(),
            mode: Mode::Enforce,
            egress: Some(egress),
        })]
    }

    #[tokio::test]
    async fn address_of_this_machine_is_dialed_only_where_a_range_opens_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let destination: Destination = listener.local_addr().unwrap().to_string().parse().unwrap();
        let error = dial(&Way::default(), &destination, &levels(&destination, &[]), &Moment::default())
            .await
            .unwrap_err();
        assert!(matches!(error, Unreachable::Closed(_, Forbidden::ThisMachine)), "{error}");
        dial(&Way::default(), &destination, &levels(&destination, &["127.0.0.0/8"]), &Moment::default())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn name_is_judged_by_the_address_to_which_it_leads() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let destination: Destination = format!("localhost:{port}").parse().unwrap();
        let error = dial(&Way::default(), &destination, &levels(&destination, &[]), &Moment::default())
            .await
            .unwrap_err();
        assert!(matches!(error, Unreachable::Closed(_, Forbidden::ThisMachine)), "{error}");
        dial(
            &Way::default(),
            &destination,
            &levels(&destination, &["127.0.0.0/8", "::1"]),
            &Moment::default(),
        )
        .await
        .unwrap();
    }

    #[test]
    fn own_address_is_recognized() {
        assert_eq!(own("127.0.0.1:80".parse().unwrap()), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(!own("192.0.2.1:80".parse().unwrap()).contains(&"192.0.2.1".parse().unwrap()));
    }
}
