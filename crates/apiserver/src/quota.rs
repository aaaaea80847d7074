//! ResourceQuotas: bounds on how many objects a namespace holds, and on what its Pods, Services and volume claims request.
//!
//! What is used is counted from the stored objects at each create, so it cannot drift. Creates in a namespace with quotas
//! wait for each other, from the count until the object is stored; other namespaces pay for one lookup.

pub(crate) mod limits;
mod usage;

use hutch_api::quantity::Quantity;
use hutch_store::{Error, Page};
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use self::usage::{Amounts, amounts};
use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Collection of the quotas.
pub(crate) const QUOTAS: &str = "resourcequotas";
/// Maximum tries to write the status of a quota against other writers.
const TRIES: usize = 8;

/// Known scopes. No Pod is in the last two.
const SCOPES: [&str; 7] = [
    "BestEffort",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Refuses a quota with an unknown scope: it would bound nothing.
pub(crate) fn check_scopes(kind: &Kind, object: &Value) -> Result<(), Failure> {
    let spec = &object["spec"];
    let plain = spec["scopes"].as_array().into_iter().flatten().map(|scope| ("spec.scopes", scope));
    let terms = spec.pointer("/scopeSelector/matchExpressions").and_then(Value::as_array);
    let selected = terms.into_iter().flatten();
    let selected = selected.map(|term| ("spec.scopeSelector.matchExpressions.scopeName", &term["scopeName"]));
    let unknown = plain.chain(selected).filter(|(_, scope)| !SCOPES.iter().any(|known| *scope == *known));
    let causes: Vec<_> =
        unknown.map(|(field, scope)| Cause::invalid(field, scope, "unsupported scope")).collect();
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

/// One quota.
struct Quota {
    name: String,
    hard: Amounts,
    /// Scope, operator and values; all of them must hold.
    scopes: Vec<(String, String, Vec<Value>)>,
}

impl Quota {
    fn read(quota: &Value) -> Quota {
        let spec = &quota["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let plain = spec["scopes"].as_array().into_iter().flatten();
        let mut scopes: Vec<_> = plain.map(|scope| (text(scope), "Exists".to_owned(), Vec::new())).collect();
        let selected = spec.pointer("/scopeSelector/matchExpressions").and_then(Value::as_array);
        scopes.extend(selected.into_iter().flatten().map(|term| {
            let values = term["values"].as_array().cloned().unwrap_or_default();
            (text(&term["scopeName"]), text(&term["operator"]), values)
        }));
        Quota { name: meta::text(quota, "name").to_owned(), hard: amounts(&spec["hard"]), scopes }
    }

    /// The hard amounts that concern objects of a kind.
    fn concerning(&self, usage: &Amounts, kind: &Kind) -> Amounts {
        let compute = kind.group_resource() == "pods";
        let concerns = |name: &&String| {
            usage.contains_key(*name) || compute && matches!(kind_of_resource(name), Some("pods"))
        };
        self.hard
            .iter()
            .filter(|(name, _)| concerns(name))
            .map(|(name, amount)| (name.clone(), *amount))
            .collect()
    }

    fn matches(&self, kind: &Kind, object: &Value) -> bool {
        self.scopes
            .iter()
            .all(|(name, operator, values)| usage::is_in_scope(kind, object, name, operator, values))
    }

    /// Returns what objects of these kinds use of this quota.
    fn used(&self, core: &Core, namespace: &str, kinds: &[Kind]) -> Amounts {
        let prefix = format!("{namespace}/");
        let mut used = Amounts::new();
        for kind in kinds.iter().filter(|kind| self.counts(kind)) {
            let page = Page { prefix: &prefix, ..Page::default() };
            let count_only = self.scopes.is_empty()
                && !usage::has_exempt(kind)
                && usage::of(kind, &Value::Null).len() == 1;
            let list = core.store.ahead().list(&kind.group_resource(), page).entries;
            if count_only {
                let name = format!("count/{}", kind.group_resource());
                used.insert(name, Quantity::of_units(list.len()));
                continue;
            }
            let objects = list.iter().map(|entry| entry.value.value());
            let counted = objects.filter(|object| self.matches(kind, object));
            used = counted.fold(used, |used, object| usage::sum(used, usage::of(kind, &object)));
        }
        self.hard.keys().map(|name| (name.clone(), used.get(name).copied().unwrap_or_default())).collect()
    }

    /// Returns true if the quota may count objects of a kind.
    fn counts(&self, kind: &Kind) -> bool {
        let resource = kind.group_resource();
        self.hard.keys().any(|name| {
            name.strip_prefix("count/").is_some_and(|counted| counted == resource)
                || kind.group.is_empty() && kind_of_resource(name) == Some(kind.plural.as_str())
        })
    }
}

/// The kind whose objects use a resource of a quota, other than `count/…`.
fn kind_of_resource(name: &str) -> Option<&str> {
    match name {
        "pods" | "cpu" | "memory" | "ephemeral-storage" => Some("pods"),
        "configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers" => Some(name),
        "requests.storage" | "persistentvolumeclaims" => Some("persistentvolumeclaims"),
        _ if name.contains(".storageclass.storage.k8s.io/") => Some("persistentvolumeclaims"),
        _ if name.starts_with("services") => Some("services"),
        _ if name.starts_with("requests.")
            || name.starts_with("limits.")
            || name.starts_with("hugepages-") =>
        {
            Some("pods")
        }
        _ => None,
    }
}

fn quotas(core: &Core, namespace: &str) -> Vec<Quota> {
    let prefix = format!("{namespace}/");
    let page = Page { prefix: &prefix, ..Page::default() };
    let list = core.store.ahead().list(QUOTAS, page).entries;
    list.iter().map(|entry| Quota::read(&entry.value.value())).collect()
}

/// Returns true if a namespace has quotas.
fn is_bounded(core: &Core, namespace: &str) -> bool {
    let prefix = format!("{namespace}/");
    !core
        .store
        .ahead()
        .list(QUOTAS, Page { prefix: &prefix, limit: Some(1), ..Page::default() })
        .entries
        .is_empty()
}

/// Checks a new object against the quotas of its namespace. The object must be stored while the guard is held.
pub(crate) async fn admit(
    core: &Core,
    kind: &Kind,
    object: &Value,
) -> Result<Option<OwnedMutexGuard<()>>, Failure> {
    let namespace = meta::text(object, "namespace");
    if namespace.is_empty() || !is_bounded(core, namespace) {
        return Ok(None);
    }
    let turn = core.creates.lock(namespace).await;
    check(core, kind, None, object)?;
    Ok(Some(turn))
}

/// Checks a changed object, which may use more than before.
pub(crate) fn check_change(core: &Core, kind: &Kind, before: &Value, object: &Value) -> Result<(), Failure> {
    match may_grow(core, kind, object) {
        true => check(core, kind, Some(before), object),
        false => Ok(()),
    }
}

/// As [`check_change`], when nothing is left but the write, which must happen while the guard is held.
pub(crate) async fn admit_change(
    core: &Core,
    kind: &Kind,
    before: &Value,
    object: &Value,
) -> Result<Option<OwnedMutexGuard<()>>, Failure> {
    if !may_grow(core, kind, object) {
        return Ok(None);
    }
    let turn = core.creates.lock(meta::text(object, "namespace")).await;
    check(core, kind, Some(before), object)?;
    Ok(Some(turn))
}

fn may_grow(core: &Core, kind: &Kind, object: &Value) -> bool {
    let resizable = matches!(kind.group_resource().as_str(), "services" | "persistentvolumeclaims");
    resizable && is_bounded(core, meta::text(object, "namespace"))
}

fn check(core: &Core, kind: &Kind, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    let (namespace, name) = (meta::text(object, "namespace"), meta::text(object, "name"));
    let forbidden = |why: String| Err(Failure::forbidden(kind, name, &why, Vec::new()));
    let usage = usage::of(kind, object);
    let old = before.map(|before| usage::of(kind, before)).unwrap_or_default();
    for quota in quotas(core, namespace).iter().filter(|quota| quota.matches(kind, object)) {
        let concerning = quota.concerning(&usage, kind);
        if concerning.is_empty() {
            continue;
        }
        if kind.group_resource() == "pods"
            && let Some(lacking) = usage::lacking(object, &concerning)
        {
            return forbidden(format!("failed quota: {}: {lacking}", quota.name));
        }
        let used = quota.used(core, namespace, std::slice::from_ref(kind));
        let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
        for (resource, hard) in &concerning {
            let own = usage.get(resource).copied().unwrap_or_default();
            let more = own.beyond(old.get(resource).copied().unwrap_or_default());
            let used = used.get(resource).copied().unwrap_or_default();
            if more.milli() > 0 && used.plus(more).milli() > hard.milli() {
                for (texts, amount) in exceeded.iter_mut().zip([&more, &used, hard]) {
                    texts.push(format!("{resource}={amount}"));
                }
            }
        }
        let [requested, used, limited] = exceeded.map(|texts| texts.join(","));
        if !requested.is_empty() {
            let amounts = format!("requested: {requested}, used: {used}, limited: {limited}");
            return forbidden(format!("exceeded quota: {}, {amounts}", quota.name));
        }
    }
    Ok(())
}

/// Writes what is used now into the status of the quotas of a namespace, where it has changed.
pub(crate) async fn refresh(core: &Core, namespace: &str) {
    if namespace.is_empty() || !is_bounded(core, namespace) {
        return;
    }
    let kinds: Vec<Kind> = core.registry.served().kinds().filter(|kind| kind.namespaced).cloned().collect();
    for quota in quotas(core, namespace) {
        let key = format!("{namespace}/{}", quota.name);
        let used = quota.used(core, namespace, &kinds);
        let shown = |amounts: &Amounts| -> Value {
            amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect()
        };
        let status = json!({"hard": shown(&quota.hard), "used": shown(&used)});
        for _ in 0..TRIES {
            let Some(entry) = core.store.latest(QUOTAS, &key) else { break };
            let mut object = entry.value.value();
            if object["status"] == status {
                break;
            }
            object["status"] = status.clone();
            match core.store.update(QUOTAS, &key, entry.revision, object).await {
                Err(Error::Conflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, quota = %key, "failed to write the status of a quota");
                    break;
                }
                Ok(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_with_an_unknown_scope_is_refused() {
        let refused = |spec: Value| check_scopes(&Kind::default(), &json!({ "spec": spec })).is_err();
        let selected = |name: &str| json!({"scopeSelector": {"matchExpressions": [{"scopeName": name}]}});
        for scope in SCOPES {
            assert!(!refused(json!({"scopes": [scope]})) && !refused(selected(scope)), "{scope}");
        }
        assert!(refused(json!({"scopes": ["BestEffort", "besteffort"]})) && refused(selected("Other")));
        assert!(!refused(json!({})));
    }
}
