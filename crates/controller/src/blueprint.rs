//! Builds the spec of a Sandbox from a template, and compares a Sandbox with its template.

use hutch_api::{NetworkPolicyManagement, Sandbox, SandboxTemplate, VolumeClaimTemplate, label, name_hash};
use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Map, Value};

/// Name servers of Pods with the default network rules, which block the cluster's own.
const PUBLIC_NAME_SERVERS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];

/// Applies the defaults for a Pod from a template: no credentials of the cluster, and name servers that the default
/// network rules allow.
pub(crate) fn secure(pod: &mut PodSpec, template: &SandboxTemplate) {
    pod.automount_service_account_token.get_or_insert(false);
    let managed =
        template.spec.network_policy_management.unwrap_or_default() == NetworkPolicyManagement::Managed;
    let default_rules = managed && template.spec.network_policy.is_none();
    if default_rules && pod.dns_policy.as_deref().unwrap_or_default().is_empty() {
        pod.dns_policy = Some("None".into());
        let name_servers = PUBLIC_NAME_SERVERS.map(str::to_owned).to_vec();
        pod.dns_config = Some(PodDNSConfig { nameservers: Some(name_servers), ..PodDNSConfig::default() });
    }
}

/// Hash labels of pooled Sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hashes {
    pub(crate) pod_template: String,
    pub(crate) blueprint: String,
}

impl Hashes {
    pub(crate) fn of(template: &SandboxTemplate) -> Self {
        let blueprint = template.spec.blueprint();
        Hashes { pod_template: json_hash(&blueprint.pod_template), blueprint: json_hash(&blueprint) }
    }
}

fn json_hash(value: &impl Serialize) -> String {
    name_hash(&serde_json::to_string(value).unwrap_or_default())
}

/// Returns whether a Sandbox equals what the template would make now. `trust_labels` accepts matching hash labels as
/// proof.
pub(crate) fn is_fresh(
    sandbox: &Sandbox,
    template: &SandboxTemplate,
    hashes: &Hashes,
    trust_labels: bool,
) -> bool {
    let labels = sandbox.labels();
    if labels.get(label::TEMPLATE_REF_HASH) != Some(&name_hash(&template.name_any())) {
        return false;
    }
    if trust_labels && labels.get(label::TEMPLATE_HASH) == Some(&hashes.blueprint) {
        return true;
    }
    let mut pod = PodSpec::clone(&template.spec.pod_template.spec);
    secure(&mut pod, template);
    same(&pod, sandbox.spec.pod_template.spec.as_ref())
        && same_volumes(template.spec.volume_claim_templates.as_deref(), sandbox.spec.volumes())
        && template.spec.service == sandbox.spec.service
}

/// Compares names and specs by position, without labels and annotations of volumes.
fn same_volumes(template: Option<&[VolumeClaimTemplate]>, sandbox: &[VolumeClaimTemplate]) -> bool {
    let template = template.unwrap_or_default();
    let pairs = template.iter().zip(sandbox);
    template.len() == sandbox.len()
        && pairs.into_iter().all(|(a, b)| a.name() == b.name() && same(&a.spec, &b.spec))
}

/// Compares by meaning: absent equals empty, and quantities are compared by value.
fn same<T: Serialize>(a: &T, b: &T) -> bool {
    let canonical = |value: &T| serde_json::to_value(value).ok().and_then(|value| canonical(value, false));
    canonical(a) == canonical(b)
}

fn canonical(value: Value, quantities: bool) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let items = items.into_iter().map(|item| canonical(item, quantities).unwrap_or_default());
            Some(Value::Array(items.collect()))
        }
        Value::Object(fields) => {
            let fields: Map<_, _> = fields
                .into_iter()
                .filter_map(|(key, value)| {
                    let quantities =
                        quantities || matches!(key.as_str(), "limits" | "requests" | "sizeLimit");
                    canonical(value, quantities).map(|value| (key, value))
                })
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        Value::String(text) if quantities => {
            Some(Value::String(nano_units(&text).map_or(text, |amount| amount.to_string())))
        }
        other => Some(other),
    }
}

/// Parses a Kubernetes quantity in billionths, unless it is malformed or out of range.
fn nano_units(text: &str) -> Option<i128> {
    let unit_at =
        text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale: i128 = match unit {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => 1_000_000_000,
        "k" | "K" => 1_000_000_000_000,
        "Ki" => 1_000_000_000 << 10,
        "M" => 10_i128.pow(15),
        "Mi" => 1_000_000_000 << 20,
        "G" => 10_i128.pow(18),
        "Gi" => 1_000_000_000 << 30,
        "T" => 10_i128.pow(21),
        "Ti" => 1_000_000_000 << 40,
        "P" => 10_i128.pow(24),
        "Pi" => 1_000_000_000 << 50,
        exponent => {
            let exponent = exponent.strip_prefix(['e', 'E'])?.parse::<u32>().ok()?;
            10_i128.checked_pow(exponent.checked_add(9)?)?
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}").parse::<i128>().ok()?;
    digits.checked_mul(scale)?.checked_div(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(spec: Value) -> SandboxTemplate {
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
            "metadata": {"name": "t", "namespace": "d"}, "spec": spec,
        }))
        .unwrap()
    }

    fn pod(memory: &str) -> Value {
        json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"memory": memory}}}]})
    }

    fn member(template: &SandboxTemplate) -> Sandbox {
        let mut sandbox =
            Sandbox::new("t-1", hutch_api::SandboxSpec::from_blueprint(template.spec.blueprint()));
        secure(std::sync::Arc::make_mut(&mut sandbox.spec.pod_template.spec), template);
        sandbox.labels_mut().insert(label::TEMPLATE_REF_HASH.into(), name_hash("t"));
        sandbox
    }

    #[test]
    fn quantities_by_value() {
        for (a, b) in [("1", "1000m"), ("0.5", "500m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("1.5Gi", "1536Mi")]
        {
            assert_eq!(nano_units(a), nano_units(b), "{a} {b}");
            assert!(nano_units(a).is_some());
        }
        assert_ne!(nano_units("1G"), nano_units("1Gi"));
        assert_eq!(nano_units("plenty"), None);
    }

    #[test]
    fn pooled_sandbox_is_stale_only_if_its_meaning_differs() {
        let base = template(json!({"podTemplate": {"spec": pod("1Gi"), "metadata": {"labels": {"a": "b"}}}}));
        let sandbox = member(&base);
        for (spec, fresh) in [
            (json!({"podTemplate": {"spec": pod("1Gi")}}), true),
            (json!({"podTemplate": {"spec": pod("1024Mi"), "metadata": {"labels": {"x": "y"}}}}), true),
            (json!({"podTemplate": {"spec": pod("2Gi")}}), false),
            (json!({"podTemplate": {"spec": pod("1Gi")}, "service": true}), false),
            (json!({"podTemplate": {"spec": pod("1Gi")}, "volumeClaimTemplates": []}), true),
            (json!({"podTemplate": {"spec": pod("1Gi")}, "networkPolicyManagement": "Unmanaged"}), false),
        ] {
            let template = template(spec.clone());
            assert_eq!(is_fresh(&sandbox, &template, &Hashes::of(&template), true), fresh, "{spec}");
        }
    }

    #[test]
    fn another_template_is_stale_and_a_matching_label_is_believed() {
        let base = template(json!({"podTemplate": {"spec": pod("1Gi")}}));
        let other = template(json!({"podTemplate": {"spec": pod("2Gi")}}));
        let mut sandbox = member(&base);
        sandbox.labels_mut().insert(label::TEMPLATE_HASH.into(), Hashes::of(&other).blueprint);
        assert!(is_fresh(&sandbox, &other, &Hashes::of(&other), true));
        assert!(!is_fresh(&sandbox, &other, &Hashes::of(&other), false));
        sandbox.labels_mut().insert(label::TEMPLATE_REF_HASH.into(), name_hash("another"));
        assert!(!is_fresh(&sandbox, &base, &Hashes::of(&base), true));
    }

    #[test]
    fn secure_defaults_leave_what_the_template_says() {
        let secured = |spec: Value| {
            let template = template(spec);
            let mut pod = PodSpec::clone(&template.spec.pod_template.spec);
            secure(&mut pod, &template);
            (pod.automount_service_account_token, pod.dns_policy)
        };
        let none = Some("None".to_owned());
        assert_eq!(secured(json!({"podTemplate": {"spec": {"containers": []}}})), (Some(false), none));
        assert_eq!(
            secured(json!({"podTemplate": {"spec": {"containers": []}}, "networkPolicy": {}})),
            (Some(false), None)
        );
        let said = json!({"containers": [], "automountServiceAccountToken": true, "dnsPolicy": "Default"});
        assert_eq!(secured(json!({"podTemplate": {"spec": said}})), (Some(true), Some("Default".to_owned())));
    }
}
