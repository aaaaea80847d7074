//! Validation of an object's metadata, with the messages of a Kubernetes API server.

use hutch_api::syntax;
use serde_json::{Map, Value};

use super::{finalizers, text};
use crate::failure::Cause;
use crate::kinds::Kind;

/// Bytes that keys and values of all annotations of an object have at most.
const ANNOTATION_BYTES: usize = 256 << 10;
/// Finalizers that need no prefix. The last two say how dependents are treated, and exclude each other.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Of a new object: its name as well.
pub(crate) fn new_object(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let own = text(object, "name");
    let prefix = text(object, "generateName");
    if !prefix.is_empty() {
        causes.extend(name(&kind.group, &kind.plural, "metadata.generateName", prefix));
    }
    if own.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        causes.extend(name(&kind.group, &kind.plural, "metadata.name", own));
    }
    causes.extend(object_of(kind, object));
    causes
}

/// Of any object: labels, annotations, finalizers, owner references.
pub(crate) fn object_of(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let metadata = object.get("metadata").and_then(Value::as_object);
    let map = |field: &str| {
        metadata.and_then(|metadata| metadata.get(field)).and_then(Value::as_object).into_iter().flatten()
    };
    for (key, value) in map("labels") {
        causes.extend(invalid("metadata.labels", key, syntax::key(key)));
        let text = value.as_str().unwrap_or_default();
        causes.extend(invalid("metadata.labels", text, syntax::label_value(text)));
    }
    let mut bytes = 0;
    for (key, value) in map("annotations") {
        causes.extend(invalid("metadata.annotations", key, syntax::key(&key.to_lowercase())));
        bytes += key.len() + value.as_str().unwrap_or_default().len();
    }
    if bytes > ANNOTATION_BYTES {
        let said = format!("Too long: may not be more than {ANNOTATION_BYTES} bytes");
        causes.push(Cause::new("FieldValueTooLong", "metadata.annotations", said));
    }
    check_finalizers(kind, object, &mut causes);
    let owners = metadata.and_then(|metadata| metadata.get("ownerReferences")).and_then(Value::as_array);
    check_owners(owners.map_or(&[][..], Vec::as_slice), &mut causes);
    causes
}

fn invalid(field: &str, value: &str, wrong: Vec<String>) -> impl Iterator<Item = Cause> {
    let value = Value::from(value);
    wrong.into_iter().map(move |said| Cause::invalid(field, &value, &said))
}

/// Validates the name of an object of this kind, or the prefix of a generated one.
pub(crate) fn name(group: &str, plural: &str, field: &str, name: &str) -> Vec<Cause> {
    let whole = field == "metadata.name";
    // Letters will follow.
    let followed = name.strip_suffix('-').and_then(|_| name.get(..name.len().checked_sub(2)?));
    let shown = followed.filter(|_| !whole).map_or(name.to_owned(), |start| format!("{start}a"));
    let wrong = match (group, plural) {
        ("rbac.authorization.k8s.io", _) => syntax::segment(name, whole),
        ("", "namespaces" | "services") => syntax::label(&shown),
        _ => syntax::subdomain(&shown),
    };
    invalid(field, name, wrong).collect()
}

fn check_finalizers(kind: &Kind, object: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.finalizers";
    let all = finalizers(object);
    for (index, name) in all.iter().enumerate() {
        causes.extend(invalid(FIELD, name, syntax::key(name)));
        if !kind.is_custom() && !name.contains('/') && !STANDARD_FINALIZERS.contains(name) {
            let said = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(Cause::invalid(format!("{FIELD}[{index}]"), &Value::from(*name), said));
        }
    }
    if all.contains(&ORPHAN) && all.contains(&FOREGROUND) {
        let said = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        causes.push(Cause::invalid(FIELD, &Value::from(all), &said));
    }
}

fn check_owners(owners: &[Value], causes: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for owner in owners {
        let part = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = match part("apiVersion").split('/').collect::<Vec<_>>()[..] {
            [version] => ("", version),
            [group, version] => (group, version),
            _ => ("", ""),
        };
        if version.is_empty() {
            let value = Value::from(part("apiVersion"));
            causes.push(Cause::invalid(format!("{FIELD}.apiVersion"), &value, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if part(field).is_empty() {
                causes.push(Cause::invalid(
                    format!("{FIELD}.{field}"),
                    &Value::from(""),
                    "must not be empty",
                ));
            }
        }
        if (group, version, part("kind")) == ("", "v1", "Event") {
            let said = "/v1, Kind=Event is disallowed from being an owner";
            causes.push(Cause::shown(FIELD, &shown(owner), said));
        }
        if owner.get("controller") != Some(&Value::Bool(true)) {
            continue;
        }
        let own = format!("{}/{}", part("kind"), part("name"));
        let Some(first) = &controller else {
            controller = Some(own);
            continue;
        };
        let said = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {own}"
        );
        let all: Vec<String> = owners.iter().map(shown).collect();
        causes.push(Cause::shown(FIELD, &format!("[{}]", all.join(",")), &said));
    }
}

/// An owner reference with its fields in the order in which a real server writes them.
fn shown(owner: &Value) -> String {
    const ORDER: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let none = Map::new();
    let owner = owner.as_object().unwrap_or(&none);
    let fields = ORDER.iter().filter_map(|field| Some(format!("{field:?}:{}", owner.get(*field)?)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_kind() {
        let name = |group: &str, plural: &str, text: &str| name(group, plural, "metadata.name", text).len();
        assert_eq!(name("", "pods", "a.b-c1"), 0);
        assert_eq!(name("", "pods", "A_b"), 1);
        assert_eq!(name("", "services", "1a"), 0);
        assert_eq!(name("", "namespaces", "a.b"), 1);
        assert_eq!(name("rbac.authorization.k8s.io", "clusterroles", "system:Node"), 0);
        assert_eq!(super::name("", "pods", "metadata.generateName", "a-").len(), 0);
        assert_eq!(super::name("", "pods", "metadata.generateName", "ä-").len(), 1);
    }

    #[test]
    fn labels_are_checked() {
        let object = serde_json::json!({"metadata": {"labels": {"a b": "x", "ok": "no/slash", "/e": ""}}});
        assert_eq!(object_of(&Kind::default(), &object).len(), 3);
    }
}
