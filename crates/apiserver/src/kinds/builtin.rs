//! The table of built-in kinds.

use super::{Kind, REVIEW_VERBS, STORED_VERBS, Scale, Subresource};

/// One line of the table.
struct Row {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Package of the OpenAPI definition; the kind's name is appended.
    package: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    review: bool,
    /// See [`subresource`].
    below: &'static [&'static str],
}

const fn row(
    api_version: &'static str,
    package: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    below: &'static [&'static str],
) -> Row {
    Row { api_version, kind, plural, package, short: &[], categories: &[], namespaced, review: false, below }
}

impl Row {
    const fn short(mut self, short: &'static [&'static str]) -> Self {
        self.short = short;
        self
    }

    const fn all(mut self) -> Self {
        self.categories = &["all"];
        self
    }

    const fn categories(mut self, categories: &'static [&'static str]) -> Self {
        self.categories = categories;
        self
    }

    const fn review(mut self) -> Self {
        self.review = true;
        self
    }
}

const CORE: &str = "io.k8s.api.core.v1";
const APPS: &str = "io.k8s.api.apps.v1";
const BATCH: &str = "io.k8s.api.batch.v1";
const RBAC: &str = "io.k8s.api.rbac.v1";
const RBAC_V1: &str = "rbac.authorization.k8s.io/v1";
const AUTHN: &str = "io.k8s.api.authentication.v1";
const AUTHN_V1: &str = "authentication.k8s.io/v1";
const AUTHZ: &str = "io.k8s.api.authorization.v1";
const AUTHZ_V1: &str = "authorization.k8s.io/v1";
const NET: &str = "io.k8s.api.networking.v1";
const NET_V1: &str = "networking.k8s.io/v1";
const ADMISSION: &str = "io.k8s.api.admissionregistration.v1";
const ADMISSION_V1: &str = "admissionregistration.k8s.io/v1";
const CRD: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
const STATUS: &[&str] = &["status"];
const SCALE: &[&str] = &["status", "scale"];
const POD: &[&str] = &[
    "status",
    "log",
    "exec",
    "attach",
    "portforward",
    "eviction",
    "binding",
    "ephemeralcontainers",
    "resize",
    "proxy",
];

const ROWS: &[Row] = &[
    row("v1", CORE, "ConfigMap", "configmaps", true, &[]).short(&["cm"]),
    row("v1", CORE, "Endpoints", "endpoints", true, &[]).short(&["ep"]),
    row("v1", CORE, "Event", "events", true, &[]).short(&["ev"]),
    row("v1", CORE, "Namespace", "namespaces", false, &["status", "finalize"]).short(&["ns"]),
    row("v1", CORE, "Node", "nodes", false, STATUS).short(&["no"]),
    row("v1", CORE, "PersistentVolumeClaim", "persistentvolumeclaims", true, STATUS).short(&["pvc"]),
    row("v1", CORE, "PersistentVolume", "persistentvolumes", false, STATUS).short(&["pv"]),
    row("v1", CORE, "Pod", "pods", true, POD).short(&["po"]).all(),
    row("v1", CORE, "PodTemplate", "podtemplates", true, &[]),
    row("v1", CORE, "ReplicationController", "replicationcontrollers", true, SCALE).short(&["rc"]).all(),
    row("v1", CORE, "LimitRange", "limitranges", true, &[]).short(&["limits"]),
    row("v1", CORE, "ResourceQuota", "resourcequotas", true, STATUS).short(&["quota"]),
    row("v1", CORE, "Secret", "secrets", true, &[]),
    row("v1", CORE, "ServiceAccount", "serviceaccounts", true, &["token"]).short(&["sa"]),
    row("v1", CORE, "Service", "services", true, STATUS).short(&["svc"]).all(),
    row(ADMISSION_V1, ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false, &[])
        .categories(&["api-extensions"]),
    row(ADMISSION_V1, ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false, STATUS)
        .categories(&["api-extensions"]),
    row(
        ADMISSION_V1,
        ADMISSION,
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
        &[],
    )
    .categories(&["api-extensions"]),
    row(
        ADMISSION_V1,
        ADMISSION,
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        false,
        &[],
    )
    .categories(&["api-extensions"]),
    row(
        "apiextensions.k8s.io/v1",
        CRD,
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
        STATUS,
    )
    .short(&["crd", "crds"])
    .categories(&["api-extensions"]),
    row("apps/v1", APPS, "ControllerRevision", "controllerrevisions", true, &[]),
    row("apps/v1", APPS, "DaemonSet", "daemonsets", true, STATUS).short(&["ds"]).all(),
    row("apps/v1", APPS, "Deployment", "deployments", true, SCALE).short(&["deploy"]).all(),
    row("apps/v1", APPS, "ReplicaSet", "replicasets", true, SCALE).short(&["rs"]).all(),
    row("apps/v1", APPS, "StatefulSet", "statefulsets", true, SCALE).short(&["sts"]).all(),
    row(AUTHN_V1, AUTHN, "SelfSubjectReview", "selfsubjectreviews", false, &[]).review(),
    row(AUTHN_V1, AUTHN, "TokenReview", "tokenreviews", false, &[]).review(),
    row(AUTHZ_V1, AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews", true, &[]).review(),
    row(AUTHZ_V1, AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews", false, &[]).review(),
    row(AUTHZ_V1, AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews", false, &[]).review(),
    row(AUTHZ_V1, AUTHZ, "SubjectAccessReview", "subjectaccessreviews", false, &[]).review(),
    row(
        "autoscaling/v2",
        "io.k8s.api.autoscaling.v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        true,
        STATUS,
    )
    .short(&["hpa"])
    .all(),
    row("batch/v1", BATCH, "CronJob", "cronjobs", true, STATUS).short(&["cj"]).all(),
    row("batch/v1", BATCH, "Job", "jobs", true, STATUS).all(),
    row(
        "certificates.k8s.io/v1",
        "io.k8s.api.certificates.v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        false,
        &["status", "approval"],
    )
    .short(&["csr"]),
    row("coordination.k8s.io/v1", "io.k8s.api.coordination.v1", "Lease", "leases", true, &[]),
    row("discovery.k8s.io/v1", "io.k8s.api.discovery.v1", "EndpointSlice", "endpointslices", true, &[]),
    row("events.k8s.io/v1", "io.k8s.api.events.v1", "Event", "events", true, &[]).short(&["ev"]),
    row(NET_V1, NET, "Ingress", "ingresses", true, STATUS).short(&["ing"]),
    row(NET_V1, NET, "IngressClass", "ingressclasses", false, &[]),
    row(NET_V1, NET, "NetworkPolicy", "networkpolicies", true, &[]).short(&["netpol"]),
    row("node.k8s.io/v1", "io.k8s.api.node.v1", "RuntimeClass", "runtimeclasses", false, &[]),
    row("policy/v1", "io.k8s.api.policy.v1", "PodDisruptionBudget", "poddisruptionbudgets", true, STATUS)
        .short(&["pdb"]),
    row(RBAC_V1, RBAC, "ClusterRoleBinding", "clusterrolebindings", false, &[]),
    row(RBAC_V1, RBAC, "ClusterRole", "clusterroles", false, &[]),
    row(RBAC_V1, RBAC, "RoleBinding", "rolebindings", true, &[]),
    row(RBAC_V1, RBAC, "Role", "roles", true, &[]),
    row("scheduling.k8s.io/v1", "io.k8s.api.scheduling.v1", "PriorityClass", "priorityclasses", false, &[])
        .short(&["pc"]),
    row("storage.k8s.io/v1", "io.k8s.api.storage.v1", "StorageClass", "storageclasses", false, &[])
        .short(&["sc"]),
];

pub(super) fn kinds() -> Vec<Kind> {
    ROWS.iter().map(kind).collect()
}

fn kind(row: &Row) -> Kind {
    let (group, version) = super::split_api_version(row.api_version);
    let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut subresources: Vec<_> =
        row.below.iter().map(|name| subresource(name, group, version, row.kind)).collect();
    subresources.sort_by(|a, b| a.name.cmp(&b.name));
    Kind {
        group: group.into(),
        version: version.into(),
        kind: row.kind.into(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.into(),
        singular: row.kind.to_lowercase(),
        short_names: strings(row.short),
        categories: strings(row.categories),
        namespaced: row.namespaced,
        verbs: if row.review { REVIEW_VERBS } else { STORED_VERBS },
        subresources,
        columns: Vec::new(),
        schema: None,
        definition: Some(format!("{}.{}", row.package, row.kind)),
        served_versions: vec![version.into()],
        storage_version: version.into(),
        deprecation_warning: deprecation(row).map(Into::into),
        has_status: row.below.contains(&"status"),
        scale: row.below.contains(&"scale").then(|| Scale {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            // Their selector is an object in the spec; the handler writes it as text.
            label_selector: None,
        }),
        selectable_fields: Vec::new(),
        view_of: (group == "events.k8s.io").then(|| (String::new(), "events".into())),
        defined: 0,
    }
}

fn deprecation(row: &Row) -> Option<&'static str> {
    (row.kind == "Endpoints")
        .then_some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
}

fn subresource(name: &str, group: &str, version: &str, kind: &str) -> Subresource {
    let own = (group, version, kind);
    let (body, verbs): ((&str, &str, &str), &[&'static str]) = match name {
        "scale" => (("autoscaling", "v1", "Scale"), &["get", "patch", "update"]),
        "log" => (own, &["get"]),
        "exec" => (("", "v1", "PodExecOptions"), &["create", "get"]),
        "attach" => (("", "v1", "PodAttachOptions"), &["create", "get"]),
        "portforward" => (("", "v1", "PodPortForwardOptions"), &["create", "get"]),
        "proxy" => (("", "v1", "PodProxyOptions"), &["create", "delete", "get", "patch", "update"]),
        "eviction" => (("policy", "v1", "Eviction"), &["create"]),
        "binding" => (("", "v1", "Binding"), &["create"]),
        "token" => (("authentication.k8s.io", "v1", "TokenRequest"), &["create"]),
        "finalize" => (own, &["update"]),
        _ => (own, &["get", "patch", "update"]),
    };
    Subresource {
        name: name.into(),
        body: (body.0.into(), body.1.into(), body.2.into()),
        verbs: verbs.to_vec(),
    }
}
