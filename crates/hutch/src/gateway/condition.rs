//! The condition of a Pod that says whether its policies are enforced. The controller copies it to the Sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hutch_api::condition::POLICY_ENFORCED_OF_POD;
use hutch_api::trust::CONFIG_MAP;
use hutch_api::{label, owner};
use hutch_attach::{Closed, Conflicts, Objects, egress_of};
use hutch_policy::{Applying, PARTLY_ENFORCED};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;

use super::closing::Closings;
use crate::egress::reads_requests;

/// Type of the condition.
pub(super) const TYPE: &str = POLICY_ENFORCED_OF_POD;

/// Time between two writes of the same condition of a Pod: another gateway that sees the cluster otherwise may have replaced it,
/// and would do so again at once.
const AGAIN: Duration = Duration::from_secs(10);
/// Reason of a condition: nothing closes the network of the Pod.
const NOT_ENFORCED: &str = "NotEnforced";

/// Knowledge about the network plugin of the cluster, the worst last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Plugin {
    /// It closes what a NetworkPolicy closes.
    Enforces,
    /// Nothing, yet.
    #[default]
    Unknown,
    /// It ignores NetworkPolicies.
    Ignores,
}

/// State of the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    holds: bool,
    reason: &'static str,
    message: String,
}

/// Returns the condition of a Pod with these levels. `denied` are destinations about which they disagree, and `mistakes` those
/// of its credentials.
pub(super) fn condition(
    pod: &Pod,
    objects: &Objects,
    (plugin, closings, ends_tls): (Plugin, &Closings<'_>, bool),
    found: Result<&Applying, &Closed>,
    (denied, mistakes): (Option<String>, Vec<String>),
) -> Condition {
    let not = |reason, message| Condition { holds: false, reason, message };
    if let Some(why) = open(pod, objects, (plugin, closings)) {
        let closed = found.err().map(|closed| format!("; through the gateway: {}", closed.message));
        let closed = closed.unwrap_or_default();
        let message = format!("{why}: programs that ignore the gateway may reach the network{closed}");
        return not(NOT_ENFORCED, message);
    }
    let found = match found {
        Err(closed) => return not(closed.reason, closed.message.clone()),
        Ok(found) => found,
    };
    let names: Vec<&str> = found.levels.iter().map(|level| level.name.as_str()).collect();
    let unusable = [mistakes, unusable(pod, found, ends_tls)].concat();
    if !unusable.is_empty() {
        let message = format!("of {}: {}", names.join(", "), unusable.join("; "));
        return not(PARTLY_ENFORCED, message);
    }
    if names.is_empty() {
        return Condition { holds: true, reason: "NoPolicy", message: "no policy applies: no egress".into() };
    }
    let message = egress_of("egress through the gateway", &found.levels);
    match denied {
        Some(denied) => {
            Condition { holds: true, reason: Conflicts::REASON, message: format!("{message}; {denied}") }
        }
        None => Condition { holds: true, reason: "Enforced", message },
    }
}

/// Returns what has no effect in the rules of a Pod's policies.
fn unusable(pod: &Pod, found: &Applying, ends_tls: bool) -> Vec<String> {
    let levels = || found.levels.iter().map(AsRef::as_ref);
    let mut unusable = Vec::new();
    if reads_requests(levels()) && !ends_tls {
        unusable.push("rules that read requests allow no TLS: the gateway has no --ca-dir".to_owned());
    } else if reads_requests(levels()) && !trusts(pod) {
        let why = "rules that read requests allow no TLS: the Pod does not trust the gateway; if it is older than \
                   --egress-gateway-ca-file of the controller, replace it";
        unusable.push(why.to_owned());
    }
    unusable
}

/// Returns true if a Pod has the certificate of the gateway's authority.
fn trusts(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.name == CONFIG_MAP && volume.config_map.is_some())
}

/// Returns why no NetworkPolicy closes the network of a Pod.
fn open(pod: &Pod, objects: &Objects, (plugin, closings): (Plugin, &Closings<'_>)) -> Option<String> {
    match plugin {
        Plugin::Ignores => {
            return Some("the network plugin of the cluster does not enforce NetworkPolicy".to_owned());
        }
        Plugin::Unknown => {
            let why = "it is not known whether the network plugin of the cluster enforces NetworkPolicy";
            return Some(why.to_owned());
        }
        Plugin::Enforces => {}
    }
    let (sandbox, subject) = (owner::sandbox(pod)?, objects.subject(pod)?);
    let mut owners = vec![sandbox.uid.as_str()];
    // With the label of a template, it may have the NetworkPolicy of that alone.
    let label = pod.labels().get(label::TEMPLATE_REF_HASH);
    if let Some(name) = subject.template.as_ref().filter(|name| label == Some(&hutch_api::name_hash(name))) {
        let Some(template) = objects.template(&subject.namespace, Some(name)) else {
            return Some("the template of the Sandbox is gone, and its NetworkPolicy with it".to_owned());
        };
        if template.unmanaged {
            return Some("the NetworkPolicy of the template is unmanaged".to_owned());
        }
        owners.push(&template.uid);
    }
    closings.way_out(pod, &owners)
}

/// A condition that is to be written.
#[derive(Debug, PartialEq)]
struct Write {
    namespace: String,
    pod: String,
    uid: String,
    condition: Condition,
}

/// Conditions that are to be written, and those that were.
#[derive(Debug, Default)]
struct Writes {
    /// When each is due, by the uid of the Pod, for which the latest one counts.
    waiting: HashMap<String, (Instant, Write)>,
    /// Written within [`AGAIN`], by the uid of the Pod.
    written: HashMap<String, (Instant, Condition)>,
}

impl Writes {
    /// Has a condition written: at once, unless it is the one that was written last.
    fn add(&mut self, write: Write, now: Instant) {
        let last = self.written.get(&write.uid).filter(|(_, condition)| *condition == write.condition);
        let due = last.map_or(now, |(at, _)| *at + AGAIN);
        // One that waits keeps its turn: those of others may come again and again.
        let due = self.waiting.get(&write.uid).map_or(due, |(first, _)| due.min(*first));
        self.waiting.insert(write.uid.clone(), (due, write));
    }

    /// Returns a condition that is due.
    ///
    /// # Errors
    /// The time at which one will be; `None` if none waits.
    fn next(&mut self, now: Instant) -> Result<Write, Option<Instant>> {
        self.written.retain(|_, (at, _)| now < *at + AGAIN);
        let first = self.waiting.iter().min_by_key(|(_, (due, _))| *due);
        let (uid, due) = first.map(|(uid, (due, _))| (uid.clone(), *due)).ok_or(None)?;
        let (_, write) = (due <= now).then(|| self.waiting.remove(&uid)).flatten().ok_or(Some(due))?;
        self.written.insert(uid, (now, write.condition.clone()));
        Ok(write)
    }
}

/// Writes conditions, one after the other.
pub(super) struct Conditions {
    writes: Arc<Mutex<Writes>>,
    added: Arc<Notify>,
}

impl Conditions {
    pub(super) fn new(client: Client) -> Conditions {
        let conditions = Conditions { writes: Arc::default(), added: Arc::default() };
        let (writes, added) = (conditions.writes.clone(), conditions.added.clone());
        // It ends with the process.
        tokio::spawn(async move {
            loop {
                let next = writes.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
                let write = match next {
                    Ok(write) => write,
                    Err(None) => {
                        added.notified().await;
                        continue;
                    }
                    Err(Some(due)) => {
                        let _ = tokio::time::timeout_at(due.into(), added.notified()).await;
                        continue;
                    }
                };
                let pod = format!("{}/{}", write.namespace, write.pod);
                if let Err(error) = write.send(&client).await {
                    tracing::warn!(pod, %error, "failed to write the condition of a pod");
                }
            }
        });
        conditions
    }

    /// Has the condition written if the Pod has another one. With `awaits_probe`, nothing is known about the network plugin
    /// so far: another gateway, or this one before its start, may know it.
    pub(super) fn set(&self, pod: &Pod, condition: Condition, awaits_probe: bool) {
        if awaits_probe && is_kept(pod, &condition) {
            return;
        }
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let same = conditions.filter(|found| found.type_ == TYPE).any(|found| {
            found.status == status(condition.holds)
                && found.reason.as_deref() == Some(condition.reason)
                && found.message.as_deref() == Some(&*condition.message)
        });
        let (namespace, uid) = (pod.namespace().unwrap_or_default(), pod.uid().unwrap_or_default());
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        if same {
            writes.waiting.remove(&uid);
            return;
        }
        writes.add(Write { namespace, pod: pod.name_any(), uid, condition }, Instant::now());
        self.added.notify_one();
    }
}

/// Returns true if a Pod has a condition already, and the new one says only that nothing is known yet.
fn is_kept(pod: &Pod, condition: &Condition) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    condition.reason == NOT_ENFORCED && conditions.any(|found| found.type_ == TYPE)
}

fn status(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

impl Write {
    async fn send(self, client: &Client) -> kube::Result<()> {
        let Write { namespace, pod, uid, condition: Condition { holds, reason, message } } = self;
        let condition = json!({"type": TYPE, "status": status(holds), "reason": reason, "message": message});
        // Another Pod of the same name has another uid, and is left alone.
        let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
        let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let written = api.patch_status(&pod, &PatchParams::default(), &Patch::Strategic(patch)).await;
        match written {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Level};
    use serde_json::Value;

    use super::*;

    fn applying(rule: Value) -> Applying {
        let egress = serde_json::from_value(json!({"rules": [rule]})).unwrap();
        let level = Level::new(Authority::Cluster, "team", Some(egress));
        Applying { levels: vec![Arc::new(level)], until: None }
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "d"}, "spec": spec})).unwrap()
    }

    #[test]
    fn gateways_that_disagree_replace_a_condition_every_ten_seconds() {
        let write = |uid: &str, message: &str| {
            let condition = Condition { holds: true, reason: "Enforced", message: message.to_owned() };
            Write { namespace: "d".to_owned(), pod: "s".to_owned(), uid: uid.to_owned(), condition }
        };
        let (mut writes, start) = (Writes::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(writes.next(start), Err(None));
        writes.add(write("u", "a"), start);
        writes.add(write("u", "b"), start);
        assert_eq!(writes.next(start), Ok(write("u", "b")), "the latest one alone");
        assert_eq!(writes.next(start), Err(None));
        // Another gateway has replaced it.
        for millis in [1, 2, 3] {
            writes.add(write("u", "b"), after(millis));
            assert_eq!(writes.next(after(millis)), Err(Some(start + AGAIN)));
        }
        writes.add(write("v", "b"), after(4));
        assert_eq!(writes.next(after(4)), Ok(write("v", "b")), "that of another Pod");
        assert_eq!(writes.next(start + AGAIN), Ok(write("u", "b")));
        writes.add(write("u", "c"), start + AGAIN);
        assert_eq!(writes.next(start + AGAIN), Ok(write("u", "c")), "what this gateway has learned");
        // One that waits keeps its turn, however often those of others change.
        writes.add(write("first", "a"), after(1));
        writes.add(write("second", "a"), after(2));
        writes.add(write("first", "b"), after(3));
        assert_eq!(writes.next(after(4)), Ok(write("first", "b")));
        writes.add(write("first", "c"), after(5));
        assert_eq!(writes.next(after(6)), Ok(write("second", "a")));
        assert_eq!(writes.next(after(6)), Ok(write("first", "c")));
        let later = start + 3 * AGAIN;
        assert_eq!(writes.next(later), Err(None));
        assert!(writes.written.is_empty(), "nothing is kept of Pods that may be gone");
    }

    #[test]
    fn rules_without_effect_are_named() {
        let old = pod(json!({"containers": []}));
        let new =
            json!({"containers": [], "volumes": [{"name": CONFIG_MAP, "configMap": {"name": CONFIG_MAP}}]});
        let new = pod(new);
        let plain = applying(json!({"name": "a", "hosts": ["a.example"]}));
        let mut offers = Level::clone(&plain.levels[0]);
        let offered =
            json!([{"name": "github", "provider": "github", "hosts": ["a.example"], "env": "TOKEN"}]);
        offers.credentials = serde_json::from_value(offered).unwrap();
        let offers = Applying { levels: vec![Arc::new(offers)], until: None };
        let mistake = "credential \"github\" of policy \"team\": its Secret does not exist";
        let reads = applying(json!({"name": "a", "hosts": ["a.example"], "http": [{"paths": ["/ok"]}]}));
        let peers = applying(json!({"name": "a", "sandboxes": [{"name": "db"}], "ports": [1]}));
        for (pod, found, ends_tls, reason, word) in [
            (&old, &plain, false, "Enforced", "team"),
            (&new, &reads, true, "Enforced", "team"),
            (&new, &reads, false, PARTLY_ENFORCED, "--ca-dir"),
            (&old, &reads, true, PARTLY_ENFORCED, "replace it"),
            (&new, &peers, true, "Enforced", "team"),
            (&new, &offers, true, PARTLY_ENFORCED, mistake),
            (&new, &offers, false, PARTLY_ENFORCED, "--ca-dir"),
        ] {
            let plugin = (Plugin::Enforces, &Closings::default(), ends_tls);
            let mistakes = if word == mistake { vec![mistake.to_owned()] } else { Vec::new() };
            let condition = condition(pod, &Objects::default(), plugin, Ok(found), (None, mistakes));
            assert_eq!(condition.reason, reason, "{}", condition.message);
            assert!(condition.message.contains(word), "{}", condition.message);
        }
        let closings = Closings::default();
        let plugin = (Plugin::Enforces, &closings, true);
        let denied = Some("denied: a.example:443".to_owned());
        let conflict = condition(&new, &Objects::default(), plugin, Ok(&plain), (denied, Vec::new()));
        assert_eq!((conflict.holds, conflict.reason), (true, "Conflict"));
        assert!(conflict.message.ends_with("each of: team; denied: a.example:443"), "{}", conflict.message);
        let unknown = condition(
            &new,
            &Objects::default(),
            (Plugin::Unknown, &closings, true),
            Ok(&plain),
            (None, Vec::new()),
        );
        assert_eq!(unknown.reason, "NotEnforced");
        assert!(!is_kept(&new, &unknown), "the first condition of a Pod is written");
        let mut known = new.clone();
        known.status =
            serde_json::from_value(json!({"conditions": [{"type": TYPE, "status": "True"}]})).unwrap();
        assert!(is_kept(&known, &unknown) && !is_kept(&known, &conflict));
    }
}
