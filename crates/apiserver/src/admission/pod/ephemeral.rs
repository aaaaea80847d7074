//! Ephemeral containers of a Pod, as `kubectl debug` adds them: they can be added and never be changed or removed.

use hutch_api::EPHEMERAL_CONTAINERS_MAX;
use serde_json::Value;

use super::check::{self, Place};
use super::{host, template_defaults};
use crate::admission::effect;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

const FIELD: &str = "spec.ephemeralContainers";

fn list(pod: &Value) -> &[Value] {
    pod["spec"]["ephemeralContainers"].as_array().map_or(&[], Vec::as_slice)
}

/// Refuses a new Pod that has some.
pub(super) fn refused_at_creation(spec: &Value) -> Option<Cause> {
    let some = spec["ephemeralContainers"].as_array().is_some_and(|list| !list.is_empty());
    some.then(|| Cause::forbidden(FIELD, "cannot be set on create"))
}

/// Completes and checks a Pod whose ephemeral containers change, and nothing else of it.
pub(crate) fn update(kind: &Kind, old: &Value, object: &mut Value) -> Result<(), Failure> {
    template_defaults(&mut object["spec"]);
    let mut causes = check::spec(&object["spec"], "spec", Place::Pod);
    for container in list(old) {
        let name = container["name"].as_str().unwrap_or_default();
        let what = match list(object).iter().find(|new| new["name"] == name) {
            None => "removed",
            Some(new) if new != container => "changed",
            Some(_) => continue,
        };
        let why = format!("existing ephemeral containers {name:?} may not be {what}\n");
        causes.push(Cause::forbidden(FIELD, &why));
    }
    for (index, container) in list(object).iter().enumerate() {
        if !list(old).iter().any(|known| known["name"] == container["name"]) {
            causes.extend(host::of_container(container, &format!("{FIELD}[{index}]")));
        }
    }
    let count = list(object).len();
    if count > EPHEMERAL_CONTAINERS_MAX {
        let why = format!("Too many: {count}: must have at most {EPHEMERAL_CONTAINERS_MAX} items");
        causes.push(Cause::new("FieldValueTooMany", FIELD, why));
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(old, "name"), causes)) }
}

/// Warns about what new ephemeral containers request and do not get.
pub(crate) fn warn(call: &Call, old: &Value, object: &Value) {
    for (index, container) in list(object).iter().enumerate() {
        if list(old).iter().any(|known| known["name"] == container["name"]) {
            continue;
        }
        let at = format!("{FIELD}[{index}]");
        if let Some(target) = container["targetContainerName"].as_str().filter(|target| !target.is_empty()) {
            call.warn(format!(
                "{at}.targetContainerName: has no effect on hutch up: each container has a process namespace of its own, so \
                 the processes of container {target:?} are not visible; the network and the volumes of the Pod are"
            ));
        }
        effect::of_container(container, &at).into_iter().for_each(|warning| call.warn(warning));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "i", "image": "i"}],
            "volumes": [{"name": "v", "emptyDir": {}}], "ephemeralContainers": containers,
        }})
    }

    /// The causes for a Pod with these containers `before` and `after`.
    fn refused(before: Value, after: Value) -> Vec<String> {
        let (mut old, mut new) = (pod(before), pod(after));
        template_defaults(&mut old["spec"]);
        let kind = Kind { kind: "Pod".into(), plural: "pods".into(), ..Kind::default() };
        let Err(failure) = update(&kind, &old, &mut new) else { return Vec::new() };
        let status = failure.status();
        let causes = status["details"]["causes"].as_array().unwrap().clone();
        let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
        causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect()
    }

    #[test]
    fn containers_are_added_and_neither_changed_nor_removed() {
        let one = |image: &str| json!([{"name": "e", "image": image}]);
        assert_eq!(refused(json!([]), one("a")), [""; 0]);
        assert_eq!(
            refused(one("a"), json!([{"name": "f", "image": "a"}, {"name": "e", "image": "a"}])),
            [""; 0]
        );
        let why = |what: &str| {
            format!(
                "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be {what}\n"
            )
        };
        assert_eq!(refused(one("a"), one("b")), [why("changed")]);
        assert_eq!(refused(one("a"), json!([])), [why("removed")]);
    }

    #[test]
    fn new_containers_get_no_rights_of_the_machine() {
        let container =
            |image: &str| json!([{"name": "e", "image": image, "securityContext": {"privileged": true}}]);
        let why = "spec.ephemeralContainers[0].securityContext.privileged: Forbidden: is not supported: a sandbox has no rights \
                   of the machine";
        assert_eq!(refused(json!([]), container("a")), [why]);
        assert_eq!(refused(container("a"), container("a")), [""; 0], "stored by an earlier version");
    }

    #[test]
    fn fields_of_workloads_are_refused_as_by_kubernetes() {
        let container = json!([{
            "name": "c", "image": "i", "targetContainerName": "x", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1"}}, "livenessProbe": {"exec": {"command": ["true"]}}, "lifecycle": {},
            "restartPolicy": "Always", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
        }]);
        let not_set = "Forbidden: cannot be set for an Ephemeral Container";
        let at = "spec.ephemeralContainers[0]";
        assert_eq!(
            refused(json!([]), container),
            [
                format!("{at}.name: Duplicate value: \"c\""),
                format!("{at}.targetContainerName: Not found: \"x\""),
                format!("{at}.ports: {not_set}"),
                format!("{at}.resources: {not_set}"),
                format!("{at}.livenessProbe: {not_set}"),
                format!("{at}.lifecycle: {not_set}"),
                format!("{at}.restartPolicy: {not_set}"),
                format!("{at}.volumeMounts[0].subPath: {not_set}"),
            ]
        );
        assert_eq!(
            refused(json!([]), json!([{"name": "e", "image": "i", "targetContainerName": "i"}])),
            [""; 0]
        );
    }

    #[test]
    fn number_of_containers_has_a_bound() {
        let of = |count: usize| (0..count).map(|i| json!({"name": format!("e{i}"), "image": "i"})).collect();
        assert_eq!(refused(json!([]), of(EPHEMERAL_CONTAINERS_MAX)), [""; 0]);
        let refused = refused(json!([]), of(EPHEMERAL_CONTAINERS_MAX + 1));
        assert_eq!(refused, ["spec.ephemeralContainers: Too many: 33: must have at most 32 items"]);
    }
}
