//! Rate limit of requests: a token bucket with a burst.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tower::{Layer, Service};

/// Layer that delays requests in their order.
#[derive(Clone)]
pub(super) struct Throttle(Arc<Bucket>);

/// Token bucket. A request takes one token; a negative count is the length of the queue.
struct Bucket {
    rate: f64,
    size: f64,
    state: Mutex<(f64, Instant)>,
}

impl Throttle {
    /// Creates a bucket for `rate` requests a second and bursts of `size`; `None` if the rate sets no limit.
    pub(super) fn new(rate: f64, size: i64) -> Option<Self> {
        let size = f64::from(u32::try_from(size).unwrap_or(u32::MAX));
        let bucket = || Bucket { rate, size, state: Mutex::new((size, Instant::now())) };
        (rate > 0.0 && rate.is_finite()).then(|| Throttle(Arc::new(bucket())))
    }
}

impl Bucket {
    /// Takes a token; returns the delay before its use.
    fn take(&self, now: Instant) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, since) = *state;
        let gained = now.saturating_duration_since(since).as_secs_f64() * self.rate;
        let left = (tokens + gained).min(self.size) - 1.0;
        *state = (left, now.max(since));
        Duration::try_from_secs_f64((-left / self.rate).max(0.0)).unwrap_or(Duration::MAX)
    }
}

impl<S> Layer<S> for Throttle {
    type Service = Throttled<S>;

    fn layer(&self, inner: S) -> Throttled<S> {
        Throttled { bucket: self.0.clone(), inner }
    }
}

#[derive(Clone)]
pub(super) struct Throttled<S> {
    bucket: Arc<Bucket>,
    inner: S,
}

impl<S, R> Service<R> for Throttled<S>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let wait = self.bucket.take(Instant::now());
        let fresh = self.inner.clone();
        // The service that was ready must serve the request.
        let mut ready = std::mem::replace(&mut self.inner, fresh);
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            ready.call(request).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_not_delayed_and_later_requests_are() {
        let Throttle(bucket) = Throttle::new(10.0, 3).unwrap();
        let start = Instant::now();
        let waits = |at: Duration| bucket.take(start + at).as_millis();
        assert_eq!([0, 0, 0].map(|at| waits(Duration::from_millis(at))), [0, 0, 0]);
        assert_eq!([0, 0].map(|at| waits(Duration::from_millis(at))), [100, 200]);
        assert_eq!(waits(Duration::from_millis(250)), 50, "waiters are served in turn");
        assert_eq!([9000, 9000, 9000, 9000].map(|at| waits(Duration::from_millis(at))), [0, 0, 0, 100]);
    }

    #[test]
    fn zero_rate_is_unlimited() {
        for rate in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            assert!(Throttle::new(rate, 10).is_none());
        }
    }
}
