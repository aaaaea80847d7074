//! The way of a request: who may, where to, connect, send once, pass back.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use hutch_serve::{PeerAddress, Shutdown};
use hyper::client::conn::http1::SendRequest;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::journal::Line;
use crate::pool::{Key, Pool};
use crate::recent::Recent;
use crate::refusal::{Refusal, json};
use crate::stream::{Progress, join};
use crate::{Access, Backend, Dial, DialError, Resolve, Target, Unresolved, forward, target};

/// How long a forwarded connection may be silent between requests.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// The router's times.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long one try to connect may take.
    pub connect_timeout: Duration,
    /// Pauses before further tries to connect; as many tries as there are pauses, and one.
    pub retry_delays: Vec<Duration>,
    /// How long to wait for the head of an answer, after the request was sent, when the client does not say. A command
    /// of the runtime gives its head when it ends, and may run for 300 s.
    pub header_timeout: Duration,
    /// The longest wait that a client may ask for.
    pub header_timeout_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            connect_timeout: Duration::from_secs(5),
            retry_delays: [200, 400, 800].map(Duration::from_millis).to_vec(),
            header_timeout: Duration::from_secs(330),
            header_timeout_limit: Duration::from_secs(24 * 3600),
        }
    }
}

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

struct Inner {
    config: Config,
    resolver: Arc<dyn Resolve>,
    dial: Arc<dyn Dial>,
    pool: Pool,
    recent: Recent,
    shutdown: Shutdown,
}

/// Routes requests to sandboxes. Clones share connections.
#[derive(Clone)]
pub struct Router(Arc<Inner>);

impl Router {
    /// A router that finds Pods by `resolver` and connects to them by `dial`. The shutdown ends upgraded connections.
    pub fn new(
        config: Config,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        shutdown: Shutdown,
    ) -> Router {
        let (pool, recent) = (Pool::default(), Recent::default());
        Router(Arc::new(Inner { config, resolver, dial, pool, recent, shutdown }))
    }

    /// Whether it can route: the same as what `GET /readyz` says.
    pub fn ready(&self) -> bool {
        self.0.resolver.ready() && !self.0.shutdown.is_triggered()
    }

    /// The application, for a listener that puts a [`PeerAddress`] into each request.
    pub fn app(&self, access: Access) -> axum::Router {
        let router = self.clone();
        axum::Router::new().fallback(move |request: Request<Body>| {
            let (router, access) = (router.clone(), access.clone());
            async move { router.answer(request, &access).await }
        })
    }

    /// Serves HTTP/1.1 over a stream that came another way than a listener, upgrades included, until it ends.
    pub async fn serve_connection<S>(&self, stream: S, access: Access)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.clone();
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
            let (router, access) = (router.clone(), access.clone());
            async move { Ok::<_, Infallible>(router.answer(request.map(Body::new), &access).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT);
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.0.shutdown.wait() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a forwarded connection ended early");
        }
    }

    /// Answers one request. When the future or the body of the answer is dropped, so is the connection to the sandbox.
    async fn answer(&self, request: Request<Body>, access: &Access) -> Response<Body> {
        let path = request.uri().path();
        if path == "/healthz" {
            return json(StatusCode::OK, &Status { status: "ok" });
        }
        if path == "/readyz" && !request.headers().contains_key(target::ID) {
            return match self.ready() {
                true => Response::new(Body::from("ok")),
                false => json(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "not ready" }),
            };
        }
        let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip());
        let mut line = Line::begin(&request, peer);
        let result = self.route(request, access, peer, &mut line).await;
        line.follow(result.unwrap_or_else(|refusal| refusal.answer()))
    }

    async fn route(
        &self,
        mut request: Request<Body>,
        access: &Access,
        peer: Option<IpAddr>,
        line: &mut Line,
    ) -> Result<Response<Body>, Refusal> {
        if !access.admits(request.headers()) {
            return Err(Refusal::Unauthenticated);
        }
        if request.method() == Method::CONNECT {
            return Err(Refusal::NotProxied);
        }
        let target = Target::read(request.headers())?;
        line.names(&target.namespace, &target.id);
        let (backend, sender) = self.connect(&target).await?;
        let client = hyper::upgrade::on(&mut request);
        let (mut head, body) = request.into_parts();
        // `connect` gives no backend without an address.
        let ip = target.pod_ip.or(backend.ips.first().copied()).ok_or(Refusal::BadAddress)?;
        forward::request(&mut head, peer, SocketAddr::new(ip, target.port));
        // Neither the client's connection nor its upgrade may be taken for those of the request that goes out.
        head.extensions.clear();
        let asked = forward::upgrade_of(&head.headers);
        let progress = Progress::now();
        let request = Request::from_parts(head, progress.watch(body));
        let mut response = self.exchange(request, backend, sender, &target, &progress).await?;
        let switched = upgrade_of_answer(&response);
        let backend = switched.is_some().then(|| hyper::upgrade::on(&mut response));
        forward::strip(response.headers_mut());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(_), Some(protocol), Some(backend)) = (asked, switched, backend) else {
                return Err(Refusal::Unasked);
            };
            let headers = response.headers_mut();
            headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
            headers.insert(http::header::UPGRADE, protocol);
            join(client, backend, self.0.shutdown.clone());
        }
        Ok(response)
    }

    /// Finds the Pod and a connection to it. Trying again is safe: nothing of the request has been sent.
    async fn connect(&self, target: &Target) -> Result<(Backend, SendRequest<Body>), Refusal> {
        let Inner { config, pool, dial, .. } = &*self.0;
        let mut delays = config.retry_delays.iter();
        loop {
            let backend = self.find(target).await?;
            let key = Key { pod: backend.pod.clone(), port: target.port };
            if let Some(sender) = pool.take(&key) {
                return Ok((backend, sender));
            }
            let dialled =
                tokio::time::timeout(config.connect_timeout, dial.dial(&backend, target.port)).await;
            let failure = match dialled {
                Ok(Ok(stream)) => match pool.open(stream).await {
                    Ok(sender) => return Ok((backend, sender)),
                    Err(error) => error.to_string(),
                },
                Ok(Err(DialError::Gone(text))) => text,
                Ok(Err(DialError::Retry(text))) => text,
                Err(_) => format!("no connection within {:?}", config.connect_timeout),
            };
            let delay = delays.next();
            tracing::debug!(
                sandbox = target.id,
                failure,
                again = delay.is_some(),
                "cannot connect to a sandbox"
            );
            match delay {
                Some(delay) => tokio::time::sleep(*delay).await,
                None => return Err(Refusal::Unreachable(target.id.clone())),
            }
        }
    }

    async fn find(&self, target: &Target) -> Result<Backend, Refusal> {
        let unreachable = || Refusal::Unreachable(target.id.clone());
        let backend = self.0.resolver.resolve(target).await.map_err(|reason| {
            match &reason {
                Unresolved::Api(_) => {
                    tracing::warn!(sandbox = target.id, namespace = target.namespace, %reason, "not routed")
                }
                _ => {
                    tracing::debug!(sandbox = target.id, namespace = target.namespace, %reason, "not routed")
                }
            }
            unreachable()
        })?;
        if let Some(ip) = target.pod_ip
            && !backend.ips.contains(&ip)
        {
            let outdated = self.0.recent.had(&backend.sandbox, ip);
            return Err(if outdated { unreachable() } else { Refusal::BadAddress });
        }
        self.0.recent.note(&backend.sandbox, &backend.ips);
        Ok(backend)
    }

    /// Sends the request, once. A connection that closed while it waited gives the request back unsent; only then is
    /// another one used.
    async fn exchange(
        &self,
        mut request: Request<Body>,
        mut backend: Backend,
        mut sender: SendRequest<Body>,
        target: &Target,
        progress: &Progress,
    ) -> Result<Response<Body>, Refusal> {
        let config = &self.0.config;
        let limit =
            target.timeout.map_or(config.header_timeout, |asked| asked.min(config.header_timeout_limit));
        let unreachable = || Refusal::Unreachable(target.id.clone());
        for last in [false, true] {
            let sent = tokio::select! {
                sent = sender.try_send_request(request) => sent,
                () = progress.stalled(limit) => return Err(Refusal::Silent(target.id.clone())),
            };
            let mut error = match sent {
                Ok(response) => {
                    self.0.pool.give_back(Key { pod: backend.pod, port: target.port }, sender);
                    return Ok(response.map(Body::new));
                }
                Err(error) => error,
            };
            tracing::debug!(sandbox = target.id, error = %error.error(), "a sandbox did not answer");
            match error.take_message() {
                Some(unsent) if !last => {
                    request = unsent;
                    (backend, sender) = self.connect(target).await?;
                }
                _ => return Err(unreachable()),
            }
        }
        Err(unreachable())
    }
}

fn upgrade_of_answer(response: &Response<Body>) -> Option<http::HeaderValue> {
    (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| forward::upgrade_of(response.headers()))
        .flatten()
}
