//! The way of a request: who may, where to, connect, send once, pass back.

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

use crate::forward::Origin;
use crate::journal::{AccessLog, Line, REQUEST_ID, request_id};
use crate::metrics::{Metrics, UNTOLD};
use crate::pace::{Current, Limits};
use crate::pool::Pool;
use crate::refusal::{Refusal, json, wants_page};
use crate::threads::Threads;
use crate::trace::Span;
use crate::wake::Sleepers;
use crate::{Access, Dial, PodKey, Resolve, Target, Wake, target};

/// The router's times and bounds.
#[derive(Clone)]
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
    /// How long a whole request may take, its answer included, unless it switches protocols.
    pub exchange_timeout: Option<Duration>,
    /// Bytes of a request's body at most.
    pub body_limit: Option<u64>,
    /// Whether a Pod may have a loopback address.
    pub allow_loopback: bool,
    /// Maximum connections of clients, upgraded ones included, and of connections to sandboxes. Where descriptors are scarce
    /// there are fewer.
    pub connections: usize,
    /// How slow clients and sandboxes may be.
    pub limits: Limits,
    /// Threads that serve the connections of [`Router::serve`], if it is not to be those of the runtime that it is called in.
    pub threads: Option<Threads>,
    /// Makes a span of each request, if there is one.
    pub tracer: Option<Arc<BoxedTracer>>,
    /// Makes the token that is shown to the sandboxd of each Pod, if they demand one.
    pub pod_key: Option<Arc<PodKey>>,
    /// Where a line for each request goes.
    pub access_log: AccessLog,
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
            access_log: AccessLog::Tracing,
        }
    }
}

/// Connections that a router may have when nothing else is configured.
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
    /// Connections to sandboxes that may be opened.
    pub(crate) upstream: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) sleepers: Option<Sleepers>,
    pub(crate) shutdown: Shutdown,
    draining: AtomicBool,
}

/// Routes requests to sandboxes. Clones share connections.
#[derive(Clone)]
pub struct Router(pub(crate) Arc<Inner>);

impl Router {
    /// A router that finds Pods by `resolver` and connects to them by `dial`. The shutdown ends upgraded connections.
    pub fn new(
        config: Config,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        shutdown: Shutdown,
    ) -> Router {
        Router::waking(config, resolver, dial, None, shutdown)
    }

    /// A router that also wakes Sandboxes that sleep, if there is something that does.
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

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether it can route: the same as what `GET /readyz` says.
    pub fn ready(&self) -> bool {
        self.0.resolver.ready() && !self.0.shutdown.is_triggered() && !self.0.draining.load(Ordering::Relaxed)
    }

    /// From now on it is not ready, and goes on with what it has.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Answers one request; `current` lasts as long. When the future or the body of the answer is dropped, so is the
    /// connection to the sandbox.
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
        let line = Line::begin(
            &request,
            id.clone(),
            origin.peer.clone(),
            (&config.access_log, &self.0.metrics),
            current,
            span,
        );
        let page_wanted = wants_page(request.headers());
        request.headers_mut().insert(REQUEST_ID, id);
        self.route(request, access, origin, line, until)
            .await
            .unwrap_or_else(|(refusal, line)| line.follow(refusal.answer(page_wanted), None))
    }

    /// `GET /readyz`.
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
        // A tunnel, or a question about the server itself.
        let not_proxied = request.method() == Method::CONNECT || request.uri().path() == "*";
        let admitted = self.admit(request.headers(), access, &mut line).await;
        let (target, grant) = match admitted {
            Ok(_) if not_proxied => return Err((Refusal::NotProxied, line)),
            Ok(admitted) => admitted,
            Err(refusal) => return Err((refusal, line)),
        };
        match self.exchange(request, &target, &grant, origin, until).await {
            Ok(answer) => Ok(answer.pass(self, line, until)),
            Err(refusal) => Err((refusal, line)),
        }
    }

    /// Whether the request may come in, and where it wants to go.
    async fn admit(
        &self,
        headers: &HeaderMap,
        access: &Access,
        line: &mut Line,
    ) -> Result<(Target, crate::access::Grant), Refusal> {
        let target = Target::read(headers, self.0.config.allow_loopback);
        if let Ok(target) = &target {
            line.names(&target.namespace, &target.id);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let admitted = access.admit(headers, now).await.and_then(|grant| {
            let covered = target.as_ref().map_or(Ok(()), |target| grant.covers(target));
            covered.map(|()| grant)
        });
        let metrics = &self.0.metrics;
        let namespace = target.as_ref().map_or(UNTOLD, |target| metrics.label(&target.namespace));
        let decision = if admitted.is_ok() { "allow" } else { "deny" };
        metrics.0.authz_decisions.with_label_values(&[namespace, decision]).inc();
        let grant = admitted?;
        Ok((target?, grant))
    }
}
