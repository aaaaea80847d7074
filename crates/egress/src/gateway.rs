//! An explicit proxy for many sandboxes of a cluster. A client is that sandbox whose Pod has its address, and whose token it
//! sends: as the password of `Proxy-Authorization: Basic`, or of SOCKS (RFC 1929). Both must agree.
//!
//! This process knows only hashes of tokens.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::descriptors::CONNECTION;
use crate::explicit::{
    ACCEPT_PAUSE, HEADERS, OPENING, Opening, PASSWORD, SOCKS, read_opening, serve_opening,
};
use crate::refusal::{Reason, Refusal, answer, reset};
use crate::sandbox::Sandbox;
use crate::way::Way;

/// Maximum connections of an address whose clients have not named themselves yet.
const UNIDENTIFIED: usize = 64;
/// Version of the negotiation of a password.
const NEGOTIATION: u8 = 1;

/// Hash of the token of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Returns the hash of a token.
    pub fn of(token: &[u8]) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        TokenHash(hash)
    }

    /// Compares in constant time.
    fn is(&self, other: &TokenHash) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

/// A sandbox at an address.
struct Client {
    number: u64,
    token: TokenHash,
    sandbox: Arc<Sandbox>,
}

/// Clients of one address: more than one only while a Pod ends whose address another one has.
#[derive(Default)]
struct At {
    clients: Vec<Client>,
    opening: Places,
}

/// Places of connections whose clients have not named themselves yet.
struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Places(Arc::new(Semaphore::new(UNIDENTIFIED)))
    }
}

/// The sandboxes of a gateway by their addresses.
#[derive(Default)]
pub(crate) struct Clients {
    by_address: Mutex<HashMap<IpAddr, At>>,
    /// For all addresses without a Pod.
    others: Places,
}

impl Clients {
    fn by_address(&self) -> MutexGuard<'_, HashMap<IpAddr, At>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the addresses and the token of a sandbox.
    pub(crate) fn set(&self, number: u64, addresses: &[IpAddr], token: TokenHash, sandbox: &Arc<Sandbox>) {
        sandbox.bound_clients();
        let mut all = self.by_address();
        forget(&mut all, number);
        for address in addresses {
            let client = Client { number, token: token.clone(), sandbox: sandbox.clone() };
            all.entry(address.to_canonical()).or_default().clients.push(client);
        }
    }

    /// Forgets a sandbox.
    pub(crate) fn forget(&self, number: u64) {
        forget(&mut self.by_address(), number);
    }

    /// Returns true if a sandbox has an address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.by_address().contains_key(&address)
    }

    /// Returns the sandbox at an address with a token.
    fn find(&self, address: IpAddr, token: &[u8]) -> Option<Arc<Sandbox>> {
        let token = TokenHash::of(token);
        let all = self.by_address();
        let found = all.get(&address)?.clients.iter().find(|client| client.token.is(&token))?;
        Some(found.sandbox.clone())
    }

    fn opening(&self, address: IpAddr) -> Arc<Semaphore> {
        self.by_address().get(&address).map_or(&self.others, |at| &at.opening).0.clone()
    }
}

fn forget(all: &mut HashMap<IpAddr, At>, number: u64) {
    all.retain(|_, at| {
        at.clients.retain(|client| client.number != number);
        !at.clients.is_empty()
    });
}

/// Returns the password of the only `Proxy-Authorization: Basic` in the head of a request.
pub(crate) fn token(head: &[u8]) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).ok().filter(httparse::Status::is_complete)?;
    let mut values =
        request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("proxy-authorization"));
    let (value, None) = (values.next()?.value, values.next()) else { return None };
    let (scheme, encoded) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

/// A name and a password of SOCKS.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Password {
    /// More bytes are needed.
    Incomplete,
    /// The password, and the length of the message.
    Token(Vec<u8>, usize),
    /// Anything else.
    Invalid,
}

/// Reads a name and a password of SOCKS.
pub(crate) fn password(bytes: &[u8]) -> Password {
    let read = || {
        let (version, name) = (*bytes.first()?, usize::from(*bytes.get(1)?));
        let length = usize::from(*bytes.get(2 + name)?);
        let password = bytes.get(3 + name..3 + name + length)?;
        Some((version, password, 3 + name + length))
    };
    match (bytes.first(), read()) {
        (Some(&version), _) if version != NEGOTIATION => Password::Invalid,
        (_, Some((_, password, length))) => Password::Token(password.to_vec(), length),
        (_, None) => Password::Incomplete,
    }
}

/// Serves the clients of a listener, each by the rules of its sandbox.
pub(crate) async fn serve(
    listener: TcpListener,
    clients: Arc<Clients>,
    way: Arc<Way>,
    unidentified: impl Fn(IpAddr) + Clone + Send + Sync + 'static,
) {
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                let address = peer.ip().to_canonical();
                let (Ok(descriptors), Ok(opening)) =
                    (way.descriptors.take(CONNECTION), clients.opening(address).try_acquire_owned())
                else {
                    reset(&client);
                    continue;
                };
                let (clients, unidentified) = (clients.clone(), unidentified.clone());
                tokio::spawn(async move {
                    let unidentified = || unidentified(address);
                    let found = identify(&clients, client, address, unidentified).await;
                    drop(opening);
                    let Some((sandbox, client, bytes, opening)) = found else { return };
                    // From now on they count for the sandbox too.
                    drop(descriptors);
                    let Some(descriptors) = sandbox.descriptors(&client, "a client") else { return };
                    serve_client(&sandbox, client, bytes, opening).await;
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

async fn serve_client(sandbox: &Arc<Sandbox>, client: TcpStream, bytes: Vec<u8>, opening: Opening) {
    let Some(_place) = sandbox.place() else {
        sandbox.refused(Refusal { destination: "a client".to_owned(), reason: Reason::TooMany });
        return reset(&client);
    };
    let _open = sandbox.counters().open();
    serve_opening(sandbox, client, bytes, opening).await;
}

/// A client whose sandbox is known, and what it has sent.
type Identified = (Arc<Sandbox>, TcpStream, Vec<u8>, Opening);

/// Finds the sandbox of a client. One that has none is reported and answered.
async fn identify(
    clients: &Clients,
    mut client: TcpStream,
    address: IpAddr,
    unidentified: impl Fn(),
) -> Option<Identified> {
    let _ = client.set_nodelay(true);
    let mut bytes = Vec::new();
    let opening = read_opening(&mut client, &mut bytes, PASSWORD).await?;
    let length = match &opening {
        Opening::SocksMethods(length) => {
            let rest = bytes.split_off(*length);
            let (sandbox, rest) = negotiate(clients, &mut client, address, rest, unidentified).await?;
            return Some((sandbox, client, rest, Opening::SocksMethods(0)));
        }
        Opening::Connect(_, length) => *length,
        _ => bytes.len(),
    };
    let found = token(&bytes[..length]).and_then(|token| clients.find(address, &token));
    match found {
        Some(sandbox) => Some((sandbox, client, bytes, opening)),
        None => {
            unidentified();
            let destination = "a client".to_owned();
            answer(client, 407, &Refusal { destination, reason: Reason::Unidentified }, "").await;
            None
        }
    }
}

/// Finds the sandbox of a client of SOCKS by its password. Returns the bytes that follow.
async fn negotiate(
    clients: &Clients,
    client: &mut TcpStream,
    address: IpAddr,
    mut bytes: Vec<u8>,
    unidentified: impl Fn(),
) -> Option<(Arc<Sandbox>, Vec<u8>)> {
    client.write_all(&[SOCKS, PASSWORD]).await.ok()?;
    let read = async {
        loop {
            match password(&bytes) {
                Password::Incomplete if client.read_buf(&mut bytes).await.ok()? > 0 => {}
                Password::Token(token, length) => return Some((token, length)),
                Password::Incomplete | Password::Invalid => return None,
            }
        }
    };
    let (token, length) = timeout(OPENING, read).await.ok()??;
    let Some(sandbox) = clients.find(address, &token) else {
        unidentified();
        let _ = client.write_all(&[NEGOTIATION, 1]).await;
        return None;
    };
    client.write_all(&[NEGOTIATION, 0]).await.ok()?;
    Some((sandbox, bytes.split_off(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox() -> Arc<Sandbox> {
        Sandbox::new([].into(), Arc::default(), Box::new(|_| ()), Box::new(|_| ()))
    }

    #[test]
    fn address_and_token_must_agree() {
        let (clients, own, other) = (Clients::default(), sandbox(), sandbox());
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        clients.set(1, &["::ffff:10.0.0.1".parse().unwrap()], TokenHash::of(b"a"), &own);
        clients.set(2, &[two], TokenHash::of(b"b"), &other);
        let found = |address, token: &[u8]| clients.find(address, token);
        assert!(found(one, b"a").is_some_and(|found| Arc::ptr_eq(&found, &own)));
        for (address, token) in
            [(one, &b"b"[..]), (two, b"a"), (one, b""), ("10.0.0.3".parse().unwrap(), b"a")]
        {
            assert!(found(address, token).is_none(), "{address}");
        }
        // An address that two Pods have for a moment.
        clients.set(3, &[one], TokenHash::of(b"c"), &other);
        assert!(found(one, b"a").is_some_and(|found| Arc::ptr_eq(&found, &own)));
        assert!(found(one, b"c").is_some_and(|found| Arc::ptr_eq(&found, &other)));
        clients.set(1, &[], TokenHash::of(b"a"), &own);
        assert!(found(one, b"a").is_none() && found(one, b"c").is_some());
        clients.forget(3);
        assert!(found(one, b"c").is_none() && clients.by_address().len() == 1);
    }

    #[test]
    fn token_is_the_password_of_one_header() {
        let read = |headers: &str| token(format!("CONNECT a:1 HTTP/1.1\r\n{headers}\r\n").as_bytes());
        let basic = |text: &str| format!("proxy-authorization: basic {}\r\n", STANDARD.encode(text));
        assert_eq!(read(&basic("sandbox:t")), Some(b"t".to_vec()));
        assert_eq!(read(&basic(":a:b")), Some(b"a:b".to_vec()));
        assert_eq!(read(&basic("t")), None);
        assert_eq!(read(&(basic("s:t") + &basic("s:t"))), None);
        assert_eq!(read("Proxy-Authorization: Bearer t\r\n"), None);
        assert_eq!(read("Proxy-Authorization: Basic !\r\n"), None);
        assert_eq!(read("Authorization: Basic czp0\r\n"), None);
    }

    #[test]
    fn password_of_socks_is_read_whole() {
        let message = [&[1, 7][..], b"sandbox", &[1], b"t"].concat();
        assert_eq!(password(&message), Password::Token(b"t".to_vec(), message.len()));
        (0..message.len()).for_each(|cut| assert_eq!(password(&message[..cut]), Password::Incomplete));
        assert_eq!(password(&[5, 0]), Password::Invalid);
    }

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("egress_gateway", crate::hostile::gateway);
    }
}
