//! Finds the Pod, connects, sends the request once and receives the response.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use hutch_kubelet::{Duplex, Hold};
use hutch_serve::Placed;
use hyper::upgrade::OnUpgrade;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use crate::admit::access::Grant;
use crate::observe::journal::{Line, REQUEST_ID};
use crate::proxy::forward;
use crate::proxy::forward::Origin;
use crate::proxy::guard::Guarded;
use crate::proxy::joined::join;
use crate::proxy::pool::{Key, Sender};
use crate::proxy::screened;
use crate::proxy::stream::Progress;
use crate::proxy::{Inner, Router};
use crate::refusal::Refusal;
use crate::resolve::wake::asleep;
use crate::threads;
use crate::{Backend, DialError, Past, Target, Unresolved};

/// Maximum number of 1xx heads before a response. Servers send one or two.
const INFORMATIONAL: u32 = 16;
/// Maximum time that a request waits for a free connection when all are in use.
const UPSTREAM_WAIT: Duration = Duration::from_secs(1);

/// Response of the Sandbox.
pub(crate) struct Answer {
    response: Response<Body>,
    /// Both connections, when they switch protocols.
    switched: Option<(OnUpgrade, OnUpgrade)>,
    hold: Hold,
    /// Pod that has responded.
    backend: Arc<Backend>,
}

/// Connection to a Pod that is awake.
struct Connected {
    backend: Arc<Backend>,
    sender: Sender,
    hold: Hold,
}

impl Answer {
    /// Passes the response and its access log entry to the client.
    pub(crate) fn pass(self, router: &Router, mut line: Line, until: Option<Instant>) -> Response<Body> {
        line.reaches(&self.backend.sandbox);
        let Some((client, backend)) = self.switched else {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            let response = self.response.map(|body| Body::new(Guarded::new(body, self.hold)));
            return line.follow(response, rest);
        };
        let mut response = self.response;
        line.answer(response.status());
        response.headers_mut().insert(REQUEST_ID, line.id());
        join(client, backend, router.0.shutdown.clone(), line);
        response
    }
}

/// Target and limits of one exchange.
struct Route<'a> {
    target: &'a Target,
    grant: &'a Grant,
    h2: bool,
    /// Maximum time until the head of the response.
    limit: Duration,
    /// Set while the request waits for its Sandbox to wake.
    held: AtomicBool,
}

impl Router {
    pub(crate) async fn exchange(
        &self,
        mut request: Request<Body>,
        target: &Target,
        grant: &Grant,
        origin: Origin,
        until: Option<Instant>,
    ) -> Result<Answer, Refusal> {
        let config = &self.0.config;
        let most = config.body_limit.unwrap_or(u64::MAX);
        if request.body().size_hint().lower() > most {
            return Err(Refusal::TooLarge);
        }
        let asked =
            target.timeout.map_or(config.header_timeout, |asked| asked.min(config.header_timeout_limit));
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        let h2 = forward::is_grpc(request.headers());
        let route = Route { target, grant, h2, limit: asked.min(left), held: AtomicBool::new(false) };
        let connected = self.connect_within(&route, false).await?;
        let screen = self.screen(&connected.backend, target).await?;
        let client = hyper::upgrade::on(&mut request);
        let (mut head, body) = request.into_parts();
        if let Some(screen) = &screen {
            screened::prepare(&mut head.headers, screen)?;
        }
        let ip = *connected.backend.ips.first().ok_or_else(|| Refusal::Unreachable(target.id.clone()))?;
        forward::request(&mut head, origin, SocketAddr::new(ip, target.port), h2);
        // The extensions refer to the client's connection and upgrade, not to those of the outgoing request.
        head.extensions.clear();
        let wanted = forward::upgrade_of(&head.headers);
        let progress = Progress::now();
        let request = Request::from_parts(head, progress.watch(body, most, &config.limits));
        let (mut response, hold, sandbox) = self.send(request, connected, &route, &progress).await?;
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let protocol = is_switch.then(|| forward::upgrade_of(response.headers())).flatten();
        let backend = protocol.is_some().then(|| hyper::upgrade::on(&mut response));
        forward::strip(response.headers_mut());
        if let (false, Some(screen)) = (is_switch, screen) {
            response = screened::answer(response, screen, &sandbox.pod, target.port).await?;
        }
        if !is_switch {
            return Ok(Answer { response, switched: None, hold, backend: sandbox });
        }
        let (Some(_), Some(protocol), Some(backend)) = (wanted, protocol, backend) else {
            return Err(Refusal::Unasked);
        };
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
        Ok(Answer { response, switched: Some((client, backend)), hold, backend: sandbox })
    }

    async fn connect_within(&self, route: &Route<'_>, fresh: bool) -> Result<Connected, Refusal> {
        let connected = tokio::time::timeout(route.limit, self.connect(route, fresh)).await;
        connected.unwrap_or_else(|_| {
            if route.held.load(Ordering::Relaxed) {
                return Err(asleep(route.target));
            }
            self.failed(route.target, "timeout");
            Err(Refusal::Unreachable(route.target.id.clone()))
        })
    }

    /// Finds the Pod and connects to it. Retries are safe: nothing of the request has been sent.
    async fn connect(&self, route: &Route<'_>, fresh: bool) -> Result<Connected, Refusal> {
        let Inner { config, pool, dial, metrics, .. } = &*self.0;
        let target = route.target;
        let mut delays = config.retry_delays.iter();
        loop {
            let backend = self.find(route).await?;
            route.grant.covers_life(&backend.sandbox)?;
            let key = Key { backend, port: target.port, h2: route.h2, thread: threads::number() };
            let dialled = tokio::time::timeout(config.connect_timeout, async {
                let hold = dial.hold(&key.backend).await?;
                if let Some(sender) = pool.take(&key).filter(|_| !fresh) {
                    return Ok((hold, Ok(sender)));
                }
                let place = self.upstream_place().await.ok_or(DialError::Busy)?;
                let stream = dial.dial(&key.backend, target.port).await?;
                let stream: Box<dyn Duplex> = Box::new(Placed::new(stream, place));
                Ok((hold, pool.open(stream, config.limits.stall, route.h2).await))
            });
            let failure = match dialled.await {
                Ok(Ok((hold, Ok(sender)))) => return Ok(Connected { backend: key.backend, sender, hold }),
                Ok(Ok((_, Err(error)))) => error.to_string(),
                Ok(Err(DialError::Gone(text))) => {
                    metrics
                        .0
                        .cache_invalidations
                        .with_label_values(&[metrics.label(&target.namespace)])
                        .inc();
                    self.0.resolver.forget(target);
                    text
                }
                Ok(Err(DialError::Busy)) => {
                    self.failed(target, "busy");
                    return Err(Refusal::Busy);
                }
                Ok(Err(DialError::Retry(text))) => text,
                Err(_) => format!("no connection within {:?}", config.connect_timeout),
            };
            let delay = delays.next();
            let again = delay.is_some();
            tracing::debug!(sandbox = target.id, failure, again, "cannot connect to a sandbox");
            let Some(delay) = delay else {
                self.failed(target, "dial");
                return Err(Refusal::Unreachable(target.id.clone()));
            };
            metrics.0.upstream_retries.with_label_values(&[metrics.label(&target.namespace)]).inc();
            tokio::time::sleep(*delay).await;
        }
    }

    /// Returns a permit for one more connection to a Sandbox. If none is free, idle connections are closed.
    async fn upstream_place(&self) -> Option<OwnedSemaphorePermit> {
        let Inner { upstream, pool, .. } = &*self.0;
        if let Ok(place) = upstream.clone().try_acquire_owned() {
            return Some(place);
        }
        pool.close_idle();
        tokio::time::timeout(UPSTREAM_WAIT, upstream.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Returns the Pod of the Sandbox, and wakes a suspended Sandbox first.
    async fn find(&self, route: &Route<'_>) -> Result<Arc<Backend>, Refusal> {
        let Inner { resolver, metrics, sleepers, .. } = &*self.0;
        let target = route.target;
        let unreachable = || Refusal::Unreachable(target.id.clone());
        let mut resolved = resolver.resolve(target).await;
        if let (Err(Unresolved::NotReady), Some(sleepers)) = (&resolved, sleepers) {
            route.held.store(true, Ordering::Relaxed);
            sleepers.wake(target, &**resolver).await?;
            route.held.store(false, Ordering::Relaxed);
            resolved = resolver.resolve(target).await;
        }
        let backend = resolved.map_err(|reason| {
            let (sandbox, namespace) = (&target.id, &target.namespace);
            match &reason {
                Unresolved::Api(_) => tracing::warn!(sandbox, namespace, %reason, "not routed"),
                _ => tracing::debug!(sandbox, namespace, %reason, "not routed"),
            }
            unreachable()
        })?;
        metrics.learn(&target.namespace);
        match target.pod_ip.filter(|ip| !backend.ips.contains(ip)) {
            None => Ok(backend),
            Some(ip) => match resolver.past(&backend.sandbox, ip) {
                Past::Its => Ok(backend),
                Past::Another => Err(Refusal::BadAddress),
                Past::Unknown => Err(unreachable()),
            },
        }
    }

    /// Sends the request once. A connection that closed while idle returns the request unsent; only then is
    /// the request sent over a new connection.
    async fn send(
        &self,
        mut request: Request<Body>,
        mut connected: Connected,
        route: &Route<'_>,
        progress: &Progress,
    ) -> Result<(Response<Body>, Hold, Arc<Backend>), Refusal> {
        let target = route.target;
        let unreachable = || Refusal::Unreachable(target.id.clone());
        let endless = bound_informational(&mut request, route.h2);
        for last in [false, true] {
            // The token belongs to this Pod, which may differ from the first one.
            let shown = self.0.config.pod_key.as_ref();
            if let Some(shown) = shown.and_then(|key| key.authorization(&connected.backend.pod.uid)) {
                request.headers_mut().insert(AUTHORIZATION, shown);
            }
            let sent = tokio::select! {
                sent = threads::attend(connected.sender.send(request)) => sent,
                () = progress.stalled(route.limit) => {
                    self.failed(target, "timeout");
                    return Err(Refusal::Silent(target.id.clone()));
                }
                () = endless.notified() => {
                    self.failed(target, "other");
                    return Err(unreachable());
                }
            };
            let mut error = match sent {
                Ok(response) => {
                    let Connected { backend, sender, hold } = connected;
                    let pod = backend.clone();
                    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                        let (port, thread) = (target.port, threads::number());
                        self.0.pool.give_back(&Key { backend, port, h2: route.h2, thread }, sender);
                    }
                    return Ok((response.map(Body::new), hold, pod));
                }
                Err(error) => error,
            };
            tracing::debug!(sandbox = target.id, error = %error.error(), "a sandbox did not answer");
            if let Some(refusal) = progress.cut() {
                return Err(refusal);
            }
            match error.take_message() {
                Some(unsent) if !last => {
                    request = unsent;
                    connected = self.connect_within(route, true).await?;
                }
                _ => {
                    if timed_out(error.error()) {
                        self.failed(target, "timeout");
                        return Err(Refusal::Silent(target.id.clone()));
                    }
                    let early = error.error().is_incomplete_message() || error.error().is_closed();
                    self.failed(target, if early { "eof" } else { "other" });
                    return Err(unreachable());
                }
            }
        }
        Err(unreachable())
    }

    fn failed(&self, target: &Target, reason: &str) {
        let metrics = &self.0.metrics;
        metrics.0.upstream_errors.with_label_values(&[metrics.label(&target.namespace), reason]).inc();
    }
}

/// Returns true if the Sandbox did not take the request in time.
fn timed_out(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::TimedOut)
}

/// Notifies when a Sandbox sends too many 1xx heads. HTTP/2 does not report them one by one.
fn bound_informational(request: &mut Request<Body>, h2: bool) -> Arc<Notify> {
    let endless = Arc::new(Notify::new());
    if !h2 {
        let (told, count) = (endless.clone(), AtomicU32::new(0));
        hyper::ext::on_informational(request, move |_| {
            if count.fetch_add(1, Ordering::Relaxed) == INFORMATIONAL {
                told.notify_one();
            }
        });
    }
    endless
}
