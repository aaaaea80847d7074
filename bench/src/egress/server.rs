//! The servers: HTTP with and without TLS, one thread for each connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{ADDRESS, NAME};

/// Bytes of an answer's body.
const BODY: usize = 200;

/// Ports of the servers.
pub(super) struct Servers {
    pub(super) plain: u16,
    pub(super) tls: u16,
    /// Requests that were answered.
    pub(super) answers: Arc<AtomicUsize>,
}

impl Servers {
    /// Starts them. The authority that signs for them is the file `ca.pem` of the folder.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Servers> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // OpenSSL takes a certificate for self-signed if its issuer has the same name.
        params.distinguished_name.push(DnType::CommonName, "bench authority");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        let authority = params.self_signed(&key)?;
        std::fs::write(folder.join("ca.pem"), authority.pem())?;
        let issuer = Issuer::new(params, key);
        let leaf = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![NAME.to_owned()])?.signed_by(&leaf, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        let config = Arc::new(config);
        let answers = Arc::new(AtomicUsize::new(0));
        let count = answers.clone();
        let plain = listen(move |stream| drop(serve(stream, &count)))?;
        let count = answers.clone();
        let tls = listen(move |stream| {
            if let Ok(connection) = ServerConnection::new(config.clone()) {
                let _ = serve(StreamOwned::new(connection, stream), &count);
            }
        })?;
        Ok(Servers { plain, tls, answers })
    }
}

fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((ADDRESS, 0)).context(ADDRESS)?;
    let port = listener.local_addr()?.port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            let _ = stream.set_nodelay(true);
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(port)
}

/// Answers every request of a connection with status 200.
fn serve(stream: impl Read + Write, answers: &AtomicUsize) -> std::io::Result<()> {
    let mut stream = BufReader::with_capacity(256 << 10, stream);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n{}", "x".repeat(BODY));
    loop {
        let mut length = 0_u64;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        std::io::copy(&mut stream.by_ref().take(length), &mut std::io::sink())?;
        stream.get_mut().write_all(answer.as_bytes())?;
        stream.get_mut().flush()?;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}
