//! Role-based access control as in Kubernetes.
//!
//! [`Access::check`] is called before every verb. It decides by the roles and bindings that are stored ([`policy`]); everything
//! that no rule allows is denied. Members of `system:masters` may do everything, whatever is stored. [`record`] sees every
//! decision about a request.
//!
//! A decision never lags behind an accepted write: a policy names the revision of the objects that it was compiled from,
//! and is compiled anew as soon as the store has a later one.

mod action;
mod aggregate;
pub(crate) mod impersonation;
pub(crate) mod policy;
pub(crate) mod rule;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hutch_store::Store;
use serde_json::{Value, json};

use crate::Identity;
use crate::failure::Failure;
use crate::object::Object;

pub(crate) use self::action::{Action, RequestAction};
pub(crate) use self::aggregate::reconcile as reconcile_aggregated;
use self::policy::{Binding, Policy};

/// API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// The current policy.
pub(crate) struct Access {
    store: Store<Object>,
    current: RwLock<Arc<Policy>>,
    /// Held while a policy is compiled, so that concurrent requests do not all do it.
    compiling: Mutex<()>,
    /// Modes in which callers have impersonated others.
    impersonations: impersonation::Memory,
}

/// The answer to whether an identity may do something.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: Reason,
}

/// Reason of a decision.
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
    /// Decides by the roles and bindings in a store.
    pub(crate) fn new(store: Store<Object>) -> Access {
        Access {
            store,
            current: RwLock::default(),
            compiling: Mutex::default(),
            impersonations: impersonation::Memory::default(),
        }
    }

    /// The policy of what is stored now.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (policy, revision) = (current(), self.store.changed(&policy::COLLECTIONS));
        if policy.revision == revision {
            return policy;
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have compiled it meanwhile. The revision is read before the objects: an object that changes
        // in between makes the next request compile again.
        let (before, revision) = (current(), self.store.changed(&policy::COLLECTIONS));
        if before.revision == revision {
            return before;
        }
        let policy = Arc::new(Policy::compile(&self.store, &before, revision));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = policy.clone();
        policy
    }

    /// Decides whether an identity may do something.
    pub(crate) fn decide(&self, identity: &Identity, action: &Action<'_>) -> Decision {
        if identity.is_master() {
            return Decision { allowed: true, reason: Reason::None };
        }
        self.policy().decide(identity, action)
    }

    /// Refuses an action that the identity may not do, and records the decision.
    pub(crate) fn check(&self, identity: &Identity, action: Action<'_>) -> Result<(), Failure> {
        let decision = self.decide(identity, &action);
        record(identity, &action, &decision);
        if decision.allowed { Ok(()) } else { Err(denied(identity, action, &decision.reason.to_string())) }
    }

    /// The status of a SelfSubjectRulesReview.
    pub(crate) fn rules_status(&self, identity: &Identity, namespace: &str) -> Value {
        let policy = self.policy();
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

#[cfg(test)]
mod tests;
