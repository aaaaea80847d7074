//! `SandboxTemplate`: its label, and one NetworkPolicy for all its Pods.

use hutch_api::{NetworkPolicyManagement, SandboxTemplate, label, name_hash};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Error;
use crate::gateway::Gateway;
use crate::key::Key;
use crate::network_policy::{difference, from_router, matching, to_the_internet};
use crate::outcome::Outcome;
use crate::owner;

/// Write to the API server.
#[derive(Debug, Clone, PartialEq)]
enum Action {
    PatchTemplate(Value),
    CreatePolicy(Box<NetworkPolicy>),
    PatchPolicy(Value),
    DeletePolicy,
}

pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let Some(template) = ctx.templates.get(key) else { return Outcome::Settled };
    if template.metadata.deletion_timestamp.is_some() {
        return Outcome::Settled;
    }
    let _span = ctx.spans.start("ReconcileSandboxTemplate", template.as_ref());
    let policy_key = key.beside(&policy_name(&key.name));
    let policy = ctx.policies.get(&policy_key);
    let (actions, problem) = plan(&template, policy.as_deref(), ctx.config.gateway.as_deref());
    let mut failed = false;
    if let Some(problem) = problem {
        tracing::warn!(template = %key, "{problem}");
        failed = true;
    }
    for action in actions {
        if let Err(error) = act(ctx, key, &policy_key, action).await {
            tracing::warn!(template = %key, %error, "a step of a template failed");
            failed = true;
        }
    }
    if failed { Outcome::Failed } else { Outcome::Settled }
}

async fn act(ctx: &Context, key: &Key, policy: &Key, action: Action) -> Result<(), Error> {
    match action {
        Action::PatchTemplate(patch) => ctx.templates.patch(key, patch).await.map(drop),
        Action::CreatePolicy(object) => {
            let created = ctx.policies.create(&key.namespace, object).await.map(drop);
            if created.as_ref().is_err_and(Error::is_already_exists) {
                // The cache was behind; the next reconcile sees the current state.
                ctx.policies.refresh(policy).await?;
            }
            created
        }
        Action::PatchPolicy(patch) => ctx.policies.patch(policy, patch).await.map(drop),
        Action::DeletePolicy => ctx.policies.delete(policy, None).await,
    }
}

/// Maximum bytes of a name, and of the begin of one that would be longer.
const NAME: usize = 253;
const BEGIN: usize = 200;

/// Returns the name of the NetworkPolicy of a template.
fn policy_name(template: &str) -> String {
    let name = format!("{template}-network-policy");
    if name.len() <= NAME {
        return name;
    }
    let begin = template[..template.floor_char_boundary(BEGIN)].trim_end_matches(['-', '.']);
    format!("{begin}-{}-network-policy", name_hash(template))
}

/// Returns false for a template that should have a NetworkPolicy and has none of its own.
pub(crate) fn closes(ctx: &Context, key: &Key) -> bool {
    let Some(template) = ctx.templates.get(key) else { return true };
    let policy = ctx.policies.get(&key.beside(&policy_name(&key.name)));
    !is_managed(&template)
        || policy.is_some_and(|policy| owner::is_controlled_by(policy.as_ref(), template.as_ref()))
}

fn is_managed(template: &SandboxTemplate) -> bool {
    template.spec.network_policy_management.unwrap_or_default() == NetworkPolicyManagement::Managed
}

fn plan(
    template: &SandboxTemplate,
    policy: Option<&NetworkPolicy>,
    gateway: Option<&Gateway>,
) -> (Vec<Action>, Option<String>) {
    let name = template.name_any();
    let hash = name_hash(&name);
    let mut actions = Vec::new();
    if template.labels().get(label::TEMPLATE_REF_HASH) != Some(&hash) {
        let patch = json!({"metadata": {"labels": {label::TEMPLATE_REF_HASH: hash}}});
        actions.push(Action::PatchTemplate(patch));
    }
    let managed = is_managed(template);
    let owned = policy.is_some_and(|policy| owner::is_controlled_by(policy, template));
    match (managed, policy) {
        (false, Some(_)) if owned => actions.push(Action::DeletePolicy),
        (false, _) => {}
        (true, None) => actions.push(Action::CreatePolicy(Box::new(desired(template, gateway)))),
        (true, Some(policy)) if owned => {
            let wanted = desired(template, gateway).spec;
            actions.extend(difference(policy, wanted).map(Action::PatchPolicy));
        }
        (true, Some(_)) => {
            let policy = policy_name(&name);
            let problem = format!(
                "refusing to update NetworkPolicy {policy:?} as it is not controlled by SandboxTemplate {name:?}"
            );
            return (actions, Some(problem));
        }
    }
    (actions, None)
}

fn desired(template: &SandboxTemplate, gateway: Option<&Gateway>) -> NetworkPolicy {
    let hash = name_hash(&template.name_any());
    let (ingress, egress) = match &template.spec.network_policy {
        Some(rules) => (rules.ingress.clone(), rules.egress.clone()),
        None => {
            let ingress = std::iter::once(from_router()).chain(gateway.map(Gateway::ingress));
            (Some(ingress.collect()), Some(vec![to_the_internet()]))
        }
    };
    // Through the gateway, the egress rules of the template decide there, as a level.
    let egress = gateway.map_or(egress, |gateway| Some(vec![gateway.rule()]));
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(policy_name(&template.name_any())),
            namespace: template.namespace(),
            owner_references: Some(vec![owner::reference(template)]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(matching(label::TEMPLATE_REF_HASH, &hash)),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: ingress.filter(|rules| !rules.is_empty()),
            egress: egress.filter(|rules| !rules.is_empty()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is too long was refused each time, and nothing closed the network of the Pods.
    #[test]
    fn name_of_a_policy_fits_whatever_its_template_is_called() {
        assert_eq!(policy_name("t"), "t-network-policy");
        for length in [237, 239, 253] {
            let name = policy_name(&"a.".repeat(127)[..length]);
            assert!(name.len() <= NAME && !name.contains(".-"), "{name}");
        }
        assert_ne!(policy_name(&"a".repeat(250)), policy_name(&"a".repeat(251)));
    }

    fn template(spec: Value) -> SandboxTemplate {
        let mut spec = spec;
        spec["podTemplate"] = json!({"spec": {"containers": []}});
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
            "metadata": {"name": "t", "namespace": "d", "uid": "u1",
                "labels": {label::TEMPLATE_REF_HASH: name_hash("t")}},
            "spec": spec,
        }))
        .unwrap()
    }

    fn actions(spec: Value, policy: Option<&NetworkPolicy>) -> Vec<&'static str> {
        let (actions, problem) = plan(&template(spec), policy, None);
        let names = actions.iter().map(|action| match action {
            Action::PatchTemplate(_) => "label",
            Action::CreatePolicy(_) => "create",
            Action::PatchPolicy(_) => "patch",
            Action::DeletePolicy => "delete",
        });
        names.chain(problem.map(|_| "refuse")).collect()
    }

    #[test]
    fn network_policy_table() {
        let owned = desired(&template(json!({})), None);
        let mut foreign = owned.clone();
        foreign.metadata.owner_references = None;
        let unmanaged = json!({"networkPolicyManagement": "Unmanaged"});
        assert_eq!(actions(unmanaged.clone(), Some(&owned)), ["delete"]);
        assert_eq!(actions(unmanaged.clone(), Some(&foreign)), [""; 0]);
        assert_eq!(actions(unmanaged, None), [""; 0]);
        assert_eq!(actions(json!({}), None), ["create"]);
        assert_eq!(actions(json!({}), Some(&owned)), [""; 0]);
        assert_eq!(actions(json!({"networkPolicy": {}}), Some(&owned)), ["patch"]);
        assert_eq!(actions(json!({}), Some(&foreign)), ["refuse"]);
    }

    #[test]
    fn server_defaults_are_not_a_difference() {
        let rules =
            json!({"networkPolicy": {"egress": [{"ports": [{"port": 53}], "to": []}], "ingress": []}});
        let mut stored = serde_json::to_value(desired(&template(rules.clone()), None)).unwrap();
        stored["spec"]["egress"][0]["ports"][0]["protocol"] = "TCP".into();
        stored["spec"]["egress"][0].as_object_mut().unwrap().remove("to");
        let stored: NetworkPolicy = serde_json::from_value(stored).unwrap();
        assert_eq!(actions(rules.clone(), Some(&stored)), [""; 0]);
        let other = json!({"networkPolicy": {"egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}});
        assert_eq!(actions(other, Some(&stored)), ["patch"]);

        let from = |peer: Value| json!({"networkPolicy": {"ingress": [{"from": [peer]}]}});
        let here = desired(&template(from(json!({"podSelector": {}}))), None);
        assert_eq!(actions(from(json!({"podSelector": {}})), Some(&here)), [""; 0]);
        assert_eq!(
            actions(from(json!({"namespaceSelector": {}})), Some(&here)),
            ["patch"],
            "from everywhere"
        );
    }

    #[test]
    fn template_without_its_label_is_labeled() {
        let mut template = template(json!({}));
        template.metadata.labels = None;
        let policy = desired(&template, None);
        let (actions, _) = plan(&template, Some(&policy), None);
        let patch =
            json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t")}}});
        assert_eq!(actions, [Action::PatchTemplate(patch)]);
    }

    #[test]
    fn default_rules_are_the_published_ones() {
        let policy = serde_json::to_value(desired(&template(json!({})), None)).unwrap();
        assert_eq!(policy["metadata"]["name"], "t-network-policy");
        assert_eq!(
            policy["spec"],
            json!({
                "podSelector": {"matchLabels": {"agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t")}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
                    "podSelector": {"matchLabels": {"app": "sandbox-router"}},
                }]}],
                "egress": [{"to": [
                    {"ipBlock": {"cidr": "0.0.0.0/0",
                        "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]}},
                    {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
                ]}],
            })
        );
    }

    #[test]
    fn with_a_gateway_nothing_else_is_open() {
        let key = crate::TokenKey::new(&[1; 32]).unwrap();
        let gateway = Gateway::at("10.96.0.9:3128".parse().unwrap(), key);
        let own = json!({"networkPolicy": {"egress": [{}], "ingress": [{}]}});
        for (spec, ingress) in [(json!({}), json!([from_router(), gateway.ingress()])), (own, json!([{}]))] {
            let policy = desired(&template(spec), Some(&gateway));
            let policy = serde_json::to_value(policy.spec).unwrap();
            assert_eq!(policy["ingress"], ingress);
            assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
            assert_eq!(
                policy["egress"],
                json!([{"to": [{"ipBlock": {"cidr": "10.96.0.9/32"}}], "ports": [{"port": 3128, "protocol": "TCP"}]}])
            );
        }
    }
}
