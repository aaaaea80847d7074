//! Roles and bindings, compiled: which rules hold for a user, a group or a ServiceAccount.
//!
//! A [`Policy`] is made from the stored objects of one revision and never changes. Objects that are the same as in the
//! policy before are not read again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

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

/// Subject of a binding.
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
    rules: Option<Arc<[Rule]>>,
}

/// The grants of one user or group in one namespace, or in the cluster.
#[derive(Debug, Default)]
struct GrantList {
    grants: Vec<Grant>,
    /// Made when the first decision needs it.
    index: OnceLock<Index>,
}

/// The rules of a list by resource, so that a decision does not depend on how many bindings there are. A rule is named by
/// the places of its grant and of itself.
#[derive(Debug, Default)]
struct Index {
    by_resource: HashMap<String, Vec<(usize, usize)>>,
    /// Rules that name resources by a star, or paths.
    others: Vec<(usize, usize)>,
    /// Grants whose role does not exist.
    missing: Vec<usize>,
}

/// Rules of one user or group.
#[derive(Debug, Default)]
struct Grants {
    cluster: GrantList,
    namespaces: HashMap<String, GrantList>,
}

/// The compiled roles and bindings of one revision.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub(super) revision: u64,
    cluster_roles: BTreeMap<Arc<str>, Arc<Role>>,
    roles: BTreeMap<Arc<str>, Arc<Role>>,
    cluster_bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    bindings: BTreeMap<Arc<str>, Arc<Binding>>,
    cluster_rules: HashMap<Arc<str>, Arc<[Rule]>>,
    rules: HashMap<Arc<str>, Arc<[Rule]>>,
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

impl Index {
    fn new(grants: &[Grant]) -> Index {
        let mut index = Index::default();
        for (place, grant) in grants.iter().enumerate() {
            let Some(rules) = &grant.rules else {
                index.missing.push(place);
                continue;
            };
            for (number, rule) in rules.iter().enumerate() {
                index.add((place, number), rule);
            }
        }
        index
    }

    fn add(&mut self, place: (usize, usize), rule: &Rule) {
        if !rule.paths.is_empty() || rule.resources.iter().any(|resource| resource.starts_with('*')) {
            return self.others.push(place);
        }
        for resource in &rule.resources {
            let parent = resource.split('/').next().unwrap_or_default();
            let places = self.by_resource.entry(parent.to_owned()).or_default();
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }
}

impl GrantList {
    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(&self.grants))
    }

    /// The first grant with a rule that allows the action.
    fn allowing(&self, action: &Action<'_>) -> Option<&Grant> {
        let index = self.index();
        let named = match action {
            Action::Resource { resource, .. } => index.by_resource.get(*resource),
            Action::Path { .. } => None,
        };
        let mut places = named.into_iter().flatten().chain(&index.others);
        let allows = |(grant, rule): &&(usize, usize)| {
            self.grants[*grant].rules.as_ref().is_some_and(|rules| rules[*rule].allows(action))
        };
        places.find(allows).map(|(grant, _)| &self.grants[*grant])
    }

    fn missing(&self) -> impl Iterator<Item = &Grant> {
        self.index().missing.iter().map(|place| &self.grants[*place])
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
        let rules = |rules: Vec<Rule>| Arc::<[Rule]>::from(rules);
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
                "" => grants.cluster.grants.push(grant),
                namespace => grants.namespaces.entry(namespace.to_owned()).or_default().grants.push(grant),
            }
        }
    }

    fn rules_of(&self, kind: &str, name: &str, namespace: &str) -> Option<Arc<[Rule]>> {
        match kind {
            "ClusterRole" => self.cluster_rules.get(name).cloned(),
            "Role" => self.rules.get(format!("{namespace}/{name}").as_str()).cloned(),
            _ => None,
        }
    }

    /// The rules of a role that a binding in this namespace refers to; `None` when there is no such role.
    pub(crate) fn role(&self, kind: &str, name: &str, namespace: &str) -> Option<Vec<Rule>> {
        self.rules_of(kind, name, namespace).map(|rules| rules.to_vec())
    }

    /// The effective rules of all ClusterRoles that aggregate others.
    pub(super) fn aggregated(&self) -> impl Iterator<Item = (&Arc<str>, &[Rule])> {
        let roles = self.cluster_roles.iter().filter(|(_, role)| role.selectors.is_some());
        roles.filter_map(|(name, _)| Some((name, &**self.cluster_rules.get(name)?)))
    }

    /// The grants of an identity in a namespace: those of the cluster first.
    fn grants(&self, identity: &Identity, namespace: &str) -> impl Iterator<Item = &GrantList> {
        let groups = identity.groups.iter().filter_map(|group| self.groups.get(group));
        let all: Vec<&Grants> = self.users.get(&identity.name).into_iter().chain(groups).collect();
        let cluster = all.clone().into_iter().map(|grants| &grants.cluster);
        let inside = all.into_iter().filter_map(move |grants| grants.namespaces.get(namespace));
        cluster.chain(inside)
    }

    /// Decides an action.
    pub(super) fn decide(&self, identity: &Identity, action: &Action<'_>) -> Decision {
        let allowing = |list: &GrantList| {
            list.allowing(action).map(|grant| Reason::Binding(grant.binding.clone(), grant.subject))
        };
        if let Some(reason) = self.grants(identity, action.namespace()).find_map(allowing) {
            return Decision { allowed: true, reason };
        }
        let missing: Vec<&Grant> =
            self.grants(identity, action.namespace()).flat_map(GrantList::missing).collect();
        Decision { allowed: false, reason: errors(&missing).map_or(Reason::None, Reason::Errors) }
    }

    /// All rules of an identity in a namespace, and what could not be resolved.
    pub(crate) fn rules_for(&self, identity: &Identity, namespace: &str) -> (Vec<&Rule>, Option<String>) {
        let (mut rules, mut missing, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for grant in self.grants(identity, namespace).flat_map(|list| &list.grants) {
            // A binding with several subjects that are this identity counts once.
            if !seen.insert(Arc::as_ptr(&grant.binding)) {
                continue;
            }
            match &grant.rules {
                Some(own) => rules.extend(own.iter()),
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
