use anyhow::{Context, bail};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Group and version, kind, plural of everything that a life is made of.
pub(crate) const KINDS: [(&str, &str, &str); 8] = [
    ("agents.x-k8s.io/v1beta1", "Sandbox", "sandboxes"),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "sandboxclaims"),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate", "sandboxtemplates"),
    ("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "sandboxwarmpools"),
    ("v1", "Pod", "pods"),
    ("v1", "Service", "services"),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
];

/// Suffix of a kind in the older version.
const OLDER_MARK: &str = ".v1alpha1";
/// The kinds that have an older version, in it.
pub(crate) const OLDER: [&str; 4] =
    ["Sandbox.v1alpha1", "SandboxClaim.v1alpha1", "SandboxTemplate.v1alpha1", "SandboxWarmPool.v1alpha1"];

/// The kind without its version.
pub(crate) fn plain(kind: &str) -> &str {
    kind.strip_suffix(OLDER_MARK).unwrap_or(kind)
}

/// By kind, in the newest version, or in the one behind its name: `Sandbox.v1alpha1`.
pub(crate) fn resource(kind: &str) -> anyhow::Result<ApiResource> {
    if OLDER.contains(&kind) {
        let mut resource = resource(plain(kind))?;
        resource.version = "v1alpha1".into();
        resource.api_version = format!("{}/v1alpha1", resource.group);
        return Ok(resource);
    }
    let found = KINDS.into_iter().find(|(_, known, _)| *known == kind);
    let (api_version, kind, plural) = found.with_context(|| {
        format!("no kind {kind:?}; there are {}", KINDS.map(|(_, known, _)| known).join(", "))
    })?;
    Ok(with_plural(api_version, kind, plural))
}

/// Events, as the controllers write them.
pub(crate) fn events() -> ApiResource {
    with_plural("events.k8s.io/v1", "Event", "events")
}

fn with_plural(api_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Returns the default content of an object.
pub(crate) fn base(kind: &str) -> anyhow::Result<Value> {
    let resource = resource(kind)?;
    let pod = json!({"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}]});
    let spec = match if kind == "SandboxClaim.v1alpha1" { kind } else { plain(kind) } {
        "SandboxClaim.v1alpha1" => json!({"sandboxTemplateRef": {"name": "t"}}),
        "Sandbox" | "SandboxTemplate" => json!({"podTemplate": {"spec": pod}}),
        "SandboxWarmPool" => json!({"replicas": 1, "sandboxTemplateRef": {"name": "t"}}),
        "SandboxClaim" => json!({"warmPoolRef": {"name": "p"}}),
        "Pod" => pod,
        "Service" => json!({"ports": [{"port": 80}], "clusterIP": "None", "selector": {"some": "pods"}}),
        "PersistentVolumeClaim" => {
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
        }
        "NetworkPolicy" => json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
        _ => bail!("no base for {kind}"),
    };
    Ok(json!({"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}))
}
