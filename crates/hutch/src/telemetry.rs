//! Export of traces: OTLP over gRPC, configured by the standard `OTEL_*` variables.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

/// Maximum time to send the last spans.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// Exporter that sends spans in the background until it is stopped.
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
    service: &'static str,
}

impl Exporter {
    /// Starts to send as `service`, unless a variable has another name. Must be called inside a tokio runtime.
    pub(crate) fn start(service: &'static str) -> anyhow::Result<Self> {
        let exporter =
            SpanExporter::builder().with_tonic().build().context("--enable-tracing, OTEL_EXPORTER_OTLP_*")?;
        let mut resource = Resource::builder();
        if !names_the_service(|name| std::env::var(name).ok()) {
            resource = resource.with_service_name(service);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Exporter { provider, service })
    }

    pub(crate) fn tracer(&self) -> Arc<BoxedTracer> {
        Arc::new(BoxedTracer::new(Box::new(self.provider.tracer(self.service))))
    }

    /// Sends the queued spans.
    pub(crate) async fn end(self) {
        // The call blocks its thread, and sending needs another one.
        let ended =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

fn names_the_service(variable: impl Fn(&str) -> Option<String>) -> bool {
    let named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    named || attributes.split(',').any(|pair| pair.trim().starts_with("service.name="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_sets_the_service_name() {
        let with = |given: &'static str, value: &'static str| {
            names_the_service(move |name| (name == given).then(|| value.to_owned()))
        };
        assert!(with("OTEL_SERVICE_NAME", "mine"));
        assert!(with("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=mine"));
        assert!(
            !with("OTEL_SERVICE_NAME", "") && !with("OTEL_RESOURCE_ATTRIBUTES", "a=b") && !with("PATH", "/")
        );
    }
}
