//! Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs, CronJobs, and templates of Pods.

use serde_json::{Value, json};

use super::names::must_be_one_of;
use super::pod::check::Place;
use super::{default, items, map, share};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;
use crate::selector::LabelSelector;

/// Fields of a StatefulSet that can change, and the message about all others.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];
const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

pub(crate) fn create(kind: &Kind, object: &mut Value) -> Result<(), Failure> {
    complete(kind, object);
    if kind.plural == "podtemplates" {
        let causes = check_template(kind, object);
        return refuse(kind, object, causes);
    }
    object["status"] = match kind.plural.as_str() {
        "replicasets" | "replicationcontrollers" | "statefulsets" => json!({ "replicas": 0 }),
        "daemonsets" => json!({
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        }),
        _ => json!({}),
    };
    let mut causes = check(kind, object);
    check_rollout(kind, object, &mut causes);
    causes.extend(check_template(kind, object));
    refuse(kind, object, causes)
}

fn refuse(kind: &Kind, object: &Value, causes: Vec<Cause>) -> Result<(), Failure> {
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

/// Warns about kinds that are stored and have no controller here.
pub(crate) fn warn(call: &Call) {
    let kind = call.kind();
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("batch", _) | ("apps", "daemonsets") => call.warn(format!(
            "hutch up runs no {}: the object is stored, and no Pod is created for it; \
             use a Pod with restartPolicy Never, or a SandboxClaim",
            kind.plural
        )),
        ("autoscaling", _) => call.warn("hutch up scales nothing by itself: the object is stored"),
        ("networking.k8s.io", "ingresses" | "ingressclasses") => call.warn(format!(
            "hutch up runs no ingress controller: the {} is stored, and routes no request; \
             use the router of hutch up, or kubectl port-forward",
            kind.kind
        )),
        _ => {}
    }
}

pub(crate) fn update(kind: &Kind, old: &Value, object: &mut Value) -> Result<(), Failure> {
    complete(kind, object);
    let mut causes = check(kind, object);
    // What was stored before a rule existed stays until it is changed.
    if ["strategy", "updateStrategy"].iter().any(|field| old["spec"][field] != object["spec"][field]) {
        check_rollout(kind, object, &mut causes);
    }
    let (pointer, _) = template(kind);
    if old.pointer(pointer) != object.pointer(pointer) {
        causes.extend(check_template(kind, object));
    }
    let selector = &object["spec"]["selector"];
    if kind.plural == "statefulsets" {
        let fixed = |object: &Value| {
            let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
            CHANGEABLE.iter().for_each(|field| drop(spec.remove(*field)));
            spec
        };
        if fixed(old) != fixed(object) {
            causes.push(Cause::forbidden("spec", FIXED));
        }
    } else if kind.group == "apps" && &old["spec"]["selector"] != selector {
        causes.push(Cause::invalid("spec.selector", selector, "field is immutable"));
    }
    refuse(kind, object, causes)
}

fn complete(kind: &Kind, object: &mut Value) {
    let spec = &mut object["spec"];
    match kind.plural.as_str() {
        "deployments" => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "progressDeadlineSeconds", 600);
            let strategy = &mut spec["strategy"];
            default(strategy_or_empty(strategy), "type", "RollingUpdate");
            if strategy["type"] == "RollingUpdate" {
                map(strategy, "rollingUpdate");
                default(&mut strategy["rollingUpdate"], "maxSurge", "25%");
                default(&mut strategy["rollingUpdate"], "maxUnavailable", "25%");
            }
        }
        "replicasets" => default(spec, "replicas", 1),
        "podtemplates" => {
            map(object, "template");
        }
        "replicationcontrollers" => {
            default(spec, "replicas", 1);
            complete_controller(object);
        }
        "statefulsets" => {
            default(spec, "replicas", 1);
            default(spec, "revisionHistoryLimit", 10);
            default(spec, "podManagementPolicy", "OrderedReady");
            default(spec, "serviceName", "");
            let strategy = &mut spec["updateStrategy"];
            default(strategy_or_empty(strategy), "type", "RollingUpdate");
            if strategy["type"] == "RollingUpdate" {
                map(strategy, "rollingUpdate");
                default(&mut strategy["rollingUpdate"], "partition", 0);
            }
            let policy = json!({ "whenDeleted": "Retain", "whenScaled": "Retain" });
            default(spec, "persistentVolumeClaimRetentionPolicy", policy);
            for claim in items(spec, "volumeClaimTemplates") {
                default(claim, "apiVersion", "v1");
                default(claim, "kind", "PersistentVolumeClaim");
                default(claim, "status", json!({ "phase": "Pending" }));
                default(&mut claim["spec"], "volumeMode", "Filesystem");
            }
        }
        "daemonsets" => {
            default(spec, "revisionHistoryLimit", 10);
            let rolling = json!({
                "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 },
            });
            default(spec, "updateStrategy", rolling);
        }
        "jobs" => {
            for (field, value) in [("parallelism", 1), ("completions", 1), ("backoffLimit", 6)] {
                default(spec, field, value);
            }
            default(spec, "completionMode", "NonIndexed");
            default(spec, "suspend", false);
        }
        _ => {}
    }
    let spec = &mut object["spec"];
    if let Some(template) = spec.get_mut("template").filter(|template| template.is_object()) {
        map(template, "metadata");
    }
    if let Some(spec) = object.pointer_mut(template(kind).0).filter(|spec| spec.is_object()) {
        super::pod::template_defaults(spec);
    }
}

/// The labels of a ReplicationController's template are its selector and its own labels, unless it has some.
fn complete_controller(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let is_empty = |value: &Value| value.as_object().is_none_or(serde_json::Map::is_empty);
    if is_empty(&labels) {
        return;
    }
    if is_empty(&object["spec"]["selector"]) {
        object["spec"]["selector"] = labels.clone();
    }
    if is_empty(&object["metadata"]["labels"]) {
        object["metadata"]["labels"] = labels;
    }
}

fn strategy_or_empty(strategy: &mut Value) -> &mut Value {
    if !strategy.is_object() {
        *strategy = json!({});
    }
    strategy
}

fn check(kind: &Kind, object: &Value) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut causes = Vec::new();
    if kind.plural == "replicationcontrollers" {
        return check_controller(spec);
    }
    if kind.group != "apps" {
        return causes;
    }
    let selector = &spec["selector"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    } else {
        match LabelSelector::from_object(selector) {
            Ok(parsed) if !parsed.is_empty() && !parsed.matches(&spec["template"]) => {
                let labels = &spec["template"]["metadata"]["labels"];
                let detail = "`selector` does not match template `labels`";
                causes.push(Cause::invalid("spec.template.metadata.labels", labels, detail));
            }
            Ok(parsed) if parsed.is_empty() => {
                let detail = "empty selector is invalid for deployment";
                causes.push(Cause::invalid("spec.selector", selector, detail));
            }
            Ok(_) => {}
            Err(error) => causes.push(Cause::invalid("spec.selector", selector, &error.to_string())),
        }
    }
    causes
}

/// Checks how Pods are replaced, and the bounds of a rolling update.
fn check_rollout(kind: &Kind, object: &Value, causes: &mut Vec<Cause>) {
    let (field, is_set, types) = match kind.plural.as_str() {
        "deployments" => ("strategy", false, ["Recreate", "RollingUpdate"]),
        "statefulsets" => ("updateStrategy", true, ["OnDelete", "RollingUpdate"]),
        _ => return,
    };
    let spec = &object["spec"];
    causes.extend(must_be_one_of(&format!("spec.{field}.type"), &spec[field]["type"], &types));
    let policies = ["OrderedReady", "Parallel"];
    causes.extend(must_be_one_of("spec.podManagementPolicy", &spec["podManagementPolicy"], &policies));
    let rolling = &object["spec"][field]["rollingUpdate"];
    if object["spec"][field]["type"] != "RollingUpdate" || !rolling.is_object() {
        return;
    }
    let at = |name: &str| format!("spec.{field}.rollingUpdate.{name}");
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    if is_set {
        if rolling["partition"].as_i64().is_some_and(|partition| partition < 0) {
            let why = "must be greater than or equal to 0";
            causes.push(Cause::invalid(at("partition"), &rolling["partition"], why));
        }
        if unavailable.is_null() {
            return;
        }
    }
    share::check(unavailable, &at("maxUnavailable"), causes);
    if is_set {
        if share::is_zero(unavailable) {
            causes.push(Cause::invalid(at("maxUnavailable"), unavailable, "cannot be 0"));
        }
    } else {
        share::check(surge, &at("maxSurge"), causes);
        if share::is_zero(unavailable) && share::is_zero(surge) {
            let why = "may not be 0 when `maxSurge` is 0";
            causes.push(Cause::invalid(at("maxUnavailable"), unavailable, why));
        }
    }
    share::check_most(unavailable, &at("maxUnavailable"), causes);
}

fn check_controller(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let selector = spec["selector"].as_object().filter(|labels| !labels.is_empty());
    if selector.is_none() {
        causes.push(Cause::required("spec.selector", ""));
    }
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.replicas", &spec["replicas"], why));
    }
    if !spec["template"].is_object() {
        causes.push(Cause::required("spec.template", ""));
        return causes;
    }
    let labels = &spec["template"]["metadata"]["labels"];
    if selector.into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        let why = "`selector` does not match template `labels`";
        causes.push(Cause::invalid("spec.template.metadata.labels", labels, why));
    }
    causes
}

/// Pods of a kind that keeps their number start again whenever they end.
fn check_restart(spec: &Value, at: &str) -> Option<Cause> {
    let policy = spec["restartPolicy"].as_str().filter(|policy| matches!(*policy, "Never" | "OnFailure"))?;
    let message = format!("Unsupported value: {policy:?}: supported values: \"Always\"");
    Some(Cause::new("FieldValueNotSupported", format!("{at}.restartPolicy"), message))
}

/// Checks the template that Pods are made from.
fn check_template(kind: &Kind, object: &Value) -> Vec<Cause> {
    let (pointer, at) = template(kind);
    let spec = object.pointer(pointer).unwrap_or(&Value::Null);
    if kind.plural == "replicationcontrollers" && !object["spec"]["template"].is_object() {
        // `check_controller` refuses it.
        return Vec::new();
    }
    if kind.plural == "statefulsets" {
        let mut causes = super::pod::check::spec(&pod_of_set(&object["spec"], spec), at, Place::Template);
        causes.extend(check_restart(spec, at));
        return causes;
    }
    let mut causes = super::pod::check::spec(spec, at, Place::Template);
    if kind.group == "apps" || kind.plural == "replicationcontrollers" {
        causes.extend(check_restart(spec, at));
    }
    causes
}

/// The spec of a StatefulSet's Pods as far as it is known: claims are volumes and come first, and each Pod has a hostname
/// of its own.
fn pod_of_set(set: &Value, template: &Value) -> Value {
    let claims = set["volumeClaimTemplates"].as_array().map_or(&[][..], Vec::as_slice);
    let mut names: Vec<&Value> = Vec::new();
    for claim in claims {
        let name = &claim["metadata"]["name"];
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let claimed =
        names.iter().map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } }));
    let volumes = template["volumes"].as_array().into_iter().flatten();
    let own = volumes.filter(|volume| !names.contains(&&volume["name"])).cloned();
    let volumes: Vec<Value> = claimed.chain(own).collect();
    let mut pod = template.clone();
    if let Some(pod) = pod.as_object_mut() {
        pod.insert("volumes".into(), volumes.into());
        pod.remove("hostname");
        pod.remove("subdomain");
    }
    pod
}

/// The place of the Pod spec in a kind: a JSON pointer, and the path in messages.
fn template(kind: &Kind) -> (&'static str, &'static str) {
    match kind.plural.as_str() {
        "cronjobs" => ("/spec/jobTemplate/spec/template/spec", "spec.jobTemplate.spec.template.spec"),
        "podtemplates" => ("/template/spec", "template.spec"),
        _ => ("/spec/template/spec", "spec.template.spec"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the problems of an object with this strategy.
    fn problems(plural: &str, field: &str, rolling: Value) -> Vec<String> {
        let kind = Kind { group: "apps".into(), plural: plural.into(), ..Kind::default() };
        let mut object = json!({ "spec": { field: { "rollingUpdate": rolling } } });
        complete(&kind, &mut object);
        let mut causes = Vec::new();
        check_rollout(&kind, &object, &mut causes);
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn bounds_of_a_rolling_update_are_checked() {
        let at = "spec.updateStrategy.rollingUpdate";
        let set = |rolling| problems("statefulsets", "updateStrategy", rolling);
        for valid in
            [json!({}), json!({ "maxUnavailable": 1 }), json!({ "maxUnavailable": "100%", "partition": 3 })]
        {
            assert_eq!(set(valid.clone()), [""; 0], "{valid}");
        }
        for (rolling, problem) in [
            (json!({ "maxUnavailable": 0 }), "maxUnavailable: Invalid value: 0: cannot be 0"),
            (json!({ "maxUnavailable": "0%" }), "maxUnavailable: Invalid value: \"0%\": cannot be 0"),
            (
                json!({ "maxUnavailable": "9223372036854775807%" }),
                "maxUnavailable: Invalid value: \"9223372036854775807%\": must not be greater than 100%",
            ),
            (
                json!({ "maxUnavailable": -1 }),
                "maxUnavailable: Invalid value: -1: must be greater than or equal to 0",
            ),
            (json!({ "partition": -1 }), "partition: Invalid value: -1: must be greater than or equal to 0"),
        ] {
            assert_eq!(set(rolling), [format!("{at}.{problem}")]);
        }
        assert_eq!(set(json!({ "maxUnavailable": "some" })).len(), 2);

        let at = "spec.strategy.rollingUpdate";
        let deployment = |rolling| problems("deployments", "strategy", rolling);
        for valid in [json!({}), json!({ "maxUnavailable": 0 }), json!({ "maxSurge": "300%" })] {
            assert_eq!(deployment(valid.clone()), [""; 0], "{valid}");
        }
        for (rolling, problem) in [
            (
                json!({ "maxUnavailable": 0, "maxSurge": "0%" }),
                "maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ),
            (
                json!({ "maxUnavailable": "101%" }),
                "maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (json!({ "maxSurge": -1 }), "maxSurge: Invalid value: -1: must be greater than or equal to 0"),
        ] {
            assert_eq!(deployment(rolling), [format!("{at}.{problem}")]);
        }
    }

    #[test]
    fn stored_strategy_that_no_rule_allows_stays_until_it_is_changed() {
        let kind = Kind { group: "apps".into(), plural: "statefulsets".into(), ..Kind::default() };
        let set = |most: i32, replicas: i32| {
            json!({ "spec": { "replicas": replicas, "selector": { "matchLabels": { "a": "b" } },
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": most } },
                "template": { "metadata": { "labels": { "a": "b" } },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] } } } })
        };
        let mut old = set(0, 1);
        complete(&kind, &mut old);
        assert!(update(&kind, &old, &mut set(0, 2)).is_ok());
        assert!(update(&kind, &old, &mut set(-1, 1)).is_err());
    }
}
