//! Keeps callers from granting rights that they do not hold, through a role or through a binding.

use serde_json::Value;

use crate::access::policy::Policy;
use crate::access::rule::{Rule, quoted, summary, uncovered};
use crate::access::{Action, GROUP};
use crate::call::Call;
use crate::failure::Failure;
use crate::{Identity, meta};

/// Fields of metadata that the garbage collector changes.
const COLLECTED: [&str; 4] = ["ownerReferences", "finalizers", "managedFields", "resourceVersion"];

/// Refuses a new or changed role or binding that grants more than the caller holds. Other kinds pass.
pub(crate) fn check(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if call.kind().group != GROUP || call.identity.is_master() {
        return Ok(());
    }
    if before.is_some_and(|before| without_collected(before) == without_collected(object)) {
        return Ok(());
    }
    match call.kind().plural.as_str() {
        "roles" | "clusterroles" => role(call, before, object),
        _ => binding(call, object),
    }
}

fn without_collected(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = meta::metadata(&mut object);
    for field in COLLECTED {
        metadata.remove(field);
    }
    object
}

fn role(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let escalate = Action::on("escalate", GROUP, &call.kind().plural, &call.name).inside(namespace);
    if call.core.access.decide(&call.identity, &escalate).allowed {
        return Ok(());
    }
    let policy = call.core.access.policy();
    holds(call, &policy, object, &Rule::all_of(object))?;
    let aggregates = |role: &Value| {
        let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
        selectors.is_some_and(|selectors| !selectors.is_empty())
    };
    if !aggregates(object) && !before.is_some_and(aggregates) {
        return Ok(());
    }
    // It can gather anything.
    let everything = [
        Rule {
            verbs: vec!["*".into()],
            groups: vec!["*".into()],
            resources: vec!["*".into()],
            ..Rule::default()
        },
        Rule { verbs: vec!["*".into()], paths: vec!["*".into()], ..Rule::default() },
    ];
    if missing(&call.identity, &policy, namespace, &everything).is_empty() {
        return Ok(());
    }
    let why = "must have cluster-admin privileges to use the aggregationRule";
    Err(Failure::forbidden(call.kind(), meta::text(object, "name"), why, Vec::new()))
}

fn binding(call: &Call, object: &Value) -> Result<(), Failure> {
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let text = |field: &str| object["roleRef"][field].as_str().unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let plural = match kind {
        "ClusterRole" => "clusterroles",
        "Role" => "roles",
        // Validation names the field.
        _ => return Err(unsupported(kind)),
    };
    let bind = Action::on("bind", text("apiGroup"), plural, name).inside(namespace);
    if call.core.access.decide(&call.identity, &bind).allowed {
        return Ok(());
    }
    let policy = call.core.access.policy();
    let Some(rules) = policy.role(kind, name, namespace) else {
        return Err(Failure::not_found(call.kind(), name));
    };
    holds(call, &policy, object, &rules)
}

fn unsupported(kind: &str) -> Failure {
    Failure::unexplained(format!("unsupported role reference kind: {kind:?}"))
}

/// The parts of these rules that an identity does not hold in a namespace.
fn missing(identity: &Identity, policy: &Policy, namespace: &str, wanted: &[Rule]) -> Vec<Rule> {
    uncovered(&policy.rules_for(identity, namespace).0, wanted)
}

/// Refuses rules that the caller does not hold.
fn holds(call: &Call, policy: &Policy, object: &Value, wanted: &[Rule]) -> Result<(), Failure> {
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let missing = missing(&call.identity, policy, namespace, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let Identity { name, groups, .. } = &call.identity;
    let mut why = format!(
        "user {name:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(groups),
        summary(&missing)
    );
    if let Some(errors) = policy.rules_for(&call.identity, namespace).1 {
        why.push_str("; resolution errors: ");
        if errors.starts_with('[') {
            why.push_str(&errors);
        } else {
            why.push_str(&format!("[{errors}]"));
        }
    }
    Err(Failure::forbidden(call.kind(), meta::text(object, "name"), &why, Vec::new()))
}
