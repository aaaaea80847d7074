//! Decisions of the proxy in the audit log: that of `hutch up`, and that of the gateway of a cluster.

pub(crate) mod findings;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use hutch_audit::event::{
    Connection, ConnectionActivity, CredentialUse, Decision, Request, Rule, Sandbox, Unidentified, Verdict,
};
use hutch_audit::{Event, Log, Options};
use hutch_egress::{Decided, Ended, Outcome};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::Semaphore;

/// Records of the proxy that wait for the disk at once; further ones are refused.
const ALLOWED: usize = 4096;

/// Sandbox of a Pod, or the Pod itself if it has none.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Subject {
    /// Returns the Sandbox that owns a Pod, or the Pod itself.
    pub(crate) fn of(pod: &Pod) -> Subject {
        let owner = hutch_api::owner::sandbox(pod).map(|owner| (owner.name.clone(), owner.uid.clone()));
        let (name, uid) = owner.unwrap_or_else(|| (pod.name_any(), pod.uid().unwrap_or_default()));
        Subject { namespace: pod.namespace().unwrap_or_default(), name, uid }
    }

    pub(crate) fn sandbox(&self) -> Sandbox<'_> {
        Sandbox { namespace: &self.namespace, name: &self.name, uid: Some(&self.uid) }
    }
}

/// Receives whether a record is on the disk.
pub(crate) type Answered = Box<dyn FnOnce(bool) + Send>;

/// An open log, which takes the decisions of the proxy.
pub(crate) struct ProxyLog {
    log: Log,
    /// Places of records of the proxy that wait for the disk.
    waiting: Arc<Semaphore>,
}

impl ProxyLog {
    /// Opens the log in a folder, or makes one.
    pub(crate) fn open(folder: &Path, strict: bool) -> anyhow::Result<ProxyLog> {
        let log = Log::open(folder, Options { strict, ..Options::default() }).context("the audit log")?;
        Ok(ProxyLog { log, waiting: Arc::new(Semaphore::new(ALLOWED)) })
    }

    /// Returns the log, for other records.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns true if what callers and sandboxes do waits for its record.
    pub(crate) fn is_strict(&self) -> bool {
        self.log.is_strict()
    }

    /// Writes what waits, and closes the log.
    pub(crate) async fn close(&self) {
        let log = self.log.clone();
        // It waits for the disk.
        let _ = tokio::task::spawn_blocking(move || log.close()).await;
    }

    /// Records an event that holds nothing back.
    pub(crate) fn push(&self, event: &Event) {
        // A loss is counted, and a later record reports it.
        let _ = self.log.push(event.record());
    }

    /// Counts records that were lost on their way here.
    pub(crate) fn lost(&self, count: u64) {
        self.log.lost(count);
    }

    /// Records what the proxy allows a sandbox. `answered` is set if it waits for that; it may not do what is not recorded.
    pub(crate) fn allow(&self, event: Option<Event>, answered: Option<Answered>) {
        let Some(answered) = answered else { return event.iter().for_each(|event| self.push(event)) };
        let (Some(event), Ok(place)) = (event, self.waiting.clone().try_acquire_owned()) else {
            return answered(false);
        };
        let log = self.log.clone();
        tokio::spawn(async move {
            answered(log.record_durably(event.record()).await.is_ok());
            drop(place);
        });
    }

    /// Records a decision of the proxy about a sandbox. If none is known, what waits is refused, and the rest counts as lost.
    pub(crate) fn decided(&self, subject: Option<&Subject>, decided: &Decided, answered: Option<Answered>) {
        if subject.is_none() && answered.is_none() {
            self.lost(1);
        }
        self.allow(subject.and_then(|subject| self.decision(subject, decided)), answered);
    }

    /// Returns the event of a decision, and records what goes with it. A finding that lets a request pass is no decision.
    fn decision(&self, subject: &Subject, decided: &Decided) -> Option<Event> {
        let (decision, success) = match decided.outcome {
            Outcome::Allowed => (Decision::Allowed, None),
            Outcome::Denied => (Decision::Denied, None),
            Outcome::Observed => (Decision::Observed, None),
            Outcome::Redacted => (Decision::Modified, None),
            Outcome::Failed => (Decision::Allowed, Some(false)),
        };
        let rule = Rule { level: decided.level.as_deref(), rule: decided.rule.as_deref() };
        let verdict = Verdict { decision, rule, reason: decided.reason.as_deref(), success };
        let (host, port) = split(&decided.destination);
        let (sandbox, now) = (subject.sandbox(), SystemTime::now());
        if let Some(found) = &decided.finding {
            self.push(&findings::found(&sandbox, found, &decided.destination, verdict));
            if matches!(decided.outcome, Outcome::Observed | Outcome::Redacted) {
                // The request itself has a record of its own.
                return None;
            }
        }
        if let Some(alarm) = decided.alarm {
            self.push(&findings::alarm(&sandbox, alarm, &decided.destination, verdict));
        }
        if let Some(credential) = &decided.credential {
            self.push(&Event::credential(now, &CredentialUse { sandbox, credential, host, verdict }));
        }
        let event = match (&decided.method, &decided.path) {
            (Some(method), path) => {
                let (path, calls) = (path.as_deref().unwrap_or("/"), decided.calls.as_slice());
                Event::request(
                    now,
                    &Request { sandbox, method, host, port, path, calls, status: None, verdict },
                )
            }
            (None, _) => {
                let activity = match decided.outcome {
                    Outcome::Allowed | Outcome::Observed | Outcome::Redacted => ConnectionActivity::Open,
                    Outcome::Denied => ConnectionActivity::Refuse,
                    Outcome::Failed => ConnectionActivity::Fail,
                };
                let (address, traffic, count) = (None, None, None);
                Event::connection(
                    now,
                    &Connection { sandbox, activity, host, address, port, traffic, count, verdict },
                )
            }
        };
        Some(event)
    }

    /// Records that the value of a credential is sent for a sandbox, as [`ProxyLog::decided`].
    pub(crate) fn used(
        &self,
        subject: Option<&Subject>,
        credential: &str,
        destination: &str,
        answered: Option<Answered>,
    ) {
        if subject.is_none() && answered.is_none() {
            self.lost(1);
        }
        let (host, _) = split(destination);
        let verdict = Verdict::of(Decision::Allowed);
        let event = subject.map(|subject| {
            let used = CredentialUse { sandbox: subject.sandbox(), credential, host, verdict };
            Event::credential(SystemTime::now(), &used)
        });
        self.allow(event, answered);
    }

    /// Records that connections of a sandbox have ended. If none is known, they count as lost.
    pub(crate) fn ended(&self, subject: Option<&Subject>, ended: &Ended) {
        let Some(subject) = subject else { return self.lost(1) };
        let (host, port) = split(&ended.destination);
        let connection = Connection {
            sandbox: subject.sandbox(),
            activity: if ended.reset { ConnectionActivity::Reset } else { ConnectionActivity::Close },
            host,
            address: None,
            port,
            traffic: Some((ended.received, ended.sent)),
            count: Some(ended.connections).filter(|count| *count > 1),
            verdict: Verdict::of(Decision::Logged),
        };
        self.push(&Event::connection(SystemTime::now(), &connection));
    }

    /// Records that a client of a gateway is refused, because it has no sandbox.
    pub(crate) fn unidentified(&self, source: IpAddr) {
        let reason = "no Pod of a Sandbox has its address and token";
        let verdict = Verdict { reason: Some(reason), ..Verdict::of(Decision::Denied) };
        self.push(&Event::unidentified(SystemTime::now(), &Unidentified { source, verdict }));
    }
}

/// Returns host and port of a destination.
fn split(destination: &str) -> (&str, Option<u16>) {
    match destination.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => match port.parse() {
            Ok(port) => (host.trim_matches(['[', ']']), Some(port)),
            Err(_) => (destination, None),
        },
        _ => (destination, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_has_host_and_port() {
        assert_eq!(split("a.example:443"), ("a.example", Some(443)));
        assert_eq!(split("[::1]:80"), ("::1", Some(80)));
        assert_eq!(split("a client"), ("a client", None));
    }

    #[test]
    fn any_news_of_a_proxy_are_one_bounded_record() {
        use hutch_audit::event::EVENT_MAX;
        use hutch_egress::control::News;
        let folder = tempfile::tempdir().unwrap();
        let log = ProxyLog::open(&folder.path().join("audit"), false).unwrap();
        let subject = Subject { namespace: "team".into(), name: "box".into(), uid: "u".into() };
        hutch_testkit::hostile::feed("egress_news", |bytes| {
            let event = match serde_json::from_slice(bytes) {
                Ok(News::Decided { decided, .. }) => log.decision(&subject, &decided),
                Ok(News::Used { credential, destination, .. }) => {
                    log.used(Some(&subject), &credential, &destination, None);
                    None
                }
                _ => None,
            };
            let Some(event) = event else { return };
            let record = event.record();
            assert!(record.as_bytes().len() <= EVENT_MAX, "{record:?}");
            assert!(hutch_audit::Record::from_bytes(record.as_bytes().to_vec()).is_ok(), "{record:?}");
        });
    }
}
