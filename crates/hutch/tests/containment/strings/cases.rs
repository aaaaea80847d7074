//! One object for each string field and each hostile value.

use std::path::Path;

use hutch_api::annotation;
use serde_json::{Value, json};

use super::schema::{Place, Schemas, Step};
use super::skeleton::{self, Kind, SIBLING};

const fn core(name: &'static str, plural: &'static str) -> Kind {
    Kind { group: "", version: "v1", name, plural }
}

const fn extension(name: &'static str, plural: &'static str) -> Kind {
    Kind { group: "extensions.agents.x-k8s.io", version: "v1beta1", name, plural }
}

pub(super) const POD: Kind = core("Pod", "pods");
pub(super) const CLAIM: Kind = core("PersistentVolumeClaim", "persistentvolumeclaims");
pub(super) const CONFIG_MAP: Kind = core("ConfigMap", "configmaps");
pub(super) const SECRET: Kind = core("Secret", "secrets");
pub(super) const SANDBOX: Kind =
    Kind { group: "agents.x-k8s.io", version: "v1beta1", name: "Sandbox", plural: "sandboxes" };
pub(super) const TEMPLATE: Kind = extension("SandboxTemplate", "sandboxtemplates");
pub(super) const SANDBOX_CLAIM: Kind = extension("SandboxClaim", "sandboxclaims");
pub(super) const WARM_POOL: Kind = extension("SandboxWarmPool", "sandboxwarmpools");

/// The kinds that are walked.
pub(super) const KINDS: &[Kind] = &[POD, CLAIM, CONFIG_MAP, SECRET, SANDBOX, TEMPLATE, SANDBOX_CLAIM];

/// Annotations that the node or a controller reads. The schema knows only that there are annotations.
const ANNOTATIONS: &[&str] = &[
    annotation::POD_NAME,
    annotation::PROPAGATED_LABELS,
    annotation::PROPAGATED_ANNOTATIONS,
    annotation::TEMPLATE_REF,
    annotation::SANDBOX_NAME,
    annotation::TRACE_CONTEXT,
    annotation::DEFAULT_CONTAINER,
    annotation::LATE_ENV,
    annotation::WAKE_ON_CONNECT,
    annotation::ASLEEP_GENERATION,
    annotation::IDLE_AFTER,
    annotation::PAGE_OUT_AFTER,
    annotation::SUSPEND_AFTER,
    annotation::ACTIVITY_PORT,
    annotation::WAKE_AT,
    annotation::LAST_ACTIVITY,
    annotation::FROZEN_SINCE,
    annotation::SANDBOX_STATE,
    annotation::CLAIM_STATE,
    annotation::TEMPLATE_STATE,
];

/// An object with one hostile string.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) kind: Kind,
    pub(super) place: Place,
    /// Name of the value.
    pub(super) value: &'static str,
    pub(super) object: Value,
    /// The namespace in the path of the request, escaped, if it is another one.
    pub(super) namespace: Option<String>,
}

/// The hostile values by name.
pub(super) fn values(planted: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("absolute path", planted.join("file").display().to_string()),
        ("parent", "..".into()),
        ("path over a parent", "a/../../b".into()),
        ("NUL", "a\0b".into()),
        ("newline", "a\nb".into()),
        ("300 characters", "a".repeat(300)),
        ("sibling", SIBLING.into()),
        ("symbolic link", LINK.into()),
    ]
}

/// Name of a symbolic link in the shared volume.
pub(super) const LINK: &str = "link";

/// All cases of a kind.
pub(super) fn of(schemas: &Schemas, kind: &Kind, values: &[(&'static str, String)]) -> Vec<Case> {
    let root = schemas.kind(kind.group, kind.version, kind.name);
    let mut places = schemas.strings(root).strings;
    if places.iter().all(|place| place.to_string() != "metadata.labels{key}") {
        panic!("{} has no metadata in its schema", kind.name);
    }
    let metadata = Place(Vec::new()).field("metadata").field("annotations");
    let known = ANNOTATIONS.iter().map(|name| Step::Under((*name).to_owned()));
    places.extend(known.map(|step| Place(metadata.0.iter().cloned().chain([step]).collect())));
    let mut cases = Vec::new();
    let long = std::env::var_os("HUTCH_SLOW_TESTS").is_some();
    for (field, place) in places.iter().enumerate() {
        // Containers of Pods are walked with all values. Of the same fields elsewhere, each has every fourth or eighth value
        // in the short form, and each value is in every fourth or eighth field.
        let at = place.to_string();
        let is_repeated = at.starts_with("spec.initContainers") || at.starts_with("spec.ephemeralContainers");
        let share = match () {
            () if long => 1,
            () if at.starts_with("spec.podTemplate.spec.") => 8,
            () if is_repeated => 4,
            () => 1,
        };
        for (number, (value, text)) in values.iter().enumerate() {
            if number % share != field % share {
                continue;
            }
            let name = format!("s{field}-{number}");
            let object = skeleton::object(schemas, kind, &name, place, text);
            cases.push(Case { kind: *kind, place: place.clone(), value, object, namespace: None });
        }
    }
    cases
}

/// Variables for Pods that run, which come by an annotation and not by the spec.
pub(super) fn late(values: &[(&'static str, String)]) -> Vec<Case> {
    let place = Place(Vec::new()).field("metadata").field("annotations");
    let place = Place(place.0.into_iter().chain([Step::Under(annotation::LATE_ENV.into())]).collect());
    let mut cases = Vec::new();
    for (number, (value, text)) in values.iter().enumerate() {
        let variables = [
            json!([{"name": text, "value": "v"}]),
            json!([{"name": "N", "value": text}]),
            json!([{"name": "N", "value": "v", "containerName": text}]),
        ];
        for (part, variables) in variables.into_iter().enumerate() {
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("late-{part}-{number}"),
                    "annotations": {annotation::LATE_ENV: variables.to_string()}},
                "spec": {"containers": [{"name": "c", "image": "hutch/pause"}]},
            });
            cases.push(Case { kind: POD, place: place.clone(), value, object, namespace: None });
        }
    }
    cases
}

/// Namespaces in the path of the request, as in the object.
pub(super) fn namespaces(kind: &Kind, values: &[(&'static str, String)]) -> Vec<Case> {
    let place = Place(Vec::new()).field("metadata").field("namespace");
    let mut cases = Vec::new();
    for (value, text) in values {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut object = kind.object("elsewhere");
        object["metadata"]["namespace"] = text.as_str().into();
        cases.push(Case { kind: *kind, place: place.clone(), value, object, namespace: Some(escaped) });
    }
    cases
}
