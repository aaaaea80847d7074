//! Results of the probe of all gateways of a cluster. Each shares its own, and the worst one counts, so that all gateways give
//! a Pod the same condition.
//!
//! A ConfigMap has one entry for each gateway, which renews it. An entry that is not renewed no longer counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use hutch_attach::logged;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::interval;

use super::condition::Plugin;

/// Name of the ConfigMap. A role of `deploy/egress.yaml` names it.
const NAME: &str = "hutch-egress-probes";
/// Interval of renewals, and time after which an entry counts no longer.
const RENEW: Duration = Duration::from_secs(15);
const STALE: Duration = Duration::from_secs(60);
/// Time after which an entry is removed. Its gateway has ended.
const LEFT: Duration = Duration::from_secs(600);
/// Maximum time to remove the own entry at the end.
const LAST: Duration = Duration::from_secs(2);

/// Entry of another gateway.
struct Entry {
    text: String,
    /// Time at which this text was first seen.
    seen: Instant,
}

impl Entry {
    fn plugin(&self) -> Plugin {
        self.text.split(' ').next().and_then(read).unwrap_or_default()
    }
}

fn word(plugin: Plugin) -> &'static str {
    match plugin {
        Plugin::Enforces => "Enforces",
        Plugin::Unknown => "Unknown",
        Plugin::Ignores => "Ignores",
    }
}

fn read(text: &str) -> Option<Plugin> {
    [Plugin::Enforces, Plugin::Unknown, Plugin::Ignores].into_iter().find(|plugin| word(*plugin) == text)
}

/// Known results.
#[derive(Default)]
struct Results {
    /// Result of this gateway.
    own: Option<Plugin>,
    others: BTreeMap<String, Entry>,
}

impl Results {
    /// Takes the entries of the ConfigMap, without that of this gateway.
    fn take(&mut self, mut entries: BTreeMap<String, String>, own: &str, now: Instant) {
        entries.remove(own);
        self.others.retain(|name, _| entries.contains_key(name));
        for (name, text) in entries {
            if self.others.get(&name).is_none_or(|known| known.text != text) {
                self.others.insert(name, Entry { text, seen: now });
            }
        }
    }

    /// Returns the worst result, if one is known.
    fn worst(&self, now: Instant) -> Option<Plugin> {
        let fresh = self.others.values().filter(|entry| now.duration_since(entry.seen) < STALE);
        fresh.map(Entry::plugin).chain(self.own).max()
    }

    /// Returns the names of entries whose gateways have ended.
    fn left(&self, now: Instant) -> Vec<String> {
        let left = self.others.iter().filter(|(_, entry)| now.duration_since(entry.seen) >= LEFT);
        left.map(|(name, _)| name.clone()).collect()
    }
}

/// Entry of this gateway.
#[derive(Clone)]
pub(super) struct Replica {
    api: Api<ConfigMap>,
    name: String,
}

impl Replica {
    pub(super) fn new(client: Client) -> Replica {
        let name = format!("{:016x}", rand::random::<u64>());
        Replica { api: Api::default_namespaced(client), name }
    }

    /// Shares results of the own probe, and sends the worst one of all gateways.
    pub(super) async fn share(self, mut own: mpsc::Receiver<Plugin>, worst: mpsc::Sender<Plugin>) {
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut entries = logged(watcher(self.api.clone(), config));
        let (mut results, mut renewals, mut turn) = (Results::default(), interval(RENEW), 0_u64);
        let mut sent = None;
        loop {
            let renews = tokio::select! {
                Some(result) = own.recv() => {
                    results.own = Some(result);
                    true
                }
                Some(event) = entries.next() => {
                    use watcher::Event::{Apply, Delete, InitApply};
                    match event {
                        Apply(object) | InitApply(object) => {
                            results.take(object.data.unwrap_or_default(), &self.name, Instant::now());
                        }
                        Delete(_) => results.others.clear(),
                        _ => {}
                    }
                    false
                }
                _ = renewals.tick() => true,
            };
            let now = Instant::now();
            let found = results.worst(now);
            if let Some(plugin) = found.filter(|_| found != sent) {
                sent = found;
                if worst.send(plugin).await.is_err() {
                    return;
                }
            }
            if let Some(result) = results.own.filter(|_| renews) {
                turn += 1;
                self.write(&format!("{} {turn}", word(result))).await;
                self.remove(&results.left(now)).await;
            }
        }
    }

    /// Writes the own entry. Applying creates the ConfigMap by its name, and leaves other entries as they are.
    async fn write(&self, text: &str) {
        let object = json!({"apiVersion": ConfigMap::api_version(&()), "kind": ConfigMap::kind(&()),
            "metadata": {"name": NAME}, "data": {&self.name: text}});
        let manager = format!("hutch-egress-{}", self.name);
        let written =
            self.api.patch(NAME, &PatchParams::apply(&manager).force(), &Patch::Apply(object)).await;
        if let Err(error) = written {
            tracing::warn!(%error, "failed to share the result of the probe with other gateways");
        }
    }

    async fn remove(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let data: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!(null))).collect();
        let patch = Patch::Merge(json!({"data": data}));
        if let Err(error) = self.api.patch(NAME, &PatchParams::default(), &patch).await {
            tracing::debug!(%error, "an entry of a gateway that has ended could not be removed");
        }
    }

    /// Removes the own entry.
    pub(super) async fn leave(&self) {
        let _ = tokio::time::timeout(LAST, self.remove(std::slice::from_ref(&self.name))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_result_of_gateways_that_renew_theirs_counts() {
        let start = Instant::now();
        let entries = |list: &[(&str, &str)]| {
            list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let mut results = Results::default();
        assert_eq!(results.worst(start), None);
        results.take(entries(&[("own", "Ignores 9"), ("a", "Enforces 1")]), "own", start);
        assert_eq!(
            results.worst(start),
            Some(Plugin::Enforces),
            "the entry of an earlier life is not its own"
        );
        results.own = Some(Plugin::Enforces);
        for (text, expected) in [
            ("Enforces 2", Plugin::Enforces),
            ("Unknown 3", Plugin::Unknown),
            ("Ignores 4", Plugin::Ignores),
            ("?", Plugin::Unknown),
        ] {
            results.take(entries(&[("a", text)]), "own", start);
            assert_eq!(results.worst(start), Some(expected), "{text}");
        }
        results.take(entries(&[("a", "Ignores 5")]), "own", start);
        results.take(entries(&[("a", "Ignores 5"), ("b", "Enforces 1")]), "own", start + STALE / 2);
        assert_eq!(results.worst(start + STALE / 2), Some(Plugin::Ignores));
        assert_eq!(results.worst(start + STALE), Some(Plugin::Enforces), "it is not renewed");
        results.take(entries(&[("a", "Ignores 6"), ("b", "Enforces 1")]), "own", start + STALE);
        assert_eq!(results.worst(start + STALE), Some(Plugin::Ignores), "it is renewed again");
        assert_eq!(results.left(start + STALE / 2 + LEFT), ["b"]);
    }
}
