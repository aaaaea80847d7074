//! Credentials of forks. A fork that inherits those of its source uses them for its creator, who needs the verb `use` on each
//! provider, as the author of a policy does.

use std::collections::BTreeSet;

use hutch_api::annotation::{FORK_CREDENTIALS, POLICIES, TEMPLATE_REF};
use hutch_api::label::FORK;
use hutch_api::state::{ForkCredentials, SandboxFork};
use hutch_policy::{PolicyObject, Subject, policy_names};
use hutch_store::Page;
use serde::Deserialize;
use serde_json::Value;

use super::policy::{GROUP, PROVIDERS};
use super::snapshot::allow;
use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::meta;

const SANDBOXES: &str = "sandboxes.agents.x-k8s.io";
const SNAPSHOTS: &str = "sandboxsnapshots.hutch.dev";
const TEMPLATES: &str = "sandboxtemplates.extensions.agents.x-k8s.io";
const SANDBOX_POLICIES: &str = "sandboxpolicies.policy.hutch.dev";
const FIELD: &str = "spec.credentials";

/// Checks that the caller may use the credentials that a new fork inherits.
///
/// # Errors
/// The verb is missing for a provider, or the source does not exist, so that its policies are not known.
pub(crate) fn check(call: &Call, object: &Value) -> Result<(), Failure> {
    let Ok(fork) = SandboxFork::deserialize(object) else { return Ok(()) };
    if fork.spec.credentials != ForkCredentials::Inherit {
        return Ok(());
    }
    let Some(source) = source(call, &fork) else {
        let why = "the Sandbox of the source does not exist, so its credentials are not known";
        let cause = Cause::invalid(FIELD, &object["spec"]["credentials"], why);
        return Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]));
    };
    for provider in providers(call, &subjects(call, &fork, &source)) {
        allow(call, object, FIELD, Action::on("use", GROUP, PROVIDERS, &provider), &provider)?;
    }
    Ok(())
}

/// Keeps the annotation of a Sandbox with the credentials of its fork, which its controller writes.
///
/// # Errors
/// The caller sets, changes or removes it.
pub(crate) fn keep(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if !call.resource.is(hutch_api::GROUP, "sandboxes") {
        return Ok(());
    }
    let value = |object: &Value| object["metadata"]["annotations"].get(FORK_CREDENTIALS).cloned();
    let (old, new) = (before.and_then(value), value(object));
    if old == new {
        return Ok(());
    }
    let field = format!("metadata.annotations[{FORK_CREDENTIALS}]");
    let why = "says which credentials a Sandbox of a fork has, and is set by the server";
    let cause = Cause::invalid(field, &new.unwrap_or_default(), why);
    Err(Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause]))
}

fn stored(call: &Call, collection: &str, name: &str) -> Option<Value> {
    Some(call.store.get(collection, &call.key(name))?.value.value())
}

/// Returns a Sandbox of the namespace.
pub(super) fn sandbox(call: &Call, name: &str) -> Option<Value> {
    stored(call, SANDBOXES, name)
}

/// Returns the name of the Sandbox of a snapshot, if that has a template, and the snapshot or the Sandbox: either names the
/// template.
pub(super) fn of_template(call: &Call, snapshot: &str) -> Option<(String, Value)> {
    let snapshot = stored(call, SNAPSHOTS, snapshot)?;
    let source = snapshot["spec"]["source"]["sandbox"].as_str()?.to_owned();
    let has_one = |object: &Value| object["metadata"]["annotations"].get(TEMPLATE_REF).is_some();
    if has_one(&snapshot) {
        return Some((source, snapshot));
    }
    // One that an older version stored.
    let object = sandbox(call, &source).filter(has_one)?;
    Some((source, object))
}

/// Returns the Sandbox of which the forks are.
fn source(call: &Call, fork: &SandboxFork) -> Option<Value> {
    let name = match (&fork.spec.source.sandbox, &fork.spec.source.snapshot) {
        (Some(sandbox), _) => sandbox.clone(),
        (None, snapshot) => {
            let snapshot = stored(call, SNAPSHOTS, snapshot.as_deref()?)?;
            snapshot["spec"]["source"]["sandbox"].as_str()?.to_owned()
        }
    };
    stored(call, SANDBOXES, &name)
}

/// Returns the source and the forks as policies see them.
fn subjects(call: &Call, fork: &SandboxFork, source: &Value) -> Vec<Subject> {
    let namespace = call.namespace.clone().unwrap_or_default();
    let annotation =
        |object: &Value, key: &str| object["metadata"]["annotations"][key].as_str().map(str::to_owned);
    let template = annotation(source, TEMPLATE_REF);
    let of_template = template.as_ref().and_then(|name| call.store.get(TEMPLATES, &call.key(name)));
    let of_template = of_template.and_then(|entry| annotation(&entry.value.value(), POLICIES));
    let of_namespace = call.store.get("namespaces", &namespace);
    let labels =
        |object: &Value| serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default();
    let source = Subject {
        namespace_labels: of_namespace.map(|entry| labels(&entry.value.value())).unwrap_or_default(),
        namespace,
        sandbox: Some(meta::text(source, "name").to_owned()),
        labels: labels(source),
        template,
        by_template: policy_names(&of_template.unwrap_or_default()),
        by_claim: policy_names(&annotation(source, POLICIES).unwrap_or_default()),
    };
    let mut all = vec![source.clone()];
    let mut labels = source.labels.clone();
    labels.insert(FORK.to_owned(), fork.metadata.name.clone().unwrap_or_default());
    let child = |name| Subject { sandbox: Some(name), labels: labels.clone(), ..source.clone() };
    all.extend(fork.child_names().into_iter().map(child));
    all
}

/// Returns the providers of the policies that apply to one of these.
fn providers(call: &Call, subjects: &[Subject]) -> BTreeSet<String> {
    let prefix = call.prefix();
    let page = Page { prefix: &prefix, ..Page::default() };
    let policies = call.store.list(SANDBOX_POLICIES, page).entries;
    let policies = policies.iter().filter_map(|entry| PolicyObject::deserialize(&entry.value.value()).ok());
    let applies = |policy: &PolicyObject| {
        let authority = |subject: &Subject| policy.authority_over(subject, Some(&subject.namespace));
        subjects.iter().any(|subject| authority(subject).is_some())
    };
    let names = |policy: PolicyObject| policy.providers().map(str::to_owned).collect::<Vec<_>>();
    policies.filter(applies).flat_map(names).collect()
}
