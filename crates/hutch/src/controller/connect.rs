//! Transport to the API server: address, connections, credentials, rate.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use hutch_election::{Guard, Term};
use hutch_serve::retry::RetryPolicy;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Connection, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tokio::sync::Mutex;
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use super::flags::Flags;
use super::requests::Requests;
use super::throttle::Throttle;

/// File with the namespace of this Pod.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Maximum time to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum time until an answer begins, a watch's first line included. The API server has a limit of 60 s itself.
const ANSWER_LIMIT: Duration = Duration::from_secs(70);
/// Silence of a connection after which a ping is sent.
const PING: Duration = Duration::from_secs(30);
/// Maximum time for the answer to a ping.
const PONG: Duration = Duration::from_secs(15);

/// Configuration of requests to the API server, shared by all clients.
pub(super) struct Transport {
    config: Config,
    lanes: Lanes,
    requests: Requests,
    throttle: Option<Throttle>,
}

/// Returns the configuration of the flag or of the environment, with this program's user agent.
pub(super) async fn config(flag: &str) -> anyhow::Result<Config> {
    let mut config =
        crate::cluster::config(Some(flag).filter(|flag| !flag.is_empty()).map(Path::new)).await?;
    let agent = format!("hutch-controller/{}", env!("CARGO_PKG_VERSION"));
    config.headers.push((header::USER_AGENT, HeaderValue::from_str(&agent)?));
    Ok(config)
}

/// Returns the namespace of the Lease: the flag's, else that of this Pod.
pub(super) fn lease_namespace(flag: &str) -> anyhow::Result<String> {
    if !flag.is_empty() {
        return Ok(flag.to_owned());
    }
    let own = std::fs::read_to_string(Path::new(OWN_NAMESPACE)).map(|text| text.trim().to_owned());
    own.ok().filter(|namespace| !namespace.is_empty()).context(
        "--leader-election-namespace: needed outside of a Pod, such as agent-sandbox-system; or --leader-elect=false",
    )
}

impl Transport {
    pub(super) fn new(
        config: Config,
        flags: &Flags,
        registry: &prometheus::Registry,
    ) -> anyhow::Result<Self> {
        let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        Ok(Transport {
            lanes: Lanes::new(&config, flags)?,
            requests: Requests::new(registry, &host)?,
            throttle: Throttle::new(flags.qps, flags.burst),
            config,
        })
    }

    /// Returns a client. With a term, it sends no writes after the end of the term.
    pub(super) fn client(&self, term: Option<Term>) -> anyhow::Result<Client> {
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .layer(RetryLayer::new(RetryPolicy::default()))
            .option_layer(self.throttle.clone())
            .option_layer(self.config.auth_layer()?)
            .layer(self.config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .option_layer(term.map(Guard::new))
            .map_err(BoxError::from)
            .layer(self.requests.clone())
            .service(self.lanes.clone());
        Ok(Client::new(service, self.config.default_namespace.clone()))
    }
}

/// One connection to an API server with HTTP/2, else one for each concurrent request.
struct Lane {
    connection: Connection<HttpsConnector<HttpConnector>, Body>,
    /// Held by the first request until its answer shows the version of HTTP. The others wait, because each would open a
    /// connection of its own.
    open: Mutex<()>,
    opened: AtomicBool,
}

impl Lane {
    /// The future is small, because many wait at the same time.
    fn send(self: Arc<Self>, request: Request<Body>) -> Answer {
        if !self.opened.load(Ordering::Acquire) {
            return self.open(request).boxed();
        }
        let answer = self.connection.request(request);
        async move { self.take(answer).await }.boxed()
    }

    async fn open(self: Arc<Self>, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let first = self.open.lock().await;
        let first = Some(first).filter(|_| !self.opened.load(Ordering::Acquire));
        let answer = self.take(self.connection.request(request)).await;
        drop(first);
        answer
    }

    async fn take(&self, answer: ResponseFuture) -> Result<Response<Incoming>, BoxError> {
        let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await;
        self.opened.store(matches!(answer, Ok(Ok(_))), Ordering::Release);
        match answer {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(format!("the API server gave no answer for {ANSWER_LIMIT:?}").into()),
        }
    }
}

type Answer = BoxFuture<'static, Result<Response<Incoming>, BoxError>>;

/// All connections.
#[derive(Clone)]
struct Lanes {
    /// Connections that are used in turn.
    all: Arc<[Arc<Lane>]>,
    next: Arc<AtomicUsize>,
    watches: Option<Arc<Lane>>,
}

impl Lanes {
    fn new(config: &Config, flags: &Flags) -> anyhow::Result<Self> {
        let count = usize::try_from(flags.api_connections).unwrap_or(1).max(1);
        let all: anyhow::Result<Arc<[Arc<Lane>]>> = (0..count).map(|_| lane(config)).collect();
        let watches = flags.separate_watch_connection.then(|| lane(config)).transpose()?;
        Ok(Lanes { all: all?, next: Arc::default(), watches })
    }

    fn pick(&self, watch: bool) -> &Arc<Lane> {
        match &self.watches {
            Some(lane) if watch => lane,
            _ => &self.all[self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()],
        }
    }
}

fn lane(config: &Config) -> anyhow::Result<Arc<Lane>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_LIMIT));
    let tls = config.rustls_client_config().context("TLS to the API server")?;
    let mut tls = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name =
            name.clone().try_into().with_context(|| format!("tls-server-name {name:?} of the kubeconfig"))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut builder = Connection::builder(TokioExecutor::new());
    builder.timer(TokioTimer::new()).pool_timer(TokioTimer::new());
    builder.http2_keep_alive_interval(PING).http2_keep_alive_timeout(PONG).http2_keep_alive_while_idle(true);
    let connection = builder.build(tls.enable_http1().enable_http2().wrap_connector(tcp));
    Ok(Arc::new(Lane { connection, open: Mutex::default(), opened: AtomicBool::default() }))
}

impl Service<Request<Body>> for Lanes {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.pick(is_watch(request.uri())).clone().send(request)
    }
}

fn is_watch(uri: &http::Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(words: &[&str]) -> Lanes {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let Ok(super::super::flags::Asked::Run(flags, _)) = super::super::flags::parse(&words) else {
            panic!("{words:?}")
        };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Lanes::new(&Config::new("https://127.0.0.1:1".parse().unwrap()), &flags).unwrap()
    }

    #[test]
    fn connections_take_turns_and_watches_can_have_their_own() {
        let lanes = lanes(&["--api-connections=3", "--separate-watch-connection"]);
        let at = |lane: &Arc<Lane>| lanes.all.iter().position(|known| Arc::ptr_eq(known, lane));
        let picked: Vec<_> = (0..6).map(|_| at(lanes.pick(false))).collect();
        assert_eq!(picked, [0, 1, 2, 0, 1, 2].map(Some));
        assert_eq!(at(lanes.pick(true)), None);
    }

    // Paused time advances only in waits.
    #[tokio::test(start_paused = true)]
    async fn request_to_a_busy_server_is_retried_at_the_given_time() {
        use axum::response::IntoResponse;
        use tokio::time::Instant;
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = asked.clone();
        let app = axum::Router::new().fallback(move || {
            let mut asked = seen.lock().unwrap();
            asked.push(Instant::now());
            let busy = asked.len() <= 2;
            async move {
                let refused =
                    (http::StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "9")]).into_response();
                if busy { refused } else { r#"{"metadata": {"name": "there"}}"#.into_response() }
            }
        });
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", socket.local_addr().unwrap()).parse().unwrap());
        tokio::spawn(async move { axum::serve(socket, app).await });
        let Ok(super::super::flags::Asked::Run(flags, _)) = super::super::flags::parse(&[]) else { panic!() };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let transport = Transport::new(config, &flags, &prometheus::Registry::new()).unwrap();
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
            kube::Api::namespaced(transport.client(None).unwrap(), "default");
        assert_eq!(pods.get("there").await.unwrap().metadata.name.as_deref(), Some("there"));
        let asked = asked.lock().unwrap();
        let waits: Vec<u64> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(waits, [9, 9]);
    }

    #[test]
    fn watch_is_recognized_by_its_query() {
        for (uri, watch) in [
            ("/api/v1/pods?watch=true", true),
            ("/api/v1/pods?resourceVersion=1&watch=1", true),
            ("/api/v1/pods?watch=false", false),
            ("/api/v1/pods?labelSelector=watch%3Dtrue", false),
            ("/api/v1/pods", false),
        ] {
            assert_eq!(is_watch(&uri.parse().unwrap()), watch, "{uri}");
        }
    }
}
