//! Decodes objects of a list or a watch; an undecodable object does not fail the rest.

use std::borrow::Cow;
use std::fmt::Write;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Decoding result of a `K`. Works with JSON text, not with a [`serde_json::Value`].
#[derive(Debug, Clone)]
pub enum Read<K> {
    /// The object.
    Object(K),
    /// An undecodable object: its schema differs from the type known here.
    Unreadable(Box<Unreadable>),
}

/// Known fields of an undecodable object.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Name, namespace, UID, resourceVersion; labels, owners and deletion time, where they are decodable.
    pub metadata: ObjectMeta,
    /// Path of the invalid field, and the problem.
    pub problem: String,
}

impl Unreadable {
    /// Returns the Event message for an object with this `problem`.
    pub fn note(problem: &str) -> String {
        format!("Cannot be read and is left as it is: {problem}")
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Read<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        let text = text.get();
        let error = match serde_json::from_str(text) {
            Ok(object) => return Ok(Read::Object(object)),
            Err(error) => error,
        };
        let Shell { metadata } = serde_json::from_str(text).map_err(D::Error::custom)?;
        let Identity { name, namespace, uid, resource_version, labels, owner_references, deletion_timestamp } =
            metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            labels: readable(labels),
            owner_references: readable(owner_references),
            deletion_timestamp: readable(deletion_timestamp),
            ..ObjectMeta::default()
        };
        Ok(Read::Unreadable(Box::new(Unreadable { metadata, problem: problem(text, &error) })))
    }
}

#[derive(Deserialize)]
struct Shell {
    metadata: Identity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<Box<RawValue>>,
    owner_references: Option<Box<RawValue>>,
    deletion_timestamp: Option<Box<RawValue>>,
}

fn readable<T: DeserializeOwned>(text: Option<Box<RawValue>>) -> Option<T> {
    serde_json::from_str(text?.get()).ok()
}

impl<K: Resource> Resource for Read<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Read::Object(object) => object.meta(),
            Read::Unreadable(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Read::Object(object) => object.meta_mut(),
            Read::Unreadable(unreadable) => &mut unreadable.metadata,
        }
    }
}

/// `spec.replicas: invalid type: string "one", expected i32`.
fn problem(text: &str, error: &serde_json::Error) -> String {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let said = error.to_string();
    // A missing field is not part of the field before it.
    let missing = said.starts_with("missing field");
    let path = path_at(&text.as_bytes()[..text.len().min(before + error.column())], missing);
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
    if path.is_empty() { said.to_owned() } else { format!("{path}: {said}") }
}

/// JSON container at the current position.
enum Inside {
    /// An object: the current field, and `true` when the next string is a field name.
    Object(String, bool),
    /// A list: the current index.
    List(usize),
}

/// Returns the path of the value at which JSON text ends; of the `whole` object if it ends with one.
fn path_at(text: &[u8], whole: bool) -> String {
    let mut inside: Vec<Inside> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'{' => inside.push(Inside::Object(String::new(), true)),
            b'[' => inside.push(Inside::List(0)),
            b'}' | b']' if !whole || at + 1 < text.len() => drop(inside.pop()),
            b',' => match inside.last_mut() {
                Some(Inside::Object(_, next)) => *next = true,
                Some(Inside::List(index)) => *index += 1,
                None => {}
            },
            b'"' => {
                let begin = at + 1;
                at = begin;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                if let Some(Inside::Object(field, next @ true)) = inside.last_mut() {
                    *field = String::from_utf8_lossy(&text[begin..at.min(text.len())]).into_owned();
                    *next = false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if let Some(Inside::Object(field, _)) = inside.last_mut().filter(|_| whole) {
        field.clear();
    }
    let mut path = String::new();
    for step in &inside {
        // Writing to a `String` is infallible.
        let _ = match step {
            Inside::Object(field, _) if path.is_empty() || field.is_empty() => write!(path, "{field}"),
            Inside::Object(field, _) => write!(path, ".{field}"),
            Inside::List(index) => write!(path, "[{index}]"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sandbox, SandboxWarmPool};
    use serde_json::{Value, json};

    fn read<K: DeserializeOwned>(value: &Value) -> Read<K> {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    fn problem_of<K: DeserializeOwned>(value: &Value) -> String {
        match read::<K>(value) {
            Read::Object(_) => panic!("it could be read: {value}"),
            Read::Unreadable(unreadable) => unreadable.problem,
        }
    }

    fn sandbox(container: &Value) -> Value {
        json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "s", "namespace": "d", "uid": "u", "resourceVersion": "7"},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "a"}, container]}}}})
    }

    #[test]
    fn undecodable_object_names_its_field() {
        let spec = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
        let reference = json!({"name": "t"});
        let pool = spec(json!({"replicas": 1.5, "sandboxTemplateRef": reference}));
        assert!(
            problem_of::<SandboxWarmPool>(&pool)
                .starts_with("spec.replicas: invalid type: floating point `1.5`")
        );
        let pool = spec(json!({"replicas": "one \"or\" two", "sandboxTemplateRef": reference}));
        assert!(problem_of::<SandboxWarmPool>(&pool).starts_with("spec.replicas: invalid type: string"));
        for incomplete in [json!({}), json!({"replicas": 1, "updateStrategy": {}})] {
            let problem = problem_of::<SandboxWarmPool>(&spec(incomplete));
            assert_eq!(problem, "spec: missing field `sandboxTemplateRef`");
        }
        let port = sandbox(
            &json!({"name": "b", "ports": [{"containerPort": 1}, {"containerPort": 99_999_999_999_u64}]}),
        );
        let problem = problem_of::<Sandbox>(&port);
        assert!(
            problem.starts_with("spec.podTemplate.spec.containers[1].ports[1].containerPort: "),
            "{problem}"
        );
    }

    #[test]
    fn list_decodes_objects_and_names_undecodable_ones() {
        let bad = json!({"name": "b", "ports": "none"});
        let list = json!([sandbox(&json!({"name": "b"})), sandbox(&bad)]);
        let list: Vec<Read<Sandbox>> = serde_json::from_str(&list.to_string()).unwrap();
        assert!(matches!(&list[0], Read::Object(sandbox) if sandbox.metadata.uid.as_deref() == Some("u")));
        assert!(matches!(&list[1], Read::Unreadable(_)));
        let meta = list[1].meta();
        let known = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
        assert_eq!(known.map(|text| text.as_deref().unwrap()), ["s", "d", "u", "7"]);
        assert!(serde_json::from_str::<Read<Sandbox>>("[]").is_err(), "no object at all");
    }

    #[test]
    fn undecodable_object_keeps_decodable_labels_and_owners() {
        let owner = json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": "u"});
        let metadata = |labels: Value, owners: Value| {
            let object = json!({"metadata": {"name": "p", "labels": labels, "ownerReferences": owners}});
            read::<SandboxWarmPool>(&object).meta().clone()
        };
        let known = metadata(json!({"a": "b"}), json!([owner]));
        assert_eq!(known.labels.unwrap()["a"], "b");
        assert_eq!(known.owner_references.unwrap()[0].uid, "u");
        let unknown = metadata(json!(["a"]), json!("o"));
        assert_eq!((unknown.labels, unknown.owner_references), (None, None));
        assert_eq!(unknown.name.as_deref(), Some("p"));
    }

    #[test]
    fn undecodable_object_keeps_decodable_owners_and_deletion() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "7", "controller": true});
        let meta = |owners: Value, end: Value| {
            let object = json!({"metadata": {"name": "p", "ownerReferences": owners, "deletionTimestamp": end}, "spec": 1});
            let Read::Unreadable(unreadable) = read::<SandboxWarmPool>(&object) else { panic!("{object}") };
            let owners = unreadable.metadata.owner_references.unwrap_or_default();
            (
                owners.into_iter().map(|owner| owner.uid).collect(),
                unreadable.metadata.deletion_timestamp.is_some(),
            )
        };
        let end = json!("2026-01-01T00:00:00Z");
        assert_eq!(meta(json!([owner]), end.clone()), (vec!["7".to_owned()], true));
        assert_eq!(meta(json!([owner]), json!(7)), (vec!["7".to_owned()], false));
        assert_eq!(meta(json!({}), end), (vec![], true));
        assert_eq!(meta(json!(null), json!(null)), (vec![], false));
    }

    #[test]
    fn quantities_are_numbers_or_text() {
        for cpu in [json!(1), json!(0.5), json!("500m")] {
            let limits = json!({"name": "b", "resources": {"limits": {"cpu": cpu}}});
            let Read::Object(sandbox) = read::<Sandbox>(&sandbox(&limits)) else { panic!("{cpu}") };
            let limits =
                sandbox.spec.pod_template.spec.containers[1].resources.clone().unwrap().limits.unwrap();
            assert_eq!(limits["cpu"].0, cpu.as_str().map_or(cpu.to_string(), str::to_owned));
        }
    }
}
