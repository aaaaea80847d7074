//! The client of Vault: a process of `hutch up` that only speaks with one server. It has a user of its own, no capability
//! and no files. It parses what that server sends, and nothing that sandboxes or callers of the API send.

mod answer;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request as HttpRequest, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hutch_egress::Secret;
use hutch_jail::service::{Confinement, confine};
use hutch_privsep::{Channel, send_now};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use self::answer::Lease;
use self::answer::{messages, read};
use crate::egress::{Process, files_for_names};
use crate::runtime::{first_message, runtime};

/// Name of the program as the root process starts it. Not a command for users.
pub(crate) const NAME: &str = "hutch-vault";
/// Maximum time for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Maximum bytes of the body of an answer.
const BYTES: usize = 1 << 20;

/// First message to the process; requests follow. A file with the authorities that may sign the server's certificate comes
/// with it.
#[derive(Serialize, Deserialize)]
struct Start {
    /// User and group id of the process.
    id: u32,
    address: String,
}

/// Request to the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Number, which the answer has too.
    pub(crate) number: u64,
    /// Token for Vault.
    pub(crate) token: Secret,
    /// Operation.
    pub(crate) what: What,
}

/// Operation of Vault.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum What {
    /// Read the secret at a path, or request one with these parameters.
    Read(String, BTreeMap<String, String>),
    /// Check that a lease is not revoked.
    Look(String),
    /// Prolong a lease.
    Renew(String),
    /// End a lease.
    Revoke(String),
}

/// Answer of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) answer: Result<Lease, String>,
}

/// Address of Vault: scheme, host and port, without a path.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address(String);

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || format!("{text:?} is not an address of Vault, such as https://vault.example:8200");
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let plain = uri.path() == "/" && uri.query().is_none();
        if !plain || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong());
        }
        let loopback =
            host == "localhost" || host.parse().is_ok_and(|host: std::net::IpAddr| host.is_loopback());
        match uri.scheme_str() {
            Some("https") => Ok(Address(text.trim_end_matches('/').to_owned())),
            Some("http") if loopback => Ok(Address(text.trim_end_matches('/').to_owned())),
            Some("http") => Err(format!("{text:?}: without TLS, Vault must be on this machine")),
            _ => Err(wrong()),
        }
    }
}

/// Starts the process. To be called on a thread that lasts: the kernel ends the process with it.
pub(crate) fn spawn(address: &Address, authorities: &[u8], id: u32) -> io::Result<(Process, OwnedFd)> {
    let (process, ours) = Process::start(NAME, Path::new("/"))?;
    // Larger than a message.
    let mut file = tempfile::tempfile()?;
    file.write_all(authorities)?;
    file.rewind()?;
    send_now(ours.as_fd(), &Start { id, address: address.0.clone() }, &[file.as_fd()])?;
    Ok((process, ours))
}

/// Answers until the process that started it ends.
pub(crate) fn main() -> ExitCode {
    crate::runtime::log("warn,hutch=info");
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let input = rustix::stdio::stdin();
    let (Start { id, address }, files) = first_message(c"hutch-vault")?;
    let mut authorities = Vec::new();
    for file in files {
        std::fs::File::from(file).read_to_end(&mut authorities).context("the authorities")?;
    }
    let readable = files_for_names();
    let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
    confine(&Confinement { uid: id, gid: id, writable: &[], readable: &readable, connects: true })
        .context("cannot be confined")?;
    let server = Arc::new(Server::new(address, &authorities)?);
    let input = input.try_clone_to_owned().context("the channel")?;
    runtime()?.block_on(async {
        let channel = Arc::new(Channel::new(input)?);
        while let Some(message) = channel.receive_bare().await? {
            let Request { number, token, what } = message.decode()?;
            let (server, channel) = (server.clone(), channel.clone());
            tokio::spawn(async move {
                let answered = tokio::time::timeout(ANSWER, server.answer(&token, what)).await;
                let answer = answered.unwrap_or_else(|_| Err("it did not answer in time".to_owned()));
                // A closed channel is the end of this process.
                let _ = channel.send(&Answer { number, answer }, &[]).await;
            });
        }
        anyhow::Ok(())
    })
}

/// The server.
struct Server {
    address: String,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Server {
    fn new(address: String, authorities: &[u8]) -> anyhow::Result<Server> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authorities).flatten() {
            // As other programs do: a machine's store has certificates that are no authorities.
            let _ = roots.add(certificate);
        }
        ensure!(
            address.starts_with("http:") || !roots.is_empty(),
            "no authority for the certificate of Vault"
        );
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Server { address, client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    async fn answer(&self, token: &Secret, what: What) -> Result<Lease, String> {
        let (method, path, body) = match what {
            What::Read(path, parameters) if parameters.is_empty() => (Method::GET, path, Value::Null),
            What::Read(path, parameters) => (Method::PUT, path, json!(parameters)),
            What::Look(lease) => (Method::PUT, "sys/leases/lookup".to_owned(), json!({ "lease_id": lease })),
            What::Renew(lease) => (Method::PUT, "sys/leases/renew".to_owned(), json!({ "lease_id": lease })),
            What::Revoke(lease) => {
                (Method::PUT, "sys/leases/revoke".to_owned(), json!({ "lease_id": lease }))
            }
        };
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let mut header = http::HeaderValue::from_str(token.expose()).map_err(|_| "its token is not text")?;
        header.set_sensitive(true);
        let request = HttpRequest::builder()
            .method(method)
            .uri(format!("{}/v1/{path}", self.address))
            .header("X-Vault-Token", header)
            .header("X-Vault-Request", "true")
            .body(Full::new(body))
            .map_err(|_| "the path is invalid")?;
        let answer = self.client.request(request).await.map_err(|error| reason(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), BYTES).collect().await;
        let body = body.map_err(|_| "its answer is too long, or was cut")?.to_bytes();
        if !status.is_success() {
            return Err(format!("{}{}", status.as_u16(), messages(&body, token)));
        }
        if body.is_empty() {
            return Ok(Lease::default());
        }
        read(&body).ok_or_else(|| "its answer is not one of Vault".to_owned())
    }
}

/// Returns the reason why there is no answer, with its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        reason.push_str(&format!(": {error}"));
        source = error.source();
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_tls_or_is_of_this_machine() {
        for address in
            ["https://vault.example", "https://v:8200/", "http://127.0.0.1:8200", "http://localhost"]
        {
            assert!(address.parse::<Address>().is_ok(), "{address}");
        }
        for address in ["http://vault.example", "vault:8200", "https://a@b", "https://v/path", "ftp://v", ""]
        {
            assert!(address.parse::<Address>().is_err(), "{address}");
        }
    }

    /// Answers one request with these bytes, the last of them without end.
    async fn server(first: &'static str, endless: &'static [u8]) -> Server {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let mut written = stream.write_all(first.as_bytes()).await;
            while written.is_ok() && !endless.is_empty() {
                written = stream.write_all(endless).await;
            }
        });
        Server::new(address, b"").unwrap()
    }

    #[tokio::test]
    async fn hostile_answer_gives_no_value_and_no_secret_in_its_error() {
        let token = Secret::new("hvs.token-of-this-test".into());
        let answers: [(&str, &[u8], &str); 7] = [
            (
                "HTTP/1.1 307 Elsewhere\r\nlocation: /v1/hvs.token-of-this-test\r\ncontent-length: 0\r\n\r\n",
                b"",
                "307",
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", &[b'['; 4096], "its answer is too long, or was cut"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"data\"",
                b"",
                "its answer is too long, or was cut",
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", b"", "its answer is not one of Vault"),
            ("HTTP/1.1 200 OK\r\n", b"a: b\r\n", ""),
            ("HTTP/1.1 200 OK\r\na: ", &[b'x'; 4096], ""),
            (
                "HTTP/1.1 400 Bad\r\ncontent-length: 44\r\n\r\n{\"errors\": [\"bad hvs.token-of-this-test\"]}  ",
                b"",
                "400: bad ***",
            ),
        ];
        let began = std::time::Instant::now();
        for (first, endless, expected) in answers {
            let server = server(first, endless).await;
            let what = What::Read("secret/data/a".to_owned(), BTreeMap::new());
            let error = server.answer(&token, what).await.unwrap_err();
            assert!(error.starts_with(expected) && !error.contains(token.expose()), "{first:?}: {error}");
            assert!(error.len() < 300, "{error}");
        }
        assert!(began.elapsed() < ANSWER, "{:?}", began.elapsed());
    }
}
