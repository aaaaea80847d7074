//! Audit log of the router as a trait: each request to a Sandbox, and before that one with an effect.

use std::sync::Arc;

use futures::future::BoxFuture;

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
    /// Returns a future that a request awaits before it is sent: room for its record or, if it has an effect and the log is
    /// strict, the record on the disk. The error is the reason why it must not be sent.
    fn before(
        &self,
        exchange: &Exchange<'_>,
        has_effect: bool,
    ) -> Option<BoxFuture<'static, Result<(), String>>>;
    /// Records a request with its outcome, without waiting.
    fn after(&self, exchange: &Exchange<'_>, answered: &Answered<'_>);
}

/// Parts of the record of a request that its entry in the access log does not have.
pub(crate) struct Trail {
    pub(crate) log: Arc<dyn Audit>,
    pub(crate) caller: Arc<str>,
    pub(crate) uid: Option<Box<str>>,
    pub(crate) port: Option<u16>,
    pub(crate) has_effect: bool,
    /// Reason of a refusal, and whether the client was not admitted.
    pub(crate) refused: Option<(String, bool)>,
}

impl Trail {
    pub(crate) fn begin(log: &Arc<dyn Audit>, caller: &Arc<str>, has_effect: bool) -> Trail {
        Trail { log: log.clone(), caller: caller.clone(), uid: None, port: None, has_effect, refused: None }
    }
}
