//! The objects that decide which policies apply to a Pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use hutch_api::state::{CredentialsOfFork, credentials_of};
use hutch_api::{annotation, owner};
use hutch_policy::{
    Applying, Facts, FieldOfServer, Identity, Level, NetworkLevel, PolicyObject, Provider, ProviderObject,
    StoredPolicy, Subject, applying, check_conditions, fields_of_server, policy_names, scanning,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher;

use crate::mirror::{Mirror, version};

/// Reason of the condition of a Pod whose policies are not known yet.
pub const PENDING: &str = "Pending";

/// Reason of the condition of a Pod whose Sandbox was made from a template that is no longer there.
const TEMPLATE_NOT_FOUND: &str = "TemplateNotFound";

/// Maximum bytes of the labels and attributes of a sandbox. Of more, none counts for conditions.
const BYTES: usize = 32 << 10;
/// Maximum bytes of an annotation that names policies: eight of the longest names, which is more than may apply.
const NAMES: usize = 4 << 10;
/// Reason of the condition of a Pod whose labels, or names of policies, are too many.
const TOO_LARGE: &str = "TooManyLabels";

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Reads a policy.
pub fn policy(object: DynamicObject) -> StoredPolicy {
    let read = check_conditions(&object.data["spec"]).map_err(|error| error.to_string());
    let read = read.and_then(|()| read_object::<PolicyObject>(&object));
    let read = read.and_then(|policy| StoredPolicy::new(policy).map_err(|error| error.to_string()));
    let policy = read.unwrap_or_else(|error| {
        tracing::warn!(policy = object.name_any(), error, "a policy is invalid");
        StoredPolicy::unreadable(&serde_json::to_value(&object).unwrap_or_default(), error)
    });
    policy.of_version(version_of_spec(&object))
}

impl Mirror<StoredPolicy> {
    /// Takes an event about a policy, as [`Mirror::take`] does. A policy is not read again if its spec is the same.
    pub fn take_policy(&mut self, event: watcher::Event<DynamicObject>) -> bool {
        if let watcher::Event::Apply(object) = &event {
            let key = (object.namespace().unwrap_or_default(), object.name_any());
            let of_spec = version_of_spec(object);
            if self.objects.get(&key).is_some_and(|known| known.is_of_version(of_spec.as_ref())) {
                self.seen = self.seen.max(version(object));
                return false;
            }
        }
        self.take(event, policy)
    }
}

/// Returns the version of the spec of an object, if it has one.
fn version_of_spec(object: &impl ResourceExt) -> Option<(String, i64)> {
    object.uid().zip(object.meta().generation)
}

/// Reads a provider of credentials; `None` for one that is invalid.
pub fn provider(object: DynamicObject) -> Option<Arc<Provider>> {
    let name = object.name_any();
    let read = read_object::<ProviderObject>(&object);
    let read = read.and_then(|provider| match provider.check() {
        Ok(()) => Ok(Arc::new(provider.spec)),
        Err(error) => Err(error.to_string()),
    });
    read.inspect_err(|error| tracing::warn!(provider = name, error, "a CredentialProvider is invalid")).ok()
}

/// Reads an object of a known kind.
fn read_object<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, String> {
    let read = serde_json::to_value(object).and_then(serde_json::from_value);
    read.map_err(|error| error.to_string())
}

/// Parts of a template that concern policies.
#[derive(Debug, PartialEq)]
pub struct TemplateFacts {
    policies: String,
    network: Option<NetworkLevel>,
    /// The controller writes no NetworkPolicy for its Pods.
    pub unmanaged: bool,
    /// Uid.
    pub uid: String,
}

impl TemplateFacts {
    /// Reads a template.
    pub fn of(object: DynamicObject) -> TemplateFacts {
        let network = NetworkLevel::read(&object.name_any(), &object.data["spec"]);
        let unmanaged = object.data["spec"]["networkPolicyManagement"] == "Unmanaged";
        let uid = object.uid().unwrap_or_default();
        TemplateFacts { policies: policies_of(&object), network, unmanaged, uid }
    }
}

/// Metadata of a Sandbox.
#[derive(Debug, PartialEq)]
pub struct SandboxFacts {
    /// Uid.
    pub uid: String,
    /// Labels; none if they are too many.
    pub labels: Labels,
    /// The labels or the names of policies are too many, so that the Pod reaches nothing.
    too_large: bool,
    template: Option<String>,
    policies: String,
    /// Attributes of the task.
    task: Labels,
    /// Creator.
    user: Option<String>,
    /// Its credentials, if it belongs to a fork.
    pub fork: Option<CredentialsOfFork>,
    /// Time of its creation, in seconds since 1970.
    pub created: Option<i64>,
    /// Name of its Pod.
    pub pod: String,
}

impl SandboxFacts {
    /// Reads a Sandbox.
    pub fn of(object: &impl ResourceExt) -> SandboxFacts {
        let policies = policies_of(object);
        let too_large = bytes(object.labels()) > BYTES || policies.len() > NAMES;
        SandboxFacts {
            uid: object.uid().unwrap_or_default(),
            labels: if too_large { Labels::new() } else { object.labels().clone() },
            too_large,
            template: object.annotations().get(annotation::TEMPLATE_REF).cloned(),
            policies: if too_large { String::new() } else { policies },
            task: task(object.annotations()),
            user: object.annotations().get(annotation::USER).cloned(),
            fork: credentials_of(object.annotations()),
            created: object.creation_timestamp().map(|time| time.0.as_second()),
            pod: object.annotations().get(annotation::POD_NAME).cloned().unwrap_or_else(|| object.name_any()),
        }
    }

    /// Returns what conditions see of the Sandbox with this name.
    pub fn facts(&self, name: &str, namespace: &str) -> Facts {
        let labels = bounded(&self.labels);
        let sandbox = Identity { name: name.to_owned(), namespace: namespace.to_owned(), labels };
        Facts { task: bounded(&self.task), user: self.user.clone(), sandbox }
    }
}

/// Reason why a Pod reaches nothing, as its condition reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// Reason, one word.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// Time at which that may change by itself.
    pub until: Option<Timestamp>,
}

/// The objects by which policies are attached to Pods.
#[derive(Debug, Default)]
pub struct Objects {
    /// Policies of namespaces.
    pub policies: Mirror<StoredPolicy>,
    /// Policies of the cluster.
    pub cluster_policies: Mirror<StoredPolicy>,
    /// Namespaces.
    pub namespaces: Mirror<Labels>,
    /// Templates.
    pub templates: Mirror<TemplateFacts>,
    /// Sandboxes.
    pub sandboxes: Mirror<SandboxFacts>,
}

impl Objects {
    /// Returns true if every list has been complete.
    pub fn is_complete(&self) -> bool {
        self.policies.complete
            && self.cluster_policies.complete
            && self.namespaces.complete
            && self.templates.complete
            && self.sandboxes.complete
    }

    /// Returns the labels of a namespace.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.objects.get(&(String::new(), namespace.to_owned()))
    }

    /// Returns the facts about a Pod; `None` if an object is missing that the Pod refers to.
    pub fn subject(&self, pod: &Pod) -> Option<Subject> {
        let namespace = pod.namespace()?;
        let namespace_labels = self.namespace_labels(&namespace)?.clone();
        let subject = Subject { namespace: namespace.clone(), namespace_labels, ..Subject::default() };
        let Some(owner) = owner::sandbox(pod) else {
            return Some(Subject { labels: pod.labels().clone(), ..subject });
        };
        let facts = self.sandbox(pod)?;
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

    /// Returns the Sandbox that owns a Pod.
    pub fn sandbox(&self, pod: &Pod) -> Option<&SandboxFacts> {
        let owner = owner::sandbox(pod)?;
        let facts = self.sandboxes.objects.get(&(pod.namespace()?, owner.name.clone()))?;
        (facts.uid == owner.uid).then_some(facts)
    }

    /// Returns a template of a namespace.
    pub fn template(&self, namespace: &str, name: Option<&String>) -> Option<&TemplateFacts> {
        self.templates.objects.get(&(namespace.to_owned(), name?.clone()))
    }

    /// Returns the levels of a Pod.
    ///
    /// # Errors
    /// Nothing is reachable: the reason.
    pub fn levels(&self, pod: &Pod, now: Timestamp) -> Result<Applying, Closed> {
        let closed = |reason, message: &str| Closed { reason, message: message.to_owned(), until: None };
        if !self.is_complete() {
            return Err(closed(PENDING, "the policies are not known yet: no egress"));
        }
        let subject = self.subject(pod);
        let subject =
            subject.ok_or_else(|| closed(PENDING, "the Sandbox of the Pod is not known yet: no egress"))?;
        if self.is_too_large(pod) {
            let why = format!(
                "the labels take more than {BYTES} bytes, or annotation {} more than {NAMES}: no egress",
                annotation::POLICIES
            );
            return Err(closed(TOO_LARGE, &why));
        }
        let policies = (&self.cluster_policies.objects, &self.policies.objects);
        let template = self.template(&subject.namespace, subject.template.as_ref());
        if let (Some(name), None) = (&subject.template, template) {
            let why =
                "does not exist; its `networkPolicy` and its policies would restrict the network: no egress";
            return Err(closed(TEMPLATE_NOT_FOUND, &format!("SandboxTemplate {name} {why}")));
        }
        let network = template.and_then(|facts| facts.network.as_ref());
        applying(&subject, policies.0, policies.1, network, now)
            .map_err(|error| Closed { until: error.until(), ..closed(error.reason(), &error.to_string()) })
    }

    /// Returns true if the labels of a Pod or of its Sandbox are too many to be compared with those of policies at each change.
    fn is_too_large(&self, pod: &Pod) -> bool {
        match self.sandbox(pod) {
            Some(facts) => facts.too_large,
            None => bytes(pod.labels()) > BYTES,
        }
    }

    /// Returns the fields of the policies of a Pod that `hutch up` alone enforces; none before the policies are known.
    pub fn fields_of_server(&self, pod: &Pod, now: Timestamp) -> Vec<FieldOfServer> {
        let subject = self.is_complete().then(|| self.subject(pod)).flatten();
        let policies = (&self.cluster_policies.objects, &self.policies.objects);
        subject.map_or_else(Vec::new, |subject| fields_of_server(&subject, policies.0, policies.1, now))
    }

    /// Returns the levels with a scanner of a Pod, of all policies that can be read; `None` if they are not known yet.
    pub fn scanning(&self, pod: &Pod, now: Timestamp) -> Option<Vec<Arc<Level>>> {
        let subject = self.is_complete().then(|| self.subject(pod)).flatten()?;
        Some(scanning(&subject, &self.cluster_policies.objects, &self.policies.objects, now))
    }

    /// Returns true if the template of the Sandbox of a Pod is gone, and with it the names of policies.
    pub fn lacks_template(&self, pod: &Pod) -> bool {
        let subject = self.subject(pod);
        subject.is_some_and(|subject| {
            subject.template.is_some()
                && self.template(&subject.namespace, subject.template.as_ref()).is_none()
        })
    }

    /// Returns the facts about a Pod. One without a Sandbox has no name: conditions take it for that of a Sandbox.
    pub fn facts(&self, pod: &Pod) -> Facts {
        let namespace = pod.namespace().unwrap_or_default();
        let Some(owner) = owner::sandbox(pod) else {
            let labels = bounded(pod.labels());
            return Facts {
                sandbox: Identity { namespace, labels, ..Identity::default() },
                ..Facts::default()
            };
        };
        let Some(sandbox) = self.sandbox(pod) else { return Facts::default() };
        sandbox.facts(&owner.name, &namespace)
    }
}

/// Returns the policies that the annotation of an object names.
fn policies_of(object: &impl ResourceExt) -> String {
    object.annotations().get(annotation::POLICIES).cloned().unwrap_or_default()
}

/// Returns the attributes of the task of a Sandbox.
fn task(annotations: &Labels) -> Labels {
    let attribute = |(key, value): (&String, &String)| {
        Some((key.strip_prefix(annotation::ATTRIBUTE)?.to_owned(), value.clone()))
    };
    annotations.iter().filter_map(attribute).collect()
}

fn bounded(all: &Labels) -> Labels {
    if bytes(all) > BYTES { BTreeMap::new() } else { all.clone() }
}

fn bytes(all: &Labels) -> usize {
    all.iter().map(|(key, value)| key.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_task_are_annotations_with_a_prefix_and_bounded() {
        let annotation = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let annotations = [
            annotation("attr.policy.hutch.dev/risk", "2"),
            annotation("policy.hutch.dev/policies", "a"),
            annotation("risk", "0"),
        ];
        let task = task(&BTreeMap::from(annotations));
        assert_eq!(task, BTreeMap::from([annotation("risk", "2")]));
        assert_eq!(bounded(&task), task);
        assert!(bounded(&BTreeMap::from([annotation("risk", &"x".repeat(BYTES))])).is_empty());
    }

    #[test]
    fn labels_and_attributes_above_their_bound_do_not_count() {
        for (bytes, counts) in [(10, true), (BYTES, false)] {
            let mut pod = Pod::default();
            pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "x".repeat(bytes))]));
            pod.metadata.annotations =
                Some(BTreeMap::from([("attr.policy.hutch.dev/risk".to_owned(), "2".repeat(bytes))]));
            let facts = SandboxFacts::of(&pod).facts("a", "team");
            assert_eq!((facts.sandbox.name.as_str(), facts.sandbox.namespace.as_str()), ("a", "team"));
            assert_eq!((facts.sandbox.labels.len(), facts.task.len()), (counts as usize, counts as usize));
            // Also those of a Pod without a Sandbox.
            assert_eq!(Objects::default().facts(&pod).sandbox.labels.is_empty(), !counts);
        }
    }

    /// Regression: nothing checked the reason before the policies are known.
    #[test]
    fn pod_reaches_nothing_until_the_policies_and_its_sandbox_are_known() {
        let now = Timestamp::UNIX_EPOCH;
        let (mut pod, mut objects) = (Pod::default(), Objects::default());
        pod.metadata.namespace = Some("team".to_owned());
        let why = |objects: &Objects, pod: &Pod| {
            let closed = objects.levels(pod, now).unwrap_err();
            (closed.reason, closed.message)
        };
        let pending = |message: &str| (PENDING, message.to_owned());
        let policies = pending("the policies are not known yet: no egress");
        assert_eq!(why(&objects, &pod), policies);
        objects.policies.complete = true;
        objects.cluster_policies.complete = true;
        objects.templates.complete = true;
        objects.sandboxes.complete = true;
        assert_eq!(why(&objects, &pod), policies, "nor the namespaces");
        objects.namespaces.complete = true;
        let sandbox = pending("the Sandbox of the Pod is not known yet: no egress");
        assert_eq!(why(&objects, &pod), sandbox, "nor its namespace");
        objects.namespaces.objects.insert((String::new(), "team".to_owned()), Labels::new());
        assert!(objects.levels(&pod, now).unwrap().levels.is_empty(), "a Pod without a Sandbox");
        let owner = serde_json::json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "a",
            "uid": "u", "controller": true}]);
        pod.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
        assert_eq!(why(&objects, &pod), sandbox);
        // Regression: a template that was deleted restricted nothing any more.
        let of_template = BTreeMap::from([(annotation::TEMPLATE_REF.to_owned(), "python".to_owned())]);
        let mut owner = Pod::default();
        (owner.metadata.uid, owner.metadata.annotations) = (Some("u".into()), Some(of_template));
        let key = |name: &str| ("team".to_owned(), name.to_owned());
        objects.sandboxes.objects.insert(key("a"), SandboxFacts::of(&owner));
        let (reason, message) = why(&objects, &pod);
        assert!(reason == TEMPLATE_NOT_FOUND && message.contains("SandboxTemplate python"), "{message}");
        let facts =
            TemplateFacts { policies: String::new(), network: None, unmanaged: false, uid: String::new() };
        objects.templates.objects.insert(key("python"), facts);
        assert!(objects.levels(&pod, now).unwrap().levels.is_empty());
    }

    /// Each change of any object compared all labels of each Sandbox with all policies.
    #[test]
    fn sandbox_with_too_many_labels_or_names_reaches_nothing() {
        let owner = serde_json::json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "a",
            "uid": "u", "controller": true}]);
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("team".to_owned());
        pod.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
        for (labels, names, closed) in [(10, 10, false), (BYTES, 10, true), (10, NAMES + 1, true)] {
            let mut objects = Objects::default();
            objects.policies.complete = true;
            objects.cluster_policies.complete = true;
            objects.templates.complete = true;
            objects.sandboxes.complete = true;
            objects.namespaces.complete = true;
            objects.namespaces.objects.insert((String::new(), "team".to_owned()), Labels::new());
            let mut sandbox = Pod::default();
            sandbox.metadata.uid = Some("u".into());
            sandbox.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "x".repeat(labels))]));
            let annotation = (annotation::POLICIES.to_owned(), ",".repeat(names));
            sandbox.metadata.annotations = Some(BTreeMap::from([annotation]));
            let facts = SandboxFacts::of(&sandbox);
            assert_eq!(facts.labels.is_empty(), closed);
            objects.sandboxes.objects.insert(("team".to_owned(), "a".to_owned()), facts);
            let reason = objects.levels(&pod, Timestamp::UNIX_EPOCH).err().map(|closed| closed.reason);
            assert_eq!(reason, closed.then_some(TOO_LARGE), "{labels} {names}");
        }
    }

    /// Each change of its labels let a policy be read again.
    #[test]
    fn policy_is_read_again_only_if_its_spec_has_changed() {
        let object = |generation: i64, hosts: &str| {
            let object = serde_json::json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
                "metadata": {"name": "p", "namespace": "team", "uid": "u", "generation": generation,
                    "resourceVersion": "7"},
                "spec": {"egress": {"rules": [{"name": "a", "hosts": [hosts]}]}}});
            watcher::Event::Apply(serde_json::from_value::<DynamicObject>(object).unwrap())
        };
        let mut policies = Mirror::default();
        assert!(policies.take_policy(object(1, "a.example")));
        // The spec would not be another one with the same generation.
        assert!(!policies.take_policy(object(1, "b.example")));
        assert!(policies.take_policy(object(2, "b.example")));
        assert_eq!(policies.seen, 7);
    }
}
