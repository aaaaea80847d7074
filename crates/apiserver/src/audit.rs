//! Requests as events of an audit log.
//!
//! - Every request of a caller from outside is recorded, except those for health. Of the components of this process, writes
//!   are recorded, but not those of status, Leases and events.
//! - The record is made with the answer, since only then the status and the name of a new object are known. A strict log also
//!   gets a record before a write or a stream begins, and must accept it.
//! - Bodies, queries and headers other than the user agent are not recorded.

mod stream;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use hutch_audit::event::{ApiCall, Decision, Principal, Rule, Sandbox, Verdict};
use hutch_audit::{Event, Record};
use hutch_serve::PeerAddress;
use serde_json::Value;

use crate::Identity;
use crate::access::{Action, RequestAction};
use crate::core::Core;
use crate::failure::{Failure, Refused};
use crate::journal::{Audit, Created, External, Impersonator};
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
}

/// Outcome of a request.
struct Outcome<'a> {
    decision: Decision,
    reason: Option<&'a str>,
    status: Option<StatusCode>,
    name: Option<&'a str>,
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
        let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let extensions = request.extensions();
        let sandbox = sandbox_of(core, &action.action());
        Attempt {
            log: log.clone(),
            identity: identity.clone(),
            impersonator: extensions.get::<Impersonator>().map(|caller| caller.0.clone()),
            action,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            user_agent: agent.map(str::to_owned),
            source: extensions.get::<PeerAddress>().map(|peer| peer.0.ip()),
            uid: uuid::Uuid::new_v4().to_string(),
            sandbox,
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
    pub(crate) async fn through<A>(self, core: &Arc<Core>, answer: impl FnOnce(Arc<Core>) -> A) -> Response
    where
        A: Future<Output = Response>,
    {
        if self.log.is_strict() && self.has_effect() {
            let decision = core.access.decide(&self.identity, &self.action.action());
            let reason = (!decision.allowed).then(|| decision.reason.to_string());
            let decision = if decision.allowed { Decision::Allowed } else { Decision::Denied };
            let before = Outcome { decision, reason: reason.as_deref(), status: None, name: None };
            if let Err(error) = self.log.record(self.event(&before)).await {
                return Failure::unavailable(error).into_response();
            }
        }
        let response = answer(core.clone()).await;
        let status = response.status();
        let refused = response.extensions().get::<Refused>().map(|refused| refused.0.clone());
        let created = response.extensions().get::<Created>().map(|created| created.0.clone());
        let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let decision = if denied { Decision::Denied } else { Decision::Allowed };
        let outcome =
            Outcome { decision, reason: refused.as_deref(), status: Some(status), name: created.as_deref() };
        let record = self.event(&outcome);
        // What the request was about has happened, whatever the log says. An answer to a strict log's caller waits, so that
        // the log has the name of each object that the caller knows to exist.
        match self.log.is_strict() && !self.has_effect() {
            true => self.log.push(record),
            false => drop(self.log.record(record).await),
        }
        response
    }

    fn event(&self, outcome: &Outcome<'_>) -> Record {
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
        let made =
            (group == hutch_api::GROUP && resource == "sandboxes" && !name.is_empty()).then_some((name, ""));
        let sandbox = self.sandbox.as_ref().map(|(name, uid)| (name.as_str(), uid.as_str())).or(made);
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
            sandbox: sandbox.map(|(name, uid)| sandbox_named(namespace, name, uid)),
            verdict,
        };
        Event::api(SystemTime::now(), &call).record()
    }
}

/// Records a request that was refused before it was decided.
pub(crate) fn refuse(
    core: &Core,
    request: &Request,
    caller: Option<&Identity>,
    reason: &str,
    status: StatusCode,
) {
    let Some(log) = core.audit.get() else { return };
    let unknown = Identity::default();
    let attempt = Attempt::new(core, log, caller.unwrap_or(&unknown), request);
    let outcome =
        Outcome { decision: Decision::Denied, reason: Some(reason), status: Some(status), name: None };
    log.push(attempt.event(&outcome));
}

fn principal(identity: &Identity) -> Principal<'_> {
    let uid = Some(identity.uid.as_str()).filter(|uid| !uid.is_empty());
    Principal { name: &identity.name, uid, groups: &identity.groups }
}

fn sandbox_named<'a>(namespace: &'a str, name: &'a str, uid: &'a str) -> Sandbox<'a> {
    Sandbox { namespace, name, uid: Some(uid).filter(|uid| !uid.is_empty()) }
}

/// Returns name and uid of the Sandbox that an action is about: itself, or that of its Pod.
fn sandbox_of(core: &Core, action: &Action<'_>) -> Option<(String, String)> {
    let Action::Resource { group, resource, namespace, name, .. } = action else { return None };
    if name.is_empty() {
        return None;
    }
    if (*group, *resource) == (hutch_api::GROUP, "sandboxes") {
        return Some(((*name).to_owned(), String::new()));
    }
    if (*group, *resource) != ("", "pods") {
        return None;
    }
    let pod = core.read("pods", &format!("{namespace}/{name}"))?;
    Some(sandbox_of_pod(&pod))
}

/// Returns name and uid of the Sandbox of a Pod, or of the Pod itself.
fn sandbox_of_pod(pod: &Value) -> (String, String) {
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_sandbox = |owner: &&Value| owner["kind"] == "Sandbox" && owner["controller"] == true;
    match owners.iter().find(is_sandbox) {
        Some(owner) => {
            let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
            (text("name"), text("uid"))
        }
        None => (meta::text(pod, "name").to_owned(), meta::text(pod, "uid").to_owned()),
    }
}
