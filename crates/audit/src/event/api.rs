//! Requests to the API server, uses of credentials, approvals and findings.

use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::Value;

use super::{Claim, Event, Kind, Principal, Sandbox, Verdict, endpoint, full_name, named, user};
use crate::ocsf::{Actor, Api, ApiRequest, Endpoint, FindingInfo, HttpRequest, HttpResponse, Resource, Url};
use crate::text::Text;

/// Maximum annotations of an event.
const ANNOTATIONS_MAX: usize = 32;

/// Request to the API server.
#[derive(Debug, Clone, Copy)]
pub struct ApiCall<'a> {
    /// Caller.
    pub principal: Principal<'a>,
    /// User who impersonates the caller.
    pub impersonator: Option<&'a str>,
    /// Verb of Kubernetes, or the method in lower case for a path without a resource.
    pub verb: &'a str,
    /// API group; empty for the core group and for a path without a resource.
    pub group: &'a str,
    /// Resource with its subresource, such as `pods/exec`; empty for a path without a resource.
    pub resource: &'a str,
    /// Namespace, or empty.
    pub namespace: &'a str,
    /// Name, or empty for all objects of the resource.
    pub name: &'a str,
    /// Path, without its query.
    pub path: Option<&'a str>,
    /// Method of HTTP.
    pub method: Option<&'a str>,
    /// Program of the caller.
    pub user_agent: Option<&'a str>,
    /// Address of the caller; none for a component of this server.
    pub source: Option<IpAddr>,
    /// Name of the request.
    pub uid: Option<&'a str>,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Number of equal requests that this event stands for, if it is not one.
    pub count: Option<u32>,
    /// Sandbox that the request is about.
    pub sandbox: Option<Sandbox<'a>>,
    /// Claim that the sandbox belongs to, or that the request is about.
    pub claim: Option<Claim<'a>>,
    /// Names and values that policies and webhooks give the request.
    pub annotations: &'a [(String, String)],
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Use of a credential.
#[derive(Debug, Clone, Copy)]
pub struct CredentialUse<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Name of the credential.
    pub credential: &'a str,
    /// Host that receives it.
    pub host: &'a str,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Decision of a person about a request for an approval.
#[derive(Debug, Clone, Copy)]
pub struct Approval<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Person.
    pub principal: Principal<'a>,
    /// Name of the request for an approval.
    pub request: &'a str,
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No action is needed.
    Informational = 1,
    /// Low.
    Low = 2,
    /// Medium.
    Medium = 3,
    /// High.
    High = 4,
    /// Critical.
    Critical = 5,
}

/// Finding of the scanner or of a rule about behavior.
#[derive(Debug, Clone, Copy)]
pub struct Finding<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Id of the rule.
    pub rule: &'a str,
    /// Title.
    pub title: &'a str,
    /// Place of the finding, such as `request to a.example`.
    pub place: &'a str,
    /// First bytes of the SHA-256 of the text that was found; the text itself is not recorded.
    pub digest: Option<[u8; 8]>,
    /// Way by which output leaves a sandbox, of a finding outside of its network.
    pub door: Option<&'a str>,
    /// Number of findings that this event stands for, if it is not one.
    pub count: Option<u32>,
    /// Severity.
    pub severity: Severity,
    /// Decision.
    pub verdict: Verdict<'a>,
}

impl Event {
    /// Returns the event of a request.
    pub fn api(time: SystemTime, call: &ApiCall<'_>) -> Event {
        let (activity, verb) = activity(call.verb);
        let mut event = Event::new(time, Kind::Api, activity, Some(&call.verdict));
        event.actor = Some(user(&call.principal));
        if let Some(impersonator) = call.impersonator {
            event.unmapped.insert("impersonator".to_owned(), Text::name(impersonator).as_str().into());
        }
        if !call.annotations.is_empty() {
            let all = call.annotations.iter().take(ANNOTATIONS_MAX);
            let all = all.map(|(name, value)| {
                (Text::name(name).as_str().to_owned(), Text::masked(value).as_str().into())
            });
            event.unmapped.insert("annotations".to_owned(), Value::Object(all.collect()));
        }
        event.src_endpoint = Some(match call.source {
            Some(ip) => Endpoint { ip: Some(ip), ..Endpoint::default() },
            None => Endpoint { svc_name: Some(Text::name("hutch")), ..Endpoint::default() },
        });
        let operation = match call.resource {
            "" => call.verb.to_owned(),
            resource => format!("{} {resource}", call.verb),
        };
        event.api = Some(Api {
            operation: Text::name(&operation),
            group: (!call.group.is_empty()).then(|| named(call.group)),
            version: None,
            request: call.uid.map(|uid| ApiRequest { uid: Text::name(uid) }),
            response: None,
        });
        if !call.resource.is_empty() {
            let some = |text: &str| (!text.is_empty()).then(|| Text::name(text));
            event.resources.push(Resource {
                kind: some(call.resource),
                namespace: some(call.namespace),
                name: Text::name(if call.name.is_empty() { "*" } else { call.name }),
                uid: None,
            });
        }
        if let (Some(method), Some(path)) = (call.method, call.path) {
            let url = Url { path: Text::path(path), hostname: None, port: None, scheme: None };
            let user_agent = call.user_agent.map(Text::agent);
            event.http_request = Some(HttpRequest { http_method: Text::name(method), url, user_agent });
        }
        event.count = call.count;
        event.http_response = call.status.map(|code| HttpResponse { code });
        let event = match &call.sandbox {
            Some(sandbox) => event.about(sandbox),
            None => event,
        };
        let event = event.of_claim(call.claim);
        if verb { event } else { event.named(call.verb) }
    }

    /// Returns the event of the use of a credential.
    pub fn credential(time: SystemTime, used: &CredentialUse<'_>) -> Event {
        let mut event = Event::new(time, Kind::Credential, 2, Some(&used.verdict));
        event.actor = Some(sandbox_actor(&used.sandbox));
        event.src_endpoint = Some(endpoint(&used.sandbox));
        event.dst_endpoint = Some(Endpoint { hostname: Some(Text::name(used.host)), ..Endpoint::default() });
        event.api = Some(operation("use credential"));
        event.resources.push(Resource {
            kind: Some(Text::name("credential")),
            namespace: None,
            name: Text::name(used.credential),
            uid: None,
        });
        event.about(&used.sandbox)
    }

    /// Returns the event of an approval or its refusal.
    pub fn approval(time: SystemTime, approval: &Approval<'_>) -> Event {
        let mut event = Event::new(time, Kind::Approval, 3, Some(&approval.verdict));
        event.actor = Some(user(&approval.principal));
        event.src_endpoint = Some(endpoint(&approval.sandbox));
        event.api = Some(operation("approve"));
        event.resources.push(Resource {
            kind: Some(Text::name("approvalrequests")),
            namespace: Some(Text::name(approval.sandbox.namespace)),
            name: Text::name(approval.request),
            uid: None,
        });
        event.about(&approval.sandbox)
    }

    /// Returns the event of a finding.
    pub fn finding(time: SystemTime, finding: &Finding<'_>) -> Event {
        let mut event = Event::new(time, Kind::Finding, 1, Some(&finding.verdict));
        event.severity_id = finding.severity as u8;
        event.count = finding.count;
        if let Some(door) = finding.door {
            event.unmapped.insert("door".to_owned(), Text::name(door).as_str().into());
        }
        let digest = finding.digest.map(|digest| crate::hex::hex(&digest));
        let place = match &digest {
            Some(digest) => format!("{} sha256:{digest}", finding.place),
            None => finding.place.to_owned(),
        };
        event.finding_info = Some(FindingInfo {
            uid: Text::name(digest.as_deref().map_or(finding.rule, |digest| digest)),
            title: Text::name(finding.title),
            desc: Some(Text::long(&place)),
            types: vec![Text::name(finding.rule)],
        });
        event.resources.push(Resource {
            kind: Some(Text::name("sandbox")),
            namespace: Some(Text::name(finding.sandbox.namespace)),
            name: Text::name(finding.sandbox.name),
            uid: finding.sandbox.uid.map(Text::name),
        });
        event.about(&finding.sandbox)
    }
}

/// Returns the activity of a verb, and true if the schema has one.
fn activity(verb: &str) -> (u32, bool) {
    match verb {
        "create" | "post" => (1, true),
        "get" | "list" | "watch" | "head" | "options" => (2, true),
        "update" | "patch" | "put" => (3, true),
        "delete" | "deletecollection" => (4, true),
        _ => (99, false),
    }
}

fn operation(name: &str) -> Api {
    Api { operation: Text::name(name), group: None, version: None, request: None, response: None }
}

/// Returns the sandbox as the one who acts.
fn sandbox_actor(sandbox: &Sandbox<'_>) -> Actor {
    Actor { app_name: Some(full_name(sandbox)), app_uid: sandbox.uid.map(Text::name), user: None }
}
