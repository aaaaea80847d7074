//! Audit log of the router as a trait: each request to a Sandbox, before it is sent and with its outcome.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};

/// Maximum bytes of a body that the log reads, and the time for them.
const READ: usize = 64 << 10;
const READ_TIME: Duration = Duration::from_secs(10);

/// Request that is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// Name of the client; empty if it was not admitted.
    pub caller: &'a str,
    /// Address of the client.
    pub source: Option<&'a str>,
    /// Method.
    pub method: &'a str,
    /// Path without its query.
    pub path: &'a str,
    /// Program of the client.
    pub user_agent: Option<&'a str>,
    /// Namespace and name of the Sandbox.
    pub sandbox: Option<(&'a str, &'a str)>,
    /// Uid of the Sandbox, once it is known.
    pub uid: Option<&'a str>,
    /// Port of the Sandbox.
    pub port: Option<u16>,
    /// Body, if the log reads it; empty if it is longer than the log reads, or has not arrived in time.
    pub body: Option<&'a [u8]>,
    /// Content type of a body that the log reads.
    pub content_type: Option<&'a str>,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Status that the client receives.
    pub status: u16,
    /// Reason why the router has refused the request, if it has.
    pub refused: Option<&'a str>,
    /// The client was not admitted to this Sandbox.
    pub denied: bool,
}

/// Log that receives the requests.
pub trait Audit: Send + Sync + 'static {
    /// Returns true if the log reads the body of a request before that is sent.
    fn reads_body(&self, exchange: &Exchange<'_>) -> bool;
    /// Returns a future that a request awaits before it is sent: room for its record or, if the log is strict, the record on
    /// the disk. The error is the reason why it must not be sent.
    fn before(&self, exchange: &Exchange<'_>) -> Option<BoxFuture<'static, Result<(), String>>>;
    /// Records a request with its outcome, without waiting.
    fn after(&self, exchange: &Exchange<'_>, answered: &Answered<'_>);
}

/// Parts of the record of a request that its entry in the access log does not have.
pub(crate) struct Trail {
    pub(crate) log: Arc<dyn Audit>,
    pub(crate) caller: Arc<str>,
    pub(crate) uid: Option<Box<str>>,
    pub(crate) port: Option<u16>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) content_type: Option<Box<str>>,
    /// Reason of a refusal, and whether the client was not admitted.
    pub(crate) refused: Option<(String, bool)>,
}

impl Trail {
    pub(crate) fn begin(log: &Arc<dyn Audit>, caller: &Arc<str>) -> Trail {
        let (log, caller) = (log.clone(), caller.clone());
        let (body, content_type) = (None, None);
        Trail { log, caller, uid: None, port: None, body, content_type, refused: None }
    }
}

/// Reads the start of a body. Returns all of it, or nothing if it is too long, fails or takes too long, and the body to send.
pub(crate) async fn read(body: Body) -> (Vec<u8>, Body) {
    let (deadline, mut rest) = (Instant::now() + READ_TIME, body.into_data_stream());
    let (mut all, mut chunks) = (Vec::new(), Vec::<Result<Bytes, axum::Error>>::new());
    let whole = loop {
        match timeout_at(deadline, rest.next()).await {
            Ok(None) => break true,
            Ok(Some(Ok(chunk))) if all.len() + chunk.len() <= READ => {
                all.extend_from_slice(&chunk);
                chunks.push(Ok(chunk));
            }
            Ok(Some(last)) => {
                chunks.push(last);
                break false;
            }
            Err(_) => break false,
        }
    };
    match whole {
        true => (all.clone(), Body::from(all)),
        false => (Vec::new(), Body::from_stream(stream::iter(chunks).chain(rest))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_of(chunks: &[usize]) -> (usize, usize) {
        let chunks: Vec<_> = chunks.iter().map(|length| Ok::<_, axum::Error>(vec![b'x'; *length])).collect();
        let (read, body) = read(Body::from_stream(stream::iter(chunks))).await;
        (read.len(), axum::body::to_bytes(body, usize::MAX).await.unwrap().len())
    }

    #[tokio::test]
    async fn body_that_is_read_is_sent_as_a_whole() {
        assert_eq!(read_of(&[]).await, (0, 0));
        assert_eq!(read_of(&[10, 20]).await, (30, 30));
        assert_eq!(read_of(&[10, READ, 20]).await, (0, READ + 30));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_never_ends_is_not_waited_for() {
        let endless = stream::iter([Ok::<_, axum::Error>("x")]).chain(stream::pending());
        let (read, body) = read(Body::from_stream(endless)).await;
        assert!(read.is_empty());
        assert_eq!(body.into_data_stream().next().await.unwrap().unwrap(), "x");
    }
}
