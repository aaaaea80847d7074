use std::task::{Context, Poll};

use futures::future::{Either, MapErr, Ready, TryFutureExt, ready};
use http::{Method, Request};
use tower::{BoxError, Layer, Service};

use crate::{Error, Term};

/// A layer that lets through what changes nothing, and everything else while the term lasts.
#[derive(Debug, Clone)]
pub struct Guard(Term);

impl Guard {
    /// Guards by this term.
    pub fn new(term: Term) -> Self {
        Guard(term)
    }
}

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { term: self.0.clone(), inner }
    }
}

/// A service behind a [`Guard`].
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    term: Term,
    inner: S,
}

type Sent<F, E> = MapErr<F, fn(E) -> BoxError>;

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<Sent<S::Future, S::Error>, Ready<Result<S::Response, BoxError>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let harmless = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        if !harmless && !self.term.leads() {
            return Either::Right(ready(Err(Error::NotLeader.into())));
        }
        Either::Left(self.inner.call(request).map_err(Into::into))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::clock;

    async fn passes(term: &Term, method: Method) -> bool {
        let service =
            Guard::new(term.clone()).layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(()) }));
        let request = Request::builder().method(method).body(()).unwrap();
        match service.oneshot(request).await {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error.downcast_ref(), Some(Error::NotLeader)), "{error}");
                false
            }
        }
    }

    #[tokio::test]
    async fn only_a_leader_changes_anything() {
        let term = Term::default();
        let changes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        for method in &changes {
            assert!(!passes(&term, method.clone()).await, "{method} before the term");
        }
        assert!(passes(&term, Method::GET).await);
        term.lasts_until(clock::now() + Duration::from_secs(60));
        for method in &changes {
            assert!(passes(&term, method.clone()).await, "{method} during the term");
        }
        term.lasts_until(clock::now().saturating_sub(Duration::from_nanos(1)));
        for method in &changes {
            assert!(!passes(&term, method.clone()).await, "{method} after the term");
        }
        assert!(passes(&term, Method::GET).await);
    }
}
