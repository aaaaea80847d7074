//! Requests as events of an audit log.
//!
//! - Every request of a caller from outside is recorded, except those for health. Of the components of this process, writes
//!   are recorded, but not those of status, Leases and events.
//! - The record is made with the answer, since only then the status and the name of a new object are known. A strict log also
//!   gets a record before a write or a stream begins, and must accept it.
//! - A request with an effect runs to its record, also if its caller resets the connection.
//! - Refused logins and denied requests of anonymous callers have a quota of their own ([`crate::Refusals`]).
//! - Bodies, queries and headers other than the user agent are not recorded.

mod stream;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use hutch_audit::event::{ApiCall, Claim, Decision, Principal, Rule, Sandbox, Verdict};
use hutch_audit::{Event, Record};
use hutch_serve::PeerAddress;
use serde_json::Value;

use crate::Identity;
use crate::access::{Action, RequestAction};
use crate::admission::owner;
use crate::core::Core;
use crate::failure::{Failure, Refused};
use crate::journal::{Annotations, Audit, Created, External, Impersonator};
use crate::meta;
use crate::query::Query;

pub(crate) use self::stream::streams;

/// A request that is recorded.
pub(crate) struct Attempt {
    log: Arc<dyn Audit>,
    identity: Identity,
    impersonator: Option<String>,
    action: RequestAction,
    method: Method,
    path: String,
    user_agent: Option<String>,
    source: Option<IpAddr>,
    uid: String,
    /// Name and uid of the Sandbox that the request is about.
    sandbox: Option<(String, String)>,
    /// Name of the SandboxClaim that the request is about, or its Sandbox belongs to.
    claim: Option<String>,
}

/// Outcome of a request.
#[derive(Clone, Copy)]
struct Outcome<'a> {
    decision: Decision,
    reason: Option<&'a str>,
    status: Option<StatusCode>,
    name: Option<&'a str>,
    annotations: &'a [(String, String)],
    /// Number of requests that the record stands for.
    count: Option<u32>,
    time: SystemTime,
}

impl Outcome<'_> {
    fn denied(reason: &str, status: StatusCode) -> Outcome<'_> {
        let (decision, time) = (Decision::Denied, SystemTime::now());
        let (status, annotations) = (Some(status), &[]);
        Outcome { decision, reason: Some(reason), status, name: None, annotations, count: None, time }
    }
}

impl Attempt {
    /// Returns the record of a request, if there is a log and it is one that is recorded.
    pub(crate) fn of(core: &Core, request: &Request) -> Option<Attempt> {
        let log = core.audit.get()?;
        let identity = request.extensions().get::<Identity>()?;
        let external = request.extensions().get::<External>().is_some();
        if !external && *request.method() == Method::GET {
            return None;
        }
        let attempt = Attempt::new(core, log, identity, request);
        attempt.is_recorded(external).then_some(attempt)
    }

    fn new(core: &Core, log: &Arc<dyn Audit>, identity: &Identity, request: &Request) -> Attempt {
        let query = Query::of(request.uri()).ok();
        let action = RequestAction::of(request.method().as_str(), request.uri().path(), query.as_ref());
        let agent = request.headers().get(header::USER_AGENT).map(|agent| bounded(agent.as_bytes()));
        let extensions = request.extensions();
        // The object of a request that deletes it. Others are read when the record is made, off the way of the request.
        let is_late =
            matches!(action.action(), Action::Resource { resource: "sandboxes" | "sandboxclaims", .. })
                && *request.method() != Method::DELETE;
        let (sandbox, claim) = if is_late { (None, None) } else { subject(core, &action.action(), None) };
        Attempt {
            log: log.clone(),
            identity: identity.clone(),
            impersonator: extensions.get::<Impersonator>().map(|caller| caller.0.clone()),
            action,
            method: request.method().clone(),
            path: bounded(request.uri().path().as_bytes()),
            user_agent: agent,
            source: extensions.get::<PeerAddress>().map(|peer| peer.0.ip()),
            uid: uuid::Uuid::new_v4().to_string(),
            sandbox,
            claim,
        }
    }

    fn is_recorded(&self, external: bool) -> bool {
        match self.action.action() {
            Action::Path { path, .. } => {
                let first = path.trim_start_matches('/').split('/').next();
                external && !matches!(first, Some("healthz" | "livez" | "readyz"))
            }
            Action::Resource { resource, subresource, .. } => {
                external || (subresource != "status" && !matches!(resource, "leases" | "events"))
            }
        }
    }

    /// Returns true if something happens through the request, beyond its answer.
    fn has_effect(&self) -> bool {
        match self.action.action() {
            Action::Resource { subresource: "exec" | "attach" | "portforward" | "log" | "proxy", .. } => true,
            _ => !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS),
        }
    }

    /// Answers the request between its records.
    pub(crate) async fn through<A>(
        self,
        core: &Arc<Core>,
        answer: impl FnOnce(Arc<Core>) -> A + Send + 'static,
    ) -> Response
    where
        A: Future<Output = Response> + Send + 'static,
    {
        if !self.has_effect() {
            return self.recorded(core.clone(), answer).await;
        }
        // The connection drops this future when it ends. What happens then still needs its record.
        let running = tokio::spawn(self.recorded(core.clone(), answer));
        running.await.unwrap_or_else(|error| Failure::internal(error).into_response())
    }

    async fn recorded<A>(self, core: Arc<Core>, answer: impl FnOnce(Arc<Core>) -> A) -> Response
    where
        A: Future<Output = Response>,
    {
        if self.log.is_strict() && self.has_effect() {
            // A denial has no effect that waits. It is the answer, so that the next decision cannot be another one.
            if let Err(denied) = core.access.check(&self.identity, self.action.action()) {
                return self.answered(core, denied.into_response()).await;
            }
            let (decision, time) = (Decision::Allowed, SystemTime::now());
            let (reason, status, name, annotations, count) = (None, None, None, &[][..], None);
            let before = Outcome { decision, reason, status, name, annotations, count, time };
            if let Err(error) = self.log.record(self.event(&core, &before)).await {
                return Failure::unavailable(error).into_response();
            }
        }
        let response = answer(core.clone()).await;
        self.answered(core, response).await
    }

    /// Records the answer, and returns it.
    async fn answered(self, core: Arc<Core>, response: Response) -> Response {
        let status = response.status();
        let refused = response.extensions().get::<Refused>().map(|refused| refused.0.clone());
        let created = response.extensions().get::<Created>().map(|created| created.0.clone());
        let annotations = response.extensions().get::<Annotations>();
        let annotations = annotations.map(|all| all.0.clone()).unwrap_or_default();
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let decision = if is_denied { Decision::Denied } else { Decision::Allowed };
        let (log, source, is_strict) = (self.log.clone(), self.source, self.log.is_strict());
        let (has_effect, is_anonymous) = (self.has_effect(), self.identity.is_anonymous());
        let (time, of) = (SystemTime::now(), core.clone());
        let make = move |count| {
            let (reason, name) = (refused.as_deref(), created.as_deref());
            let (status, annotations) = (Some(status), &*annotations);
            self.event(&of, &Outcome { decision, reason, status, name, annotations, count, time })
        };
        if is_denied && is_anonymous {
            core.refusals.add(&log, source, make);
        } else if is_strict && has_effect && !is_denied {
            // What the request was about has happened, whatever the log says. The answer waits, so that the log has the name
            // of each object that the caller knows to exist.
            drop(log.record(make(None)).await);
        } else {
            log.enqueue(Box::new(move || make(None))).await;
        }
        response
    }

    fn event(&self, core: &Core, outcome: &Outcome<'_>) -> Record {
        let success = outcome.status.map(|status| !status.is_client_error() && !status.is_server_error());
        let verdict = Verdict {
            decision: outcome.decision,
            rule: Rule::default(),
            reason: outcome.reason.filter(|reason| !reason.is_empty()),
            success,
        };
        let (resource, group, namespace, name) = match self.action.action() {
            Action::Resource { resource, subresource, group, namespace, name, .. } => {
                let slash = if subresource.is_empty() { "" } else { "/" };
                (format!("{resource}{slash}{subresource}"), group, namespace, name)
            }
            Action::Path { .. } => (String::new(), "", "", ""),
        };
        let name = outcome.name.filter(|_| name.is_empty()).unwrap_or(name);
        // A new object, and one that got an owner, are known only now.
        let (made, owner) = match (&self.sandbox, &self.claim) {
            (None, None) => subject(core, &self.action.action(), Some(name)),
            _ => (None, None),
        };
        let sandbox = self.sandbox.as_ref().or(made.as_ref());
        let sandbox = sandbox.map(|(name, uid)| sandbox_named(namespace, name, uid));
        let claim = self.claim.as_ref().or(owner.as_ref()).map(|name| Claim { namespace, name });
        let call = ApiCall {
            principal: principal(&self.identity),
            impersonator: self.impersonator.as_deref(),
            verb: self.action.action().verb(),
            group,
            resource: &resource,
            namespace,
            name,
            path: Some(&self.path),
            method: Some(self.method.as_str()),
            user_agent: self.user_agent.as_deref(),
            source: self.source,
            uid: Some(&self.uid),
            status: outcome.status.map(|status| status.as_u16()),
            count: outcome.count,
            sandbox,
            claim,
            annotations: outcome.annotations,
            verdict,
        };
        Event::api(outcome.time, &call).record()
    }
}

/// Records a request whose credential is not valid.
pub(crate) fn refuse_login(core: &Core, request: &Request) {
    let Some(log) = core.audit.get() else { return };
    let source = request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip());
    core.refusals.add(log, source, |count| {
        let attempt = Attempt::new(core, log, &Identity::default(), request);
        let outcome = Outcome::denied("the credential is not valid", StatusCode::UNAUTHORIZED);
        attempt.event(core, &Outcome { count, ..outcome })
    });
}

/// Records a request of a known caller that was refused before it was decided.
pub(crate) fn refuse(
    core: &Core,
    request: &Request,
    caller: &Identity,
    failure: &Failure,
) -> impl Future<Output = ()> + use<> {
    let recorded = core.audit.get().map(|log| {
        let attempt = Attempt::new(core, log, caller, request);
        let record = attempt.event(core, &Outcome::denied(&failure.message, failure.code));
        log.enqueue(Box::new(move || record))
    });
    async move {
        if let Some(recorded) = recorded {
            recorded.await;
        }
    }
}

/// Returns the start of a text that is recorded. The record cuts it further.
fn bounded(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(hutch_audit::TEXT_MAX + 4)]).into_owned()
}

fn principal(identity: &Identity) -> Principal<'_> {
    let uid = Some(identity.uid.as_str()).filter(|uid| !uid.is_empty());
    Principal { name: &identity.name, uid, groups: &identity.groups }
}

fn sandbox_named<'a>(namespace: &'a str, name: &'a str, uid: &'a str) -> Sandbox<'a> {
    Sandbox { namespace, name, uid: Some(uid).filter(|uid| !uid.is_empty()) }
}

/// Name and uid of a Sandbox, and name of its SandboxClaim.
type Subject = (Option<(String, String)>, Option<String>);

/// Returns what an action is about: a Sandbox, that of a Pod, or that of a claim. `made` is the name of a new object.
fn subject(core: &Core, action: &Action<'_>, made: Option<&str>) -> Subject {
    let Action::Resource { group, resource, namespace, name, .. } = action else { return (None, None) };
    let name = made.unwrap_or(name);
    let dot = if group.is_empty() { "" } else { "." };
    let read =
        || core.read(&format!("{resource}{dot}{group}"), &format!("{namespace}/{name}")).unwrap_or_default();
    match (*group, *resource) {
        _ if name.is_empty() => (None, None),
        (hutch_api::GROUP, "sandboxes") => {
            let owner = controller(&read(), "SandboxClaim").map(|owner| text(&owner, "name"));
            (Some((name.to_owned(), String::new())), owner)
        }
        (hutch_api::EXTENSIONS_GROUP, "sandboxclaims") => {
            let sandbox = text(&read()["status"]["sandbox"], "name");
            ((!sandbox.is_empty()).then(|| (sandbox, String::new())), Some(name.to_owned()))
        }
        ("", "pods") => match read() {
            Value::Null => (None, None),
            pod => (Some(sandbox_of_pod(&pod)), None),
        },
        _ => (None, None),
    }
}

/// Returns the controller of an object, if it is of this kind.
fn controller(object: &Value, kind: &str) -> Option<Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["kind"] == kind && owner["controller"] == true).cloned()
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

/// Returns name and uid of the Sandbox of a Pod, or of the Pod itself.
fn sandbox_of_pod(pod: &Value) -> (String, String) {
    match owner::sandbox(pod) {
        Some((_, owner)) => (text(owner, "name"), text(owner, "uid")),
        None => (meta::text(pod, "name").to_owned(), meta::text(pod, "uid").to_owned()),
    }
}
