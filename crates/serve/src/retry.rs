//! Retry policy of a client: honors `Retry-After` of an overloaded API server.

use std::time::Duration;

use futures::FutureExt;
use http::{Request, Response, StatusCode, header};
use kube::client::Body;
use kube::{Client, Config};
use tokio::time::{Sleep, sleep};
use tower::retry::{Policy, RetryLayer};
use tower::{BoxError, ServiceBuilder};

/// Maximum retries of a request. The sender then gets the last response.
const TRIES: u32 = 5;
/// Longest wait that a server can ask for.
const LONGEST: Duration = Duration::from_secs(60);
/// Wait before the first repetition where the server names none; doubled by each further one.
const FIRST: Duration = Duration::from_millis(20);

/// A policy for [`RetryLayer`]. Repeated is what was answered with 429 or 503, or with any other 5xx and `Retry-After`: the
/// server has not processed it then, or requests a retry. The wait is that of `Retry-After` in seconds, 60 s at most.
///
/// Any other failure is for the caller to judge: a request that ended with 500 or 504 may have been done.
#[derive(Debug, Clone, Default)]
pub struct RetryPolicy {
    tries: u32,
}

impl RetryPolicy {
    /// How long to wait before the request is sent again; `None` when it is not.
    fn pause<B>(&self, response: &Response<B>) -> Option<Duration> {
        let status = response.status();
        let told = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let told = told.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
        let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let repeated = busy || (status.is_server_error() && told.is_some());
        if !repeated || self.tries >= TRIES {
            return None;
        }
        let own = FIRST * 2_u32.saturating_pow(self.tries);
        Some(told.filter(|told| !told.is_zero()).unwrap_or(own).min(LONGEST))
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryPolicy {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, BoxError>) -> Option<Sleep> {
        let response = result.as_ref().ok()?;
        let pause = self.pause(response)?;
        self.tries += 1;
        tracing::debug!(status = %response.status(), ?pause, "the API server is busy; asked again later");
        Some(sleep(pause))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        // A body that is a stream can be sent only once.
        let mut copy = Request::new(request.body().try_clone()?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
}

/// A client with [`RetryPolicy`] in place of the library's own, which waits without a bound.
///
/// # Errors
/// An invalid configuration: undecodable credentials or certificate.
///
/// Must be called inside a tokio runtime.
pub fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let inner = Client::try_from(config)?;
    let send = tower::service_fn(move |request| {
        let inner = inner.clone();
        async move { inner.send(request).await.map_err(BoxError::from) }.boxed()
    });
    let service = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::default())).service(send);
    Ok(Client::new(service, namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(tries: u32, status: u16, told: Option<&str>) -> Option<u128> {
        let mut response = Response::builder().status(status);
        if let Some(told) = told {
            response = response.header("Retry-After", told);
        }
        RetryPolicy { tries }.pause(&response.body(()).unwrap()).map(|pause| pause.as_millis())
    }

    #[test]
    fn wait_follows_retry_after_up_to_its_bound() {
        for (tries, status, told, wanted) in [
            (0, 429, Some("7"), Some(7_000)),
            (4, 429, Some("7"), Some(7_000)),
            (5, 429, Some("7"), None),
            (0, 503, Some("2"), Some(2_000)),
            (0, 500, Some("2"), Some(2_000)),
            (0, 429, Some("86400"), Some(60_000)),
            (0, 429, Some("18446744073709551615"), Some(60_000)),
            // Without a usable `Retry-After`, the waits grow.
            (0, 429, Some("0"), Some(20)),
            (0, 429, Some("Sat, 21 Nov 2026 20:00:00 GMT"), Some(20)),
            (0, 503, None, Some(20)),
            (4, 503, None, Some(320)),
            // May have been done.
            (0, 500, None, None),
            (0, 504, None, None),
            // Was not done, nor will be.
            (0, 409, Some("1"), None),
            (0, 200, None, None),
        ] {
            assert_eq!(pause(tries, status, told), wanted, "try {tries}: {status} {told:?}");
        }
    }
}
