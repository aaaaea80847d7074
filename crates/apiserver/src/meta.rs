//! `metadata`: names, identifiers, times.

use hutch_serve::Ambient;
use serde_json::{Map, Value};

use crate::failure::Cause;

/// Letters of generated name suffixes: no vowels and nothing that looks like another letter.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters of a generated suffix.
const SUFFIX: usize = 5;
/// A generated name's base is cut to leave room for the suffix in a DNS label.
const BASE: usize = 63 - SUFFIX;

/// The name to try for a `generateName`.
pub(crate) fn generated_name(base: &str, ambient: &Ambient) -> String {
    let mut cut = base.len().min(BASE);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let letter = |_| SUFFIX_LETTERS[ambient.below(SUFFIX_LETTERS.len())] as char;
    let suffix: String = (0..SUFFIX).map(letter).collect();
    format!("{}{suffix}", &base[..cut])
}

/// The time as Kubernetes writes it: UTC, whole seconds.
pub(crate) fn now() -> String {
    seconds(jiff::Timestamp::now())
}

/// A time as Kubernetes writes it.
pub(crate) fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metadata` of an object, made if missing.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let object = object.as_object_mut().expect("was made an object above");
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("was made an object above")
}

/// A text field of `metadata`; empty when missing.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// What Kubernetes says of a name that is no DNS subdomain.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SERVICE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const PATH: &str = "may not contain '/'";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// What is wrong with the name of an object of this kind.
pub(crate) fn check_name(group: &str, plural: &str, name: &str) -> Vec<Cause> {
    let value = Value::from(name);
    let wrong = |detail: &str| Cause::invalid("metadata.name", &value, detail);
    let too_long = |limit: usize| wrong(&format!("must be no more than {limit} bytes"));
    let mut causes = Vec::new();
    match (group, plural) {
        ("rbac.authorization.k8s.io", _) => {
            if name.contains('/') || name.contains('%') || name == "." || name == ".." {
                causes.push(wrong(PATH));
            }
        }
        ("", "namespaces") => {
            if name.len() > 63 {
                causes.push(too_long(63));
            }
            if !is_label(name) {
                causes.push(wrong(LABEL));
            }
        }
        ("", "services") => {
            if name.len() > 63 {
                causes.push(too_long(63));
            }
            if !is_label(name) || name.as_bytes()[0].is_ascii_digit() {
                causes.push(wrong(SERVICE));
            }
        }
        _ => {
            if name.len() > 253 {
                causes.push(too_long(253));
            }
            if !is_subdomain(name) {
                causes.push(wrong(SUBDOMAIN));
            }
        }
    }
    causes
}

/// What is wrong with labels, annotations, finalizers and owner references.
pub(crate) fn check_metadata(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let map = |field: &str| {
        let map = object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_object);
        map.into_iter().flatten()
    };
    for (key, value) in map("labels") {
        check_key("metadata.labels", key, &mut causes);
        let text = value.as_str().unwrap_or_default();
        if text.len() > 63 {
            causes.push(Cause::invalid("metadata.labels", value, "must be no more than 63 bytes"));
        } else if !text.is_empty() && !is_name_part(text) {
            causes.push(Cause::invalid("metadata.labels", value, LABEL_VALUE));
        }
    }
    for (key, _) in map("annotations") {
        check_key("metadata.annotations", &key.to_lowercase(), &mut causes);
    }
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut controllers = 0;
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
                let place = format!("metadata.ownerReferences[{index}].{field}");
                causes.push(Cause::invalid(place, &Value::from(""), "must not be empty"));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let value = object.pointer("/metadata/ownerReferences").unwrap_or(&Value::Null);
        causes.push(Cause::invalid(
            "metadata.ownerReferences",
            value,
            "Only one reference can have Controller set to true",
        ));
    }
    causes
}

fn check_key(field: &str, key: &str, causes: &mut Vec<Cause>) {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let value = Value::from(key);
    if let Some(prefix) = prefix
        && (prefix.len() > 253 || !is_subdomain(prefix))
    {
        causes.push(Cause::invalid(field, &value, &format!("prefix part {SUBDOMAIN}")));
    }
    if name.is_empty() {
        causes.push(Cause::invalid(field, &value, "name part must be non-empty"));
    } else if name.len() > 63 {
        causes.push(Cause::invalid(field, &value, "name part must be no more than 63 bytes"));
    } else if !is_name_part(name) {
        causes.push(Cause::invalid(field, &value, QUALIFIED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generated_name("sandbox-claim-", &Ambient::default());
        assert!(name.starts_with("sandbox-claim-") && name.len() == 19, "{name}");
        assert_eq!(generated_name(&"x".repeat(100), &Ambient::default()).len(), 63);
        assert!(is_label(&name));
    }

    #[test]
    fn names_are_checked_by_kind() {
        assert!(check_name("", "pods", "a.b-c1").is_empty());
        assert_eq!(check_name("", "pods", "A_b").len(), 1);
        assert_eq!(check_name("", "services", "1a").len(), 1);
        assert_eq!(check_name("", "namespaces", "a.b").len(), 1);
        assert!(check_name("rbac.authorization.k8s.io", "clusterroles", "system:Node").is_empty());
    }

    #[test]
    fn labels_are_checked() {
        let object = serde_json::json!({"metadata": {"labels": {"a b": "x", "ok": "no/slash", "e/": ""}}});
        assert_eq!(check_metadata(&object).len(), 3);
    }
}
