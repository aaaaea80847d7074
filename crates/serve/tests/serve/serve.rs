//! A router in memory and over TLS, upgrades included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Extension;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::routing::{any, get};
use futures::{SinkExt, StreamExt};
use hutch_serve::{Authority, Error, Listener, PeerCertificate, Shutdown, memory};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::protocol::Role;

fn echo() -> Router {
    let socket = |upgrade: WebSocketUpgrade| async {
        upgrade.protocols(["v5.channel.k8s.io"]).on_upgrade(|mut socket| async move {
            while let Some(Ok(message)) = socket.recv().await {
                if matches!(message, Message::Binary(_)) && socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    };
    let who = |certificate: Option<Extension<PeerCertificate>>| async move {
        certificate.map_or_else(|| "none".into(), |c| c.0.0.len().to_string())
    };
    let exec = any(socket);
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/who", get(who))
        .route("/echo", exec.clone())
        .route("/api/v1/namespaces/default/pods/p/exec", exec)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_memory_are_cheap_and_do_not_wait_for_each_other() {
    let slow = get(|| async { futures::future::pending::<&str>().await });
    let client = memory::client(echo().route("/slow", slow), "default");
    let waiting = client.clone();
    let held = tokio::spawn(async move {
        waiting.request_text(http::Request::get("/slow").body(Vec::new()).unwrap()).await
    });
    let hello = || http::Request::get("/hello").body(Vec::new()).unwrap();
    assert_eq!(client.request_text(hello()).await.unwrap(), "hello");
    let (start, rounds) = (Instant::now(), 2000);
    for _ in 0..rounds {
        client.request_text(hello()).await.unwrap();
    }
    let each = start.elapsed() / rounds;
    println!("a request in memory: {each:?}");
    // Far above what it takes, so that only a mistake of kind (a connection per request) is caught.
    assert!(each < Duration::from_millis(2), "{each:?}");
    assert!(!held.is_finished());
    held.abort();
}

#[tokio::test]
async fn exec_upgrades_in_memory() {
    let client = memory::client(echo(), "default");
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(client.clone());
    let attach = kube::api::AttachParams::default().stdin(true).stdout(true).stderr(false);
    let mut process = pods.exec("p", ["cat"], &attach).await.unwrap();
    process.stdin().unwrap().write_all(b"ping").await.unwrap();
    drop(process);

    let request = http::Request::get("/echo")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(kube::client::Body::empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 101);
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    round_trip(hyper_util::rt::TokioIo::new(upgraded)).await;
}

async fn round_trip<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(stream: S) {
    let mut socket = tokio_tungstenite::WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    let sent = vec![7u8; 200_000];
    socket.send(sent.clone().into()).await.unwrap();
    let received = socket.next().await.unwrap().unwrap();
    assert_eq!(received.into_data().as_ref(), sent);
}

struct Site {
    authority: Authority,
    address: std::net::SocketAddr,
    shutdown: Shutdown,
    running: tokio::task::JoinHandle<()>,
}

async fn site(folder: &std::path::Path) -> Site {
    let authority = Authority::open(folder).unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, shutdown) = (listener.address(), Shutdown::new());
    let tls = authority.server_config(&[]).unwrap();
    let running = tokio::spawn(listener.serve_tls(echo(), tls, shutdown.clone()));
    Site { authority, address, shutdown, running }
}

type Tls = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

async fn connect(
    site: &Site,
    trust: &str,
    identity: Option<(&str, &str)>,
    alpn: &[u8],
) -> std::io::Result<Tls> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trust.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = tokio::net::TcpStream::connect(site.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn ask(mut stream: Tls, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.rsplit("\r\n").next().unwrap().to_owned()
}

#[tokio::test]
async fn tls_with_and_without_a_client_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    let trust = site.authority.certificate_pem();
    let stream = connect(&site, trust, None, b"http/1.1").await.unwrap();
    assert_eq!(ask(stream, "/who").await, "none");

    let client = site.authority.client_certificate("admin", &["system:masters"]).unwrap();
    let pair = (client.certificate_pem.as_str(), client.key_pem.as_str());
    let stream = connect(&site, trust, Some(pair), b"http/1.1").await.unwrap();
    assert_eq!(ask(stream, "/who").await, client.der.len().to_string());

    // A certificate of another authority gets no answer at all.
    let other = tempfile::tempdir().unwrap();
    let other = Authority::open(other.path()).unwrap();
    assert!(
        connect(&site, other.certificate_pem(), None, b"http/1.1").await.is_err(),
        "a wrong server is refused"
    );
    let stranger = other.client_certificate("admin", &[]).unwrap();
    let pair = (stranger.certificate_pem.as_str(), stranger.key_pem.as_str());
    if let Ok(mut stream) = connect(&site, trust, Some(pair), b"http/1.1").await {
        let _ = stream.write_all(b"GET /who HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let mut answer = String::new();
        assert!(stream.read_to_string(&mut answer).await.is_err() || answer.is_empty(), "{answer}");
    }
}

#[tokio::test]
async fn http2_and_upgrades_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    let trust = site.authority.certificate_pem();
    let stream = connect(&site, trust, None, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://localhost/hello").body(String::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);

    let stream = connect(&site, trust, None, b"http/1.1").await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async("wss://localhost/echo", stream).await.unwrap();
    round_trip(socket.into_inner()).await;
}

#[tokio::test]
async fn shutdown_ends_idle_and_busy_connections() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    let trust = site.authority.certificate_pem();
    let mut idle = connect(&site, trust, None, b"http/1.1").await.unwrap();
    site.shutdown.trigger();
    tokio::time::timeout(Duration::from_secs(5), site.running).await.unwrap().unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), idle.read_to_end(&mut rest)).await.unwrap();
    assert!(tokio::net::TcpStream::connect(site.address).await.is_err());
}

#[tokio::test]
async fn the_authority_stays_and_its_key_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("ca");
    let first = Authority::open(&folder).unwrap();
    let second = Authority::open(&folder).unwrap();
    assert_eq!(first.certificate_pem(), second.certificate_pem());
    assert_eq!(std::fs::metadata(folder.join("ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(folder.join("ca.key"), "nonsense").unwrap();
    let Err(error) = Authority::open(&folder) else { panic!("a damaged key was taken") };
    assert!(error.to_string().contains("ca.key"), "{error}");
}

#[tokio::test]
async fn binding_a_used_port_returns_an_error() {
    let first = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let Err(error) = Listener::bind(first.address()).await else { panic!("bound twice") };
    assert!(matches!(error, Error::AddressInUse(_)), "{error}");
    assert!(error.to_string().contains(&first.address().to_string()));
}
