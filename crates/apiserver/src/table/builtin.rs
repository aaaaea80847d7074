//! Tables of the built-in kinds: columns as data, cells as small functions.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::age;
use super::{pod, workload};
use crate::kinds::{Kind, events_to_core};

mod ingress;
mod plain;

/// The columns of a kind.
pub(super) struct Columns {
    /// Name, JSON type and priority. The first is the object's name unless another column is called `Name`.
    heads: &'static [(&'static str, &'static str, u8)],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

impl Columns {
    pub(super) fn definitions(&self) -> Vec<Value> {
        let head = |(name, kind, priority): &(&str, &str, u8)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
        };
        self.heads.iter().map(head).collect()
    }

    pub(super) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        (self.cells)(object, now)
    }
}

/// Text at a path, empty if absent.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Number at a path, 0 if absent.
pub(super) fn integer(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// Items at a place, none if there is no list.
pub(super) fn array<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `<none>` for empty text.
pub(super) fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// The object's name.
pub(super) fn name(object: &Value) -> Value {
    text(object, "/metadata/name").into()
}

/// The object's age.
pub(super) fn created(object: &Value, now: Timestamp) -> Value {
    age(object.pointer("/metadata/creationTimestamp"), now).into()
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: Option<&Value>) -> String {
    let map = map.and_then(Value::as_object);
    let mut pairs: Vec<_> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    pairs.sort();
    or_none(&pairs.join(",")).into()
}

fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    match object["apiVersion"].as_str() {
        Some("events.k8s.io/v1") => plain::event(&events_to_core(object.clone()), now),
        _ => plain::event(object, now),
    }
}

macro_rules! columns {
    ($cells:expr, $($head:expr),+ $(,)?) => {
        Columns { heads: &[$($head),+], cells: $cells }
    };
}

const NAME: (&str, &str, u8) = ("Name", "string", 0);
const AGE: (&str, &str, u8) = ("Age", "string", 0);

const fn word(name: &'static str) -> (&'static str, &'static str, u8) {
    (name, "string", 0)
}

const fn number(name: &'static str) -> (&'static str, &'static str, u8) {
    (name, "integer", 0)
}

const fn wide(name: &'static str) -> (&'static str, &'static str, u8) {
    (name, "string", 1)
}

/// The columns of the kinds that have their own.
static TABLE: &[(&str, Columns)] = &[
    (
        "Pod",
        columns!(
            pod::cells,
            NAME,
            word("Ready"),
            word("Status"),
            word("Restarts"),
            AGE,
            wide("IP"),
            wide("Node"),
            wide("Nominated Node"),
            wide("Readiness Gates")
        ),
    ),
    (
        "Deployment",
        columns!(
            workload::deployment,
            NAME,
            word("Ready"),
            word("Up-to-date"),
            word("Available"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    (
        "ReplicaSet",
        columns!(
            workload::replica_set,
            NAME,
            number("Desired"),
            number("Current"),
            number("Ready"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    (
        "StatefulSet",
        columns!(workload::stateful_set, NAME, word("Ready"), AGE, wide("Containers"), wide("Images")),
    ),
    (
        "DaemonSet",
        columns!(
            workload::daemon_set,
            NAME,
            number("Desired"),
            number("Current"),
            number("Ready"),
            number("Up-to-date"),
            number("Available"),
            word("Node Selector"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    (
        "Job",
        columns!(
            workload::job,
            NAME,
            word("Status"),
            word("Completions"),
            word("Duration"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    (
        "CronJob",
        columns!(
            workload::cron_job,
            NAME,
            word("Schedule"),
            word("Timezone"),
            word("Suspend"),
            number("Active"),
            word("Last Schedule"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    (
        "Service",
        columns!(
            plain::service,
            NAME,
            word("Type"),
            word("Cluster-IP"),
            word("External-IP"),
            word("Port(s)"),
            AGE,
            wide("Selector")
        ),
    ),
    (
        "Event",
        columns!(
            event,
            word("Last Seen"),
            word("Type"),
            word("Reason"),
            word("Object"),
            wide("Subobject"),
            wide("Source"),
            word("Message"),
            wide("First Seen"),
            wide("Count"),
            wide("Name")
        ),
    ),
    (
        "Node",
        columns!(
            plain::node,
            NAME,
            word("Status"),
            word("Roles"),
            AGE,
            word("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime")
        ),
    ),
    (
        "PersistentVolume",
        columns!(
            plain::volume,
            NAME,
            word("Capacity"),
            word("Access Modes"),
            word("Reclaim Policy"),
            word("Status"),
            word("Claim"),
            word("StorageClass"),
            word("VolumeAttributesClass"),
            word("Reason"),
            AGE,
            wide("VolumeMode")
        ),
    ),
    (
        "PersistentVolumeClaim",
        columns!(
            plain::volume_claim,
            NAME,
            word("Status"),
            word("Volume"),
            word("Capacity"),
            word("Access Modes"),
            word("StorageClass"),
            word("VolumeAttributesClass"),
            AGE,
            wide("VolumeMode")
        ),
    ),
    ("Namespace", columns!(plain::namespace, NAME, word("Status"), AGE)),
    ("Secret", columns!(plain::secret, NAME, word("Type"), word("Data"), AGE)),
    ("ConfigMap", columns!(plain::config_map, NAME, word("Data"), AGE)),
    ("ServiceAccount", columns!(plain::service_account, NAME, AGE)),
    ("Endpoints", columns!(plain::endpoints, NAME, word("Endpoints"), AGE)),
    (
        "EndpointSlice",
        columns!(plain::endpoint_slice, NAME, word("AddressType"), word("Ports"), word("Endpoints"), AGE),
    ),
    (
        "CertificateSigningRequest",
        columns!(
            plain::certificate_request,
            NAME,
            AGE,
            word("SignerName"),
            word("Requestor"),
            word("RequestedDuration"),
            word("Condition")
        ),
    ),
    ("ResourceQuota", columns!(plain::quota, NAME, word("Request"), word("Limit"), AGE)),
    (
        "ReplicationController",
        columns!(
            workload::replication_controller,
            NAME,
            number("Desired"),
            number("Current"),
            number("Ready"),
            AGE,
            wide("Containers"),
            wide("Images"),
            wide("Selector")
        ),
    ),
    ("Scale", columns!(workload::scale, NAME, number("Desired"), number("Available"), AGE)),
    (
        "PodTemplate",
        columns!(workload::pod_template, NAME, word("Containers"), word("Images"), word("Pod Labels")),
    ),
    (
        "ControllerRevision",
        columns!(workload::controller_revision, NAME, word("Controller"), word("Revision"), AGE),
    ),
    (
        "Ingress",
        columns!(ingress::ingress, NAME, word("Class"), word("Hosts"), word("Address"), word("Ports"), AGE),
    ),
    ("IngressClass", columns!(ingress::class, NAME, word("Controller"), word("Parameters"), AGE)),
    ("NetworkPolicy", columns!(plain::network_policy, NAME, word("Pod-Selector"), AGE)),
    (
        "PodDisruptionBudget",
        columns!(
            plain::disruption_budget,
            NAME,
            word("Min Available"),
            word("Max Unavailable"),
            number("Allowed Disruptions"),
            AGE
        ),
    ),
    ("MutatingWebhookConfiguration", columns!(plain::webhooks, NAME, number("Webhooks"), AGE)),
    (
        "ValidatingAdmissionPolicy",
        columns!(plain::validating_policy, NAME, number("Validations"), word("ParamKind"), AGE),
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        columns!(plain::policy_binding, NAME, word("PolicyName"), word("ParamRef"), AGE),
    ),
    ("ValidatingWebhookConfiguration", columns!(plain::webhooks, NAME, number("Webhooks"), AGE)),
    ("Lease", columns!(plain::lease, NAME, word("Holder"), AGE)),
    ("RuntimeClass", columns!(plain::runtime_class, NAME, word("Handler"), AGE)),
    (
        "PriorityClass",
        columns!(
            plain::priority_class,
            NAME,
            number("Value"),
            ("Global-Default", "boolean", 0),
            AGE,
            word("PreemptionPolicy")
        ),
    ),
    (
        "StorageClass",
        columns!(
            plain::storage_class,
            NAME,
            word("Provisioner"),
            word("ReclaimPolicy"),
            word("VolumeBindingMode"),
            ("AllowVolumeExpansion", "boolean", 0),
            AGE
        ),
    ),
    (
        "RoleBinding",
        columns!(
            plain::role_binding,
            NAME,
            word("Role"),
            AGE,
            wide("Users"),
            wide("Groups"),
            wide("ServiceAccounts")
        ),
    ),
    (
        "ClusterRoleBinding",
        columns!(
            plain::role_binding,
            NAME,
            word("Role"),
            AGE,
            wide("Users"),
            wide("Groups"),
            wide("ServiceAccounts")
        ),
    ),
    (
        "HorizontalPodAutoscaler",
        columns!(
            plain::autoscaler,
            NAME,
            word("Reference"),
            word("MinPods"),
            word("MaxPods"),
            word("Replicas"),
            AGE
        ),
    ),
];

/// Columns of all other kinds: name and time of creation.
static OTHERS: Columns = columns!(plain::any, NAME, ("Created At", "date", 0));

/// The columns of a built-in kind.
pub(super) fn columns_of(kind: &Kind) -> &'static Columns {
    TABLE.iter().find(|(name, _)| *name == kind.kind).map_or(&OTHERS, |(_, columns)| columns)
}
