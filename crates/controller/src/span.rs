//! Traces: one for each claim, from the client's request to the Pod. An annotation of the object carries the context, in the
//! format of W3C Trace Context.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use hutch_api::{annotation, label};
use kube::{Resource, ResourceExt};
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, KeyValue};
use serde::{Deserialize, Serialize};

use crate::cache::Change;

/// Starts the spans of all reconcilers, if there is a tracer.
pub(crate) struct Spans {
    tracer: Option<Arc<BoxedTracer>>,
    /// First spans of the objects without a trace annotation, by uid, until the object is deleted.
    first: Mutex<HashMap<String, SpanContext>>,
}

/// Span that ends when it is dropped.
pub(crate) struct Span {
    running: Option<(Arc<BoxedTracer>, Context)>,
    /// Trace context that the object's annotation lacks.
    missing: Option<String>,
}

/// Content of the annotation.
#[derive(Serialize, Deserialize)]
struct Carrier {
    traceparent: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tracestate: String,
}

impl Spans {
    pub(crate) fn new(tracer: Option<Arc<BoxedTracer>>) -> Self {
        Spans { tracer, first: Mutex::default() }
    }

    /// Starts a span about the object, in the trace of its annotation, else in a new one.
    pub(crate) fn start(&self, name: &'static str, object: &impl Resource) -> Span {
        let Some(tracer) = &self.tracer else { return Span { running: None, missing: None } };
        let noted = object.annotations().get(annotation::TRACE_CONTEXT).and_then(|text| parse(text));
        let uid = object.uid().unwrap_or_default();
        let known = || self.first().get(&uid).cloned();
        let parent = noted.clone().or_else(known);
        let creator = object
            .labels()
            .get(label::CREATED_BY)
            .map_or(label::UNKNOWN_CREATOR, |by| label::normalised_creator(by));
        let builder = SpanBuilder::from_name(name).with_attributes([
            KeyValue::new("sandbox.name", object.name_any()),
            KeyValue::new("sandbox.namespace", object.namespace().unwrap_or_default()),
            KeyValue::new(label::CREATED_BY, creator.to_owned()),
        ]);
        let surroundings = parent
            .clone()
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let context = Context::new().with_span(builder.start_with_context(tracer.as_ref(), &surroundings));
        let mut missing = None;
        if noted.is_some() {
            self.first().remove(&uid);
        } else {
            let first = parent.unwrap_or_else(|| context.span().span_context().clone());
            missing = text(&first);
            self.first().entry(uid).or_insert(first);
        }
        Span { running: Some((tracer.clone(), context)), missing }
    }

    /// Forgets the trace of an object that is gone.
    pub(crate) fn forget_gone<K: Resource>(&self, change: &Change<K>) {
        if self.tracer.is_some()
            && let (Some(old), None) = (&change.old, &change.new)
            && let Some(uid) = &old.meta().uid
        {
            self.first().remove(uid);
        }
    }

    fn first(&self) -> std::sync::MutexGuard<'_, HashMap<String, SpanContext>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Span {
    /// Returns the object with its trace annotation, which the objects that are created for it inherit.
    pub(crate) fn stamp<K: Resource + Clone>(&self, object: Arc<K>) -> Arc<K> {
        let Some(missing) = &self.missing else { return object };
        let mut stamped = object.as_ref().clone();
        stamped.annotations_mut().insert(annotation::TRACE_CONTEXT.into(), missing.clone());
        Arc::new(stamped)
    }

    /// Starts a span within this one.
    pub(crate) fn step(&self, name: &'static str) -> Span {
        let running = self.running.as_ref().map(|(tracer, context)| {
            let span = SpanBuilder::from_name(name).start_with_context(tracer.as_ref(), context);
            (tracer.clone(), Context::new().with_span(span))
        });
        Span { running, missing: None }
    }

    /// Records the phase of a Pod as an event.
    pub(crate) fn pod(&self, event: &'static str, name: &str, phase: &str) {
        let Some((_, context)) = &self.running else { return };
        let told =
            vec![KeyValue::new("pod.Name", name.to_owned()), KeyValue::new("pod.Phase", phase.to_owned())];
        context.span().add_event(event, told);
    }
}

fn parse(carrier: &str) -> Option<SpanContext> {
    let carrier: Carrier = serde_json::from_str(carrier).ok()?;
    let mut parts = carrier.traceparent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let sizes = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
    if !sizes || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let state = TraceState::from_str(&carrier.tracestate).unwrap_or_default();
    let context = SpanContext::new(trace, span, flags, true, state);
    context.is_valid().then_some(context)
}

fn text(context: &SpanContext) -> Option<String> {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    let traceparent = format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), flags.to_u8());
    let carrier = Carrier { traceparent, tracestate: context.trace_state().header() };
    context.is_valid().then(|| serde_json::to_string(&carrier).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_context_survives_an_annotation() {
        let given = r#"{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1,b=2"}"#;
        let context = parse(given).unwrap();
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(text(&context).unwrap(), given);
        let bare = r#"{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}"#;
        assert_eq!(text(&parse(bare).unwrap()).unwrap(), bare);
    }

    #[test]
    fn invalid_trace_context_is_ignored() {
        let with = |parent: &str| parse(&format!(r#"{{"traceparent":"{parent}"}}"#)).is_some();
        assert!(with("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"), "a later version");
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert!(!with(bad), "{bad}");
        }
        assert!(parse("").is_none() && parse("[]").is_none() && parse("{}").is_none());
    }
}
