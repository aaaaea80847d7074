//! NetworkPolicy of a Sandbox without a template, where a gateway is the only way out. A template has one for all its Pods.

use hutch_api::{Sandbox, annotation, label, name_hash};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::plan::{Action, Part, Plan};
use super::{Located, Observed, pod};
use crate::gateway::Gateway;
use crate::network_policy::{difference, from_router, matching};
use crate::owner;

/// Returns the name of the policy. Those of templates end in another way.
pub(super) fn name(sandbox: &str) -> String {
    format!("{sandbox}-sandbox-network")
}

/// Plans the policy, before the Pod. Returns false if the Pod must not be created, since nothing would close its network.
pub(super) fn plan(observed: &Observed, plan: &mut Plan) -> bool {
    let sandbox = observed.sandbox.as_ref();
    let owned = observed.policy.as_ref().filter(|policy| owner::is_controlled_by(policy.as_ref(), sandbox));
    let Some(gateway) = observed.gateway.as_ref().filter(|_| !has_template(observed)) else {
        plan.actions.extend(owned.map(|policy| Action::DeletePolicy(policy.name_any())));
        return true;
    };
    let wanted = desired(sandbox, gateway);
    match (&observed.policy, owned) {
        (None, _) => plan.actions.push(Action::CreatePolicy(Box::new(wanted))),
        (Some(_), Some(policy)) => {
            let patch = difference(policy, wanted.spec);
            plan.actions.extend(patch.map(|patch| Action::PatchPolicy(policy.name_any(), patch)));
        }
        (Some(policy), None) => {
            let name = policy.name_any();
            let problem = format!("NetworkPolicy {name:?} is not controlled by the Sandbox: delete it");
            plan.problems.push((Part::Pod, problem));
            return false;
        }
    }
    true
}

/// Returns true if the NetworkPolicy of a template selects the Pod, or will. A Pod that gets a template keeps the policy of its
/// Sandbox until it has the label of the template. Until the template has its NetworkPolicy, the Sandbox has one.
fn has_template(observed: &Observed) -> bool {
    let labeled = match observed.locate() {
        Located::Owned(pod) => pod.labels().contains_key(label::TEMPLATE_REF_HASH),
        _ => true,
    };
    labeled
        && pod::has_template(&observed.sandbox)
        && is_of_template(&observed.sandbox)
        && observed.template_closes
}

/// Returns true if the label by which the NetworkPolicy of a template selects the Pod is that of the template of the Sandbox. Who
/// writes Sandboxes chooses their labels and owners.
fn is_of_template(sandbox: &Sandbox) -> bool {
    let template = sandbox.annotations().get(annotation::TEMPLATE_REF);
    template.is_some_and(|name| sandbox.labels().get(label::TEMPLATE_REF_HASH) == Some(&name_hash(name)))
}

fn desired(sandbox: &Sandbox, gateway: &Gateway) -> NetworkPolicy {
    let own = sandbox.name_any();
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name(&own)),
            namespace: sandbox.namespace(),
            owner_references: Some(vec![owner::reference(sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(matching(label::SANDBOX_NAME_HASH, &name_hash(&own))),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: Some(vec![from_router(), gateway.ingress()]),
            egress: Some(vec![gateway.rule()]),
        }),
    }
}
