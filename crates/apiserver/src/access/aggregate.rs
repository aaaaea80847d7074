//! Aggregated ClusterRoles: their rules are those of all ClusterRoles that their label selectors match.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::Access;
use super::policy::{CLUSTER_ROLES, Role};
use super::rule::Rule;
use crate::selector::LabelSelector;

/// Maximum tries to write the rules of one aggregated role against other writers.
const TRIES: usize = 8;

/// The effective rules of all ClusterRoles. A role may aggregate roles that are aggregated themselves.
pub(super) fn rules_of(roles: &BTreeMap<Arc<str>, Arc<Role>>) -> Vec<(Arc<str>, Vec<Rule>)> {
    let own = |role: &Role| if role.selectors.is_some() { Vec::new() } else { role.rules.clone() };
    let mut effective: BTreeMap<Arc<str>, Vec<Rule>> =
        roles.iter().map(|(name, role)| (name.clone(), own(role))).collect();
    let sources: Vec<(Arc<str>, Vec<Arc<str>>)> = roles
        .iter()
        .filter_map(|(name, role)| Some((name.clone(), matched(name, role.selectors.as_deref()?, roles))))
        .collect();
    // Each round carries rules one level up, so there are no more rounds with changes than aggregated roles.
    for _ in 0..=sources.len() {
        let mut changed = false;
        for (name, sources) in &sources {
            let mut rules: Vec<Rule> = Vec::new();
            for rule in sources.iter().filter_map(|source| effective.get(source)).flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
            changed |= effective.get(name) != Some(&rules);
            effective.insert(name.clone(), rules);
        }
        if !changed {
            break;
        }
    }
    effective.into_iter().collect()
}

/// Names of the roles that selectors match, in the order in which Kubernetes takes their rules.
fn matched(own: &str, selectors: &[Value], roles: &BTreeMap<Arc<str>, Arc<Role>>) -> Vec<Arc<str>> {
    let selectors = selectors.iter().filter_map(|selector| LabelSelector::from_object(selector).ok());
    let mut matched = Vec::new();
    for selector in selectors {
        let fitting = roles.iter().filter(|(name, role)| &***name != own && selector.matches(&role.labels));
        matched.extend(fitting.map(|(name, _)| name.clone()));
    }
    matched
}

/// Writes the effective rules of aggregated ClusterRoles into their objects, where they differ. Decisions do not wait for
/// it: a policy computes these rules itself.
pub(crate) async fn reconcile(access: &Access) {
    let policy = access.policy();
    for (name, rules) in policy.aggregated() {
        for _ in 0..TRIES {
            let Some(entry) = access.store.latest(CLUSTER_ROLES, name) else { break };
            let mut role = entry.value.value();
            let rules: Vec<Value> = rules.iter().map(Rule::to_value).collect();
            let stored = role["rules"].as_array().map_or(&[][..], Vec::as_slice);
            if stored == rules.as_slice() {
                break;
            }
            role["rules"] = rules.into();
            match access.store.update(CLUSTER_ROLES, name, entry.revision, role).await {
                Err(hutch_store::Error::Conflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, role = %name, "failed to write the rules of an aggregated cluster role");
                    break;
                }
                Ok(_) => break,
            }
        }
    }
}
