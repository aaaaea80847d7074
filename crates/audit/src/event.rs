//! Events of OCSF 1.8, made from typed data.
//!
//! Each constructor takes everything that its class requires. Texts are bounded and escaped ([`Text`]); the values of
//! environment variables, bodies, headers and queries have no place here.

mod api;
mod log;
mod network;
mod process;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use self::api::{ApiCall, Approval, CredentialUse, Finding, Severity};
pub use self::log::{LogEvent, Removal};
pub use self::network::{Connection, ConnectionActivity, Lookup, Request, Routed, Unidentified};
pub use self::process::{Change, Exec, Exit, FileAccess, FileActivity, Lifecycle};
use crate::Error;
use crate::ocsf::{
    Actor, Api, Device, Endpoint, File, FindingInfo, HttpRequest, HttpResponse, Metadata, Named, Process,
    Product, Query, Resource, Tag, Traffic, User, VERSION,
};
use crate::text::Text;

/// Maximum bytes of an event as JSON, so that a syslog message of 8 KiB can hold it.
pub const EVENT_MAX: usize = 7 << 10;
/// Maximum bytes of each text of an event that was longer, in the order in which they are tried.
const SHORTER: [usize; 3] = [512, 128, 32];
/// Maximum groups of a user that an event names.
const GROUPS_MAX: usize = 16;
/// Profile that every event has.
const PROFILES: &[&str] = &["security_control"];

/// Kind of an event: `metadata.event_code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Connection of a sandbox.
    Connection,
    /// Request of HTTP of a sandbox.
    Http,
    /// Lookup of a name.
    Dns,
    /// Command that was started in a sandbox, and its end.
    Exec,
    /// Access to a file of a sandbox by an API.
    File,
    /// Request to the API server.
    Api,
    /// Use of a credential for a sandbox.
    Credential,
    /// Decision of a person.
    Approval,
    /// Finding of the scanner or of a rule about behavior.
    Finding,
    /// Start and end of a container.
    Lifecycle,
    /// The log itself.
    Log,
}

impl Kind {
    /// Kinds that `hutch up` writes.
    pub const WRITTEN: [Kind; 10] = [
        Kind::Api,
        Kind::Exec,
        Kind::File,
        Kind::Lifecycle,
        Kind::Connection,
        Kind::Http,
        Kind::Dns,
        Kind::Credential,
        Kind::Finding,
        Kind::Log,
    ];

    /// All kinds.
    const ALL: [Kind; 11] = [
        Kind::Connection,
        Kind::Http,
        Kind::Dns,
        Kind::Exec,
        Kind::File,
        Kind::Api,
        Kind::Credential,
        Kind::Approval,
        Kind::Finding,
        Kind::Lifecycle,
        Kind::Log,
    ];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Connection => "connection",
            Kind::Http => "http",
            Kind::Dns => "dns",
            Kind::Exec => "exec",
            Kind::File => "file",
            Kind::Api => "api",
            Kind::Credential => "credential",
            Kind::Approval => "approval",
            Kind::Finding => "finding",
            Kind::Lifecycle => "lifecycle",
            Kind::Log => "log",
        }
    }

    /// Returns the kind of this name.
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns category and class.
    pub fn class(self) -> (u32, u32) {
        match self {
            Kind::Connection => (4, 4001),
            Kind::Http => (4, 4002),
            Kind::Dns => (4, 4003),
            Kind::Exec | Kind::Lifecycle => (1, 1007),
            Kind::File => (1, 1001),
            Kind::Api | Kind::Credential | Kind::Approval => (6, 6003),
            Kind::Finding => (2, 2004),
            Kind::Log => (0, 0),
        }
    }
}

/// Caller of an API.
#[derive(Debug, Clone, Copy, Default)]
pub struct Principal<'a> {
    /// Name.
    pub name: &'a str,
    /// Uid, if the server knows one.
    pub uid: Option<&'a str>,
    /// Groups.
    pub groups: &'a [String],
}

/// A sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Uid.
    pub uid: Option<&'a str>,
}

/// Object of another kind by which people find a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

/// Decision about what an event describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is allowed.
    Allowed,
    /// It is refused.
    Denied,
    /// A level that only observes would have refused it.
    Observed,
    /// It is allowed after a change, such as a redaction.
    Modified,
    /// It waits for an approval.
    Held,
    /// A person has approved it.
    Approved,
    /// It is only recorded.
    Logged,
    /// It is reported as an alert.
    Alerted,
    /// It was allowed and has been cut off.
    Reset,
}

impl Decision {
    /// Returns `action_id` and `disposition_id`.
    fn ids(self) -> (u8, u8) {
        match self {
            Decision::Allowed => (1, 1),
            Decision::Denied => (2, 2),
            Decision::Observed | Decision::Logged => (3, 17),
            Decision::Modified => (4, 11),
            Decision::Held => (2, 14),
            Decision::Approved => (1, 8),
            Decision::Alerted => (3, 19),
            Decision::Reset => (2, 21),
        }
    }

    fn severity(self) -> Severity {
        match self {
            Decision::Allowed | Decision::Logged | Decision::Approved => Severity::Informational,
            Decision::Observed | Decision::Modified | Decision::Held => Severity::Low,
            Decision::Denied | Decision::Alerted | Decision::Reset => Severity::Medium,
        }
    }
}

/// Policy and rule that decide.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rule<'a> {
    /// Name of the level.
    pub level: Option<&'a str>,
    /// Name of its rule.
    pub rule: Option<&'a str>,
}

/// Decision with its reason.
#[derive(Debug, Clone, Copy)]
pub struct Verdict<'a> {
    /// Decision.
    pub decision: Decision,
    /// Policy and rule.
    pub rule: Rule<'a>,
    /// Reason, in words.
    pub reason: Option<&'a str>,
    /// False if it was allowed and has failed.
    pub success: Option<bool>,
}

impl Verdict<'_> {
    /// Returns a decision without a rule.
    pub fn of(decision: Decision) -> Verdict<'static> {
        Verdict { decision, rule: Rule::default(), reason: None, success: None }
    }
}

/// One event.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    class_uid: u32,
    category_uid: u32,
    activity_id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    activity_name: Option<Text>,
    type_uid: u32,
    severity_id: u8,
    /// Milliseconds since 1970.
    time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    action_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disposition_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_id: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_detail: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    firewall_rule: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<Actor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_endpoint: Option<Endpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_endpoint: Option<Endpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<Traffic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_request: Option<HttpRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_response: Option<HttpResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<Query>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rcode_id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<File>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<Api>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<Resource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finding_info: Option<FindingInfo>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    unmapped: Map<String, Value>,
}

impl Event {
    /// Returns an event of a kind, without what its class requires.
    fn new(time: SystemTime, kind: Kind, activity: u32, verdict: Option<&Verdict<'_>>) -> Event {
        let (category_uid, class_uid) = kind.class();
        let milliseconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let severity = verdict.map_or(Severity::Informational, |verdict| verdict.decision.severity());
        let named = |name: &str| Named { name: Some(Text::name(name)), uid: None };
        let rule = verdict.map(|verdict| verdict.rule).unwrap_or_default();
        Event {
            class_uid,
            category_uid,
            activity_id: activity,
            activity_name: None,
            type_uid: class_uid * 100 + activity,
            severity_id: severity as u8,
            time: u64::try_from(milliseconds).unwrap_or(u64::MAX),
            count: None,
            metadata: Metadata {
                version: VERSION,
                product: Product { name: "hutch", vendor_name: "Hutch", version: env!("CARGO_PKG_VERSION") },
                profiles: PROFILES,
                event_code: kind.as_str(),
                correlation_uid: None,
                tags: Vec::new(),
            },
            action_id: verdict.map(|verdict| verdict.decision.ids().0),
            disposition_id: verdict.map(|verdict| verdict.decision.ids().1),
            status_id: verdict.and_then(|verdict| verdict.success).map(|success| if success { 1 } else { 2 }),
            status_detail: verdict.and_then(|verdict| verdict.reason).map(Text::words),
            message: None,
            policy: rule.level.map(named),
            firewall_rule: rule.rule.map(named),
            actor: None,
            device: None,
            src_endpoint: None,
            dst_endpoint: None,
            traffic: None,
            http_request: None,
            http_response: None,
            query: None,
            rcode_id: None,
            process: None,
            exit_code: None,
            file: None,
            api: None,
            resources: Vec::new(),
            finding_info: None,
            unmapped: Map::new(),
        }
    }

    /// Marks an event as one about a sandbox, by which it is found.
    fn about(mut self, sandbox: &Sandbox<'_>) -> Event {
        self.metadata.correlation_uid = sandbox.uid.map(Text::name);
        self.metadata.tags.push(Tag { name: "sandbox", value: full_name(sandbox) });
        self
    }

    /// Marks an event as one about the sandbox of a claim.
    fn of_claim(mut self, claim: Option<Claim<'_>>) -> Event {
        if let Some(Claim { namespace, name }) = claim {
            self.metadata.tags.push(Tag { name: "claim", value: Text::name(&format!("{namespace}/{name}")) });
        }
        self
    }

    /// Names an activity that the class does not list.
    fn named(mut self, activity: &str) -> Event {
        self.activity_name = Some(Text::name(activity));
        self
    }

    /// Returns it as the log holds it. Texts of an event above [`EVENT_MAX`] are cut further.
    pub fn record(&self) -> Record {
        // The types have no maps with keys other than text, and no other source of errors.
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        if bytes.len() <= EVENT_MAX {
            return Record(bytes.into());
        }
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["metadata"]["is_truncated"] = Value::Bool(true);
        value["metadata"]["untruncated_size"] = bytes.len().into();
        for longest in SHORTER {
            shorten(&mut value, longest);
            let bytes = value.to_string().into_bytes();
            if bytes.len() <= EVENT_MAX {
                return Record(bytes.into());
            }
        }
        if let Some(fields) = value.as_object_mut() {
            fields.remove("unmapped");
        }
        Record(value.to_string().into_bytes().into())
    }
}

/// Cuts each text of a value.
fn shorten(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) if text.len() > longest => *text = Text::new(text, longest).as_str().to_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| shorten(value, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|value| shorten(value, longest)),
        _ => {}
    }
}

/// Bytes of an event, as the log holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record(Box<[u8]>);

impl Record {
    /// Takes the bytes of an event from another process.
    ///
    /// # Errors
    /// They are not one JSON object in one line of at most [`EVENT_MAX`] bytes, or it has no class and no time.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Record, Error> {
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        struct Least {
            class_uid: u32,
            time: u64,
            metadata: serde::de::IgnoredAny,
        }
        Record::parse::<Least>(bytes).map(|(record, _)| record)
    }

    /// Takes the bytes of an event from another process, and returns the fields of `T` too. They are read once.
    ///
    /// # Errors
    /// They are not one JSON object in one line of at most [`EVENT_MAX`] bytes, or it does not have these fields.
    pub fn parse<T: DeserializeOwned>(bytes: Vec<u8>) -> Result<(Record, T), Error> {
        if bytes.len() > EVENT_MAX {
            return Err(Error::NotAnEvent("it is too long"));
        }
        if bytes.first() != Some(&b'{')
            || bytes.last() != Some(&b'}')
            || bytes.iter().any(|byte| *byte < b' ')
        {
            return Err(Error::NotAnEvent("it is not a JSON object in one line"));
        }
        // Also texts that are not read here: a reader of the log takes nothing else.
        let text = std::str::from_utf8(&bytes).map_err(|_| Error::NotAnEvent("it is not UTF-8"))?;
        let fields = serde_json::from_str(text)
            .map_err(|_| Error::NotAnEvent("it lacks class_uid, time or metadata"))?;
        Ok((Record(bytes.into()), fields))
    }

    /// Returns the record for a number of such events.
    #[must_use]
    pub fn counted(&self, count: u32) -> Record {
        let Ok(mut event) = serde_json::from_slice::<Map<String, Value>>(&self.0) else {
            return self.clone();
        };
        event.insert("count".to_owned(), count.into());
        match serde_json::to_vec(&event) {
            Ok(bytes) if bytes.len() <= EVENT_MAX => Record(bytes.into()),
            _ => self.clone(),
        }
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns a number as the schema can hold it: with a sign, in 64 bits.
fn long(number: u64) -> u64 {
    number.min(i64::MAX as u64)
}

/// Returns namespace and name.
fn full_name(sandbox: &Sandbox<'_>) -> Text {
    Text::name(&format!("{}/{}", sandbox.namespace, sandbox.name))
}

fn device(sandbox: &Sandbox<'_>, container: Option<&str>) -> Device {
    Device {
        type_id: 6,
        name: full_name(sandbox),
        uid: sandbox.uid.map(Text::name),
        container: container.map(named),
    }
}

fn named(name: &str) -> Named {
    Named { name: Some(Text::name(name)), uid: None }
}

fn endpoint(sandbox: &Sandbox<'_>) -> Endpoint {
    Endpoint { name: Some(full_name(sandbox)), uid: sandbox.uid.map(Text::name), ..Endpoint::default() }
}

fn user(principal: &Principal<'_>) -> Actor {
    let name = if principal.name.is_empty() { "unknown" } else { principal.name };
    let groups = principal.groups.iter().take(GROUPS_MAX).map(|group| named(group)).collect();
    let user = User { name: Text::name(name), uid: principal.uid.map(Text::name), groups };
    Actor { user: Some(user), ..Actor::default() }
}

#[cfg(test)]
mod tests;
