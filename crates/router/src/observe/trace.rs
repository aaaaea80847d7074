//! Creates one span for each request, in the client's trace (W3C Trace Context), and propagates it to the
//! Sandbox. Like the access log, a span has method, path, status and Sandbox, but no query and no header, so
//! no secret.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::observe::metrics;

/// Maximum bytes of a client's text in a span or log.
const SHOWN: usize = 256;

/// Truncates a client's text for logging.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Span of a request in progress.
pub(crate) struct Span(Context);

impl Span {
    /// Starts a span within the context of the request's headers, and writes its own context into them.
    pub(crate) fn begin<T, B>(tracer: &T, request: &mut Request<B>) -> Span
    where
        T: Tracer,
        T::Span: Send + Sync + 'static,
    {
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract_with_context(&Context::new(), &Received(request.headers()));
        // As in metrics: a method that the client invents is not a name.
        let name = metrics::method(request.method()).to_owned();
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes([
            KeyValue::new("http.request.method", shown_method(request.method())),
            KeyValue::new("url.path", cut(request.uri().path()).to_owned()),
        ]);
        let span = builder.start_with_context(tracer, &parent);
        let context = Context::new().with_span(span);
        request.headers_mut().remove(TRACEPARENT);
        request.headers_mut().remove(TRACESTATE);
        propagator.inject_context(&context, &mut Sent(request.headers_mut()));
        Span(context)
    }

    /// Ends the span. A response that the client did not wait for has no status.
    pub(crate) fn end(&self, status: StatusCode, answered: bool, target: Option<(&str, &str)>) {
        let span = self.0.span();
        if answered {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        }
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        if let Some((namespace, name)) = target {
            span.set_attribute(KeyValue::new("sandbox.namespace", namespace.to_owned()));
            span.set_attribute(KeyValue::new("sandbox.name", name.to_owned()));
        }
        span.end();
    }
}

fn shown_method(method: &Method) -> String {
    // Value that OpenTelemetry defines for unknown methods.
    let known = metrics::method(method);
    if known == method.as_str() { known.to_owned() } else { "_OTHER".to_owned() }
}

struct Received<'a>(&'a HeaderMap);

impl Extractor for Received<'_> {
    /// A repeated header counts as absent.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct Sent<'a>(&'a mut HeaderMap);

impl Injector for Sent<'_> {
    fn set(&mut self, key: &str, value: String) {
        let parsed = (HeaderName::from_bytes(key.as_bytes()), HeaderValue::from_str(&value));
        if let (Ok(name), Ok(value)) = parsed
            && !value.is_empty()
        {
            self.0.insert(name, value);
        }
    }
}
