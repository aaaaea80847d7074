//! Events as people read them: filters, one line for each, and the summary of a sandbox.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Deserialize;
use time::OffsetDateTime;

use crate::event::Kind;
use crate::text::Text;

/// Maximum rows of each table of a summary.
const ROWS_MAX: usize = 10;
/// Maximum distinct texts that a summary counts.
const DISTINCT_MAX: usize = 10_000;

/// Parts of an event that people read. Every field is untrusted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct View {
    activity_id: u32,
    activity_name: Option<String>,
    time: u64,
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
    dst_endpoint: EndpointView,
    http_request: RequestView,
    query: QueryView,
    process: ProcessView,
    exit_code: Option<i64>,
    file: FileView,
    api: ApiView,
    resources: Vec<ResourceView>,
    finding_info: FindingView,
}

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
    hostname: Option<String>,
    port: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestView {
    http_method: String,
    url: UrlView,
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
        let tag = self.metadata.tags.iter().find(|tag| tag.name == "sandbox");
        tag.map_or("", |tag| tag.value.as_str())
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

    fn destination(&self) -> String {
        let host = self.dst_endpoint.hostname.as_deref().unwrap_or("?");
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
        let user = self.actor.user.name.as_deref().unwrap_or("?");
        match self.kind() {
            Some(Kind::Connection) => self.destination(),
            Some(Kind::Http) => {
                let RequestView { http_method, url } = &self.http_request;
                format!("{http_method} {}{}", self.destination(), url.path)
            }
            Some(Kind::Dns) => self.query.hostname.clone(),
            Some(Kind::Exec) => match (&self.process.cmd_line, self.exit_code) {
                (Some(command), _) => format!("{command} (by {user})"),
                (None, Some(code)) => format!("{} exited with {code}", self.process.uid),
                (None, None) => format!("{} ended", self.process.uid),
            },
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
            Some(Kind::File) => format!("{} {}", file_activity(self.activity_id), self.file.path),
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
        if let Some(rule) = self.rule() {
            write!(to, " [{}]", Text::name(&rule).as_str())?;
        }
        match &self.status_detail {
            Some(reason) => write!(to, " ({})", Text::long(reason).as_str()),
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

/// Selects events.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Sandbox: `NAMESPACE/NAME`, or its uid.
    pub sandbox: Option<String>,
    /// First time, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Kinds; empty for all.
    pub kinds: Vec<Kind>,
    /// Only what was refused.
    pub denied: bool,
}

impl Filter {
    /// Returns true if an event is selected.
    pub fn selects(&self, view: &View) -> bool {
        let is_sandbox = self.sandbox.as_deref().is_none_or(|sandbox| {
            view.sandbox() == sandbox || view.metadata.correlation_uid.as_deref() == Some(sandbox)
        });
        is_sandbox
            && self.since.is_none_or(|since| view.time >= since)
            && (self.kinds.is_empty() || view.kind().is_some_and(|kind| self.kinds.contains(&kind)))
            && (!self.denied || view.is_denied())
    }
}

/// Summary of the events of one sandbox.
#[derive(Debug, Default)]
pub struct Summary {
    first: u64,
    last: u64,
    kinds: BTreeMap<Kind, (u64, u64)>,
    /// Subjects by table, with the number of events, and of those that were refused.
    tables: BTreeMap<&'static str, BTreeMap<String, (u64, u64)>>,
}

impl Summary {
    /// Takes an event.
    pub fn add(&mut self, view: &View) {
        let Some(kind) = view.kind() else { return };
        self.first = if self.first == 0 { view.time } else { self.first.min(view.time) };
        self.last = self.last.max(view.time);
        let denied = u64::from(view.is_denied());
        let count = self.kinds.entry(kind).or_default();
        *count = (count.0 + 1, count.1 + denied);
        let (table, subject) = match kind {
            Kind::Connection | Kind::Http => ("Destinations", view.destination()),
            Kind::Dns => ("Names", view.query.hostname.clone()),
            Kind::Exec if view.process.cmd_line.is_some() => ("Commands", view.subject()),
            Kind::Api => {
                let user = view.actor.user.name.as_deref().unwrap_or("?");
                ("Callers", format!("{user}: {}", view.api.operation))
            }
            Kind::Credential => ("Credentials", view.subject()),
            Kind::Finding => ("Findings", view.subject()),
            Kind::Lifecycle => ("Containers", view.subject()),
            Kind::File => ("Files", view.subject()),
            Kind::Approval => ("Approvals", view.subject()),
            Kind::Exec | Kind::Log => return,
        };
        let rows = self.tables.entry(table).or_default();
        if rows.len() < DISTINCT_MAX || rows.contains_key(&subject) {
            let row = rows.entry(subject).or_default();
            *row = (row.0 + 1, row.1 + denied);
        }
    }

    /// Returns true if no event was taken.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Tables for people: what happened most, and what was refused.
impl fmt::Display for Summary {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "From {} to {}", timestamp(self.first), timestamp(self.last))?;
        let mut counts = String::new();
        for (kind, (count, denied)) in &self.kinds {
            write!(counts, "{}{} {count}", if counts.is_empty() { "" } else { ", " }, kind.as_str())?;
            if *denied > 0 {
                write!(counts, " ({denied} denied)")?;
            }
        }
        writeln!(to, "Events: {counts}")?;
        for (table, rows) in &self.tables {
            writeln!(to, "\n{table}:")?;
            let mut sorted: Vec<_> = rows.iter().collect();
            sorted.sort_by_key(|(subject, (count, denied))| (u64::MAX - denied, u64::MAX - count, *subject));
            for (subject, (count, denied)) in sorted.iter().take(ROWS_MAX) {
                let denied = if *denied > 0 { format!("{denied} denied") } else { String::new() };
                writeln!(to, "  {count:>6} {denied:<12} {}", Text::long(subject).as_str())?;
            }
            if sorted.len() > ROWS_MAX {
                writeln!(to, "  and {} more", sorted.len() - ROWS_MAX)?;
            }
        }
        Ok(())
    }
}
