//! Router on a free port, Sandboxes that are ports of this machine, and clients and servers of plain bytes.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{Duplex, PodId};
use hutch_router::{
    Access, Backend, Config, Dial, DialError, Past, Resolve, Router, Target, Tls, Unresolved, Wake,
};
use hutch_serve::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Cluster of Sandboxes; each port of each is the same port of this machine's loopback.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) sandboxes: Mutex<HashMap<String, Arc<Backend>>>,
    /// All current and former addresses of each Sandbox.
    pub(crate) addresses: Mutex<Vec<(String, IpAddr)>>,
    pub(crate) dialled: AtomicUsize,
    /// Number of connection attempts that fail before one succeeds.
    pub(crate) failing: AtomicUsize,
}

impl Cluster {
    pub(crate) fn add(&self, id: &str, ips: &[&str]) {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let pod = PodId { namespace: "default".into(), name: id.into(), uid: format!("{ips:?}") };
        let sandbox = format!("uid-of-{id}");
        self.addresses.lock().unwrap().extend(ips.iter().map(|ip| (sandbox.clone(), *ip)));
        let backend = Backend { sandbox, pod, ips, idle_timeout: None };
        self.sandboxes.lock().unwrap().insert(id.into(), Arc::new(backend));
    }
}

impl Resolve for Cluster {
    fn resolve<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Arc<Backend>, Unresolved>> {
        let found =
            (target.namespace == "default").then(|| self.sandboxes.lock().unwrap().get(&target.id).cloned());
        let missing =
            if target.id.starts_with("asleep") { Unresolved::NotReady } else { Unresolved::Unknown };
        async move { found.flatten().ok_or(missing) }.boxed()
    }

    fn past(&self, sandbox: &str, address: IpAddr) -> Past {
        let addresses = self.addresses.lock().unwrap();
        let holders: Vec<&str> = addresses
            .iter()
            .filter(|(_, known)| *known == address)
            .map(|(holder, _)| holder.as_str())
            .collect();
        match (holders.contains(&sandbox), holders.is_empty()) {
            (true, _) => Past::Its,
            (false, false) => Past::Another,
            (false, true) => Past::Unknown,
        }
    }

    fn forget(&self, _: &Target) {}

    fn ready(&self) -> bool {
        !self.sandboxes.lock().unwrap().is_empty()
    }
}

impl Dial for Cluster {
    fn dial<'a>(&'a self, _: &'a Backend, port: u16) -> BoxFuture<'a, Result<Box<dyn Duplex>, DialError>> {
        async move {
            self.dialled.fetch_add(1, Ordering::SeqCst);
            let failing = |left: usize| left.checked_sub(1);
            if self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, failing).is_ok() {
                return Err(DialError::Retry("asked to fail".into()));
            }
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            stream
                .map(|stream| Box::new(stream) as Box<dyn Duplex>)
                .map_err(|error| DialError::Retry(error.to_string()))
        }
        .boxed()
    }
}

pub(crate) struct Routed {
    pub(crate) address: SocketAddr,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) router: Router,
    pub(crate) shutdown: Shutdown,
    /// Stops new connections and requests when triggered.
    pub(crate) drain: Shutdown,
    pub(crate) served: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.drain.trigger();
        self.shutdown.trigger();
    }
}

/// Timeouts that are short enough for tests.
pub(crate) fn quick() -> Config {
    Config {
        retry_delays: vec![Duration::from_millis(5); 3],
        connect_timeout: Duration::from_secs(2),
        ..Config::default()
    }
}

/// Starts a router with one Sandbox `a` at 10.89.0.7 and fd00::7, and another `b`.
pub(crate) async fn routed(access: Access) -> Routed {
    with(quick(), access, None, None).await
}

pub(crate) async fn with(
    config: Config,
    access: Access,
    tls: Option<Tls>,
    wake: Option<Arc<dyn Wake>>,
) -> Routed {
    let cluster = Arc::new(Cluster::default());
    cluster.add("a", &["10.89.0.7", "fd00::7"]);
    cluster.add("b", &["10.89.0.66"]);
    let (shutdown, drain) = (Shutdown::new(), Shutdown::new());
    let router = Router::waking(config, cluster.clone(), cluster.clone(), wake, shutdown.clone());
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let serving = router.clone().serve(socket, tls, access, drain.clone(), Duration::from_secs(10));
    let served = Some(tokio::spawn(serving));
    Routed { address, cluster, router, shutdown, drain, served }
}

impl Routed {
    /// Sends bytes and reads until the router closes.
    pub(crate) async fn exchange(&self, bytes: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        within(stream.read_to_end(&mut text)).await.unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Sends one GET with these headers; returns status and body.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = self
            .exchange(&format!("GET {path} HTTP/1.1\r\nhost: r\r\nconnection: close\r\n{headers}\r\n"))
            .await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        (head[9..12].parse().unwrap(), body.to_owned())
    }
}

/// Starts a server that passes each connection to `serve`; returns its port and its number of connections.
pub(crate) async fn backend<F, R>(serve: F) -> (u16, Arc<AtomicUsize>)
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(stream));
        }
    });
    (port, connections)
}

/// Reads the head of a message, and nothing after it.
pub(crate) async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match within(stream.read_u8()).await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

pub(crate) async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads exactly that text.
pub(crate) async fn expect(stream: &mut TcpStream, text: &str) {
    let mut read = vec![0; text.len()];
    within(stream.read_exact(&mut read)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&read), text);
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("within ten seconds")
}
