//! The smallest valid object in which one field has a chosen value.

use serde_json::{Map, Value, json};

use super::schema::{Place, Schemas, Step, is_string};

/// Name of the claim, the maps, the volume and so on beside what a test changes, and the key in the maps.
pub(super) const SIBLING: &str = "sibling";
/// Name of the pool that claims take from.
pub(super) const POOL: &str = "pool";

/// Reads and writes below every mount, in case one of them is a folder or a file of the host.
const SCRIPT: &str = "for m in /d /h /d/* /h/*; do cat $m; echo x >> $m; echo x > $m/written; mkdir $m/made; done 2>/dev/null; sleep 600";

/// Needs of a parent beside the fields that the schema requires: the end of its place, fields that replace the addition,
/// and the addition.
type Need = (&'static str, &'static [&'static str], fn() -> Value);

const NEEDS: &[Need] = &[
    (
        "spec.initContainers[]",
        &[],
        || json!({"name": "i", "image": "hutch/host", "command": ["sh", "-c", "true"]}),
    ),
    ("spec.ephemeralContainers[]", &[], || json!({"name": "e", "image": "hutch/host"})),
    ("ontainers[].volumeMounts[]", &[], || json!({"name": SIBLING, "mountPath": "/d"})),
    ("ontainers[].volumeDevices[]", &[], || json!({"name": "h", "devicePath": "/dev/h"})),
    ("ontainers[].env[]", &[], || json!({"name": "N"})),
    ("envFrom[]", &["configMapRef", "secretRef"], || json!({"configMapRef": {"name": SIBLING}})),
    ("envFrom[].configMapRef", &[], || json!({"name": SIBLING})),
    ("envFrom[].secretRef", &[], || json!({"name": SIBLING})),
    ("KeyRef", &[], || json!({"name": SIBLING, "key": SIBLING})),
    ("fieldRef", &[], || json!({"fieldPath": "metadata.name"})),
    ("resourceFieldRef", &[], || json!({"resource": "limits.cpu", "containerName": "c"})),
    ("exec", &[], || json!({"command": ["true"]})),
    (".ports[]", &[], || json!({"containerPort": 80})),
    ("Probe", &["exec", "httpGet", "tcpSocket", "grpc"], || json!({"exec": {"command": ["true"]}})),
    ("seccompProfile", &[], || json!({"type": "Localhost"})),
    ("appArmorProfile", &[], || json!({"type": "Localhost"})),
    ("hostAliases[]", &[], || json!({"ip": "192.0.2.1"})),
    ("volumes[].secret", &[], || json!({"secretName": SIBLING})),
    ("volumes[].configMap", &[], || json!({"name": SIBLING})),
    ("volumes[].persistentVolumeClaim", &[], || json!({"claimName": SIBLING})),
    ("sources[].secret", &[], || json!({"name": SIBLING})),
    ("sources[].configMap", &[], || json!({"name": SIBLING})),
    ("secret.items[]", &[], || json!({"key": SIBLING, "path": "p"})),
    ("configMap.items[]", &[], || json!({"key": SIBLING, "path": "p"})),
    ("downwardAPI.items[]", &[], || json!({"path": "p"})),
    (
        "downwardAPI.items[]",
        &["fieldRef", "resourceFieldRef"],
        || json!({"fieldRef": {"fieldPath": "metadata.name"}}),
    ),
    ("sources[].serviceAccountToken", &[], || json!({"path": "p"})),
    ("volumeClaimTemplate", &[], || json!({"spec": claim_spec()})),
    ("volumeClaimTemplates[]", &[], || json!({"metadata": {"name": "t"}, "spec": claim_spec()})),
    ("volumeClaimTemplates[].metadata", &[], || json!({"name": "t"})),
];

fn claim_spec() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}})
}

/// A Pod spec that runs and mounts the shared claim and a volume of its own.
fn pod_spec() -> Value {
    json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "c", "image": "hutch/host", "command": ["sh", "-c", SCRIPT],
            "volumeMounts": [{"name": SIBLING, "mountPath": "/d"}, {"name": "h", "mountPath": "/h"}],
        }],
        "volumes": [{"name": "h"}, {"name": SIBLING, "persistentVolumeClaim": {"claimName": SIBLING}}],
    })
}

/// A kind that is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) name: &'static str,
    pub(super) plural: &'static str,
}

impl Kind {
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    /// A small valid object.
    pub(super) fn object(&self, name: &str) -> Value {
        let spec = match self.name {
            "Pod" => pod_spec(),
            "PersistentVolumeClaim" => claim_spec(),
            "Sandbox" => json!({"podTemplate": {"spec": pod_spec()}}),
            "SandboxTemplate" => json!({"podTemplate": {"spec": pod_spec()}}),
            "SandboxClaim" => json!({"warmPoolRef": {"name": POOL}}),
            _ => Value::Null,
        };
        let mut object =
            json!({"apiVersion": self.api_version(), "kind": self.name, "metadata": {"name": name}});
        if !spec.is_null() {
            object["spec"] = spec;
        }
        object
    }
}

/// The object of a kind in which the string at a place is `hostile`.
pub(super) fn object(schemas: &Schemas, kind: &Kind, name: &str, place: &Place, hostile: &str) -> Value {
    let mut object = kind.object(name);
    let root = schemas.kind(kind.group, kind.version, kind.name);
    put(schemas, root, &mut object, &Place(Vec::new()), &place.0, hostile);
    let text = place.to_string();
    if text == "metadata.generateName" {
        object["metadata"].as_object_mut().expect("metadata").remove("name");
    }
    if let Some(prefix) = text.strip_suffix("spec.volumes[].name") {
        let pointer = format!("/{}spec", prefix.replace('.', "/"));
        object.pointer_mut(&pointer).expect("a Pod spec")["containers"][0]["volumeMounts"][1]["name"] =
            hostile.into();
    }
    if let Some((prefix, _)) = text.split_once("spec.containers[].name").filter(|_| hostile == SIBLING) {
        let pointer = format!("/{}spec/containers", prefix.replace('.', "/"));
        let list = object.pointer_mut(&pointer).and_then(Value::as_array_mut).expect("containers");
        list.push(json!({"name": SIBLING, "image": "hutch/host", "command": ["true"]}));
    }
    object
}

fn put(schemas: &Schemas, schema: &Value, value: &mut Value, at: &Place, rest: &[Step], hostile: &str) {
    let Some((step, rest)) = rest.split_first() else {
        *value = hostile.into();
        return;
    };
    let parts = schemas.parts(schema);
    match step {
        Step::Field(name) => {
            let (inner, at) = (schemas.property(schema, name).unwrap_or(&Value::Null), at.field(name));
            let child = &mut value[name.as_str()];
            if child.is_null() && !rest.is_empty() {
                *child = fresh(schemas, inner, &at, rest);
            }
            put(schemas, inner, child, &at, rest, hostile);
        }
        Step::Item => {
            let at = at.item();
            let inner = parts.iter().find_map(|part| part.get("items")).expect("items");
            if value.get(0).is_none() {
                *value = json!([fresh(schemas, inner, &at, rest)]);
            }
            put(schemas, inner, &mut value[0], &at, rest, hostile);
        }
        Step::Key | Step::Under(_) => {
            let inner = parts.iter().find_map(|part| part.get("additionalProperties")).expect("a map");
            let under = if let Step::Under(key) = step { key } else { hostile };
            if !value.is_object() {
                *value = json!({});
            }
            let sample = if step == &Step::Key { sample(schemas, inner, at) } else { Value::Null };
            let map = value.as_object_mut().expect("a map");
            map.insert(under.into(), sample);
            if step != &Step::Key {
                put(schemas, inner, &mut map[under], at, rest, hostile);
            }
        }
    }
}

/// A parent with what is needed in it beside the field that comes next.
fn fresh(schemas: &Schemas, schema: &Value, at: &Place, rest: &[Step]) -> Value {
    if !matches!(rest.first(), Some(Step::Field(_))) {
        return Value::Null;
    }
    let next = if let Some(Step::Field(name)) = rest.first() { name.as_str() } else { "" };
    let text = at.to_string();
    let mut made = Map::new();
    for (end, instead, fields) in NEEDS {
        if text.ends_with(end) && !instead.contains(&next) {
            made.extend(fields().as_object().expect("fields").clone());
        }
    }
    made.remove(next);
    for part in schemas.parts(schema) {
        for name in part["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if name != next && !made.contains_key(name) {
                let inner = schemas.property(schema, name).unwrap_or(&Value::Null);
                made.insert(name.into(), sample(schemas, inner, &at.field(name)));
            }
        }
    }
    made.into()
}

/// A valid value of a schema.
fn sample(schemas: &Schemas, schema: &Value, at: &Place) -> Value {
    let parts = schemas.parts(schema);
    let of = |field: &str| parts.iter().map(|part| &part[field]).find(|value| !value.is_null());
    if let Some(first) = of("enum").and_then(|values| values.get(0)) {
        return first.clone();
    }
    match (of("type").and_then(Value::as_str), of("format").and_then(Value::as_str)) {
        _ if schema["x-kubernetes-int-or-string"] == true => json!(1),
        (_, Some("int-or-string")) => json!(80),
        (Some("string"), Some("date-time")) => json!("2030-01-01T00:00:00Z"),
        (Some("string"), Some("byte")) => json!("eA=="),
        (Some("integer" | "number"), _) => json!(1),
        (Some("boolean"), _) => json!(false),
        (Some("array"), _) => {
            let inner = parts.iter().find_map(|part| part.get("items")).expect("items");
            json!([sample(schemas, inner, &at.item())])
        }
        (Some("object"), _) => fresh(schemas, schema, at, &[Step::Field(String::new())]),
        _ if parts.iter().any(|part| is_string(part)) => json!("1"),
        _ => Value::Null,
    }
}
