//! An explicit proxy: the client of a connection names the destination itself, by CONNECT, by SOCKS, or in each request.

mod forward;
mod named;
mod requests;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Destination, Host};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use self::requests::serve_requests;
use crate::check::names;
use crate::connection::Door;
use crate::first;
use crate::refusal::{Reason, Refusal, WITH_USER, reset};
use crate::sandbox::Sandbox;

/// Maximum time until a client has named its destination.
pub(crate) const OPENING: Duration = Duration::from_secs(10);
/// Maximum headers of a CONNECT.
pub(crate) const HEADERS: usize = 100;
/// Pause after a connection could not be accepted, for want of descriptors or memory.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// First byte of SOCKS, and its methods without and with a password.
pub(crate) const SOCKS: u8 = 5;
const NO_PASSWORD: u8 = 0;
pub(crate) const PASSWORD: u8 = 2;
/// Maximum characters of a destination and a path in a message.
const SHOWN: usize = 200;

/// Meaning of the first bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// More bytes are needed.
    Incomplete,
    /// A CONNECT with this length.
    Connect(Destination, usize),
    /// Requests that name their destinations.
    Requests,
    /// Methods of SOCKS, with this length. The request follows the answer.
    SocksMethods(usize),
    /// Not what a client of a proxy sends. The text names what is wrong.
    Invalid(String),
}

/// Reads the first bytes of a connection whose SOCKS has no password.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn opening(bytes: &[u8]) -> Opening {
    opening_with(bytes, NO_PASSWORD)
}

/// Reads the first bytes of a connection, whose SOCKS must offer this method.
fn opening_with(bytes: &[u8], method: u8) -> Opening {
    match bytes.first() {
        None => Opening::Incomplete,
        Some(&SOCKS) => socks_methods(bytes, method),
        Some(_) => head(bytes),
    }
}

fn socks_methods(bytes: &[u8], method: u8) -> Opening {
    let Some(count) = bytes.get(1) else { return Opening::Incomplete };
    let length = 2 + usize::from(*count);
    match bytes.get(2..length) {
        None => Opening::Incomplete,
        Some(methods) if methods.contains(&method) => Opening::SocksMethods(length),
        Some(_) if method == PASSWORD => Opening::Invalid("its SOCKS has no password".to_owned()),
        Some(_) => Opening::Invalid("its SOCKS needs a password".to_owned()),
    }
}

fn head(bytes: &[u8]) -> Opening {
    let bytes = &bytes[..bytes.len().min(first::LIMIT)];
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < first::LIMIT => return Opening::Incomplete,
        Ok(httparse::Status::Partial) => {
            return Opening::Invalid(format!("its head has more than {} bytes", first::LIMIT));
        }
        Err(error) => return Opening::Invalid(format!("it is not HTTP: {error}")),
    };
    let lengths = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-length"));
    let (lengths, chunked) = (lengths.count(), has(&request, "transfer-encoding"));
    if lengths > 1 || (lengths == 1 && chunked) {
        return Opening::Invalid("two lengths of the body".to_owned());
    }
    if request.method != Some("CONNECT") {
        return Opening::Requests;
    }
    if chunked || (lengths == 1 && !has_value(&request, "content-length", b"0")) {
        return Opening::Invalid("CONNECT has no body".to_owned());
    }
    match connect(&request) {
        Ok(destination) => Opening::Connect(destination, length),
        Err(why) => Opening::Invalid(why),
    }
}

fn has(request: &httparse::Request<'_, '_>, name: &str) -> bool {
    request.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name))
}

fn has_value(request: &httparse::Request<'_, '_>, name: &str, value: &[u8]) -> bool {
    request.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name) && header.value == value)
}

/// Returns the destination of a CONNECT, which its `Host` must name too.
fn connect(request: &httparse::Request<'_, '_>) -> Result<Destination, String> {
    let target = request.path.unwrap_or_default();
    if target.contains('@') {
        return Err(WITH_USER.to_owned());
    }
    let (_, port) = target.rsplit_once(':').unwrap_or_default();
    if port.is_empty() || port.ends_with(']') {
        return Err(format!("CONNECT to {:?}: it names no port", shown(target)));
    }
    let destination: Destination = target.parse().map_err(|error| format!("CONNECT: {error}"))?;
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 has none.
        (None, _) if request.version == Some(0) => Ok(destination),
        (None, _) => Err("it names no host".to_owned()),
        (_, Some(_)) => Err("two hosts".to_owned()),
        (Some(host), None) => match std::str::from_utf8(host.value) {
            Ok(host) if names(host, &destination) => Ok(destination),
            Ok(host) if host.contains('@') => Err(WITH_USER.to_owned()),
            Ok(host) => Err(format!("CONNECT to {destination}, but it is for {:?}", shown(host))),
            Err(_) => Err("its host is not text".to_owned()),
        },
    }
}

/// A request of SOCKS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Socks {
    /// More bytes are needed.
    Incomplete,
    /// To connect; the length of the request.
    Connect(Destination, usize),
    /// Anything else, with the code that answers it.
    Invalid(u8, String),
}

/// Codes of the answers of SOCKS.
mod code {
    pub(super) const GRANTED: u8 = 0;
    pub(super) const NOT_ALLOWED: u8 = 2;
    pub(super) const UNREACHABLE: u8 = 4;
    pub(super) const COMMAND: u8 = 7;
    pub(super) const ADDRESS: u8 = 8;
}

/// Reads a request of SOCKS.
pub(crate) fn socks(bytes: &[u8]) -> Socks {
    let Some(([version, command, reserved, kind], rest)) = bytes.split_first_chunk() else {
        return Socks::Incomplete;
    };
    if (*version, *reserved) != (SOCKS, 0) {
        return Socks::Invalid(code::COMMAND, "it is not SOCKS".to_owned());
    }
    if *command != 1 {
        return Socks::Invalid(code::COMMAND, "SOCKS can only connect".to_owned());
    }
    let (start, length) = match (*kind, rest.first()) {
        (1, _) => (0, 4),
        (4, _) => (0, 16),
        (3, Some(length)) => (1, usize::from(*length)),
        (3, None) => return Socks::Incomplete,
        _ => return Socks::Invalid(code::ADDRESS, "a kind of address that SOCKS does not have".to_owned()),
    };
    let Some(host) = rest.get(start..start + length) else { return Socks::Incomplete };
    let Some(port) = rest.get(start + length..).and_then(|rest| rest.first_chunk::<2>()) else {
        return Socks::Incomplete;
    };
    let whole = 4 + start + length + 2;
    let Some(port) = NonZeroU16::new(u16::from_be_bytes(*port)) else {
        return Socks::Invalid(code::ADDRESS, "the port 0".to_owned());
    };
    match socks_host(*kind, host) {
        Ok(host) => Socks::Connect(Destination { host, port }, whole),
        Err(why) => Socks::Invalid(code::ADDRESS, why),
    }
}

fn socks_host(kind: u8, bytes: &[u8]) -> Result<Host, String> {
    if let (1, Ok(octets)) = (kind, <[u8; 4]>::try_from(bytes)) {
        return Ok(Host::from(std::net::IpAddr::from(Ipv4Addr::from(octets))));
    }
    if let (4, Ok(octets)) = (kind, <[u8; 16]>::try_from(bytes)) {
        return Ok(Host::from(std::net::IpAddr::from(Ipv6Addr::from(octets))));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "its host is not text".to_owned())?;
    text.parse().map_err(|error| format!("SOCKS: {error}"))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Client that has sent CONNECT.
struct ByConnect;

impl Door for ByConnect {
    async fn accept(&self, client: &mut TcpStream) -> bool {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok()
    }

    async fn refuse(self, client: TcpStream, refusal: &Refusal, advice: &str) {
        crate::refusal::answer(client, refusal.status(), refusal, advice).await;
    }
}

/// Client of SOCKS.
struct BySocks;

impl BySocks {
    async fn answer(client: &mut TcpStream, code: u8) -> bool {
        // The address is that of the connection outside, which no client needs.
        client.write_all(&[SOCKS, code, 0, 1, 0, 0, 0, 0, 0, 0]).await.is_ok()
    }
}

impl Door for BySocks {
    async fn accept(&self, client: &mut TcpStream) -> bool {
        BySocks::answer(client, code::GRANTED).await
    }

    async fn refuse(self, mut client: TcpStream, refusal: &Refusal, _advice: &str) {
        let code = if refusal.status() == 502 { code::UNREACHABLE } else { code::NOT_ALLOWED };
        BySocks::answer(&mut client, code).await;
    }
}

/// Serves the clients of a listener, by the rules of one sandbox.
pub(crate) async fn serve(listener: TcpListener, sandbox: Arc<Sandbox>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let Some(descriptors) = sandbox.descriptors(&client, "a client") else { continue };
                let sandbox = sandbox.clone();
                tokio::spawn(async move {
                    serve_client(&sandbox, client).await;
                    drop(descriptors);
                });
            }
            // The client has gone, or resources are short.
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client until its end.
pub(crate) async fn serve_client(sandbox: &Arc<Sandbox>, mut client: TcpStream) {
    let _ = client.set_nodelay(true);
    let Some(_place) = sandbox.place() else {
        sandbox.refused(Refusal { destination: "a client".to_owned(), reason: Reason::TooMany });
        return reset(&client);
    };
    let _open = sandbox.counters().open();
    let mut bytes = Vec::new();
    let opening = read_opening(&mut client, &mut bytes, NO_PASSWORD).await;
    if let Some(Opening::SocksMethods(_)) = opening
        && client.write_all(&[SOCKS, NO_PASSWORD]).await.is_err()
    {
        return;
    }
    if let Some(opening) = opening {
        serve_opening(sandbox, client, bytes, opening).await;
    }
}

/// Serves a client by its first bytes. One of SOCKS has been answered.
pub(crate) async fn serve_opening(
    sandbox: &Arc<Sandbox>,
    client: TcpStream,
    mut bytes: Vec<u8>,
    opening: Opening,
) {
    match opening {
        Opening::Connect(destination, length) => {
            let rest = bytes.split_off(length);
            serve_named(sandbox, client, (destination, &target(&bytes)), ByConnect, rest).await;
        }
        Opening::Requests => serve_requests(sandbox, client, bytes).await,
        Opening::SocksMethods(length) => {
            let rest = bytes.split_off(length);
            serve_socks(sandbox, client, rest).await;
        }
        Opening::Invalid(why) => {
            let refusal = Refusal { destination: "a client".to_owned(), reason: Reason::Ambiguous(why) };
            sandbox.refused(refusal.clone());
            crate::refusal::answer(client, 400, &refusal, "").await;
        }
        // Its time is over.
        Opening::Incomplete => {
            let reason = Reason::Ambiguous("its head does not end".to_owned());
            let refusal = Refusal { destination: "a client".to_owned(), reason };
            sandbox.refused(refusal.clone());
            crate::refusal::answer(client, 408, &refusal, "").await;
        }
    }
}

/// Returns the target of a request.
fn target(head: &[u8]) -> String {
    let target = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    String::from_utf8_lossy(target).into_owned()
}

/// Scans the name of a destination as the client wrote it: its capitals may carry data, which the destination has lost.
fn scan_written(sandbox: &Sandbox, destination: &Destination, authority: &str) -> Result<(), Refusal> {
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    let written = matches!(destination.host, Host::Name(_)) && name.bytes().any(|b| b.is_ascii_uppercase());
    match written {
        true => sandbox.scan_host_as(&sandbox.rules(), destination, name),
        false => Ok(()),
    }
    .map_err(|reason| Refusal { destination: destination.to_string(), reason })
}

/// Reads until the client has named its destination, or its time is over; `None` if it has gone, or sent nothing: a client
/// that connects early has done nothing wrong. `method` is that of SOCKS.
pub(crate) async fn read_opening(client: &mut TcpStream, bytes: &mut Vec<u8>, method: u8) -> Option<Opening> {
    let read = async {
        loop {
            let count = client.read_buf(bytes).await.ok()?;
            match opening_with(bytes, method) {
                Opening::Incomplete if count > 0 => {}
                Opening::Incomplete => return None,
                found => return Some(found),
            }
        }
    };
    let read = timeout(OPENING, read).await;
    read.unwrap_or_else(|_| (!bytes.is_empty()).then_some(Opening::Incomplete))
}

/// Serves a client that has named its destination once, and has written it in this way.
async fn serve_named(
    sandbox: &Arc<Sandbox>,
    client: TcpStream,
    (destination, written): (Destination, &str),
    door: impl Door,
    rest: Vec<u8>,
) {
    let destination = sandbox.by_name(destination);
    let scanned = scan_written(sandbox, &destination, written);
    if let Err(refusal) = scanned.and_then(|()| sandbox.take_name(&destination)) {
        sandbox.refused(refusal.clone());
        return door.refuse(client, &refusal, &sandbox.advice(&refusal)).await;
    }
    sandbox.serve_named(client, destination, door, rest).await;
}

async fn serve_socks(sandbox: &Arc<Sandbox>, mut client: TcpStream, mut bytes: Vec<u8>) {
    let read = async {
        loop {
            match socks(&bytes) {
                Socks::Incomplete if client.read_buf(&mut bytes).await.ok()? > 0 => {}
                Socks::Incomplete => return None,
                found => return Some(found),
            }
        }
    };
    match timeout(OPENING, read).await {
        Ok(Some(Socks::Connect(destination, length))) => {
            let rest = bytes.split_off(length);
            serve_named(sandbox, client, (destination, ""), BySocks, rest).await;
        }
        Ok(Some(Socks::Invalid(code, why))) => {
            sandbox.refused(Refusal { destination: "a client".to_owned(), reason: Reason::Ambiguous(why) });
            BySocks::answer(&mut client, code).await;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(text: &str) -> Destination {
        text.parse().unwrap()
    }

    #[test]
    fn connect_names_one_destination() {
        let read = |text: &str| opening(text.as_bytes());
        for (text, destination) in [
            ("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", "a.example:443"),
            (
                "CONNECT A.example.:8443 HTTP/1.1\r\nhost: a.example\r\nContent-Length: 0\r\n\r\n",
                "a.example:8443",
            ),
            ("CONNECT a.example:443 HTTP/1.0\r\n\r\n", "a.example:443"),
            ("CONNECT 2130706433:80 HTTP/1.1\r\nHost: 127.1:80\r\n\r\n", "127.0.0.1:80"),
            ("CONNECT [::ffff:7f00:1]:80 HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:80\r\n\r\n", "127.0.0.1:80"),
            ("CONNECT [::1]:80 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "[::1]:80"),
        ] {
            assert_eq!(read(text), Opening::Connect(to(destination), text.len()), "{text:?}");
            let more = format!("{text}\x16\x03");
            assert_eq!(read(&more), Opening::Connect(to(destination), text.len()));
            (0..text.len())
                .for_each(|cut| assert_eq!(read(&text[..cut]), Opening::Incomplete, "{text:?} {cut}"));
        }
        for wrong in [
            "CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example: HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example:0 HTTP/1.1\r\nHost: a.example:0\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
            "CONNECT u@a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT http://a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example:443/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT [::1] HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost : a.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n b\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\x16\x03\x01\x00\x05abcde",
            "SSH-2.0-OpenSSH_9\r\n",
        ] {
            assert!(matches!(read(wrong), Opening::Invalid(_)), "{wrong:?}: {:?}", read(wrong));
        }
        assert_eq!(read("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"), Opening::Requests);
        let endless = format!("GET http://a/ HTTP/1.1\r\nX: {}", "x".repeat(first::LIMIT));
        assert!(matches!(read(&endless), Opening::Invalid(_)));
    }

    #[test]
    fn socks_names_a_destination() {
        assert_eq!(opening(&[5, 2, 1, 0, 5]), Opening::SocksMethods(4));
        assert_eq!(opening(&[5, 2, 1]), Opening::Incomplete);
        assert!(matches!(opening(&[5, 1, 2]), Opening::Invalid(_)));
        let named = |host: &[u8]| [&[5, 1, 0, 3, host.len() as u8][..], host, &[1, 187]].concat();
        for (bytes, destination) in [
            (named(b"A.example"), "a.example:443"),
            (named(b"127.1"), "127.0.0.1:443"),
            (vec![5, 1, 0, 1, 127, 0, 0, 1, 1, 187], "127.0.0.1:443"),
            ([&[5, 1, 0, 4][..], &[0; 10], &[255, 255, 127, 0, 0, 1, 1, 187]].concat(), "127.0.0.1:443"),
        ] {
            assert_eq!(socks(&bytes), Socks::Connect(to(destination), bytes.len()));
            (0..bytes.len()).for_each(|cut| assert_eq!(socks(&bytes[..cut]), Socks::Incomplete, "{cut}"));
        }
        for wrong in [
            &[4, 1, 0, 1][..],
            &[5, 2, 0, 1],
            &[5, 1, 0, 2],
            &[5, 1, 0, 1, 1, 1, 1, 1, 0, 0],
            &named(b"a\0b"),
        ] {
            assert!(matches!(socks(wrong), Socks::Invalid(..)), "{wrong:?}");
        }
    }

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("egress_explicit", crate::hostile::explicit);
    }
}
