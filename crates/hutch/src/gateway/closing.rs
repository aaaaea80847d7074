//! The NetworkPolicies of a cluster: whether they leave a Pod no way out but the gateway.

use std::collections::HashMap;

use hutch_api::label;
use hutch_attach::Mirror;
use hutch_policy::Selector;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

/// Content of a NetworkPolicy about the connections that Pods make.
#[derive(Debug, PartialEq)]
pub(super) struct Closing {
    name: String,
    namespace: String,
    /// `None` for one that cannot be read: it may select every Pod.
    selector: Option<Selector>,
    /// Ways that it opens. `None` if it says nothing about connections that Pods make.
    egress: Option<Vec<NetworkPolicyEgressRule>>,
    /// Uid of the object that controls it.
    controller: Option<String>,
}

impl Closing {
    /// Reads a NetworkPolicy.
    pub(super) fn of(policy: NetworkPolicy) -> Closing {
        let (name, namespace) = (policy.name_any(), policy.namespace().unwrap_or_default());
        let owners = policy.metadata.owner_references.unwrap_or_default();
        let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
        let controller = controller.map(|owner| owner.uid);
        let spec = policy.spec.unwrap_or_default();
        let selector = serde_json::to_value(spec.pod_selector.unwrap_or_default());
        let selector = selector.and_then(serde_json::from_value).ok();
        let named = |types: Vec<String>| types.iter().any(|kind| kind == "Egress");
        let judges = spec.policy_types.map_or(spec.egress.is_some(), named);
        let egress = judges.then(|| spec.egress.unwrap_or_default());
        Closing { name, namespace, selector, egress, controller }
    }

    fn selects(&self, pod: &Pod) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(pod.labels()))
    }
}

/// NetworkPolicies by what they select.
#[derive(Debug, Default)]
pub(super) struct Closings<'a> {
    /// By their namespace and one of the labels that they select.
    by_label: HashMap<(&'a str, &'a str, &'a str), Vec<&'a Closing>>,
    /// The others of a namespace.
    others: HashMap<&'a str, Vec<&'a Closing>>,
    complete: bool,
}

impl<'a> Closings<'a> {
    pub(super) fn new(policies: &'a Mirror<Closing>) -> Closings<'a> {
        let mut all = Closings { complete: policies.complete, ..Closings::default() };
        for policy in policies.objects.values().filter(|policy| policy.egress.is_some()) {
            let label = policy.selector.as_ref().and_then(|selector| selector.match_labels.first_key_value());
            match label {
                Some((key, value)) => {
                    all.by_label.entry((&policy.namespace, key, value)).or_default().push(policy);
                }
                None => all.others.entry(&policy.namespace).or_default().push(policy),
            }
        }
        all
    }

    /// Returns why a Pod has another way out than the gateway. `owners` are the uids of its Sandbox and, if it has the label of
    /// one, of its template: what they control is written by the controller.
    pub(super) fn way_out(&self, pod: &Pod, owners: &[&str]) -> Option<String> {
        if !self.complete {
            return Some(
                "the NetworkPolicies of the cluster are not known: may the gateway list them?".to_owned(),
            );
        }
        let namespace = pod.namespace().unwrap_or_default();
        let of_labels = pod.labels().iter().filter_map(|(key, value)| {
            self.by_label.get(&(namespace.as_str(), key.as_str(), value.as_str()))
        });
        let all = of_labels.chain(self.others.get(namespace.as_str())).flatten();
        let selecting: Vec<&Closing> = all.copied().filter(|policy| policy.selects(pod)).collect();
        let is_own =
            |policy: &&Closing| policy.controller.as_deref().is_some_and(|uid| owners.contains(&uid));
        let Some(own) = selecting.iter().copied().find(is_own) else {
            return Some("no NetworkPolicy of its template or Sandbox selects the Pod".to_owned());
        };
        let ways = own.egress.as_deref().unwrap_or_default();
        if !ways.iter().all(leads_to_a_gateway) || ways.len() > 1 {
            let name = &own.name;
            return Some(format!(
                "NetworkPolicy {name} opens more than a gateway: has the controller no --egress-gateway?"
            ));
        }
        let opens = |policy: &&Closing| policy.egress.iter().flatten().any(|rule| !ways.contains(rule));
        let further = selecting.into_iter().find(opens)?;
        Some(format!("NetworkPolicy {} opens a further way out", further.name))
    }
}

/// Returns true for a rule as the controller writes it: one port of one address, or of Pods with labels in a namespace with a
/// name.
fn leads_to_a_gateway(rule: &NetworkPolicyEgressRule) -> bool {
    let (Some([to]), Some([_])) = (rule.to.as_deref(), rule.ports.as_deref()) else { return false };
    match &to.ip_block {
        Some(block) => {
            block.except.is_none() && ["/32", "/128"].iter().any(|length| block.cidr.ends_with(length))
        }
        None => {
            let labels = |selector: &Option<LabelSelector>| {
                selector.as_ref().and_then(|selector| selector.match_labels.clone()).unwrap_or_default()
            };
            labels(&to.namespace_selector).contains_key(label::NAMESPACE_NAME)
                && !labels(&to.pod_selector).is_empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_attach::Mirror;
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, controller: Option<&str>, selector: Value, egress: Value) -> NetworkPolicy {
        let owner =
            |uid| json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": true});
        let owners: Vec<Value> = controller.map(owner).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "ownerReferences": owners},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"], "egress": egress},
        }))
        .unwrap()
    }

    #[test]
    fn pod_is_closed_if_its_own_policy_opens_the_gateway_and_no_other_one_more() {
        let pods = json!([{
            "to": [{
                "podSelector": {"matchLabels": {"app": "hutch-egress"}},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
            }],
            "ports": [{"port": 3128}],
        }]);
        let block = |cidr: &str| json!([{"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": 3128}]}]);
        let internet = block("0.0.0.0/0");
        let every_pod = json!([{"to": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}]);
        let (of_template, any) = (json!({"matchLabels": {"template": "t"}}), json!({}));
        let own = || policy("t", Some("ut"), of_template.clone(), pods.clone());
        let two = |one: &Value, other: &Value| json!([one[0], other[0]]);
        let expression =
            |operator: &str| json!({"matchExpressions": [{"key": "template", "operator": operator}]});
        let other = |selector: &Value, egress: &Value| policy("x", None, selector.clone(), egress.clone());
        let of =
            |controller: Option<&str>, egress: &Value| policy("t", controller, any.clone(), egress.clone());
        let cases: [(&str, Vec<NetworkPolicy>, Option<&str>); 16] = [
            ("none", vec![], Some("no NetworkPolicy of its template")),
            ("own", vec![own()], None),
            ("of the Sandbox", vec![of(Some("us"), &pods)], None),
            ("at an address", vec![of(Some("us"), &block("192.0.2.1/32"))], None),
            ("foreign", vec![of(None, &pods)], Some("no NetworkPolicy")),
            ("of another template", vec![of(Some("uo"), &pods)], Some("no NetworkPolicy")),
            ("without a gateway", vec![of(Some("ut"), &internet)], Some("t opens more than a gateway")),
            ("to all", vec![of(Some("ut"), &json!([{}]))], Some("t opens more")),
            ("to every Pod", vec![of(Some("ut"), &every_pod)], Some("t opens more")),
            ("to every Pod too", vec![of(Some("ut"), &two(&pods, &every_pod))], Some("t opens more")),
            ("closed by another one", vec![own(), other(&any, &json!([]))], None),
            ("opened by another one", vec![own(), other(&any, &internet)], Some("x opens a further")),
            (
                "opened by another one to Pods",
                vec![own(), other(&any, &every_pod)],
                Some("x opens a further"),
            ),
            ("of other Pods", vec![own(), other(&json!({"matchLabels": {"app": "y"}}), &internet)], None),
            ("by an expression", vec![own(), other(&expression("Exists"), &internet)], Some("x opens")),
            ("not by an expression", vec![own(), other(&expression("DoesNotExist"), &internet)], None),
        ];
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "d", "labels": {"template": "t"}}, "spec": {"containers": []}}),
        )
        .unwrap();
        let mut unknown = Mirror::default();
        unknown.take(watcher::Event::Apply(own()), Closing::of);
        let found = Closings::new(&unknown).way_out(&pod, &["ut"]);
        assert!(found.unwrap().contains("not known"));
        for (name, policies, expected) in cases {
            let mut mirror = Mirror::default();
            mirror.take(watcher::Event::Init, Closing::of);
            for policy in policies {
                mirror.take(watcher::Event::InitApply(policy), Closing::of);
            }
            mirror.take(watcher::Event::InitDone, Closing::of);
            let found = Closings::new(&mirror).way_out(&pod, &["us", "ut"]);
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{name}: {found}"),
                _ => panic!("{name}: {found:?}"),
            }
        }
        // One without rules about connections that Pods make.
        let ingress = json!({"metadata": {"name": "i", "namespace": "d"}, "spec": {"podSelector": {}, "ingress": [{}]}});
        assert_eq!(Closing::of(serde_json::from_value(ingress).unwrap()).egress, None);
    }
}
