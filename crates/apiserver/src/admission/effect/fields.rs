//! Tables of the fields that have no effect on one machine.

use hutch_api::{API_AUDIENCE, UNSCHEDULABLE_TAINT, is_tracing};
use serde_json::{Value, json};

use crate::json::is_set;

/// One field.
pub(super) struct Field {
    /// Its name, or its path from there with dots. `[]` stands for the items of a list, and a key with dots is in brackets.
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
const OWN_ADDRESS: &str = "the address of the Pod is used";
const TOKEN: &str = "no token is mounted by itself: use a projected volume with a serviceAccountToken that names an \
    audience other than the Kubernetes API";
const NO_TOKEN: &str = "no token for the Kubernetes API is mounted: name another audience";
const POD_SECURITY: &str = "no level is enforced: every Pod has the rules of its jail";
const NO_BALANCER: &str = "nothing opens on the machine: use the router, or kubectl port-forward";

/// Of the spec of a Pod.
pub(super) const POD: &[Field] = &[
    value("automountServiceAccountToken", is_true, TOKEN),
    field("resources.limits", "set the limits of each container"),
    field("subdomain", "names of single Pods are not resolved"),
    value("volumes[].emptyDir.medium", |medium| !matches!(text(medium), "" | "Memory"), "it is on the disk"),
    value("volumes[].projected.sources[].serviceAccountToken", opens_the_api, NO_TOKEN),
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

/// Of an init container.
pub(super) const INIT_CONTAINER: &[Field] = &[value(
    "restartPolicy",
    |policy| !matches!(text(policy), "" | "Always"),
    "Always makes a sidecar of it; otherwise the policy of the Pod decides",
)];

/// Of a container that is no init container.
pub(super) const MAIN_CONTAINER: &[Field] = &[field("restartPolicy", "the policy of the Pod decides")];

/// Of each container.
pub(super) const CONTAINER: &[Field] = &[
    field("lifecycle.postStart.httpGet.host", OWN_ADDRESS),
    field("lifecycle.preStop.httpGet.host", OWN_ADDRESS),
    field("livenessProbe.httpGet.host", OWN_ADDRESS),
    field("livenessProbe.tcpSocket.host", OWN_ADDRESS),
    field("readinessProbe.httpGet.host", OWN_ADDRESS),
    field("readinessProbe.tcpSocket.host", OWN_ADDRESS),
    field("startupProbe.httpGet.host", OWN_ADDRESS),
    field("startupProbe.tcpSocket.host", OWN_ADDRESS),
    value("ports[].hostPort", |port| port.as_u64().is_some_and(|port| port > 0), NO_BALANCER),
    field("ports[].hostIP", NO_BALANCER),
    value("resizePolicy", restarts, "the resources of a Pod cannot be changed"),
    field("restartPolicyRules", "restartPolicy decides for every exit code"),
    value("securityContext.allowPrivilegeEscalation", is_true, "no program gains privileges by its file"),
    field("securityContext.appArmorProfile", NO_MODULE),
    field("securityContext.seLinuxOptions", NO_MODULE),
    field("securityContext.windowsOptions", LINUX),
    value("securityContext.capabilities.add", traces, "no process of a sandbox traces others (SYS_PTRACE)"),
];

/// Returns the fields of an object of this kind, outside of templates of Pods.
pub(super) fn others(group: &str, plural: &str) -> &'static [Field] {
    let table = OTHERS.iter().find(|(of, name, _)| (*of, *name) == (group, plural));
    table.map_or(&[], |(_, _, fields)| *fields)
}

/// Fields by group and plural of their kind.
const OTHERS: &[(&str, &str, &[Field])] = &[
    ("", "services", SERVICE),
    ("", "persistentvolumes", &[field("spec", "no claim is bound to a volume that a client has made")]),
    ("", "nodes", &[value("spec.taints", taints_others, "use kubectl cordon, or delete the Pods")]),
    (
        "",
        "namespaces",
        &[
            field("metadata.labels.[pod-security.kubernetes.io/enforce]", POD_SECURITY),
            field("metadata.labels.[pod-security.kubernetes.io/warn]", POD_SECURITY),
            field("metadata.labels.[pod-security.kubernetes.io/audit]", POD_SECURITY),
        ],
    ),
    ("", "serviceaccounts", &[value("automountServiceAccountToken", is_true, TOKEN)]),
    (
        "",
        "persistentvolumeclaims",
        &[field("spec.resources.limits", "the size of a volume is resources.requests.storage")],
    ),
    (
        "",
        "resourcequotas",
        &[
            value("spec.scopes[]", is_of_no_pod, "no Pod is in this scope"),
            value("spec.scopeSelector.matchExpressions[].scopeName", is_of_no_pod, "no Pod is in this scope"),
        ],
    ),
    (
        "apps",
        "statefulsets",
        &[
            value("spec.persistentVolumeClaimRetentionPolicy.whenDeleted", deletes, KEPT),
            value("spec.persistentVolumeClaimRetentionPolicy.whenScaled", deletes, KEPT),
        ],
    ),
    (
        "storage.k8s.io",
        "storageclasses",
        &[field("provisioner", "claims use the classes hutch-local and hutch-memory")],
    ),
    ("scheduling.k8s.io", "priorityclasses", &[field("value", ONE_NODE)]),
    (
        "node.k8s.io",
        "runtimeclasses",
        &[field("overhead", "Pods count as they request"), field("scheduling", ONE_NODE)],
    ),
    (
        "extensions.agents.x-k8s.io",
        "sandboxtemplates",
        &[field("spec.networkPolicy.ingress", "only the router, and sandboxes by policy, reach a Sandbox")],
    ),
];

const KEPT: &str = "claims are kept: delete them by kubectl";

/// Of a Service.
pub(super) const SERVICE: &[Field] = &[
    value("spec.type", |kind| matches!(text(kind), "NodePort" | "LoadBalancer"), NO_BALANCER),
    field("spec.externalIPs", NO_BALANCER),
    field("spec.externalTrafficPolicy", NO_BALANCER),
    field("spec.healthCheckNodePort", NO_BALANCER),
    field("spec.allocateLoadBalancerNodePorts", NO_BALANCER),
    field("spec.loadBalancerClass", NO_BALANCER),
    field("spec.loadBalancerIP", NO_BALANCER),
    field("spec.loadBalancerSourceRanges", NO_BALANCER),
    field("spec.externalName", NAMES),
    value(
        "spec.ipFamilies",
        |families| *families != json!(["IPv4"]) && is_set(families),
        "Services are IPv4",
    ),
    value("spec.ipFamilyPolicy", |policy| text(policy) == "RequireDualStack", "Services are IPv4"),
    value("spec.sessionAffinity", |kind| text(kind) == "ClientIP", "each connection may reach another Pod"),
    field("spec.sessionAffinityConfig", "each connection may reach another Pod"),
    field("spec.ports[].nodePort", NO_BALANCER),
    field("spec.trafficDistribution", "there is one node"),
];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_true(value: &Value) -> bool {
    *value == true
}

/// Without an audience, that of the API server counts.
fn opens_the_api(token: &Value) -> bool {
    token.is_object() && matches!(text(&token["audience"]), "" | API_AUDIENCE)
}

fn deletes(policy: &Value) -> bool {
    text(policy) == "Delete"
}

fn is_of_no_pod(scope: &Value) -> bool {
    matches!(text(scope), "CrossNamespacePodAffinity" | "VolumeAttributesClass")
}

/// The mark of a cordoned node comes with a taint.
fn taints_others(taints: &Value) -> bool {
    taints.as_array().into_iter().flatten().any(|taint| taint["key"] != UNSCHEDULABLE_TAINT)
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
