//! One request about objects: its caller, its target and its parameters.

use std::sync::{Arc, Mutex, OnceLock};

use hutch_store::Store;
use tokio::time::Instant;

use crate::accept::Form;
use crate::access::Action;
use crate::annotations::Annotations;
use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::identity::Identity;
use crate::kinds::Kind;
use crate::object::{self, Object};
use crate::query::Query;
use crate::registry::{Resource, Served};

/// Warnings of one answer at most; clients show each of them.
const WARNINGS: usize = 20;

/// A request about objects of one kind.
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    /// The store as this caller sees it.
    pub(crate) store: Store<Object>,
    pub(crate) identity: Identity,
    /// True if the caller came from outside with a credential.
    pub(crate) external: bool,
    /// True if the request calls no webhook.
    pub(crate) unhooked: bool,
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: Option<String>,
    /// Empty when the request is about the collection.
    pub(crate) name: String,
    pub(crate) query: Query,
    pub(crate) form: Form,
    pub(crate) user_agent: String,
    /// End of the time for policies and webhooks, once they are considered.
    pub(crate) admitted_until: OnceLock<Instant>,
    /// Annotations of policies and webhooks for the record of the request.
    pub(crate) annotations: Annotations,
    warnings: Mutex<Vec<String>>,
}

/// Caller of a request.
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) external: bool,
    /// True if the caller sees writes that are not on disk yet.
    pub(crate) ahead: bool,
    /// True if the requests of the caller call no webhook.
    pub(crate) unhooked: bool,
    pub(crate) user_agent: String,
}

#[cfg(test)]
impl Caller {
    /// The administrator, inside of the server.
    pub(crate) fn admin() -> Caller {
        let (identity, user_agent) = (Identity::admin(), String::new());
        Caller { identity, external: false, ahead: false, unhooked: false, user_agent }
    }
}

/// The objects that a path names.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    /// Reads a path below `/api` or `/apis`, decoded and without its leading slash.
    pub(crate) fn of(path: &str, served: &Served) -> Option<Target> {
        let segments: Vec<&str> = path.split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // What belongs to a namespace itself, against what lies in it.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize", ..] => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] if !name.is_empty() => (*plural, *name, ""),
            [plural, name, subresource] if !name.is_empty() && !subresource.is_empty() => {
                (*plural, *name, *subresource)
            }
            _ => return None,
        };
        let resource = served.find(group, version, plural)?;
        if !resource.kind.namespaced && namespace.is_some() {
            return None;
        }
        if resource.kind.namespaced && namespace.is_none() && !name.is_empty() {
            return None;
        }
        Some(Target {
            resource: resource.clone(),
            namespace: namespace.map(Into::into),
            name: name.into(),
            subresource: subresource.into(),
        })
    }

    /// Returns true if this is what an action is about. A path is read twice, for the decision and for the answer:
    /// both must have the same result.
    pub(crate) fn agrees(&self, action: &Action<'_>) -> bool {
        let Action::Resource { group, resource, subresource, namespace, name, .. } = action else {
            return false;
        };
        let in_itself = self.namespace.is_none() && self.resource.is("", "namespaces");
        self.resource.is(group, resource)
            && self.subresource == *subresource
            && (self.namespace.as_deref().unwrap_or_default() == *namespace || in_itself)
            && (self.name.is_empty() || self.name == *name)
    }
}

impl Call {
    pub(crate) fn new(core: Arc<Core>, caller: Caller, target: &Target, query: Query, form: Form) -> Call {
        let store = if caller.ahead { core.store.ahead() } else { core.store.clone() };
        Call {
            core,
            store,
            identity: caller.identity,
            external: caller.external,
            unhooked: caller.unhooked,
            resource: target.resource.clone(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
            query,
            form,
            user_agent: caller.user_agent,
            admitted_until: OnceLock::new(),
            annotations: Annotations::default(),
            warnings: Mutex::default(),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.resource.kind
    }

    /// Refuses the request if its kind is no longer served: its definition may be deleted meanwhile.
    pub(crate) fn check_served(&self) -> Result<(), Failure> {
        let (served, kind) = (self.core.registry.served(), self.kind());
        match served.find(&kind.group, &kind.version, &kind.plural) {
            Some(found) if found.collection == self.resource.collection => Ok(()),
            _ => Err(Failure::no_such_path()),
        }
    }

    /// The key of an object in the store.
    pub(crate) fn key(&self, name: &str) -> String {
        object::key(self.namespace.as_deref(), name)
    }

    /// The start of the keys that the request is about.
    pub(crate) fn prefix(&self) -> String {
        self.namespace.as_deref().map_or_else(String::new, |namespace| format!("{namespace}/"))
    }

    /// Adds a `Warning` header to the answer.
    pub(crate) fn warn(&self, text: impl Into<String>) {
        let (mut warnings, text) = (self.warnings.lock().expect("pushing does not panic"), text.into());
        if warnings.len() < WARNINGS && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().expect("taking does not panic"))
    }

    /// Returns true if the request must not store anything.
    pub(crate) fn dry_run(&self) -> Result<bool, Failure> {
        match self.query.all("dryRun").collect::<Vec<_>>().as_slice() {
            [] | [""] => Ok(false),
            ["All"] => Ok(true),
            [other, ..] => {
                let message = format!("Unsupported value: \"{other}\": supported values: \"All\"");
                let cause = Cause::new("FieldValueNotSupported", "dryRun", message);
                Err(Failure::invalid_options("CreateOptions", cause))
            }
        }
    }

    /// The writer that managed fields name: the parameter, else the first word of the user agent.
    pub(crate) fn field_manager(&self) -> String {
        match self.query.get("fieldManager") {
            Some(manager) if !manager.is_empty() => manager.to_owned(),
            _ => {
                let agent = self.user_agent.split(['/', ' ']).next().unwrap_or_default();
                if agent.is_empty() { "unknown".into() } else { agent.chars().take(128).collect() }
            }
        }
    }
}
