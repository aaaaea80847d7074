//! Checks that a connection is for the name of its destination.

use std::io;
use std::time::Duration;

use hutch_policy::{Destination, Host, Traffic};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::first::{self, First, classify};

/// Maximum time in which a client says for which name it connects.
const FIRST_BYTES: Duration = Duration::from_secs(5);

/// Protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// TLS.
    Tls,
    /// HTTP without TLS.
    Http,
}

/// Reads the first bytes of a client until they say for which name it connects, and checks it. `bytes` may have some of them
/// already.
pub(crate) async fn first_bytes(
    client: &TcpStream,
    destination: &Destination,
    traffic: Traffic,
    bytes: &mut Vec<u8>,
) -> Result<Spoken, String> {
    let read = async {
        loop {
            if !bytes.is_empty() {
                match classify(bytes) {
                    First::Incomplete if bytes.len() < first::LIMIT => {}
                    found => return is_for(&found, destination, traffic),
                }
            }
            client.readable().await.map_err(|error| error.to_string())?;
            let mut piece = [0; 4096];
            match client.try_read(&mut piece) {
                Ok(0) => return Err("it ended before it named its host".to_owned()),
                Ok(length) => bytes.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    let silent = "it does not say for which name it is; a rule with `protocol: TCP` allows that";
    timeout(FIRST_BYTES, read).await.map_err(|_| silent.to_owned())?
}

/// Checks that a connection is for its destination.
fn is_for(first: &First, destination: &Destination, traffic: Traffic) -> Result<Spoken, String> {
    let other = |name: &str| Err(format!("it is for {name:?}"));
    match (first, &destination.host) {
        (First::Tls(Some(name)), host) if name.parse().as_ref() != Ok(host) => other(name),
        (First::Tls(None), Host::Name(_)) => Err("its TLS names no server".to_owned()),
        (First::Tls(_), _) => Ok(Spoken::Tls),
        (First::Http(_), _) if traffic < Traffic::Web => {
            Err("it is HTTP without TLS; a rule with `plaintext: true` allows that".to_owned())
        }
        (First::Http(named), _) => match names(named, destination) {
            true => Ok(Spoken::Http),
            false => other(named),
        },
        (First::Other | First::Incomplete, _) => {
            Err("it is neither TLS nor HTTP; a rule with `protocol: TCP` allows that".to_owned())
        }
    }
}

/// Returns true if an authority, as clients send it in `Host`, is that of the destination.
pub(crate) fn names(authority: &str, destination: &Destination) -> bool {
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let same_port = port.is_none_or(|port| digits(port) && port.parse() == Ok(destination.port));
    name.parse().as_ref() == Ok(&destination.host) && same_port
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
            assert_eq!(is_for(&first, &https, Traffic::Web), Ok(Spoken::Tls), "{first:?}");
        }
        for host in ["a.example", "A.example.", "a.example:80"] {
            assert_eq!(is_for(&http(host), &plain, Traffic::Web), Ok(Spoken::Http), "{host}");
        }
        assert_eq!(is_for(&First::Tls(None), &address, Traffic::Tls), Ok(Spoken::Tls));
        assert_eq!(is_for(&http("192.0.2.1"), &address, Traffic::Web), Ok(Spoken::Http));
        for first in [tls("b.example"), tls("x.a.example"), First::Tls(None), First::Other, First::Incomplete]
        {
            assert!(is_for(&first, &https, Traffic::Web).is_err(), "{first:?}");
        }
        for host in
            ["b.example", "a.example:81", "a.example:", "a.example:+80", "", "a.example:80:80", "192.0.2.1"]
        {
            assert!(is_for(&http(host), &plain, Traffic::Web).is_err(), "{host}");
        }
        assert!(is_for(&tls("a.example"), &address, Traffic::Web).is_err());
        assert!(is_for(&http("a.example"), &https, Traffic::Tls).unwrap_err().contains("plaintext"));
    }
}
