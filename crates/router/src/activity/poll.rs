//! Polls Sandboxes that will soon be suspended for their last activity: only the Sandbox itself sees
//! connections that bypass the router.
//!
//! The Sandbox runs untrusted code, so its response is untrusted. It is bounded in size and time, and can
//! only keep this one Sandbox awake. No response counts as no activity.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hutch_activity::Report;
use hutch_serve::Shutdown;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;

use crate::activity::Reporter;
use crate::{Backend, Dial, IdleTimeout, PodKey, Resolve};

/// Interval between checks for due polls, and minimum interval between two polls of one Sandbox.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of concurrent polls.
const POLLS: usize = 32;
/// Maximum duration of a poll, connecting included.
const POLL_LIMIT: Duration = Duration::from_secs(2);
/// Maximum bytes of the head of a response, and of its body.
const HEAD_LIMIT: usize = 8 << 10;
const BODY_LIMIT: usize = 1 << 10;
/// Difference that is too small to report: responses count whole seconds.
const SAME: SignedDuration = SignedDuration::from_secs(1);

/// Poller of last activity.
pub(crate) struct Poller<D> {
    dial: Arc<D>,
    resolver: Arc<dyn Resolve>,
    key: Option<Arc<PodKey>>,
    reporter: Arc<Reporter>,
    permits: Arc<Semaphore>,
    /// Time of the next poll of each Sandbox, by UID.
    again: Mutex<HashMap<String, Timestamp>>,
}

impl<D: Dial> Poller<D> {
    pub(crate) fn new(
        dial: Arc<D>,
        resolver: Arc<dyn Resolve>,
        key: Option<Arc<PodKey>>,
        reporter: Arc<Reporter>,
    ) -> Arc<Poller<D>> {
        let permits = Arc::new(Semaphore::new(POLLS));
        Arc::new(Poller { dial, resolver, key, reporter, permits, again: Mutex::default() })
    }

    pub(crate) async fn run(self: Arc<Poller<D>>, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(CHECK_INTERVAL) => self.check(Timestamp::now()),
            }
        }
    }

    /// Starts the polls that are due. A poll that exceeds the limit is due again at the next check.
    fn check(self: &Arc<Poller<D>>, now: Timestamp) {
        let known = self.resolver.polled_before_suspend();
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left: HashMap<String, Timestamp> = HashMap::new();
        for backend in known {
            let Some(timeout) = &backend.idle_timeout else { continue };
            let due = again.remove(&backend.sandbox).filter(|at| *at > now);
            let pause = pause(timeout, now);
            let at = match (due, pause) {
                // Recent activity has been reported.
                (_, None) => continue,
                (Some(at), Some(_)) => at,
                (None, Some(pause)) => {
                    let Ok(place) = self.permits.clone().try_acquire_owned() else { continue };
                    let (poller, polled) = (self.clone(), backend.clone());
                    tokio::spawn(async move {
                        poller.poll(&polled).await;
                        drop(place);
                    });
                    now.checked_add(pause).unwrap_or(Timestamp::MAX)
                }
            };
            left.insert(backend.sandbox.clone(), at);
        }
        *again = left;
    }

    async fn poll(&self, backend: &Backend) {
        let Some(timeout) = &backend.idle_timeout else { return };
        let (namespace, sandbox) = (&backend.pod.namespace, &timeout.name);
        let polled = tokio::time::timeout(POLL_LIMIT, self.request(backend, timeout)).await;
        let idle = match polled.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(idle) => idle,
            Err(error) => {
                return tracing::debug!(namespace, sandbox, error, "failed to poll last activity");
            }
        };
        let idle = SignedDuration::try_from(idle).unwrap_or(SignedDuration::MAX);
        let at = Timestamp::now().checked_sub(idle).unwrap_or(Timestamp::UNIX_EPOCH);
        if timeout.reported.is_some_and(|reported| at.duration_since(reported) <= SAME) {
            return;
        }
        // With the observed resourceVersion, so that a later report of another client is not overwritten.
        let written =
            self.reporter.write(namespace, sandbox, &backend.sandbox, at, timeout.version.as_deref());
        match written.await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => self.reporter.log_failure(namespace, sandbox, &error),
        }
    }

    async fn request(&self, backend: &Backend, timeout: &IdleTimeout) -> Result<Duration, String> {
        let port = timeout.activity_port.ok_or("the Sandbox has no activity port")?;
        let stream = self.dial.dial(backend, port).await.map_err(|error| error.to_string())?;
        let mut builder = http1::Builder::new();
        let opened = builder.max_buf_size(HEAD_LIMIT).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(|error| error.to_string())?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("/v1/activity");
        request.headers_mut().insert(HOST, HeaderValue::from_static("sandbox"));
        let authorization = self.key.as_ref().and_then(|key| key.authorization(&backend.pod.uid));
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        // Ends with the poll, whatever its result.
        let _driven = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), BODY_LIMIT).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        let report: Report = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(Duration::from_secs(report.idle_seconds))
    }
}

/// Returns the time until the next poll: half of the time left before the suspend. So polls are few, and the
/// last one comes shortly before the suspend. `None`: less than half of the idle timeout has passed since the
/// last report.
fn pause(timeout: &IdleTimeout, now: Timestamp) -> Option<Duration> {
    let passed = timeout.reported.map_or(timeout.after, |reported| {
        // A clock that is ahead reports a future time.
        Duration::try_from(now.duration_since(reported)).unwrap_or_default()
    });
    let left = timeout.after.saturating_sub(passed);
    (left <= timeout.after / 2)
        .then(|| if timeout.reported.is_none() { timeout.after / 2 } else { left / 2 })
        .map(|pause| pause.max(CHECK_INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_become_frequent_before_the_suspend() {
        let paused = |seconds: Option<i64>| {
            let now = Timestamp::from_second(1_800_000_000).unwrap();
            let reported = seconds.map(|seconds| now - SignedDuration::from_secs(seconds));
            let after = Duration::from_secs(3600);
            pause(
                &IdleTimeout { name: "s".into(), after, reported, activity_port: Some(1), version: None },
                now,
            )
        };
        assert_eq!(paused(Some(0)), None, "used just now");
        assert_eq!(paused(Some(-10)), None, "a clock that is ahead");
        assert_eq!(paused(Some(1799)), None);
        assert_eq!(paused(Some(1800)), Some(Duration::from_secs(900)));
        assert_eq!(paused(Some(3540)), Some(Duration::from_secs(30)));
        assert_eq!(paused(Some(3599)), Some(CHECK_INTERVAL));
        assert_eq!(paused(Some(9999)), Some(CHECK_INTERVAL));
        assert_eq!(paused(None), Some(Duration::from_secs(1800)), "no report yet");
    }
}
