//! The first bytes of a connection: what is spoken, and for which name.

use rustls::server::Acceptor;

/// Maximum first bytes. A client that sends more without saying for which name is refused.
pub(crate) const LIMIT: usize = 16 << 10;
/// Maximum headers of a request.
const HEADERS: usize = 100;
/// First byte of a TLS record with a handshake.
const HANDSHAKE: u8 = 22;

/// Meaning of the first bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum First {
    /// More bytes are needed.
    Incomplete,
    /// TLS for this server name, if the client names one.
    Tls(Option<String>),
    /// An HTTP/1 request with this `Host`.
    Http(String),
    /// Neither, or malformed.
    Other,
}

/// Classifies the first bytes of a client.
pub(crate) fn classify(bytes: &[u8]) -> First {
    match bytes.first() {
        None => First::Incomplete,
        Some(&HANDSHAKE) => client_hello(bytes),
        Some(_) => request(bytes),
    }
}

fn client_hello(mut bytes: &[u8]) -> First {
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        match acceptor.read_tls(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => return First::Other,
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return First::Tls(accepted.client_hello().server_name().map(str::to_owned));
            }
            Ok(None) => {}
            Err(_) => return First::Other,
        }
    }
    First::Incomplete
}

fn request(bytes: &[u8]) -> First {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return First::Incomplete,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return First::Other,
    }
    // These connect to, or name, another host than the connection.
    let path = request.path.unwrap_or_default();
    if request.method == Some("CONNECT") || !(path.starts_with('/') || path == "*") {
        return First::Other;
    }
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => match std::str::from_utf8(host.value) {
            Ok(host) => First::Http(host.to_owned()),
            Err(_) => First::Other,
        },
        _ => First::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/egress_first/");
        std::fs::read(format!("{folder}{name}")).unwrap()
    }

    #[test]
    fn hello_names_its_server_once_it_is_complete() {
        let hello = corpus("tls");
        assert_eq!(classify(&hello), First::Tls(Some("a.example".to_owned())));
        for cut in 0..hello.len() {
            assert_eq!(classify(&hello[..cut]), First::Incomplete, "{cut}");
        }
        assert_eq!(classify(&corpus("tls-without-name")), First::Tls(None));
        assert_eq!(classify(b"\x16\x03\x01\x00\x05abcde"), First::Other);
    }

    #[test]
    fn request_names_one_host() {
        let request = |text: &str| classify(text.as_bytes());
        let named = First::Http("a.example:80".to_owned());
        assert_eq!(request("GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\nbody"), named);
        assert_eq!(request("GET / HTTP/1.1\r\nHost: a.example"), First::Incomplete);
        for wrong in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET http://b.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "CONNECT b.example:443 HTTP/1.1\r\nHost: a\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "SSH-2.0-OpenSSH_9\r\n",
            "\0\0\0\x08\x04\x52\x16\x2f",
        ] {
            assert_eq!(request(wrong), First::Other, "{wrong:?}");
        }
    }

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("egress_first", crate::hostile::first);
    }
}
