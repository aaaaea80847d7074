//! Counts requests to the API server in the metric that dashboards of Go programs use.

use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use prometheus::{IntCounterVec, Opts, Registry};
use tower::{Layer, Service};

/// Status of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Layer that counts requests.
#[derive(Clone)]
pub(super) struct Requests {
    counter: IntCounterVec,
    host: String,
}

impl Requests {
    /// Creates the layer for a host, with its metric in a registry.
    pub(super) fn new(registry: &Registry, host: &str) -> anyhow::Result<Self> {
        let help = "Requests to the API server, by status code, method and host";
        let counter =
            IntCounterVec::new(Opts::new("rest_client_requests_total", help), &["code", "method", "host"])?;
        registry.register(Box::new(counter.clone()))?;
        Ok(Requests { counter, host: host.to_owned() })
    }
}

impl<S> Layer<S> for Requests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { requests: self.clone(), inner }
    }
}

#[derive(Clone)]
pub(super) struct Counted<S> {
    requests: Requests,
    inner: S,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (requests, method) = (self.requests.clone(), request.method().clone());
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let code = answer.as_ref().map(|answer| answer.status().as_str().to_owned());
            let code = code.as_deref().unwrap_or(NO_ANSWER);
            requests.counter.with_label_values(&[code, method.as_str(), requests.host.as_str()]).inc();
            answer
        }
        .boxed()
    }
}
