//! A Sandbox that starts from the snapshot of another.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use kube_core::ObjectMeta;

use crate::{OperatingMode, Sandbox, annotation, label};

/// Annotations of the source that its copies have: its policies, and the settings of users.
const COPIED: [&str; 13] = [
    annotation::POLICIES,
    annotation::TEMPLATE_REF,
    annotation::USER,
    annotation::IDLE_AFTER,
    annotation::PAGE_OUT_AFTER,
    annotation::SUSPEND_AFTER,
    annotation::SUSPEND_KEEPS,
    annotation::DROP_MEMORY_AFTER,
    annotation::ACTIVITY_PORT,
    annotation::WAKE_ON_CONNECT,
    annotation::AFTER_RESTORE,
    annotation::SHARES_GENERATORS,
    annotation::RESTORE_POLICY,
];
/// Domain of labels and annotations that belong to the controllers.
const DOMAIN: &str = "agents.x-k8s.io/";

/// Returns a new Sandbox with the spec of another, which starts from this snapshot. It is running, belongs to no pool and
/// no claim, and the policies that apply to the other apply to it: its labels, and the annotations that name them.
pub fn restored(source: &Sandbox, name: &str, snapshot: &str) -> Sandbox {
    let labels = source.metadata.labels.iter().flatten();
    let labels = labels.filter(|(key, _)| {
        *key == label::TEMPLATE_REF_HASH || (!key.contains(DOMAIN) && *key != label::FORK)
    });
    let annotations = source
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| COPIED.contains(&key.as_str()) || key.starts_with(annotation::ATTRIBUTE));
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: source.metadata.namespace.clone(),
        labels: non_empty(labels.map(pair).collect()),
        annotations: non_empty(annotations.map(pair).collect()),
        ..ObjectMeta::default()
    };
    let mut spec = source.spec.clone();
    spec.operating_mode = Some(OperatingMode::Running);
    let marks = spec.pod_template.metadata.annotations.get_or_insert_default();
    marks.insert(annotation::RESTORE_FROM.to_owned(), snapshot.to_owned());
    // It would take precedence.
    marks.remove(annotation::POD_SNAPSHOT);
    Sandbox { metadata, spec, status: None }
}

/// How the programs of a copied memory get new random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// By this command.
    Command(Vec<String>),
    /// Not at all: the Sandbox may share them with its copies.
    Shared,
    /// By the runtime of [`RUNTIME`]: it keeps no generator, and its check fails if other programs run.
    Runtime,
}

/// Image whose program keeps no generator of random numbers in its memory.
pub const RUNTIME: &str = "hutch/python-runtime";

/// Returns true if all containers of a Pod that are restored are of [`RUNTIME`].
pub fn is_runtime(pod: &PodSpec) -> bool {
    let sidecars = pod.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let mut restored = pod.containers.iter().chain(sidecars);
    restored.all(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        image.strip_suffix(":latest").unwrap_or(image) == RUNTIME
    })
}

/// Returns how copies of the memory of a Sandbox get new random numbers.
///
/// # Errors
/// The Sandbox does not say it: the text names the annotations.
pub fn renewal(source: &Sandbox) -> Result<Renewal, String> {
    if source.setting(annotation::SHARES_GENERATORS).is_some_and(|value| value == "true") {
        return Ok(Renewal::Shared);
    }
    let (after, shares) = (annotation::AFTER_RESTORE, annotation::SHARES_GENERATORS);
    match source.setting(annotation::AFTER_RESTORE).map(after_restore) {
        Some(Ok(command)) => Ok(Renewal::Command(command)),
        Some(Err(why)) => Err(format!("{after}: {why}; or set {shares} to \"true\"")),
        None if is_runtime(&source.spec.pod_template.spec) => Ok(Renewal::Runtime),
        None => Err(format!(
            "the random numbers of its programs would be the same in each copy of the memory: the Sandbox needs the \
             annotation {after} with a command that renews them, or {shares} with \"true\" where that does no harm"
        )),
    }
}

/// Reads the command of the annotation [`annotation::AFTER_RESTORE`].
///
/// # Errors
/// It is no JSON array of a program, by its absolute path, and its arguments.
pub fn after_restore(text: &str) -> Result<Vec<String>, String> {
    let command: Option<Vec<String>> = serde_json::from_str(text).ok();
    let command = command.filter(|command| command.first().is_some_and(|program| program.starts_with('/')));
    command
        .ok_or_else(|| "must be a JSON array of the absolute path of a program and its arguments".to_owned())
}

fn pair((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

fn non_empty(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copy_has_the_spec_and_the_policies_and_belongs_to_nothing() {
        let source: Sandbox = serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {
                "name": "a", "namespace": "team", "uid": "1", "resourceVersion": "2", "generation": 3,
                "finalizers": ["f"], "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "4"}],
                "labels": {"app": "x", label::TEMPLATE_REF_HASH: "h", label::CLAIM_UID: "c", label::WARM_POOL_SANDBOX: "w"},
                "annotations": {
                    annotation::POLICIES: "p", annotation::TEMPLATE_REF: "t", "attr.policy.hutch.dev/risk": "2",
                    annotation::POD_NAME: "a", annotation::RESTORE_FROM: "old", annotation::FROZEN_SINCE: "now",
                    annotation::LATE_ENV: "{}", annotation::IDLE_AFTER: "1m",
                },
            },
            "spec": {"operatingMode": "Suspended", "service": true, "podTemplate": {
                "metadata": {"labels": {"b": "c"}, "annotations": {annotation::RESTORE_FROM: "older",
                    annotation::POD_SNAPSHOT: "oldest", "d": "e"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
            "status": {"serviceFQDN": "x"},
        }))
        .unwrap();
        let copy = serde_json::to_value(restored(&source, "b", "s")).unwrap();
        let expected = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {
                "name": "b", "namespace": "team", "labels": {"app": "x", label::TEMPLATE_REF_HASH: "h"},
                "annotations": {annotation::POLICIES: "p", annotation::TEMPLATE_REF: "t", "attr.policy.hutch.dev/risk": "2",
                    annotation::IDLE_AFTER: "1m"},
            },
            "spec": {"operatingMode": "Running", "service": true, "podTemplate": {
                "metadata": {"labels": {"b": "c"}, "annotations": {annotation::RESTORE_FROM: "s", "d": "e"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
        });
        assert_eq!(copy, expected);
    }

    #[test]
    fn runtime_renews_its_random_numbers_unless_another_program_is_beside_it() {
        let of = |images: &[&str], sidecar: &str, policy: &str, setting: Option<&str>| {
            let containers: Vec<_> =
                images.iter().map(|image| json!({"name": "c", "image": image})).collect();
            let source: Sandbox = serde_json::from_value(json!({
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                "metadata": {"annotations": setting.map(|value| json!({annotation::AFTER_RESTORE: value}))},
                "spec": {"podTemplate": {"spec": {"containers": containers,
                    "initContainers": [{"name": "i", "image": sidecar, "restartPolicy": policy}]}}},
            }))
            .unwrap();
            renewal(&source)
        };
        let runtime = Ok(Renewal::Runtime);
        assert_eq!(of(&["hutch/python-runtime"], RUNTIME, "Always", None), runtime);
        assert_eq!(
            of(&["hutch/python-runtime:latest", RUNTIME], "i", "Never", None),
            runtime,
            "it has ended"
        );
        let command = Ok(Renewal::Command(vec!["/a".into()]));
        assert_eq!(of(&[RUNTIME], "i", "Never", Some(r#"["/a"]"#)), command, "a command takes precedence");
        for (images, sidecar) in [
            (&["hutch/host"][..], RUNTIME),
            (&[RUNTIME, "python"][..], RUNTIME),
            (&[RUNTIME][..], "python"),
            (&["other/hutch/python-runtime"][..], RUNTIME),
            (&["hutch/python-runtime:1"][..], RUNTIME),
        ] {
            let why = of(images, sidecar, "Always", None).unwrap_err();
            assert!(why.contains(annotation::AFTER_RESTORE), "{why}");
        }
        assert!(of(&[RUNTIME], "i", "Never", Some("no")).is_err());
    }
}
