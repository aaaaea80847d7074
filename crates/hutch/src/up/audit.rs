//! The audit log of `hutch up`. The root process writes it: what the front reports about its callers, what the proxy decides
//! for sandboxes, and what the node does with containers.

mod findings;
mod requests;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use hutch_audit::event::{Change, Decision, Lifecycle, Lookup, Verdict};
use hutch_audit::{Event, Kind, Record};
use hutch_egress::{Decided, Ended, Refusal};
use hutch_kubelet::PodId;
use hutch_node::{ContainerChange, Journal};
use hutch_screen::Sighting;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

pub(super) use self::findings::FrontFindings;
pub(super) use self::requests::RequestLog;
pub(super) use self::wire::FrontLog;
use self::wire::{Answer, Frame};
use super::recent::Recent;
use super::screens::DOORS;
use crate::audit_log::{Answered, ProxyLog, Subject, findings::sighted};

/// Records of the front that wait for the disk at once.
const WAITING: usize = 256;
/// Maximum time for which a change of a container waits for its record.
const WRITE: Duration = Duration::from_secs(10);
/// Codes of answers of DNS: no error, and a name that does not exist.
const FOUND: u16 = 0;
const NOT_FOUND: u16 = 3;

/// The open log, and the sandboxes of Pods.
pub(super) struct AuditLog {
    log: ProxyLog,
    pods: Mutex<Pods>,
}

/// Sandboxes by the uids of their Pods.
#[derive(Default)]
struct Pods {
    all: HashMap<String, Subject>,
    ended: Recent<String, Subject>,
}

impl AuditLog {
    /// Opens the log in a folder, or makes one.
    pub(super) fn open(folder: &Path, strict: bool) -> anyhow::Result<Arc<AuditLog>> {
        Ok(Arc::new(AuditLog { log: ProxyLog::open(folder, strict)?, pods: Mutex::default() }))
    }

    /// Returns true if what callers and sandboxes do waits for its record.
    pub(super) fn is_strict(&self) -> bool {
        self.log.is_strict()
    }

    /// Writes what waits, and closes the log.
    pub(super) async fn close(&self) {
        self.log.close().await;
    }

    fn subject(&self, pod: &str) -> Option<Subject> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).all.get(pod).cloned()
    }

    /// Returns the sandbox of a Pod, also of one that has ended lately.
    fn recent(&self, pod: &str) -> Option<Subject> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.all.get(pod).cloned().or_else(|| pods.ended.get(&pod.to_owned()))
    }

    fn push(&self, event: &Event) {
        self.log.push(event);
    }

    /// Counts records that were lost on their way here.
    pub(super) fn lost(&self, count: u64) {
        self.log.lost(count);
    }

    /// Records a decision of the proxy about a Pod. `answered` is set if it waits for that.
    pub(super) fn decided(&self, pod: &str, decided: &Decided, answered: Option<Answered>) {
        self.log.decided(self.recent(pod).as_ref(), decided, answered);
    }

    /// Records that connections of a Pod have ended.
    pub(super) fn ended(&self, pod: &str, ended: &Ended) {
        self.log.ended(self.recent(pod).as_ref(), ended);
    }

    /// Records that the value of a credential is sent for a Pod, as [`AuditLog::decided`].
    pub(super) fn used(&self, pod: &str, credential: &str, destination: &str, answered: Option<Answered>) {
        self.log.used(self.recent(pod).as_ref(), credential, destination, answered);
    }

    /// Records that a name of a Pod has got an address. `answered` is set if its answer waits for that.
    pub(super) fn named(&self, pod: &str, name: &str, answered: Option<Answered>) {
        let event = self.lookup(pod, name, FOUND, Verdict::of(Decision::Allowed));
        if event.is_none() && answered.is_none() {
            self.lost(1);
        }
        self.log.allow(event, answered);
    }

    /// Records that a name has no address for a Pod.
    pub(super) fn unnamed(&self, pod: &str, refusal: &Refusal) {
        let reason = refusal.reason.to_string();
        let verdict = Verdict { reason: Some(&reason), ..Verdict::of(Decision::Denied) };
        match self.lookup(pod, &refusal.destination, NOT_FOUND, verdict) {
            Some(event) => self.push(&event),
            None => self.lost(1),
        }
    }

    fn lookup(&self, pod: &str, name: &str, code: u16, verdict: Verdict<'_>) -> Option<Event> {
        let subject = self.recent(pod)?;
        let lookup = Lookup { sandbox: subject.sandbox(), name, kind: None, code, verdict };
        Some(Event::lookup(SystemTime::now(), &lookup))
    }

    /// Receives the records of the front until it ends.
    pub(super) async fn receive(self: Arc<Self>, socket: OwnedFd) -> io::Result<()> {
        let (reader, writer) = wire::stream(socket)?.into_split();
        let (answers, queue) = mpsc::channel(WAITING);
        let writing = tokio::spawn(wire::answer(writer, queue));
        let read = self.read(reader, answers).await;
        writing.abort();
        read
    }

    async fn read(&self, reader: OwnedReadHalf, answers: mpsc::Sender<Answer>) -> io::Result<()> {
        let log = self.log.log();
        let mut reader = BufReader::with_capacity(wire::BUFFER, reader);
        let waiting = Arc::new(Semaphore::new(WAITING));
        let mut stuck = false;
        while let Some(frame) = Frame::read(&mut reader).await? {
            match frame {
                Frame::Lost(count) => log.lost(count),
                Frame::Record(bytes) => {
                    let record = of_front(bytes)?;
                    match log.is_strict() {
                        // A disk that fails holds back what must be on it only once.
                        true if stuck => stuck = log.push(record).is_err(),
                        true => stuck = log.enqueue(record).await.is_err(),
                        false => drop(log.record(record).await),
                    }
                }
                Frame::Durable(id, bytes) => {
                    let record = of_front(bytes)?;
                    let Ok(place) = waiting.clone().acquire_owned().await else { return Ok(()) };
                    let (log, answers) = (log.clone(), answers.clone());
                    tokio::spawn(async move {
                        let outcome = log.record_durably(record).await;
                        if let Err(error) = &outcome {
                            tracing::error!(%error, "the audit log refuses a record, so the request is refused");
                        }
                        let _ = answers.send(Answer { id, written: outcome.is_ok() }).await;
                        drop(place);
                    });
                }
            }
            if reader.buffer().is_empty() {
                // The end of what the front has gathered.
                log.flush();
            }
        }
        Ok(())
    }
}

/// Takes a record of the front, which may report only what its callers do.
fn of_front(bytes: Vec<u8>) -> io::Result<Record> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let (record, event) = Record::parse::<Reported>(bytes).map_err(|error| wrong(error.to_string()))?;
    let kind = Kind::parse(&event.metadata.event_code);
    let class = match kind {
        Some(kind @ (Kind::Api | Kind::Exec | Kind::File | Kind::Http | Kind::Finding)) => kind.class(),
        _ => return Err(wrong(format!("an audit record of the kind {kind:?}"))),
    };
    if (event.category_uid, event.class_uid) != class {
        return Err(wrong("an audit record of another class than its kind".to_owned()));
    }
    if kind == Some(Kind::Finding) {
        // It scans commands and downloads only.
        let door = event.unmapped.and_then(|unmapped| unmapped.door);
        return match door.as_deref().is_some_and(|door| DOORS.iter().any(|of_front| of_front.name() == door))
        {
            true => Ok(record),
            false => Err(wrong("an audit record of a finding that the front cannot have".to_owned())),
        };
    }
    // Without one it is a request of a sandbox.
    match event.actor.is_some_and(|actor| actor.user.is_some()) {
        true => Ok(record),
        false => Err(wrong("an audit record without a caller".to_owned())),
    }
}

/// Parts of a record of the front that are checked.
#[derive(Deserialize)]
struct Reported {
    #[serde(rename = "time")]
    _time: u64,
    category_uid: u32,
    class_uid: u32,
    metadata: ReportedMetadata,
    actor: Option<ReportedActor>,
    unmapped: Option<ReportedUnmapped>,
}

#[derive(Deserialize)]
struct ReportedUnmapped {
    door: Option<String>,
}

#[derive(Deserialize)]
struct ReportedMetadata {
    event_code: String,
}

#[derive(Deserialize)]
struct ReportedActor {
    user: Option<IgnoredAny>,
}

impl Journal for AuditLog {
    fn begins(&self, pod: &PodId, sandbox: Option<(&str, &str)>) {
        let (name, uid) = sandbox.unwrap_or((&pod.name, &pod.uid));
        let subject =
            Subject { namespace: pod.namespace.clone(), name: name.to_owned(), uid: uid.to_owned() };
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).all.insert(pod.uid.clone(), subject);
    }

    fn before(
        &self,
        pod: &str,
        containers: &[String],
        what: ContainerChange<'_>,
    ) -> Option<BoxFuture<'static, Result<(), String>>> {
        if !self.is_strict() {
            return None;
        }
        let events = containers.iter().map(|container| self.lifecycle(pod, container, what, true));
        let (events, log) = (events.collect::<Option<Vec<_>>>(), self.log.log().clone());
        let recorded = async move {
            // A Pod that is not known has no record.
            let events = events.ok_or(())?;
            let written = try_join_all(events.iter().map(|event| log.record_durably(event.record())));
            timeout(WRITE, written).await.map_err(drop)?.map_err(drop)
        };
        Some(recorded.map(|recorded| recorded.map(drop).map_err(|()| wire::REFUSED.to_owned())).boxed())
    }

    fn happened(&self, pod: &str, container: &str, what: ContainerChange<'_>) {
        if let Some(event) = self.lifecycle(pod, container, what, false) {
            self.push(&event);
        }
    }

    fn found(&self, pod: &str, sighting: &Sighting<'_>) {
        if let Some(subject) = self.recent(pod) {
            self.push(&sighted(&subject.sandbox(), sighting));
        }
    }

    fn ends(&self, pod: &str) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(subject) = pods.all.remove(pod) {
            pods.ended.push(pod.to_owned(), subject);
        }
    }
}

impl AuditLog {
    /// Returns the event of a change of a container, which is `planned` or made.
    fn lifecycle(
        &self,
        pod: &str,
        container: &str,
        what: ContainerChange<'_>,
        planned: bool,
    ) -> Option<Event> {
        let subject = match what {
            // It is reported by another task than the end of the Pod.
            ContainerChange::Ended { .. } => self.recent(pod)?,
            _ => self.subject(pod)?,
        };
        let (change, code, reason) = match what {
            ContainerChange::Started { snapshot } => {
                (Change::Started, None, snapshot.map(|name| format!("from snapshot {name}")))
            }
            ContainerChange::Ended { code, out_of_memory } => {
                (Change::Ended, Some(code), out_of_memory.then(|| "OOMKilled".to_owned()))
            }
            ContainerChange::Frozen => (Change::Frozen, None, None),
            ContainerChange::PagedOut => (Change::PagedOut, None, None),
            ContainerChange::Thawed => (Change::Thawed, None, None),
        };
        let uid = format!("{pod}/{container}");
        let (sandbox, reason) = (subject.sandbox(), reason.as_deref());
        let lifecycle = Lifecycle { sandbox, container, uid: &uid, change, planned, code, reason };
        Some(Event::lifecycle(SystemTime::now(), &lifecycle))
    }
}

#[cfg(test)]
mod tests {
    use hutch_audit::View;
    use hutch_audit::event::{ApiCall, Principal, Sandbox};
    use hutch_egress::Outcome;

    use super::*;

    fn call() -> Record {
        let principal = Principal { name: "alice", uid: None, groups: &[] };
        let call = ApiCall {
            principal,
            impersonator: None,
            verb: "get",
            group: "",
            resource: "pods",
            namespace: "default",
            name: "a",
            path: None,
            method: None,
            user_agent: None,
            source: None,
            uid: None,
            status: Some(200),
            count: None,
            sandbox: None,
            claim: None,
            annotations: &[],
            verdict: Verdict::of(Decision::Allowed),
        };
        Event::api(SystemTime::now(), &call).record()
    }

    #[test]
    fn front_reports_only_what_its_callers_do() {
        let call = call();
        let text = String::from_utf8(call.as_bytes().to_vec()).unwrap();
        assert!(of_front(text.clone().into_bytes()).is_ok());
        let other = text.replace("6003", "1007");
        assert!(of_front(other.into_bytes()).is_err());
        for code in ["lifecycle", "log", "connection", "unknown"] {
            let other = text.replace(r#""event_code":"api""#, &format!(r#""event_code":"{code}""#));
            assert_ne!(other, text);
            assert!(of_front(other.into_bytes()).is_err(), "{code}");
        }
        assert!(of_front(b"{}\n{}".to_vec()).is_err());
        let forged = text.replace(r#""user":"#, r#""app":"#);
        assert_ne!(forged, text);
        assert!(of_front(forged.into_bytes()).is_err());
    }

    fn found() -> hutch_egress::Found {
        let found = serde_json::json!({ "rule": "aws-key", "kind": "secret", "severity": "high",
            "direction": "outbound", "at": "output", "fingerprint": "0123456789abcdef" });
        serde_json::from_value(found).unwrap()
    }

    #[test]
    fn front_reports_only_findings_of_its_doors() {
        let sandbox = Sandbox { namespace: "team", name: "box", uid: Some("s") };
        let (found, origin) = (found(), hutch_screen::Origin { pod: "team/p".into(), part: "main".into() });
        let record = |door| {
            let (action, further) = (hutch_policy::ScanAction::Redact, Some(2));
            let sighting = Sighting { origin: &origin, door, found: &found, action, further };
            sighted(&sandbox, &sighting).record().as_bytes().to_vec()
        };
        for (door, expected) in [
            (hutch_policy::Door::Exec, true),
            (hutch_policy::Door::Downloads, true),
            (hutch_policy::Door::Logs, false),
        ] {
            assert_eq!(of_front(record(door)).is_ok(), expected, "{door:?}");
        }
        let text = String::from_utf8(record(hutch_policy::Door::Exec)).unwrap();
        let without = text.replace(r#""door":"exec""#, r#""other":"exec""#);
        assert_ne!(without, text);
        assert!(of_front(without.into_bytes()).is_err());
        let view = View::parse(text.as_bytes()).to_string();
        let shown = "finding    team/box                 modified aws-key: the scanner finds `aws-key` in the output, \
                     exec of main 2 times";
        assert!(view.ends_with(shown), "{view}");
    }

    #[tokio::test]
    async fn findings_and_uses_of_credentials_are_events_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("audit");
        let log = AuditLog::open(&folder, false).unwrap();
        let pod = PodId { namespace: "team".into(), name: "p".into(), uid: "u".into() };
        log.begins(&pod, Some(("box", "s")));
        let decided = |outcome, finding: serde_json::Value, credential: Option<&str>| Decided {
            outcome,
            destination: "a.example:443".into(),
            method: Some("POST".into()),
            path: Some("/x".into()),
            calls: Vec::new(),
            level: None,
            rule: None,
            reason: Some("a reason".into()),
            finding: serde_json::from_value(finding).unwrap(),
            credential: credential.map(str::to_owned),
            alarm: credential.map(|_| hutch_egress::Alarm::MisplacedCredential),
        };
        let found = serde_json::json!({ "rule": "aws-key", "kind": "secret", "severity": "high",
            "direction": "outbound", "at": "body", "fingerprint": "0123456789abcdef" });
        log.decided("u", &decided(Outcome::Denied, found.clone(), None), None);
        log.decided("u", &decided(Outcome::Observed, found.clone(), None), None);
        log.decided("u", &decided(Outcome::Redacted, found, None), None);
        log.decided("u", &decided(Outcome::Denied, serde_json::Value::Null, Some("github")), None);
        log.used("u", "github", "a.example:443", None);
        log.close().await;
        let mut reader = hutch_audit::Reader::new(&folder, 0);
        let (mut lines, mut severities) = (Vec::new(), Vec::new());
        while let Some(entry) = reader.read().unwrap() {
            let view = View::parse(entry.event());
            if view.kind() != Some(Kind::Log) {
                lines.push(view.to_string().split_whitespace().skip(1).collect::<Vec<_>>().join(" "));
                severities.push(view.severity());
            }
        }
        let finding =
            "aws-key: the scanner finds `aws-key` in the body, a.example:443 sha256:0123456789abcdef";
        assert_eq!(
            lines,
            [
                &format!("finding team/box denied {finding} (a reason)"),
                "http team/box denied POST a.example:443/x (a reason)",
                &format!("finding team/box alerted {finding} (a reason)"),
                &format!("finding team/box modified {finding} (a reason)"),
                "finding team/box denied Credential sent where its value may not go: a.example:443 (a reason)",
                "credential team/box denied github for a.example (a reason)",
                "http team/box denied POST a.example:443/x (a reason)",
                "credential team/box allowed github for a.example",
            ]
        );
        assert_eq!(severities, [4, 3, 4, 4, 4, 3, 3, 1]);
    }

    #[tokio::test]
    async fn decisions_after_the_end_of_a_pod_are_recorded_or_counted() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("audit");
        let log = AuditLog::open(&folder, false).unwrap();
        let pod = PodId { namespace: "team".into(), name: "p".into(), uid: "u".into() };
        log.begins(&pod, Some(("box", "s")));
        log.ends("u");
        for pod in ["u", "other"] {
            log.used(pod, "github", "a.example:443", None);
            log.named(pod, "a.example", None);
        }
        // Its last container can be reported as ended after it.
        log.happened("u", "main", ContainerChange::Ended { code: 0, out_of_memory: false });
        log.happened("u", "main", ContainerChange::Started { snapshot: None });
        log.close().await;
        let mut reader = hutch_audit::Reader::new(&folder, 0);
        let (mut found, mut lost) = (Vec::new(), 0);
        while let Some(entry) = reader.read().unwrap() {
            let view = View::parse(entry.event());
            match view.kind().unwrap() {
                // One record reports several, or each has its own, by when the log writes.
                Kind::Log => lost += records_lost(&view.subject()),
                kind => found.push((kind, view.sandbox().to_owned())),
            }
        }
        let of_box = |kind| (kind, "team/box".to_owned());
        assert_eq!(found, [of_box(Kind::Credential), of_box(Kind::Dns), of_box(Kind::Lifecycle)]);
        assert_eq!(lost, 2, "the use and the name of the other Pod");
    }

    /// Returns the number of a record such as "2 records were lost, since …"; 0 for another one.
    fn records_lost(subject: &str) -> u64 {
        let number = subject.split_once(" records were lost").map(|(number, _)| number);
        number.map_or(0, |number| number.rsplit(' ').next().unwrap().parse().unwrap())
    }

    #[tokio::test]
    async fn records_of_the_front_reach_the_disk_before_a_strict_log_answers() {
        use hutch_apiserver::Audit as _;

        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::open(&folder.path().join("audit"), true).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let receiving = tokio::spawn(log.clone().receive(ours.into()));
        let front = FrontLog::new(theirs.into(), true).unwrap();
        front.record(call()).await.unwrap();
        let mut reader = hutch_audit::Reader::new(&folder.path().join("audit"), 0);
        let mut kinds = Vec::new();
        while let Some(entry) = reader.read().unwrap() {
            kinds.push(View::parse(entry.event()).kind());
        }
        assert_eq!(kinds.last(), Some(&Some(Kind::Api)));
        log.close().await;
        assert!(front.record(call()).await.is_err());
        drop(front);
        receiving.await.unwrap().unwrap();
    }
}
