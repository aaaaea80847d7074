//! Checks that a connection is for the name of its destination.

use std::io;
use std::time::Duration;

use hutch_policy::{Destination, Host, Traffic};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::first::{self, First, classify};

/// Maximum time in which a client says for which name it connects. A refused client has less time to show that it would read
/// an answer: this one may be allowed, and slow.
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
    let same_name = match &destination.host {
        // As most clients write it.
        Host::Name(known) if name == known.as_str() => true,
        host => name.parse().as_ref() == Ok(host),
    };
    same_name && same_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(text: &str) -> Destination {
        text.parse().unwrap()
    }

    /// Returns a connection, as its client and the proxy have it.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test(start_paused = true)]
    async fn silent_client_is_refused_after_five_seconds() {
        use tokio::io::AsyncWriteExt;
        // Nothing, or the begin of a hello.
        for sent in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
            let (mut client, ours) = connection().await;
            client.write_all(sent).await.unwrap();
            let begin = tokio::time::Instant::now();
            let refused = first_bytes(&ours, &destination("a.example"), Traffic::Web, &mut Vec::new())
                .await
                .unwrap_err();
            assert!(refused.starts_with("it does not say for which name it is"), "{refused}");
            // Time passes only while everything waits.
            assert_eq!(begin.elapsed().as_secs(), FIRST_BYTES.as_secs());
        }
    }

    #[tokio::test]
    async fn hello_without_an_end_is_refused_after_16_kib() {
        use tokio::io::AsyncWriteExt;
        // Records with parts of one hello of 65,280 bytes, and a head whose headers do not end.
        let record = |first: bool| {
            let part: &[u8] = if first { &[1, 0, 255, 0] } else { &[0; 4] };
            [&[22, 3, 1, 4, 0][..], part, &[0; 1020]].concat()
        };
        let tls: Vec<u8> = (0..64).flat_map(|number| record(number == 0)).collect();
        let http = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; 64 << 10]].concat();
        for sent in [tls, http] {
            let (mut client, ours) = connection().await;
            let sending = tokio::spawn(async move {
                let _ = client.write_all(&sent).await;
                client
            });
            let mut bytes = Vec::new();
            let refused = first_bytes(&ours, &destination("a.example"), Traffic::Web, &mut bytes).await;
            assert!(refused.unwrap_err().starts_with("it is neither TLS nor HTTP"));
            assert!((first::LIMIT..first::LIMIT + 4096).contains(&bytes.len()), "{} bytes", bytes.len());
            drop(ours);
            sending.await.unwrap();
        }
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
