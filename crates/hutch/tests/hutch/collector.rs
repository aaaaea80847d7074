//! A collector of traces that keeps what it is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;

/// A collector of traces, as OpenTelemetry defines it.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<Received>>>);

/// Attributes of the sender, and a span.
pub(crate) type Received = (BTreeMap<String, String>, Span);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for resource in request.into_inner().resource_spans {
            let about = texts(&resource.resource.unwrap_or_default().attributes);
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().expect("spans").extend(spans.map(|span| (about.clone(), span)));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

pub(crate) fn texts(
    attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue],
) -> BTreeMap<String, String> {
    use opentelemetry_proto::tonic::common::v1::any_value::Value::StringValue;
    let text = |pair: &opentelemetry_proto::tonic::common::v1::KeyValue| match pair
        .value
        .as_ref()?
        .value
        .as_ref()?
    {
        StringValue(value) => Some((pair.key.clone(), value.clone())),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

impl Collector {
    /// Serves on a free port, for as long as the runtime lives; and its address.
    pub(crate) async fn start() -> (Collector, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Collector::default();
        let service = TraceServiceServer::new(collector.clone());
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        (collector, format!("http://{address}"))
    }

    /// Everything received so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.0.lock().expect("spans").clone()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
