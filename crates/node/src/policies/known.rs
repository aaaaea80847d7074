//! The objects by which policies are attached to Pods, as their watches report them.

use std::collections::BTreeMap;

use hutch_api::{annotation, owner};
use hutch_policy::{
    Applying, NetworkLevel, PolicyKey as Key, PolicyObject, StoredPolicy, Subject, applying, file_rules,
    policy_names,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher;

use super::about;
use super::service::ServiceFacts;
use crate::files::Files;
use crate::live::Enforced;

pub(super) type Labels = BTreeMap<String, String>;

/// Objects of one kind.
pub(super) struct Mirror<V> {
    pub(super) objects: BTreeMap<Key, V>,
    /// Those of a list that is not complete yet.
    listed: BTreeMap<Key, V>,
    pub(super) complete: bool,
    /// Latest version that the watch has reported.
    pub(super) seen: u64,
    /// That of a list that is not complete yet.
    listed_seen: u64,
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Mirror { objects: BTreeMap::new(), listed: BTreeMap::new(), complete: false, seen: 0, listed_seen: 0 }
    }
}

impl<V: PartialEq> Mirror<V> {
    /// Takes an event. Returns true if values have changed.
    pub(super) fn take<K: ResourceExt>(
        &mut self,
        event: watcher::Event<K>,
        read: impl FnOnce(K) -> V,
    ) -> bool {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => {
                self.listed_seen = self.listed_seen.max(version(&object));
                self.listed.insert(key(&object), read(object));
            }
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.seen = self.seen.max(self.listed_seen);
                self.complete = true;
                return true;
            }
            watcher::Event::Apply(object) => {
                self.seen = self.seen.max(version(&object));
                let (key, value) = (key(&object), read(object));
                // Most changes of an object are those of its status.
                if self.objects.get(&key) == Some(&value) {
                    return false;
                }
                self.objects.insert(key, value);
                return true;
            }
            watcher::Event::Delete(object) => {
                self.seen = self.seen.max(version(&object));
                self.objects.remove(&key(&object));
                return true;
            }
        }
        false
    }
}

/// Returns the version of an object: that of the store at its last change.
pub(super) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Reads a policy.
pub(super) fn policy(object: DynamicObject) -> StoredPolicy {
    let read = serde_json::to_value(&object).and_then(serde_json::from_value::<PolicyObject>);
    let read = read.map_err(|error| error.to_string());
    let read = read.and_then(|policy| StoredPolicy::new(policy).map_err(|error| error.to_string()));
    read.unwrap_or_else(|error| {
        tracing::warn!(policy = object.name_any(), error, "a policy is invalid");
        StoredPolicy::unreadable()
    })
}

/// Parts of a template that concern policies.
#[derive(PartialEq)]
pub(super) struct TemplateFacts {
    policies: String,
    network: Option<NetworkLevel>,
}

impl TemplateFacts {
    pub(super) fn of(object: DynamicObject) -> TemplateFacts {
        let network = NetworkLevel::read(&object.name_any(), &object.data["spec"]);
        TemplateFacts { policies: policies_of(&object), network }
    }
}

/// Metadata of a Sandbox.
#[derive(PartialEq)]
pub(super) struct Facts {
    pub(super) uid: String,
    pub(super) labels: Labels,
    template: Option<String>,
    policies: String,
    /// Attributes of the task.
    pub(super) task: Labels,
    /// Creator.
    pub(super) user: Option<String>,
}

impl Facts {
    pub(super) fn of(object: &impl ResourceExt) -> Facts {
        Facts {
            uid: object.uid().unwrap_or_default(),
            labels: object.labels().clone(),
            template: object.annotations().get(annotation::TEMPLATE_REF).cloned(),
            policies: policies_of(object),
            task: about::task(object.annotations()),
            user: object.annotations().get(annotation::USER).cloned(),
        }
    }
}

/// Everything that is known.
#[derive(Default)]
pub(super) struct Known {
    pub(super) policies: Mirror<StoredPolicy>,
    pub(super) cluster_policies: Mirror<StoredPolicy>,
    pub(super) namespaces: Mirror<Labels>,
    pub(super) templates: Mirror<TemplateFacts>,
    pub(super) sandboxes: Mirror<Facts>,
    pub(super) services: Mirror<ServiceFacts>,
}

impl Known {
    fn is_complete(&self) -> bool {
        self.policies.complete
            && self.cluster_policies.complete
            && self.namespaces.complete
            && self.templates.complete
            && self.sandboxes.complete
    }

    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.objects.get(&(String::new(), namespace.to_owned()))
    }

    /// Returns the facts about a Pod; `None` if an object is missing that the Pod refers to.
    pub(super) fn subject(&self, pod: &Pod) -> Option<Subject> {
        let namespace = pod.namespace()?;
        let namespace_labels = self.namespace_labels(&namespace)?.clone();
        let subject = Subject { namespace: namespace.clone(), namespace_labels, ..Subject::default() };
        let Some(owner) = owner::sandbox(pod) else {
            return Some(Subject { labels: pod.labels().clone(), ..subject });
        };
        let facts = self.sandboxes.objects.get(&(namespace.clone(), owner.name.clone()))?;
        if facts.uid != owner.uid {
            return None;
        }
        let template = facts.template.clone();
        let by_template = self.template(&namespace, template.as_ref());
        Some(Subject {
            sandbox: Some(owner.name.clone()),
            labels: facts.labels.clone(),
            by_template: by_template.map(|facts| policy_names(&facts.policies)).unwrap_or_default(),
            by_claim: policy_names(&facts.policies),
            template,
            ..subject
        })
    }

    fn template(&self, namespace: &str, name: Option<&String>) -> Option<&TemplateFacts> {
        self.templates.objects.get(&(namespace.to_owned(), name?.clone()))
    }

    /// Returns the rules for files of a Pod; `None` if they are not known yet.
    pub(super) fn files(&self, pod: &Pod, now: Timestamp) -> Option<Files> {
        let subject = self.is_complete().then(|| self.subject(pod)).flatten()?;
        let policies = (&self.cluster_policies.objects, &self.policies.objects);
        Some(Files::new(file_rules(&subject, policies.0, policies.1, now)))
    }

    /// Returns the levels of a Pod, and what its condition says.
    pub(super) fn levels(&self, pod: &Pod, now: Timestamp) -> (Applying, Enforced) {
        let not = |reason, message: String| (Applying::default(), Enforced { holds: false, reason, message });
        if !self.is_complete() {
            return not("Pending", "the policies are not known yet: no egress".into());
        }
        let Some(subject) = self.subject(pod) else {
            return not("Pending", "the Sandbox of the Pod is not known yet: no egress".into());
        };
        let policies = (&self.cluster_policies.objects, &self.policies.objects);
        let template = self.template(&subject.namespace, subject.template.as_ref());
        let network = template.and_then(|facts| facts.network.as_ref());
        match applying(&subject, policies.0, policies.1, network, now) {
            Err(error) => not(error.reason(), error.to_string()),
            Ok(found) if found.levels.is_empty() => {
                let message =
                    "no policy applies: no egress. A NetworkPolicy object opens nothing here".to_owned();
                (found, Enforced { holds: true, reason: "NoPolicy", message })
            }
            Ok(found) => {
                let names: Vec<&str> = found.levels.iter().map(|level| level.name.as_str()).collect();
                let message = format!("egress as allowed by each of: {}", names.join(", "));
                (found, Enforced { holds: true, reason: "Enforced", message })
            }
        }
    }
}

pub(super) fn policies_of(object: &impl ResourceExt) -> String {
    object.annotations().get(annotation::POLICIES).cloned().unwrap_or_default()
}
