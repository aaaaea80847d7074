//! Pods: the defaults of their spec, the node, the first status.

pub(crate) mod check;
pub(crate) mod ephemeral;
mod host;

use serde_json::{Value, json};

use self::check::Place;
use super::{default, items, map};
use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;
use crate::quota::limits;

/// Collection of the RuntimeClasses.
const RUNTIME_CLASSES: &str = "runtimeclasses.node.k8s.io";

pub(crate) fn create(core: &Core, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    template_defaults(&mut object["spec"]);
    let mut causes = check::spec(&object["spec"], "spec", Place::Pod);
    causes.extend(ephemeral::refused_at_creation(&object["spec"]));
    if core.default_node.is_some() {
        causes.extend(host::of_pod(&object["spec"]));
    }
    if !causes.is_empty() {
        return Err(Failure::invalid(kind, meta::text(object, "name"), causes));
    }
    known_class(core, kind, object)?;
    let spec = &mut object["spec"];
    default(spec, "enableServiceLinks", true);
    default(spec, "serviceAccountName", "default");
    let account = spec["serviceAccountName"].clone();
    default(spec, "serviceAccount", account);
    default(spec, "preemptionPolicy", "PreemptLowerPriority");
    default(spec, "priority", 0);
    if let Some(node) = &core.default_node {
        default(spec, "nodeName", node.as_str());
    }
    requests_from_limits(spec);
    limits::apply_to_pod(core, kind, object)?;
    let spec = &object["spec"];
    let mut status = json!({ "phase": "Pending", "qosClass": quality(spec) });
    if spec["nodeName"].as_str().is_some_and(|node| !node.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": meta::seconds(core.ambient.now()),
        }]);
    }
    object["status"] = status;
    Ok(())
}

/// Refuses a Pod of a RuntimeClass that does not exist.
fn known_class(core: &Core, kind: &Kind, pod: &Value) -> Result<(), Failure> {
    match pod["spec"]["runtimeClassName"].as_str() {
        Some(class) if core.read(RUNTIME_CLASSES, class).is_none() => {
            let why = format!("pod rejected: RuntimeClass \"{class}\" not found");
            Err(Failure::forbidden(kind, meta::text(pod, "name"), &why, Vec::new()))
        }
        _ => Ok(()),
    }
}

pub(crate) fn update(kind: &Kind, old: &Value, object: &mut Value) -> Result<(), Failure> {
    let spec = &mut object["spec"];
    template_defaults(spec);
    // What the server filled in at creation and a client's manifest does not name.
    for field in [
        "nodeName",
        "serviceAccountName",
        "serviceAccount",
        "enableServiceLinks",
        "preemptionPolicy",
        "priority",
    ] {
        if let Some(value) = old["spec"].get(field) {
            default(spec, field, value.clone());
        }
    }
    if comparable(&old["spec"]) != comparable(spec) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        return Err(Failure::invalid(kind, meta::text(old, "name"), vec![Cause::forbidden("spec", detail)]));
    }
    // A Pod that was stored before a rule existed can still lose its finalizers.
    let causes = if old["spec"] == object["spec"] {
        Vec::new()
    } else {
        check::spec(&object["spec"], "spec", Place::Pod)
    };
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(old, "name"), causes)) }
}

/// The spec without what may change.
fn comparable(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in items(&mut spec, list) {
            if let Some(container) = container.as_object_mut() {
                container.remove("image");
            }
        }
    }
    if let Some(spec) = spec.as_object_mut() {
        for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            spec.remove(field);
        }
    }
    spec
}

/// Defaults of a Pod's spec, wherever it stands: in a Pod or in the template of a workload.
pub(crate) fn template_defaults(spec: &mut Value) {
    default(spec, "restartPolicy", "Always");
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    map(spec, "securityContext");
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items(spec, list).for_each(container_defaults);
    }
    for volume in items(spec, "volumes") {
        volume_defaults(volume);
    }
}

fn container_defaults(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    default(container, "imagePullPolicy", if is_latest(image) { "Always" } else { "IfNotPresent" });
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    map(container, "resources");
    for port in items(container, "ports") {
        default(port, "protocol", "TCP");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) {
            probe_defaults(probe);
        }
    }
    for variable in items(container, "env") {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            default(field, "apiVersion", "v1");
        }
    }
}

/// Returns true if an image has the tag `latest` or none.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn probe_defaults(probe: &mut Value) {
    default(probe, "timeoutSeconds", 1);
    default(probe, "periodSeconds", 10);
    default(probe, "successThreshold", 1);
    default(probe, "failureThreshold", 3);
    if let Some(get) = probe.get_mut("httpGet") {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
    if let Some(grpc) = probe.get_mut("grpc") {
        default(grpc, "service", "");
    }
}

fn volume_defaults(volume: &mut Value) {
    // A volume that names no source is an empty directory.
    let is_source = |(key, value): (&String, &Value)| key != "name" && !value.is_null();
    if volume.as_object().is_some_and(|volume| !volume.iter().any(is_source)) {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
            default(source, "defaultMode", 0o644);
        }
    }
    if let Some(path) = volume.get_mut("hostPath") {
        default(path, "type", "");
    }
}

/// A limit without a request is the request too.
fn requests_from_limits(spec: &mut Value) {
    for list in ["initContainers", "containers"] {
        for container in items(spec, list) {
            let Some(limits) = container.pointer("/resources/limits").and_then(Value::as_object).cloned()
            else {
                continue;
            };
            let requests = map(&mut container["resources"], "requests");
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
}

/// The quality-of-service class.
fn quality(spec: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            let of = |field: &str, name: &str| container["resources"][field][name].clone();
            for name in ["cpu", "memory"] {
                let (request, limit) = (of("requests", name), of("limits", name));
                any |= !request.is_null() || !limit.is_null();
                guaranteed &= !limit.is_null() && request == limit;
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_follows_the_tag() {
        assert!(is_latest("nginx") && is_latest("r:5000/nginx") && is_latest("nginx:latest"));
        assert!(!is_latest("nginx:1") && !is_latest("nginx@sha256:00") && !is_latest("r:5000/a/nginx:1"));
    }

    #[test]
    fn quality_of_service() {
        let spec = |resources: Value| json!({"containers": [{"resources": resources}]});
        assert_eq!(quality(&spec(json!({}))), "BestEffort");
        assert_eq!(quality(&spec(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let both = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(quality(&spec(json!({"requests": both, "limits": both}))), "Guaranteed");
    }
}
