//! Defaults that a real API server adds to built-in objects, and the few of its checks that clients meet.
//!
//! It works on objects as they are stored. Each kind that needs something has a file of its own.

pub(crate) mod certificate_request;
pub(crate) mod creator;
pub(crate) mod data;
pub(crate) mod definition;
pub(crate) mod disruption;
pub(crate) mod effect;
pub(crate) mod escalation;
mod fork;
pub(crate) mod ingress;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod owner;
pub(crate) mod pod;
pub(crate) mod pod_snapshot;
pub(crate) mod policy;
pub(crate) mod rbac;
pub(crate) mod revision;
mod selectors;
pub(crate) mod service;
mod share;
pub(crate) mod snapshot;
pub(crate) mod token_secret;
pub(crate) mod validating_policy;
pub(crate) mod volume_claim;
pub(crate) mod webhook;
pub(crate) mod workload;

use serde_json::{Value, json};

use crate::call::Call;
use crate::core::Core;
use crate::failure::Failure;
use crate::hooks;
use crate::json::{default, items, map};
use crate::quota::{self, limits};
use crate::registry::Resource;

/// Completes a new object.
pub(crate) fn create(core: &Core, resource: &Resource, object: &mut Value) -> Result<(), Failure> {
    let kind = &resource.kind;
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pod::create(core, kind, object),
        ("", "services") => service::create(core, object),
        ("", "namespaces") => {
            namespace::create(object);
            Ok(())
        }
        ("", "persistentvolumeclaims") => {
            volume_claim::create(kind, object)?;
            limits::check_volume_claim(core, kind, object)
        }
        ("", "limitranges") => {
            limits::complete(object);
            Ok(())
        }
        ("", "resourcequotas") => {
            object["status"] = json!({});
            quota::check_scopes(kind, object)
        }
        ("", "configmaps") => data::check(kind, None, object),
        ("", "secrets") => {
            fold_string_data(object);
            default(object, "type", "Opaque");
            token_secret::fill(core, kind, object)?;
            data::check(kind, None, object)
        }
        ("", "persistentvolumes") => {
            object["status"] = json!({ "phase": "Pending" });
            Ok(())
        }
        ("", "nodes") => Ok(()),
        ("apps", "controllerrevisions") => revision::check(kind, None, object),
        ("apps" | "batch", _) | ("", "podtemplates" | "replicationcontrollers") => {
            workload::create(kind, object)
        }
        ("networking.k8s.io", _) => ingress::check(kind, None, object),
        ("policy", "poddisruptionbudgets") => disruption::check(kind, None, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            definition::create(kind, object, core.ambient.now())
        }
        (hooks::GROUP, "validatingadmissionpolicies") => validating_policy::check(core, kind, None, object),
        (hooks::GROUP, "validatingadmissionpolicybindings") => {
            validating_policy::check_binding(core, kind, None, object)
        }
        (hooks::GROUP, _) => webhook::check(core, kind, None, object),
        (crate::access::GROUP, _) => rbac::check(kind, None, object),
        (policy::GROUP, _) => policy::check(kind, object),
        _ => Ok(()),
    }
}

/// Completes and checks a changed object.
pub(crate) fn update(
    core: &Core,
    resource: &Resource,
    old: &Value,
    object: &mut Value,
) -> Result<(), Failure> {
    let kind = &resource.kind;
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pod::update(kind, old, object),
        ("", "services") => service::update(core, kind, old, object),
        ("", "namespaces") => {
            namespace::label(object);
            Ok(())
        }
        ("", "configmaps") => data::check(kind, Some(old), object),
        ("", "persistentvolumeclaims") => {
            volume_claim::update(kind, old, object)?;
            limits::check_volume_claim(core, kind, object)
        }
        ("", "limitranges") => {
            limits::complete(object);
            Ok(())
        }
        ("", "secrets") => {
            fold_string_data(object);
            token_secret::fill(core, kind, object)?;
            data::check(kind, Some(old), object)
        }
        ("", "resourcequotas") if old["spec"] != object["spec"] => quota::check_scopes(kind, object),
        ("apps", "controllerrevisions") => revision::check(kind, Some(old), object),
        ("apps" | "batch", _) | ("", "podtemplates" | "replicationcontrollers") => {
            workload::update(kind, old, object)
        }
        ("networking.k8s.io", _) => ingress::check(kind, Some(old), object),
        ("policy", "poddisruptionbudgets") => disruption::check(kind, Some(old), object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            definition::update(kind, old, object, core.ambient.now())
        }
        (hooks::GROUP, "validatingadmissionpolicies") => {
            validating_policy::check(core, kind, Some(old), object)
        }
        (hooks::GROUP, "validatingadmissionpolicybindings") => {
            validating_policy::check_binding(core, kind, Some(old), object)
        }
        (hooks::GROUP, _) => webhook::check(core, kind, Some(old), object),
        (crate::access::GROUP, _) => rbac::check(kind, Some(old), object),
        (policy::GROUP, _) if old["spec"] != object["spec"] => policy::check(kind, object),
        _ => Ok(()),
    }
}

/// Refuses an object that names others which the caller may not use.
pub(crate) fn check_use(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    policy::check_use(call, before, object)?;
    validating_policy::check_use(call, before, object)
}

/// Refuses an object whose owner or annotations need rights that the caller does not have. Each part of some kind of
/// object can change them.
pub(crate) fn check_metadata(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    snapshot::check(call, before, object)?;
    pod_snapshot::check(call, before, object)?;
    owner::check(call, before, object)
}

/// Warns about an object, or a part of it, that has no effect.
pub(crate) fn warn(call: &Call, object: &Value) {
    policy::warn(call, object);
    webhook::warn(call, object);
    validating_policy::warn(call, object);
    workload::warn(call);
    effect::warn(call, object);
}

/// `stringData` of a Secret is a way of writing `data`.
fn fold_string_data(object: &mut Value) {
    use base64::Engine;
    let Some(Value::Object(texts)) = object.as_object_mut().and_then(|map| map.remove("stringData")) else {
        return;
    };
    let data = map(object, "data");
    for (key, text) in texts {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        data.insert(key, encoded.into());
    }
}
