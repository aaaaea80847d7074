//! Fields of Pods that have no effect on one machine: a client that sets one gets a warning.

use hutch_api::{UNSCHEDULABLE_TAINT, is_tracing};
use serde_json::Value;

use crate::call::Call;
use crate::json::is_set;

/// Fields that choose a node or an order of Pods: there is one node.
const PLACEMENT: [&str; 6] = [
    "affinity",
    "nodeSelector",
    "overhead",
    "priorityClassName",
    "schedulingGates",
    "topologySpreadConstraints",
];

/// Warns about fields of a Pod, or of the template of Pods, that have no effect.
pub(crate) fn warn(call: &Call, object: &Value) {
    let kind = call.kind();
    let (pointer, at) = match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => ("/spec", "spec"),
        ("", "replicationcontrollers") | ("apps", "deployments" | "replicasets" | "statefulsets") => {
            ("/spec/template/spec", "spec.template.spec")
        }
        ("agents.x-k8s.io", "sandboxes") | ("extensions.agents.x-k8s.io", "sandboxtemplates") => {
            ("/spec/podTemplate/spec", "spec.podTemplate.spec")
        }
        _ => return,
    };
    // The components of this server read no warnings.
    if call.external
        && let Some(spec) = object.pointer(pointer)
    {
        without_effect(spec, at).into_iter().for_each(|warning| call.warn(warning));
    }
}

fn without_effect(spec: &Value, at: &str) -> Vec<String> {
    let has_no = |field: &str, why: &str| format!("{at}.{field}: has no effect on hutch up: {why}");
    let mut found = Vec::new();
    for field in PLACEMENT.into_iter().filter(|field| is_set(&spec[*field])) {
        found.push(has_no(field, "there is one node, and Pods start in the order of their creation"));
    }
    let tolerations = spec["tolerations"].as_array().into_iter().flatten();
    // The only taint that keeps Pods away.
    if tolerations.into_iter().any(|one| one["key"] != UNSCHEDULABLE_TAINT && is_set(&one["key"])) {
        found.push(has_no("tolerations", &format!("only {UNSCHEDULABLE_TAINT} can be tolerated")));
    }
    if is_set(&spec["activeDeadlineSeconds"]) {
        found.push(has_no("activeDeadlineSeconds", "use shutdownTime of a Sandbox"));
    }
    let dns = "names are resolved by the policies of the sandbox";
    if is_set(&spec["dnsConfig"]) {
        found.push(has_no("dnsConfig", dns));
    }
    if spec["dnsPolicy"].as_str().is_some_and(|policy| !matches!(policy, "ClusterFirst" | "Default")) {
        found.push(has_no("dnsPolicy", dns));
    }
    if is_set(&spec["securityContext"]["sysctls"]) {
        found.push(has_no("securityContext.sysctls", "the kernel settings of a sandbox are fixed"));
    }
    if spec["shareProcessNamespace"] == true {
        let why = "each container has a process namespace of its own";
        found.push(has_no("shareProcessNamespace", why));
    }
    for list in ["initContainers", "containers"] {
        for (i, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            found.extend(of_container(container, &format!("{at}.{list}[{i}]")));
        }
    }
    found
}

/// Returns the warning about a container that requests what it does not get. `at` is its path.
pub(super) fn of_container(container: &Value, at: &str) -> Option<String> {
    let added = container["securityContext"]["capabilities"]["add"].as_array();
    let traces = added.is_some_and(|names| names.iter().any(|name| name.as_str().is_some_and(is_tracing)));
    traces.then(|| {
        format!(
            "{at}.securityContext.capabilities.add: SYS_PTRACE has no effect on hutch up: no process of a sandbox traces others"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_without_effect_are_named_and_others_are_not() {
        let plain = json!({"containers": [{"terminationMessagePath": "/message"}], "dnsPolicy": "ClusterFirst", "nodeSelector": {}, "tolerations": []});
        assert!(without_effect(&plain, "spec").is_empty());
        let spec = json!({
            "activeDeadlineSeconds": 5, "dnsPolicy": "None", "nodeSelector": {"a": "b"},
            "securityContext": {"sysctls": [{"name": "a", "value": "b"}]}, "shareProcessNamespace": true,
            "containers": [{}, {},
                {"securityContext": {"capabilities": {"add": ["CHOWN", "SYS_PTRACE"]}}}],
        });
        let found = without_effect(&spec, "spec.template.spec");
        let fields: Vec<_> = found.iter().filter_map(|warning| warning.split(':').next()).collect();
        assert_eq!(
            fields,
            [
                "nodeSelector",
                "activeDeadlineSeconds",
                "dnsPolicy",
                "securityContext.sysctls",
                "shareProcessNamespace",
                "containers[2].securityContext.capabilities.add",
            ]
            .map(|field| format!("spec.template.spec.{field}"))
        );
    }
}
