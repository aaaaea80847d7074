//! One line for each request, when its answer has been sent or given up. No header but the agent's name, no query,
//! no body: nothing that could hold a secret.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

/// Bytes of a text of the client's that are shown.
const SHOWN: usize = 256;

/// The line in the making. It is written when this is dropped.
pub(crate) struct Line {
    method: String,
    path: String,
    client: Option<IpAddr>,
    agent: String,
    sandbox: String,
    namespace: String,
    status: u16,
    sent: u64,
    begun: Instant,
}

impl Line {
    pub(crate) fn begin<B>(request: &Request<B>, client: Option<IpAddr>) -> Line {
        let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        Line {
            method: cut(request.method().as_str()),
            path: cut(request.uri().path()),
            client,
            agent: cut(agent.unwrap_or("-")),
            sandbox: "-".into(),
            namespace: "-".into(),
            // What is written when the client goes away before there is an answer.
            status: 499,
            sent: 0,
            begun: Instant::now(),
        }
    }

    pub(crate) fn names(&mut self, namespace: &str, sandbox: &str) {
        self.namespace = namespace.to_owned();
        self.sandbox = sandbox.to_owned();
    }

    /// Goes with the answer, to its end.
    pub(crate) fn follow(mut self, response: Response<Body>) -> Response<Body> {
        self.status = response.status().as_u16();
        response.map(|body| Body::new(Counted { body, line: self }))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        tracing::info!(
            target: "hutch_router::access",
            method = %self.method,
            path = %self.path,
            status = self.status,
            duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            client_ip = %self.client.map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
            sandbox_id = %self.sandbox,
            sandbox_namespace = %self.namespace,
            bytes_out = self.sent,
            user_agent = %self.agent,
            "request"
        );
    }
}

fn cut(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

struct Counted {
    body: Body,
    line: Line,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.line.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
