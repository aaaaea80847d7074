//! Handles a request: authorize, resolve, connect, send once, return the response.

pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod forward;
pub(crate) mod guard;
pub(crate) mod joined;
pub(crate) mod pool;
pub(crate) mod screened;
pub(crate) mod stall;
pub(crate) mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hutch_serve::Shutdown;
use opentelemetry::global::BoxedTracer;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::admit::target;
use crate::observe::audit::{Audit, Trail};
use crate::observe::journal::{AccessLog, Line, REQUEST_ID, request_id};
use crate::observe::metrics::{Metrics, OTHER_NAMESPACES};
use crate::observe::trace::Span;
use crate::pace::{Current, Limits};
use crate::proxy::forward::Origin;
use crate::proxy::pool::Pool;
use crate::proxy::screened::Screens;
use crate::refusal::{Refusal, json, wants_page};
use crate::resolve::wake::Sleepers;
use crate::threads::Threads;
use crate::{Access, Dial, PodKey, Resolve, Target, Wake};

/// Timeouts and limits of the router.
#[derive(Clone)]
pub struct Config {
    /// Maximum duration of one connection attempt.
    pub connect_timeout: Duration,
    /// Delays before further connection attempts; the number of attempts is one more.
    pub retry_delays: Vec<Duration>,
    /// Maximum time until the head of the response after the request was sent, if the client sets none. A
    /// command of the runtime sends its head when it ends, and may run for 300 s.
    pub header_timeout: Duration,
    /// Maximum of that time that a client may set.
    pub header_timeout_limit: Duration,
    /// Maximum duration of a request including its response, unless it switches protocols.
    pub exchange_timeout: Option<Duration>,
    /// Maximum bytes of a request body.
    pub body_limit: Option<u64>,
    /// Allows loopback addresses of Pods.
    pub allow_loopback: bool,
    /// Maximum connections of clients, upgraded ones included, and maximum connections to Sandboxes. Lowered
    /// if the limit of descriptors is lower.
    pub connections: usize,
    /// Timeouts of slow clients and Sandboxes.
    pub limits: Limits,
    /// Threads that serve the connections of [`Router::serve`], instead of the calling runtime.
    pub threads: Option<Threads>,
    /// Tracer that creates a span for each request.
    pub tracer: Option<Arc<BoxedTracer>>,
    /// Key that derives the token for the sandboxd of each Pod, if they require one.
    pub pod_key: Option<Arc<PodKey>>,
    /// Says what is scanned in answers; without it, nothing is.
    pub screens: Option<Arc<dyn Screens>>,
    /// Destination of the access log.
    pub access_log: AccessLog,
    /// Audit log, if there is one.
    pub audit: Option<Arc<dyn Audit>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            connect_timeout: Duration::from_secs(5),
            retry_delays: [200, 400, 800].map(Duration::from_millis).to_vec(),
            header_timeout: Duration::from_secs(330),
            header_timeout_limit: Duration::from_secs(24 * 3600),
            exchange_timeout: None,
            body_limit: None,
            allow_loopback: false,
            connections: CONNECTIONS,
            limits: Limits::default(),
            threads: None,
            tracer: None,
            pod_key: None,
            screens: None,
            access_log: AccessLog::Tracing,
            audit: None,
        }
    }
}

/// Default maximum of connections.
const CONNECTIONS: usize = 32_768;

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) pool: Pool,
    /// Permits for connections to Sandboxes.
    pub(crate) upstream: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) sleepers: Option<Sleepers>,
    pub(crate) shutdown: Shutdown,
    draining: AtomicBool,
}

/// Routes requests to Sandboxes. Clones share connections.
#[derive(Clone)]
pub struct Router(pub(crate) Arc<Inner>);

impl Router {
    /// Creates a router that finds Pods with `resolver` and connects with `dial`. The shutdown ends upgraded
    /// connections.
    pub fn new(
        config: Config,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        shutdown: Shutdown,
    ) -> Router {
        Router::waking(config, resolver, dial, None, shutdown)
    }

    /// Creates a router that also wakes suspended Sandboxes, if `wake` is given.
    pub fn waking(
        config: Config,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        wake: Option<Arc<dyn Wake>>,
        shutdown: Shutdown,
    ) -> Router {
        let upstream = Arc::new(Semaphore::new(hutch_serve::connection_limit(config.connections)));
        Router(Arc::new(Inner {
            config,
            resolver,
            dial,
            pool: Pool::default(),
            upstream,
            metrics: Metrics::default(),
            sleepers: wake.map(Sleepers::new),
            shutdown,
            draining: AtomicBool::new(false),
        }))
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Returns true if the router can route, like `GET /readyz`.
    pub fn ready(&self) -> bool {
        self.0.resolver.ready() && !self.0.shutdown.is_triggered() && !self.0.draining.load(Ordering::Relaxed)
    }

    /// Makes the router unready; requests in progress continue.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Responds to one request; `current` lasts as long. Dropping the future or the body of the response
    /// drops the connection to the Sandbox.
    pub(crate) async fn answer(
        &self,
        mut request: Request<Body>,
        access: &Access,
        origin: Origin,
        current: Current,
    ) -> Response<Body> {
        let path = request.uri().path();
        if path == "/healthz" {
            return json(StatusCode::OK, &Status { status: "ok" });
        }
        if path == "/readyz" && !request.headers().contains_key(target::ID) {
            return self.readiness();
        }
        let config = &self.0.config;
        let until = config.exchange_timeout.map(|limit| Instant::now() + limit);
        let id = request_id(&request);
        let span = config.tracer.as_ref().map(|tracer| Span::begin(tracer.as_ref(), &mut request));
        let trail = config.audit.as_ref().map(|log| Trail::begin(log, &origin.caller));
        let line = Line::begin(
            &request,
            id.clone(),
            origin.peer.clone(),
            (&config.access_log, &self.0.metrics),
            current,
            (span, trail),
        );
        let page_wanted = wants_page(request.headers());
        request.headers_mut().insert(REQUEST_ID, id);
        self.route(request, access, origin, line, until).await.unwrap_or_else(|(refusal, mut line)| {
            line.refuses(&refusal);
            line.follow(refusal.answer(page_wanted), None)
        })
    }

    /// Responds to `GET /readyz`.
    pub fn readiness(&self) -> Response<Body> {
        if self.ready() {
            return Response::new(Body::from("ok"));
        }
        let text = if self.0.resolver.ready() { "draining" } else { "not ready" };
        json(StatusCode::SERVICE_UNAVAILABLE, &Status { status: text })
    }

    async fn route(
        &self,
        request: Request<Body>,
        access: &Access,
        origin: Origin,
        mut line: Line,
        until: Option<Instant>,
    ) -> Result<Response<Body>, (Refusal, Line)> {
        // A tunnel, or `OPTIONS *`.
        let not_proxied = request.method() == Method::CONNECT || request.uri().path() == "*";
        let admitted = self.admit(request.headers(), access, &mut line).await;
        let (target, grant) = match admitted {
            Ok(_) if not_proxied => return Err((Refusal::NotProxied, line)),
            Ok(admitted) => admitted,
            Err(refusal) => return Err((refusal, line)),
        };
        let request = line.read(request).await;
        if let Err(refusal) = line.permitted().await {
            return Err((refusal, line));
        }
        match self.exchange(request, &target, &grant, origin, until).await {
            Ok(answer) => Ok(answer.pass(self, line, until)),
            Err(refusal) => Err((refusal, line)),
        }
    }

    /// Authorizes the request and returns its target.
    async fn admit(
        &self,
        headers: &HeaderMap,
        access: &Access,
        line: &mut Line,
    ) -> Result<(Target, crate::admit::access::Grant), Refusal> {
        let target = Target::read(headers, self.0.config.allow_loopback);
        if let Ok(target) = &target {
            line.names(&target.namespace, &target.id, target.port);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let admitted = access.admit(headers, now).await.and_then(|grant| {
            let covered = target.as_ref().map_or(Ok(()), |target| grant.covers(target));
            covered.map(|()| grant)
        });
        let metrics = &self.0.metrics;
        let namespace = target.as_ref().map_or(OTHER_NAMESPACES, |target| metrics.label(&target.namespace));
        let decision = if admitted.is_ok() { "allow" } else { "deny" };
        metrics.0.authz_decisions.with_label_values(&[namespace, decision]).inc();
        let grant = admitted?;
        Ok((target?, grant))
    }
}
