//! Roles and bindings, compiled: which rules hold for a user, a group or a ServiceAccount.
//!
//! A [`Policy`] is made from the stored objects of one revision and never changes. Objects that are the same as in the
//! policy before are not read again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hutch_store::{Page, Store};
use serde_json::Value;

use super::aggregate;
use super::rule::Rule;
use super::{Action, Decision, Reason};
use crate::identity::service_account_name;
use crate::object::Object;
use crate::{Identity, meta};

/// Collections of the objects that make a policy.
pub(crate) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
pub(crate) const ROLES: &str = "roles.rbac.authorization.k8s.io";
pub(crate) const CLUSTER_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
pub(crate) const BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";
/// All of them.
pub(crate) const COLLECTIONS: [&str; 4] = [CLUSTER_ROLES, ROLES, CLUSTER_BINDINGS, BINDINGS];

/// A Role or ClusterRole.
#[derive(Debug)]
pub(super) struct Role {
    revision: u64,
    /// The stored rules.
    pub(super) rules: Vec<Rule>,
    /// The label selectors of an aggregated ClusterRole.
    pub(super) selectors: Option<Vec<Value>>,
    /// An object of nothing but labels, which the selectors of other roles match.
    pub(super) labels: Value,
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Debug)]
pub(crate) struct Binding {
    revision: u64,
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    name: String,
    role_kind: String,
    role_name: String,
    subjects: Vec<Subject>,
}

/// Who a binding is for.
#[derive(Debug)]
struct Subject {
    kind: String,
    name: String,
    /// Of a ServiceAccount.
    namespace: String,
}

/// The rules that a binding gives to one of its subjects; `None` when its role does not exist.
#[derive(Debug, Clone)]
struct Grant {
    binding: Arc<Binding>,
    subject: usize,
    rules: Option<Arc<Rules>>,
}

/// The rules of a role, found by resource.
#[derive(Debug, Default)]
struct Rules {
    all: Vec<Rule>,
    by_resource: HashMap<String, Vec<usize>>,
    /// Rules that name resources by a star, or paths.
    others: Vec<usize>,
}

/// What holds for one user or group.
#[derive(Debug, Default)]
struct Grants {
    cluster: Vec<Grant>,
    namespaces: HashMap<String, Vec<Grant>>,
}

/// The compiled roles and bindings of one revision.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub(super) revision: u64,
    cluster_roles: BTreeMap<Arc<str>, Arc<Role>>,
    roles: BTreeMap<Arc<str>, Arc<Role>>,
    cluster_bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    cluster_rules: HashMap<Arc<str>, Arc<Rules>>,
    rules: HashMap<Arc<str>, Arc<Rules>>,
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

impl Role {
    fn read(revision: u64, role: &Value) -> Role {
        let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
        Role {
            revision,
            rules: Rule::all_of(role),
            selectors: selectors.filter(|selectors| !selectors.is_empty()).cloned(),
            labels: serde_json::json!({"metadata": {"labels": role["metadata"]["labels"]}}),
        }
    }
}

impl Binding {
    fn read(revision: u64, binding: &Value) -> Binding {
        let namespace = meta::text(binding, "namespace");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subject = |subject: &Value| Subject {
            kind: text(&subject["kind"]),
            name: text(&subject["name"]),
            namespace: match text(&subject["namespace"]) {
                own if own.is_empty() => namespace.to_owned(),
                own => own,
            },
        };
        Binding {
            revision,
            namespace: namespace.to_owned(),
            name: meta::text(binding, "name").to_owned(),
            role_kind: text(&binding["roleRef"]["kind"]),
            role_name: text(&binding["roleRef"]["name"]),
            subjects: binding["subjects"].as_array().into_iter().flatten().map(subject).collect(),
        }
    }

    /// The binding and one of its subjects in the words of Kubernetes.
    pub(super) fn describe(&self, subject: usize) -> String {
        let Binding { namespace, name, role_kind, role_name, .. } = self;
        let (kind, own) = match namespace.as_str() {
            "" => ("ClusterRoleBinding", format!("{name:?}")),
            namespace => ("RoleBinding", format!("\"{name}/{namespace}\"")),
        };
        let Subject { kind: subject_kind, name: subject, namespace } = &self.subjects[subject];
        let subject = match subject_kind.as_str() {
            "ServiceAccount" => format!("{subject_kind} \"{subject}/{namespace}\""),
            _ => format!("{subject_kind} {subject:?}"),
        };
        format!("{kind} {own} of {role_kind} {role_name:?} to {subject}")
    }
}

impl Rules {
    fn new(all: Vec<Rule>) -> Rules {
        let mut rules = Rules::default();
        for (index, rule) in all.iter().enumerate() {
            if !rule.paths.is_empty() || rule.resources.iter().any(|resource| resource.starts_with('*')) {
                rules.others.push(index);
                continue;
            }
            for resource in &rule.resources {
                let parent = resource.split('/').next().unwrap_or_default();
                let indexes = rules.by_resource.entry(parent.to_owned()).or_default();
                if indexes.last() != Some(&index) {
                    indexes.push(index);
                }
            }
        }
        rules.all = all;
        rules
    }

    fn allow(&self, action: &Action<'_>) -> bool {
        let named = match action {
            Action::Resource { resource, .. } => self.by_resource.get(*resource),
            Action::Path { .. } => None,
        };
        let mut indexes = named.into_iter().flatten().chain(&self.others);
        indexes.any(|index| self.all[*index].allows(action))
    }
}

impl Policy {
    /// Compiles what is stored. Objects that the policy before has read at the same revision are taken from it.
    pub(super) fn compile(store: &Store<Object>, before: &Policy, revision: u64) -> Policy {
        let role = |role: &Role| role.revision;
        let binding = |binding: &Binding| binding.revision;
        let mut policy = Policy {
            revision,
            cluster_roles: read(store, CLUSTER_ROLES, &before.cluster_roles, role, Role::read),
            roles: read(store, ROLES, &before.roles, role, Role::read),
            cluster_bindings: read(store, CLUSTER_BINDINGS, &before.cluster_bindings, binding, Binding::read),
            bindings: read(store, BINDINGS, &before.bindings, binding, Binding::read),
            ..Policy::default()
        };
        let rules = |rules| Arc::new(Rules::new(rules));
        let aggregated = aggregate::rules_of(&policy.cluster_roles);
        policy.cluster_rules = aggregated.into_iter().map(|(name, all)| (name, rules(all))).collect();
        policy.rules =
            policy.roles.iter().map(|(key, role)| (key.clone(), rules(role.rules.clone()))).collect();
        let all: Vec<_> = policy.cluster_bindings.values().chain(policy.bindings.values()).cloned().collect();
        for binding in all {
            policy.bind(&binding);
        }
        policy
    }

    fn bind(&mut self, binding: &Arc<Binding>) {
        let rules = self.rules_of(&binding.role_kind, &binding.role_name, &binding.namespace);
        for (subject, Subject { kind, name, namespace }) in binding.subjects.iter().enumerate() {
            let grants = match kind.as_str() {
                "User" => self.users.entry(name.clone()).or_default(),
                "Group" => self.groups.entry(name.clone()).or_default(),
                "ServiceAccount" if !namespace.is_empty() => {
                    self.users.entry(service_account_name(namespace, name)).or_default()
                }
                _ => continue,
            };
            let grant = Grant { binding: binding.clone(), subject, rules: rules.clone() };
            match binding.namespace.as_str() {
                "" => grants.cluster.push(grant),
                namespace => grants.namespaces.entry(namespace.to_owned()).or_default().push(grant),
            }
        }
    }

    fn rules_of(&self, kind: &str, name: &str, namespace: &str) -> Option<Arc<Rules>> {
        match kind {
            "ClusterRole" => self.cluster_rules.get(name).cloned(),
            "Role" => self.rules.get(format!("{namespace}/{name}").as_str()).cloned(),
            _ => None,
        }
    }

    /// The rules of a role that a binding in this namespace refers to; `None` when there is no such role.
    pub(crate) fn role(&self, kind: &str, name: &str, namespace: &str) -> Option<Vec<Rule>> {
        self.rules_of(kind, name, namespace).map(|rules| rules.all.clone())
    }

    /// The effective rules of all ClusterRoles that aggregate others.
    pub(super) fn aggregated(&self) -> impl Iterator<Item = (&Arc<str>, &[Rule])> {
        let roles = self.cluster_roles.iter().filter(|(_, role)| role.selectors.is_some());
        roles.filter_map(|(name, _)| Some((name, self.cluster_rules.get(name)?.all.as_slice())))
    }

    /// The grants of an identity in a namespace: those of the cluster first.
    fn grants(&self, identity: &Identity, namespace: &str) -> impl Iterator<Item = &Grant> {
        let groups = identity.groups.iter().filter_map(|group| self.groups.get(group));
        let all: Vec<&Grants> = self.users.get(&identity.name).into_iter().chain(groups).collect();
        let cluster = all.clone().into_iter().flat_map(|grants| &grants.cluster);
        let inside = all.into_iter().filter_map(move |grants| grants.namespaces.get(namespace)).flatten();
        cluster.chain(inside)
    }

    /// Decides an action.
    pub(super) fn decide(&self, identity: &Identity, action: &Action<'_>) -> Decision {
        let mut missing = Vec::new();
        for grant in self.grants(identity, action.namespace()) {
            match &grant.rules {
                Some(rules) if rules.allow(action) => {
                    let reason = Reason::Binding(grant.binding.clone(), grant.subject);
                    return Decision { allowed: true, reason };
                }
                Some(_) => {}
                None => missing.push(grant),
            }
        }
        let reason = errors(&missing).map_or(Reason::None, Reason::Errors);
        Decision { allowed: false, reason }
    }

    /// All rules of an identity in a namespace, and what could not be resolved.
    pub(crate) fn rules_for(&self, identity: &Identity, namespace: &str) -> (Vec<&Rule>, Option<String>) {
        let (mut rules, mut missing, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        for grant in self.grants(identity, namespace) {
            // A binding with several subjects that are this identity counts once.
            if seen.iter().any(|other| Arc::ptr_eq(other, &grant.binding)) {
                continue;
            }
            seen.push(grant.binding.clone());
            match &grant.rules {
                Some(own) => rules.extend(&own.all),
                None => missing.push(grant),
            }
        }
        (rules, errors(&missing))
    }
}

/// Reads a collection, except for what was read before.
fn read<T>(
    store: &Store<Object>,
    collection: &str,
    before: &BTreeMap<Arc<str>, Arc<T>>,
    revision: impl Fn(&T) -> u64,
    read: impl Fn(u64, &Value) -> T,
) -> BTreeMap<Arc<str>, Arc<T>> {
    let entries = store.list(collection, Page::default()).entries;
    let known = |entry: &hutch_store::Entry<Object>| {
        before.get(&entry.name).filter(|known| revision(known) == entry.revision).cloned()
    };
    let fresh = |entry: &hutch_store::Entry<Object>| Arc::new(read(entry.revision, &entry.value.value()));
    entries.iter().map(|entry| (entry.name.clone(), known(entry).unwrap_or_else(|| fresh(entry)))).collect()
}

/// The roles that bindings refer to and that do not exist, in the words of Kubernetes.
fn errors(missing: &[&Grant]) -> Option<String> {
    let mut texts: Vec<String> = Vec::new();
    for grant in missing {
        let Binding { role_kind, role_name, .. } = &*grant.binding;
        let text = format!("{}.rbac.authorization.k8s.io {role_name:?} not found", role_kind.to_lowercase());
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.len() {
        0 => None,
        1 => texts.pop(),
        _ => Some(format!("[{}]", texts.join(", "))),
    }
}
