//! Events as people read them: filters, one line for each, and the summary of a sandbox.

mod filter;
mod summary;

use std::fmt;

use serde::Deserialize;
use time::OffsetDateTime;

pub use self::filter::{Filter, Selector};
pub use self::summary::Summary;
use crate::event::Kind;
use crate::text::Text;

/// Parts of an event that people read. Every field is untrusted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    activity_id: u32,
    activity_name: Option<String>,
    time: u64,
    count: Option<u32>,
    severity_id: u8,
    action_id: Option<u8>,
    disposition_id: Option<u8>,
    status_id: Option<u8>,
    status_detail: Option<String>,
    message: Option<String>,
    metadata: MetadataView,
    policy: Named,
    firewall_rule: Named,
    actor: ActorView,
    src_endpoint: EndpointView,
    dst_endpoint: EndpointView,
    traffic: TrafficView,
    http_request: RequestView,
    http_response: ResponseView,
    query: QueryView,
    process: ProcessView,
    exit_code: Option<i64>,
    file: FileView,
    api: ApiView,
    resources: Vec<ResourceView>,
    finding_info: FindingView,
}

/// Resources whose creation asks a question and changes nothing.
const QUESTIONS: &str = "reviews";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataView {
    event_code: String,
    correlation_uid: Option<String>,
    tags: Vec<TagView>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TagView {
    name: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ActorView {
    user: Named,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EndpointView {
    name: Option<String>,
    hostname: Option<String>,
    ip: Option<String>,
    port: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TrafficView {
    bytes_in: u64,
    bytes_out: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestView {
    http_method: String,
    url: UrlView,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponseView {
    code: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UrlView {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct QueryView {
    hostname: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessView {
    cmd_line: Option<String>,
    container: Named,
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileView {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiView {
    operation: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResourceView {
    #[serde(rename = "type")]
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FindingView {
    title: String,
    desc: Option<String>,
}

impl View {
    /// Parses an event. One that is undecodable has no kind.
    pub fn parse(event: &[u8]) -> View {
        serde_json::from_slice(event).unwrap_or_default()
    }

    /// Returns its kind.
    pub fn kind(&self) -> Option<Kind> {
        Kind::parse(&self.metadata.event_code)
    }

    /// Returns its time, in milliseconds since 1970.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns its severity.
    pub fn severity(&self) -> u8 {
        self.severity_id
    }

    /// Returns namespace and name of the sandbox, or an empty text.
    pub fn sandbox(&self) -> &str {
        self.tag("sandbox")
    }

    /// Returns namespace and name of the claim, or an empty text.
    pub fn claim(&self) -> &str {
        self.tag("claim")
    }

    fn tag(&self, name: &str) -> &str {
        let tag = self.metadata.tags.iter().find(|tag| tag.name == name);
        tag.map_or("", |tag| tag.value.as_str())
    }

    /// Returns the name of the caller.
    fn user(&self) -> &str {
        self.actor.user.name.as_deref().unwrap_or("?")
    }

    /// Returns the decision as a word.
    pub fn decision(&self) -> &'static str {
        match (self.action_id, self.disposition_id) {
            (_, Some(8)) => "approved",
            (_, Some(14)) => "held",
            (_, Some(19)) => "alerted",
            (_, Some(21)) => "reset",
            (Some(1), _) if self.status_id == Some(2) => "failed",
            (Some(1), _) => "allowed",
            (Some(2), _) => "denied",
            (Some(3), _) if self.policy.name.is_some() => "observed",
            (Some(4), _) => "modified",
            _ => "-",
        }
    }

    /// Returns true if it was refused.
    pub fn is_denied(&self) -> bool {
        self.action_id == Some(2)
    }

    /// Returns true for a request of a caller that changes something.
    pub fn is_write(&self) -> bool {
        match self.kind() {
            Some(Kind::Api) => {
                let kind = self.resources.first().and_then(|resource| resource.kind.as_deref());
                self.activity_id != 2 && !kind.is_some_and(|kind| kind.ends_with(QUESTIONS))
            }
            Some(Kind::Exec) => self.activity_id == 1,
            Some(Kind::File) => matches!(self.activity_id, 1 | 3..=5),
            // Of a caller: the requests of a sandbox have no user.
            Some(Kind::Http) => {
                self.actor.user.name.is_some()
                    && !matches!(self.http_request.http_method.as_str(), "GET" | "HEAD" | "OPTIONS")
            }
            _ => false,
        }
    }

    /// Returns true for the end of connections.
    fn is_end(&self) -> bool {
        self.kind() == Some(Kind::Connection) && matches!(self.activity_id, 2 | 3)
    }

    fn destination(&self) -> String {
        let EndpointView { name, hostname, .. } = &self.dst_endpoint;
        let host = hostname.as_ref().or(name.as_ref()).map_or("?", String::as_str);
        match self.dst_endpoint.port {
            Some(port) if !host.ends_with(&format!(":{port}")) => format!("{host}:{port}"),
            _ => host.to_owned(),
        }
    }

    /// Returns the subject of the event in words.
    pub fn subject(&self) -> String {
        let object = || {
            let resource = self.resources.first();
            let name = resource.and_then(|resource| resource.name.as_deref()).unwrap_or_default();
            match resource.and_then(|resource| resource.namespace.as_deref()) {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            }
        };
        let user = self.user();
        match self.kind() {
            Some(Kind::Connection) if self.sandbox().is_empty() => {
                format!("a client at {}", self.src_endpoint.ip.as_deref().unwrap_or("?"))
            }
            Some(Kind::Connection) if self.is_end() => {
                let (how, traffic) = (if self.activity_id == 3 { "reset" } else { "closed" }, &self.traffic);
                let (received, sent) = (traffic.bytes_in, traffic.bytes_out);
                format!("{} {how}, {received} bytes received, {sent} sent", self.destination())
            }
            Some(Kind::Connection) => self.destination(),
            Some(Kind::Http) => {
                let RequestView { http_method, url } = &self.http_request;
                let caller = self.actor.user.name.as_ref().map(|user| format!(" (by {user})"));
                format!("{http_method} {}{}{}", self.destination(), url.path, caller.unwrap_or_default())
            }
            Some(Kind::Dns) => self.query.hostname.clone(),
            Some(Kind::Exec) => {
                let ProcessView { cmd_line, uid, .. } = &self.process;
                let (command, id) = (cmd_line.as_deref().unwrap_or("command"), uid.get(..8).unwrap_or(uid));
                let end = match (self.activity_id, self.exit_code) {
                    (2, Some(code)) => format!(" exited with {code}"),
                    (2, None) => " ended".to_owned(),
                    _ => String::new(),
                };
                format!("{command}{end} (exec {id} by {user})")
            }
            Some(Kind::Lifecycle) => {
                let container = self.process.container.name.as_deref().unwrap_or("?");
                match (self.activity_id, self.exit_code) {
                    (99, _) => {
                        format!(
                            "container {container} {}",
                            self.activity_name.as_deref().unwrap_or("changed")
                        )
                    }
                    (1, _) => format!("container {container} started"),
                    (_, Some(code)) => format!("container {container} exited with {code}"),
                    _ => format!("container {container} ended"),
                }
            }
            Some(Kind::File) => format!("{} {} (by {user})", file_activity(self.activity_id), self.file.path),
            Some(Kind::Api | Kind::Approval) => {
                let object = object();
                let path = &self.http_request.url.path;
                let object = if object.is_empty() { path } else { &object };
                format!("{} {object} (by {user})", self.api.operation)
            }
            Some(Kind::Credential) => format!("{} for {}", object(), self.destination()),
            Some(Kind::Finding) => {
                format!(
                    "{}: {}",
                    self.finding_info.title,
                    self.finding_info.desc.as_deref().unwrap_or_default()
                )
            }
            Some(Kind::Log) => self.message.clone().unwrap_or_default(),
            None => "undecodable event".to_owned(),
        }
    }

    fn rule(&self) -> Option<String> {
        match (&self.policy.name, &self.firewall_rule.name) {
            (Some(policy), Some(rule)) => Some(format!("{policy}/{rule}")),
            (Some(policy), None) => Some(policy.clone()),
            _ => None,
        }
    }
}

/// One line: time, kind, sandbox, decision, subject, rule and reason.
impl fmt::Display for View {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().map_or("?", Kind::as_str);
        let sandbox = if self.sandbox().is_empty() { "-" } else { self.sandbox() };
        let (time, sandbox) = (timestamp(self.time), Text::name(sandbox));
        let subject = Text::long(&self.subject());
        write!(to, "{time} {kind:<10} {:<24} {:<8} {}", sandbox.as_str(), self.decision(), subject.as_str())?;
        if let (Some(Kind::Http), Some(code)) = (self.kind(), self.http_response.code) {
            write!(to, " {code}")?;
        }
        if let Some(rule) = self.rule() {
            write!(to, " [{}]", Text::name(&rule).as_str())?;
        }
        if let Some(reason) = &self.status_detail {
            write!(to, " ({})", Text::long(reason).as_str())?;
        }
        match self.count {
            Some(count) => write!(to, " {count} times"),
            None => Ok(()),
        }
    }
}

fn file_activity(activity: u32) -> &'static str {
    match activity {
        1 => "create",
        2 => "read",
        3 => "update",
        4 => "delete",
        5 => "rename",
        _ => "open",
    }
}

/// Returns a time in milliseconds as RFC 3339 writes it.
pub(crate) fn timestamp(milliseconds: u64) -> String {
    let seconds = i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    let (month, rest) = (u8::from(month), milliseconds % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}Z")
}
