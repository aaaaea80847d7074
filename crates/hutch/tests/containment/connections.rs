//! Connections that only take up room: they end neither the API nor what `hutch up` does itself.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::harness::{Up, WAIT_LIMIT};

/// Descriptors that the program under test may have.
pub(crate) const DESCRIPTORS: u32 = 512;
/// Connections that a stranger opens: more than the program has descriptors.
pub(crate) const CONNECTIONS: usize = 600;

/// A connection with TLS and HTTP/2 on which nothing is ever requested.
pub(crate) type Idle = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn address(up: &Up) -> SocketAddr {
    let line = up.printed.iter().find_map(|line| line.strip_prefix("API")).expect("the address");
    line.trim().trim_start_matches("https://").parse().expect("an address")
}

pub(crate) fn tls(up: &Up) -> Arc<ClientConfig> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    let authority = up.ok("config view --raw -o jsonpath={.clusters[0].cluster.certificate-authority-data}");
    let authority =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, authority).expect("base64");
    roots.add(CertificateDer::from_pem_slice(&authority).expect("a certificate")).expect("an authority");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Opens one and ends its handshake; `None` when the server closes it before that.
pub(crate) fn idle_http2(address: SocketAddr, tls: &Arc<ClientConfig>) -> Option<Idle> {
    let name = address.ip().into();
    let client =
        ClientConnection::new(tls.clone(), rustls::pki_types::ServerName::IpAddress(name)).expect("TLS");
    let socket = TcpStream::connect(address).ok()?;
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket");
    let mut stream = StreamOwned::new(client, socket);
    // The preface and empty settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").ok()?;
    stream.flush().ok()?;
    Some(stream)
}

/// A Pod whose probe needs a new process each second.
fn probed(up: &Up) {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probed"}, "spec": {"containers": [
        {"name": "c", "image": "hutch/host", "command": ["sleep", "1000"], "livenessProbe": probe}]}});
    let file = up.folder().join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("the Pod is written");
    up.ok_args(&["create", "-f", file.to_str().expect("a path")]);
    up.eventually("get pod probed -o jsonpath={.status.containerStatuses[0].ready}", |ready| ready == "true");
}

/// The API answers, the Pod was not restarted, and processes start in it.
#[track_caller]
fn works(up: &Up) {
    for count in 0..3 {
        up.ok_args(&["create", "configmap", &format!("after-{count}")]);
        assert_eq!(up.ok("exec probed -- echo alive").trim(), "alive");
    }
    let restarts = up.ok("get pod probed -o jsonpath={.status.containerStatuses[0].restartCount}");
    assert_eq!(restarts.trim(), "0", "a probe failed");
    up.ok("delete configmap after-0 after-1 after-2");
}

#[test]
fn idle_connections_end_neither_the_api_nor_a_pod() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start_limited(DESCRIPTORS);
    probed(&up);
    let mut watch = up
        .kubectl_command(&["get", "configmaps", "--watch-only", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let mut seen = BufReader::new(watch.stdout.take().expect("stdout")).lines();
    // The watch has begun when it reports an object.
    let started = Instant::now();
    let mut first = None;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| seen.next());
        let mut count = 0;
        while !reader.is_finished() {
            assert!(started.elapsed() < WAIT_LIMIT, "the watch reports nothing");
            up.ok_args(&["create", "configmap", &format!("before-{count}")]);
            count += 1;
        }
        first = reader.join().expect("a line");
    });
    assert!(first.is_some_and(|line| line.is_ok()), "the watch began");

    let address = address(&up);
    let bare: Vec<TcpStream> = (0..CONNECTIONS).filter_map(|_| TcpStream::connect(address).ok()).collect();
    works(&up);
    let tls = tls(&up);
    let idle: Vec<Idle> = (0..CONNECTIONS / 2).filter_map(|_| idle_http2(address, &tls)).collect();
    assert!(!idle.is_empty(), "new connections are taken");
    works(&up);

    up.ok("create configmap last");
    let told = seen.find(|line| line.as_ref().is_ok_and(|line| line.contains("/last")));
    assert!(told.is_some(), "the watch was cut");
    drop((bare, idle));
    let _ = watch.kill();
    let _ = watch.wait();
}
