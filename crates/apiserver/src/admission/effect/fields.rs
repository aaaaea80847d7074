//! Tables of the fields that have no effect on one machine.

use hutch_api::{UNSCHEDULABLE_TAINT, is_tracing};
use serde_json::Value;

use crate::json::is_set;

/// One field.
pub(super) struct Field {
    /// Its name, or its path from there with dots.
    pub(super) name: &'static str,
    /// Returns true for a value that would have an effect elsewhere.
    pub(super) matters: fn(&Value) -> bool,
    /// Explanation: the rule that applies on one machine.
    pub(super) why: &'static str,
}

const fn field(name: &'static str, why: &'static str) -> Field {
    Field { name, matters: is_set, why }
}

const fn value(name: &'static str, matters: fn(&Value) -> bool, why: &'static str) -> Field {
    Field { name, matters, why }
}

const ONE_NODE: &str = "there is one node, and Pods start in the order of their creation";
const NAMES: &str = "names are resolved by the policies of the sandbox";
const NO_MODULE: &str = "every sandbox has the rules of its jail";
const LINUX: &str = "Pods run on Linux";
const NO_BALANCER: &str = "nothing opens on the machine: use the router, or kubectl port-forward";

/// Of the spec of a Pod.
pub(super) const POD: &[Field] = &[
    field("resources.limits", "set the limits of each container"),
    field("activeDeadlineSeconds", "use shutdownTime of a Sandbox"),
    field("affinity", ONE_NODE),
    field("dnsConfig", NAMES),
    value("dnsPolicy", |policy| !matches!(text(policy), "" | "ClusterFirst" | "Default"), NAMES),
    field("nodeSelector", ONE_NODE),
    field("overhead", ONE_NODE),
    value("preemptionPolicy", |policy| text(policy) == "Never", ONE_NODE),
    value("priority", |priority| priority.as_i64().is_some_and(|priority| priority != 0), ONE_NODE),
    field("priorityClassName", ONE_NODE),
    value("schedulerName", |name| !matches!(text(name), "" | "default-scheduler"), ONE_NODE),
    field("schedulingGates", ONE_NODE),
    field("schedulingGroup", ONE_NODE),
    value("setHostnameAsFQDN", is_true, "the host name has no domain"),
    value("shareProcessNamespace", is_true, "each container has a process namespace of its own"),
    value("tolerations", tolerates_others, "node.kubernetes.io/unschedulable alone can be tolerated"),
    field("topologySpreadConstraints", ONE_NODE),
    field("securityContext.appArmorProfile", NO_MODULE),
    field("securityContext.seLinuxChangePolicy", NO_MODULE),
    field("securityContext.seLinuxOptions", NO_MODULE),
    field("securityContext.sysctls", "the kernel settings of a sandbox are fixed"),
    field("securityContext.windowsOptions", LINUX),
];

/// Of a container.
pub(super) const CONTAINER: &[Field] = &[
    value("resizePolicy", restarts, "the resources of a Pod cannot be changed"),
    field("restartPolicyRules", "restartPolicy decides for every exit code"),
    field("securityContext.appArmorProfile", NO_MODULE),
    field("securityContext.seLinuxOptions", NO_MODULE),
    field("securityContext.windowsOptions", LINUX),
    value("securityContext.capabilities.add", traces, "no process of a sandbox traces others (SYS_PTRACE)"),
];

/// Of a port of a container.
pub(super) const CONTAINER_PORT: &[Field] = &[
    value("hostPort", |port| port.as_u64().is_some_and(|port| port > 0), NO_BALANCER),
    field("hostIP", NO_BALANCER),
];

/// Of the spec of a Service.
pub(super) const SERVICE: &[Field] = &[
    value("type", |kind| matches!(text(kind), "NodePort" | "LoadBalancer"), NO_BALANCER),
    field("externalIPs", NO_BALANCER),
    field("externalTrafficPolicy", NO_BALANCER),
    field("healthCheckNodePort", NO_BALANCER),
    field("allocateLoadBalancerNodePorts", NO_BALANCER),
    field("loadBalancerClass", NO_BALANCER),
    field("loadBalancerIP", NO_BALANCER),
    field("loadBalancerSourceRanges", NO_BALANCER),
    field("externalName", NAMES),
    value(
        "ipFamilies",
        |families| *families != serde_json::json!(["IPv4"]) && is_set(families),
        "Services are IPv4",
    ),
    value("ipFamilyPolicy", |policy| text(policy) == "RequireDualStack", "Services are IPv4"),
    value("sessionAffinity", |kind| text(kind) == "ClientIP", "each connection may reach another Pod"),
    field("sessionAffinityConfig", "each connection may reach another Pod"),
    field("trafficDistribution", "there is one node"),
];

/// Of a port of a Service.
pub(super) const SERVICE_PORT: &[Field] = &[field("nodePort", NO_BALANCER)];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_true(value: &Value) -> bool {
    *value == true
}

/// The one taint that keeps Pods away is that of a cordoned node.
fn tolerates_others(tolerations: &Value) -> bool {
    let mut all = tolerations.as_array().into_iter().flatten();
    all.any(|one| one["key"] != UNSCHEDULABLE_TAINT && is_set(&one["key"]))
}

fn restarts(policies: &Value) -> bool {
    let mut all = policies.as_array().into_iter().flatten();
    all.any(|policy| policy["restartPolicy"] == "RestartContainer")
}

fn traces(added: &Value) -> bool {
    let mut all = added.as_array().into_iter().flatten();
    all.any(|name| name.as_str().is_some_and(is_tracing))
}
