//! PersistentVolumeClaims.

use hutch_api::quantity::Quantity;
use serde_json::{Value, json};

use crate::failure::{Cause, Failure};
use crate::json::{quantity, written};
use crate::kinds::Kind;
use crate::meta;

/// Where the size of a claim is.
const STORAGE: &str = "/resources/requests/storage";

/// The finalizer that keeps a claim while a Pod uses it is left out: the node, which binds claims, removes the
/// volume only when the claim is gone, and Pods hold it by the node.
pub(crate) fn create(kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    let spec = &object["spec"];
    let mut causes = Vec::new();
    if spec["accessModes"].as_array().is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.accessModes", "at least 1 access mode is required"));
    }
    causes.extend(check_size(spec));
    refuse(kind, object, causes)?;
    super::default(&mut object["spec"], "volumeMode", "Filesystem");
    object["status"] = json!({ "phase": "Pending" });
    Ok(())
}

fn check_size(spec: &Value) -> Option<Cause> {
    const FIELD: &str = "spec.resources[storage]";
    let Some(storage) = spec.pointer(STORAGE) else { return Some(Cause::required(FIELD, "")) };
    let positive = size(spec).is_none_or(|size| size.milli() > 0);
    (!positive).then(|| Cause::invalid(FIELD, &written(storage).into(), "must be greater than zero"))
}

/// Size that a claim requests; `None` if it is not a quantity, which the schema reports.
fn size(spec: &Value) -> Option<Quantity> {
    quantity(spec.pointer(STORAGE)?)
}

/// Checks a changed claim: a bound one can only request more storage, any other one can only be bound.
pub(crate) fn update(kind: &Kind, old: &Value, object: &mut Value) -> Result<(), Failure> {
    super::default(&mut object["spec"], "volumeMode", "Filesystem");
    let (mut before, mut after) = (old["spec"].clone(), object["spec"].clone());
    // An earlier version may have stored it without the default, or with the size 0.
    super::default(&mut before, "volumeMode", "Filesystem");
    let before = &before;
    let resized = before.pointer(STORAGE) != after.pointer(STORAGE);
    let mut causes: Vec<Cause> = check_size(&after).filter(|_| resized).into_iter().collect();
    if before["volumeName"].as_str().unwrap_or_default().is_empty() {
        keep(before, &mut after, "volumeName");
    }
    let is_bound = object["status"]["phase"] == "Bound";
    if before["storageClassName"].is_null() && !is_bound {
        keep(before, &mut after, "storageClassName");
    }
    if is_bound {
        keep(before, &mut after, "volumeAttributesClassName");
        if let (Some(new), Some(old)) = (after.pointer_mut(STORAGE), before.pointer(STORAGE)) {
            *new = old.clone();
        }
    }
    if after != *before {
        let message = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        causes.push(Cause::forbidden("spec", message));
    }
    if let (Some(new), Some(old_size)) = (size(&object["spec"]), size(before))
        && new.milli() < old_size.milli()
    {
        let given = quantity(&old["status"]["capacity"]["storage"]).map_or(0, Quantity::milli);
        if new.milli() <= given {
            let message = "field can not be less than status.capacity";
            causes.push(Cause::forbidden("spec.resources.requests.storage", message));
        }
    }
    refuse(kind, object, causes)
}

/// Takes a field back that may change.
fn keep(before: &Value, after: &mut Value, field: &str) {
    let Some(after) = after.as_object_mut() else { return };
    match before.get(field) {
        Some(value) => drop(after.insert(field.into(), value.clone())),
        None => drop(after.remove(field)),
    }
}

fn refuse(kind: &Kind, object: &Value, causes: Vec<Cause>) -> Result<(), Failure> {
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: &Value, phase: &str) -> Value {
        let mut claim = json!({"metadata": {"name": "c"}, "status": {"phase": phase, "capacity": {"storage": "1Gi"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "resources": {"requests": {"storage": "2Gi"}}}});
        for (key, value) in spec.as_object().unwrap() {
            claim["spec"][key] = value.clone();
        }
        claim
    }

    fn kind() -> Kind {
        Kind { kind: "PersistentVolumeClaim".into(), ..Kind::default() }
    }

    #[test]
    fn claim_needs_a_size_greater_than_zero() {
        let create = |size: Value| {
            let mut object = claim(&json!({"resources": {"requests": {"storage": size}}}), "Pending");
            create(&kind(), &mut object).map_err(|failure| failure.message)
        };
        assert_eq!(create(json!("1")), Ok(()));
        assert_eq!(create(json!(1)), Ok(()));
        for size in [json!("0"), json!(0), json!("-1Gi"), json!("0Gi")] {
            let refused = create(size.clone()).unwrap_err();
            assert!(refused.contains("spec.resources[storage]: Invalid value"), "{size}: {refused}");
            assert!(refused.contains("must be greater than zero"), "{size}: {refused}");
        }
    }

    #[test]
    fn spec_changes_only_as_kubernetes_allows() {
        let requests = |size: &str| json!({"resources": {"requests": {"storage": size}}});
        let unchanged = json!({"resources": {"requests": {"storage": "2Gi"}}});
        let immutable = "spec: Forbidden: spec is immutable";
        let smaller =
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        for (before, phase, after, expected) in [
            (&unchanged, "Bound", requests("3Gi"), ""),
            (&unchanged, "Bound", requests("1500Mi"), ""),
            (&unchanged, "Bound", requests("1Gi"), smaller),
            (&unchanged, "Pending", requests("3Gi"), immutable),
            (&unchanged, "Bound", requests("0"), "must be greater than zero"),
            (&unchanged, "Bound", json!({"accessModes": ["ReadWriteMany"]}), immutable),
            (&unchanged, "Pending", json!({"volumeName": "pvc-1"}), ""),
            (&json!({"volumeName": "pvc-1"}), "Bound", json!({"volumeName": "pvc-2"}), immutable),
            (&unchanged, "Pending", json!({"storageClassName": "hutch-memory"}), ""),
            (&unchanged, "Bound", json!({"storageClassName": "hutch-memory"}), immutable),
            (
                &json!({"storageClassName": "hutch-local"}),
                "Bound",
                json!({"storageClassName": "hutch-memory"}),
                immutable,
            ),
        ] {
            let mut changed = before.clone();
            changed.as_object_mut().unwrap().extend(after.as_object().unwrap().clone());
            let found = update(&kind(), &claim(before, phase), &mut claim(&changed, phase));
            let found = found.err().map(|failure| failure.message).unwrap_or_default();
            assert!(
                if expected.is_empty() { found.is_empty() } else { found.contains(expected) },
                "{after}: {found}"
            );
        }
    }
}
