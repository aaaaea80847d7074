//! Role-based access control as in Kubernetes.
//!
//! [`check`] is called before every verb. It decides by the roles and bindings that are stored ([`policy`]); everything
//! that no rule allows is denied. Members of `system:masters` may do everything, whatever is stored. [`record`] sees every
//! decision about a request.
//!
//! A decision never lags behind an accepted write: a policy names the revision of the objects that it was compiled from,
//! and is compiled anew as soon as the store has a later one.

mod action;
mod aggregate;
pub(crate) mod certificates;
pub(crate) mod defaults;
pub(crate) mod escalation;
pub(crate) mod impersonation;
mod policy;
mod rule;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hutch_store::Store;
use serde_json::{Value, json};

use crate::Identity;
use crate::failure::Failure;
use crate::object::Object;
use crate::server::Core;

pub(crate) use self::action::{Action, RequestAction};
pub(crate) use self::aggregate::reconcile as reconcile_aggregated;
use self::policy::{Binding, Policy};

/// Group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Group of all authenticated callers.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// Group of callers without a credential.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";
/// API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The current policy.
#[derive(Debug, Default)]
pub(crate) struct Access {
    current: RwLock<Arc<Policy>>,
    /// Held while a policy is compiled, so that concurrent requests do not all do it.
    compiling: Mutex<()>,
    /// How callers have impersonated others.
    impersonations: impersonation::Memory,
}

/// The answer to whether an identity may do something.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: Reason,
}

/// Why a decision is as it is.
#[derive(Debug)]
pub(crate) enum Reason {
    /// No binding allows it, or the identity may do everything.
    None,
    /// This subject of this binding.
    Binding(Arc<Binding>, usize),
    /// Roles of the identity that do not exist.
    Errors(String),
}

/// In the words of Kubernetes; empty for [`Reason::None`].
impl fmt::Display for Reason {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::None => Ok(()),
            Reason::Binding(binding, subject) => {
                write!(to, "RBAC: allowed by {}", binding.describe(*subject))
            }
            Reason::Errors(errors) => write!(to, "RBAC: {errors}"),
        }
    }
}

impl Access {
    /// The policy of what is stored now.
    pub(crate) fn policy(&self, store: &Store<Object>) -> Arc<Policy> {
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (policy, revision) = (current(), store.changed(&policy::COLLECTIONS));
        if policy.revision == revision {
            return policy;
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have compiled it meanwhile. The revision is read before the objects: an object that changes
        // in between makes the next request compile again.
        let (before, revision) = (current(), store.changed(&policy::COLLECTIONS));
        if before.revision == revision {
            return before;
        }
        let policy = Arc::new(Policy::compile(store, &before, revision));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = policy.clone();
        policy
    }
}

/// Returns true if an identity may do everything.
pub(crate) fn is_master(identity: &Identity) -> bool {
    identity.groups.iter().any(|group| group == MASTERS)
}

/// Decides whether an identity may do something.
pub(crate) fn decide(core: &Core, identity: &Identity, action: &Action<'_>) -> Decision {
    if is_master(identity) {
        return Decision { allowed: true, reason: Reason::None };
    }
    core.access.policy(&core.store).decide(identity, action)
}

/// Refuses an action that the identity may not do, and records the decision.
pub(crate) fn check(core: &Core, identity: &Identity, action: Action<'_>) -> Result<(), Failure> {
    let decision = decide(core, identity, &action);
    record(identity, &action, &decision);
    if decision.allowed { Ok(()) } else { Err(denied(identity, action, &decision.reason.to_string())) }
}

/// Records one decision about a request: the one place that sees all of them.
pub(crate) fn record(identity: &Identity, action: &Action<'_>, decision: &Decision) {
    let Decision { allowed, reason } = decision;
    tracing::trace!(user = %identity.name, groups = ?identity.groups, %action, allowed, %reason, "access decided");
}

/// The refusal, with the message of a Kubernetes API server.
pub(crate) fn denied(identity: &Identity, action: Action<'_>, reason: &str) -> Failure {
    let text = format!("User {:?} cannot {action}", identity.name);
    match action {
        Action::Path { .. } => Failure::denied("", "", "", &text, reason),
        Action::Resource { group, resource, name, .. } => {
            Failure::denied(group, resource, name, &text, reason)
        }
    }
}

/// The status of a SelfSubjectRulesReview.
pub(crate) fn rules_status(core: &Core, identity: &Identity, namespace: &str) -> Value {
    let policy = core.access.policy(&core.store);
    let (rules, error) = policy.rules_for(identity, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in rules {
        if !rule.resources.is_empty() {
            let mut shown =
                json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources});
            if !rule.names.is_empty() {
                shown["resourceNames"] = rule.names.clone().into();
            }
            resources.push(shown);
        }
        if !rule.paths.is_empty() {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
        }
    }
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if let Some(error) = error {
        status["evaluationError"] = error.into();
    }
    status
}

#[cfg(test)]
mod tests;
