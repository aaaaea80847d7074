//! Contents of the NetworkPolicies of templates and Sandboxes.

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use hutch_api::label;

use crate::patch::Strings;

/// Namespace and `app` label of the router that the default rules admit.
const ROUTER: (&str, &str) = ("agent-sandbox-system", "sandbox-router");
/// Private and link-local IPv4 ranges that the default rules block.
const PRIVATE_V4: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
/// IPv6 ranges that the default rules block.
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// Returns the merge patch that gives a NetworkPolicy this spec; `None` if it has it.
pub(crate) fn difference(policy: &NetworkPolicy, wanted: Option<NetworkPolicySpec>) -> Option<Value> {
    if policy.spec.clone().map(defaulted) == wanted.clone().map(defaulted) {
        return None;
    }
    // An absent list must be null, or the merge patch would keep it.
    let mut spec = json!({"ingress": null, "egress": null, "policyTypes": null});
    let wanted = serde_json::to_value(wanted).unwrap_or_default();
    if let (Some(spec), Value::Object(wanted)) = (spec.as_object_mut(), wanted) {
        spec.extend(wanted);
    }
    Some(json!({"spec": spec}))
}

/// Adds the server's defaults and removes empty lists. An empty selector stays: it selects everything.
fn defaulted(mut spec: NetworkPolicySpec) -> NetworkPolicySpec {
    fn tidy(ports: &mut Option<Vec<NetworkPolicyPort>>, peers: &mut Option<Vec<NetworkPolicyPeer>>) {
        ports.take_if(|ports| ports.is_empty());
        peers.take_if(|peers| peers.is_empty());
        for port in ports.iter_mut().flatten() {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
        for block in peers.iter_mut().flatten().filter_map(|peer| peer.ip_block.as_mut()) {
            block.except.take_if(|except| except.is_empty());
        }
    }
    for rule in spec.ingress.iter_mut().flatten() {
        tidy(&mut rule.ports, &mut rule.from);
    }
    for rule in spec.egress.iter_mut().flatten() {
        tidy(&mut rule.ports, &mut rule.to);
    }
    spec
}

/// Admits the router.
pub(crate) fn from_router() -> NetworkPolicyIngressRule {
    let (namespace, app) = ROUTER;
    let peer = NetworkPolicyPeer {
        namespace_selector: Some(matching(label::NAMESPACE_NAME, namespace)),
        pod_selector: Some(matching("app", app)),
        ip_block: None,
    };
    NetworkPolicyIngressRule { from: Some(vec![peer]), ports: None }
}

/// Opens all addresses that are not private.
pub(crate) fn to_the_internet() -> NetworkPolicyEgressRule {
    let block = |cidr: &str, except: &[&str]| NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_owned(),
            except: Some(except.iter().map(|range| (*range).to_owned()).collect()),
        }),
        ..NetworkPolicyPeer::default()
    };
    let peers = vec![block("0.0.0.0/0", &PRIVATE_V4), block("::/0", &PRIVATE_V6)];
    NetworkPolicyEgressRule { to: Some(peers), ports: None }
}

/// Selects the objects with a label.
pub(crate) fn matching(key: &str, value: &str) -> LabelSelector {
    let labels = Strings::from([(key.to_owned(), value.to_owned())]);
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}
