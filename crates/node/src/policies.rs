//! Policies of Pods: which apply, what they allow together, and what the Pod's condition says about it.
//!
//! One task follows the policies and the objects by which they are attached. A Pod whose facts are not known yet reaches
//! nothing.

mod about;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use hutch_api::{Sandbox, SandboxTemplate, annotation, owner};
use hutch_policy::{Authority, Egress as Rules, Level, Mode, PolicyObject, Subject, policy_names};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;

use crate::config::Egress;
use crate::live::{Enforced, Live};
use crate::shared::{PolicyNews, Shared};

/// Group and version of the policies.
const GROUP_VERSION: (&str, &str) = ("policy.hutch.dev", "v1alpha1");
/// Maximum policies of a sandbox.
const LEVELS: usize = 8;
/// Maximum events about refused connections of a Pod.
const EVENTS: u32 = 20;

/// Namespace, empty for an object of the cluster, and name.
type Key = (String, String);
type Labels = BTreeMap<String, String>;

/// Objects of one kind, as their watch reports them.
struct Mirror<V> {
    objects: BTreeMap<Key, V>,
    /// Those of a list that is not complete yet.
    listed: BTreeMap<Key, V>,
    complete: bool,
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Mirror { objects: BTreeMap::new(), listed: BTreeMap::new(), complete: false }
    }
}

impl<V> Mirror<V> {
    /// Takes an event. Returns true if objects have changed.
    fn take<K: ResourceExt>(&mut self, event: watcher::Event<K>, read: impl FnOnce(K) -> V) -> bool {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => drop(self.listed.insert(key(&object), read(object))),
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.complete = true;
                return true;
            }
            watcher::Event::Apply(object) => {
                self.objects.insert(key(&object), read(object));
                return true;
            }
            watcher::Event::Delete(object) => {
                self.objects.remove(&key(&object));
                return true;
            }
        }
        false
    }
}

/// A policy, and the level that it is for each authority.
struct Policy {
    /// None for one that cannot be read: it closes everything in its reach.
    object: Option<PolicyObject>,
    levels: BTreeMap<Authority, Arc<Level>>,
}

impl Policy {
    fn read(object: DynamicObject) -> Policy {
        let authorities: &[Authority] = match object.metadata.namespace {
            None => &[Authority::Cluster],
            Some(_) => &[Authority::Namespace, Authority::Template, Authority::Claim],
        };
        let name = object.name_any();
        let read = serde_json::to_value(&object).and_then(serde_json::from_value::<PolicyObject>);
        let read = read.map_err(|error| error.to_string()).and_then(|policy| {
            policy.check().map_err(|error| error.to_string())?;
            Ok(policy)
        });
        let policy =
            read.inspect_err(|error| tracing::warn!(policy = name, error, "a policy is invalid")).ok();
        let level = |authority| {
            let level = policy.clone().and_then(|policy| policy.into_level(authority).ok());
            (authority, Arc::new(level.unwrap_or_else(|| closed(authority, &name))))
        };
        let levels = authorities.iter().map(|authority| level(*authority)).collect();
        Policy { object: policy, levels }
    }
}

/// Returns a level that allows nothing.
fn closed(authority: Authority, name: &str) -> Level {
    Level { authority, name: name.to_owned(), mode: Mode::Enforce, egress: Some(Rules::default()) }
}

/// Metadata of a Sandbox.
struct Facts {
    uid: String,
    labels: Labels,
    template: Option<String>,
    policies: String,
    /// Attributes of the task.
    task: BTreeMap<String, String>,
}

/// Everything that is known.
#[derive(Default)]
struct Known {
    policies: Mirror<Policy>,
    cluster_policies: Mirror<Policy>,
    namespaces: Mirror<Labels>,
    templates: Mirror<String>,
    sandboxes: Mirror<Facts>,
}

impl Known {
    fn is_complete(&self) -> bool {
        self.policies.complete
            && self.cluster_policies.complete
            && self.namespaces.complete
            && self.templates.complete
            && self.sandboxes.complete
    }

    /// Returns the facts about a Pod; `None` if an object is missing that the Pod refers to.
    fn subject(&self, pod: &Pod) -> Option<Subject> {
        let namespace = pod.namespace()?;
        let namespace_labels = self.namespaces.objects.get(&(String::new(), namespace.clone()))?.clone();
        let subject = Subject { namespace: namespace.clone(), namespace_labels, ..Subject::default() };
        let Some(owner) = owner::sandbox(pod) else {
            return Some(Subject { labels: pod.labels().clone(), ..subject });
        };
        let facts = self.sandboxes.objects.get(&(namespace.clone(), owner.name.clone()))?;
        if facts.uid != owner.uid {
            return None;
        }
        let template = facts.template.clone();
        let by_template = template.clone().and_then(|name| self.templates.objects.get(&(namespace, name)));
        Some(Subject {
            sandbox: Some(owner.name.clone()),
            labels: facts.labels.clone(),
            by_template: by_template.map(|value| policy_names(value)).unwrap_or_default(),
            by_claim: policy_names(&facts.policies),
            template,
            ..subject
        })
    }

    /// Returns the levels of a Pod, and what its condition says.
    fn levels(&self, pod: &Pod) -> (Vec<Arc<Level>>, Enforced) {
        let not = |reason, message: String| (Vec::new(), Enforced { holds: false, reason, message });
        if !self.is_complete() {
            return not("Pending", "the policies are not known yet: no egress".into());
        }
        let Some(subject) = self.subject(pod) else {
            return not("Pending", "the Sandbox of the Pod is not known yet: no egress".into());
        };
        let named = subject.by_template.iter().chain(&subject.by_claim);
        let mut missing = named.filter(|name| {
            !self.policies.objects.contains_key(&(subject.namespace.clone(), (*name).clone()))
        });
        if let Some(name) = missing.next() {
            return not(
                "PolicyNotFound",
                format!("there is no SandboxPolicy {name:?} in the namespace: no egress"),
            );
        }
        let (mut levels, mut names) = (Vec::new(), Vec::new());
        let first = (subject.namespace.clone(), String::new());
        let own = self.policies.objects.range(first..).take_while(|(key, _)| key.0 == subject.namespace);
        for ((namespace, name), policy) in self.cluster_policies.objects.iter().chain(own) {
            let Some(object) = &policy.object else {
                return not("InvalidPolicy", format!("policy {name:?} cannot be read: no egress"));
            };
            let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
            let Some(authority) = object.authority_over(&subject, namespace) else { continue };
            levels.extend(policy.levels.get(&authority).cloned());
            names.push(name.as_str());
        }
        if levels.len() > LEVELS {
            let message = format!("{} policies apply, at most {LEVELS} may: no egress", levels.len());
            return not("TooManyPolicies", message);
        }
        let message = match names.as_slice() {
            [] => "no policy applies: no egress. A NetworkPolicy opens nothing here".to_owned(),
            names => format!("egress as allowed by each of: {}", names.join(", ")),
        };
        let reason = if names.is_empty() { "NoPolicy" } else { "Enforced" };
        (levels, Enforced { holds: true, reason, message })
    }
}

/// A Pod that is served.
struct Served {
    live: Arc<Live>,
    levels: Vec<Arc<Level>>,
    facts: hutch_policy::Facts,
    events: u32,
}

/// Follows everything until the node stops.
pub(crate) async fn run(
    node: Arc<Shared>,
    egress: Arc<dyn Egress>,
    mut news: mpsc::UnboundedReceiver<PolicyNews>,
) {
    let client = &node.client;
    let policies = |kind: &str| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP_VERSION.0, GROUP_VERSION.1, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        watcher(api, watcher::Config::default()).default_backoff().boxed()
    };
    let (mut own, mut cluster) = (policies("SandboxPolicy"), policies("ClusterSandboxPolicy"));
    // Of the others only the metadata.
    let mut namespaces = metadata::<Namespace>(client);
    let mut templates = metadata::<SandboxTemplate>(client);
    let mut sandboxes = metadata::<Sandbox>(client);
    let (mut known, mut served) = (Known::default(), HashMap::<String, Served>::new());
    let mut sweep = about::Sweep::default();
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            refused = egress.refused() => {
                let (pod, line) = refused;
                if let Some(served) = served.get_mut(&pod).filter(|served| served.events < EVENTS) {
                    served.events += 1;
                    node.events.warning(&served.live.pod(), "EgressRefused", line);
                }
                continue;
            }
            Some(event) = news.recv() => {
                match event {
                    PolicyNews::Served(live) => {
                        let facts = hutch_policy::Facts::default();
                        let new = Served { live: live.clone(), levels: Vec::new(), facts, events: 0 };
                        let new = served.entry(live.id.uid.clone()).or_insert(new);
                        decide(&known, &*egress, new);
                    }
                    PolicyNews::Gone(uid) => drop(served.remove(&uid)),
                    PolicyNews::Listed => sweep.listed = true,
                }
                sweep.run(&known, &node, &*egress);
                continue;
            }
            Some(Ok(event)) = own.next() => if !known.policies.take(event, Policy::read) { continue },
            Some(Ok(event)) = cluster.next() => if !known.cluster_policies.take(event, Policy::read) { continue },
            Some(Ok(event)) = namespaces.next() => {
                if !known.namespaces.take(event, |object| object.labels().clone()) { continue }
            }
            Some(Ok(event)) = templates.next() => {
                if !known.templates.take(event, |object| policies_of(&object)) { continue }
            }
            Some(Ok(event)) = sandboxes.next() => {
                let before = about::forget(&event, &*egress).then(|| known.authorities());
                let changed = known.sandboxes.take(event, |object| Facts {
                    uid: object.uid().unwrap_or_default(),
                    labels: object.labels().clone(),
                    template: object.annotations().get(annotation::TEMPLATE_REF).cloned(),
                    policies: policies_of(&object),
                    task: about::task(object.annotations()),
                });
                if !changed { continue }
                if let Some(before) = before {
                    before.difference(&known.authorities()).for_each(|gone| egress.forget(gone));
                }
                sweep.run(&known, &node, &*egress);
            }
        }
        for served in served.values_mut() {
            decide(&known, &*egress, served);
        }
    }
}

/// Watches the metadata of a kind.
fn metadata<K>(client: &Client) -> BoxStream<'static, watcher::Result<watcher::Event<PartialObjectMeta<K>>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    watcher(api, watcher::Config::default()).default_backoff().boxed()
}

fn policies_of(object: &impl ResourceExt) -> String {
    object.annotations().get(annotation::POLICIES).cloned().unwrap_or_default()
}

/// Gives a Pod the levels that it should have.
fn decide(known: &Known, egress: &dyn Egress, served: &mut Served) {
    let pod = served.live.pod();
    let (levels, enforced) = known.levels(&pod);
    let facts = known.facts(&pod);
    if facts != served.facts {
        egress.set_facts(&served.live.id.uid, facts.clone());
        served.facts = facts;
    }
    let same = levels.len() == served.levels.len()
        && levels.iter().zip(&served.levels).all(|(new, old)| Arc::ptr_eq(new, old));
    if !same {
        egress.set_levels(&served.live.id.uid, levels.clone());
        served.levels = levels;
    }
    served.live.set_enforced(enforced);
}
