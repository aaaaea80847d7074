//! The NetworkPolicies of a cluster: whether they leave a Pod no way out but the gateway.

use std::collections::HashMap;

use hutch_attach::Mirror;
use hutch_policy::Selector;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule};
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
    /// Kind and name of the object that controls it.
    controller: Option<(String, String)>,
}

impl Closing {
    /// Reads a NetworkPolicy.
    pub(super) fn of(policy: NetworkPolicy) -> Closing {
        let (name, namespace) = (policy.name_any(), policy.namespace().unwrap_or_default());
        let owners = policy.metadata.owner_references.unwrap_or_default();
        let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
        let controller = controller.map(|owner| (owner.kind, owner.name));
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

    /// Returns why a Pod has another way out than the gateway. `owners` are the kind and the name of its Sandbox and, if it has
    /// the label of one, its template: what they control is written by the controller.
    pub(super) fn way_out(&self, pod: &Pod, owners: &[(&str, &str)]) -> Option<String> {
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
        let is_own = |policy: &&Closing| {
            let controller = policy.controller.as_ref().map(|(kind, name)| (kind.as_str(), name.as_str()));
            controller.is_some_and(|controller| owners.contains(&controller))
        };
        let Some(own) = selecting.iter().copied().find(is_own) else {
            return Some("no NetworkPolicy of its template or Sandbox selects the Pod".to_owned());
        };
        let ways = own.egress.as_deref().unwrap_or_default();
        if ways.iter().any(leads_beyond_pods) {
            let name = &own.name;
            return Some(format!(
                "NetworkPolicy {name} opens addresses: has the controller no --egress-gateway?"
            ));
        }
        let opens = |policy: &&Closing| policy.egress.iter().flatten().any(|rule| !ways.contains(rule));
        let further = selecting.into_iter().find(opens)?;
        Some(format!("NetworkPolicy {} opens a further way out", further.name))
    }
}

/// Returns true for a rule that opens more than Pods that it selects.
fn leads_beyond_pods(rule: &NetworkPolicyEgressRule) -> bool {
    let to = rule.to.as_deref().unwrap_or_default();
    to.is_empty() || to.iter().any(|peer| peer.ip_block.is_some())
}

#[cfg(test)]
mod tests {
    use hutch_attach::Mirror;
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, controller: Option<(&str, &str)>, selector: Value, egress: Value) -> NetworkPolicy {
        let owners: Vec<Value> = controller
            .map(|(kind, name)| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": true}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "ownerReferences": owners},
            "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"], "egress": egress},
        }))
        .unwrap()
    }

    #[test]
    fn pod_is_closed_if_its_own_policy_opens_the_gateway_and_no_other_one_more() {
        let gateway = json!([{"to": [{"podSelector": {"matchLabels": {"app": "hutch-egress"}}}], "ports": [{"port": 3128}]}]);
        let internet = json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]);
        let (of_template, any) = (json!({"matchLabels": {"template": "t"}}), json!({}));
        let (template, sandbox) = (("SandboxTemplate", "t"), ("Sandbox", "s"));
        let own = || policy("t", Some(template), of_template.clone(), gateway.clone());
        let expressions =
            |operator: &str| json!({"matchExpressions": [{"key": "template", "operator": operator}]});
        let cases: [(&str, Vec<NetworkPolicy>, Option<&str>); 12] = [
            ("none", vec![], Some("no NetworkPolicy of its template")),
            ("own", vec![own()], None),
            ("of the Sandbox", vec![policy("s", Some(sandbox), any.clone(), gateway.clone())], None),
            (
                "foreign",
                vec![policy("t", None, of_template.clone(), gateway.clone())],
                Some("no NetworkPolicy"),
            ),
            (
                "of another template",
                vec![policy("o", Some(("SandboxTemplate", "o")), any.clone(), gateway.clone())],
                Some("no NetworkPolicy"),
            ),
            (
                "without a gateway",
                vec![policy("t", Some(template), any.clone(), internet.clone())],
                Some("t opens addresses"),
            ),
            (
                "to all",
                vec![policy("t", Some(template), any.clone(), json!([{}]))],
                Some("t opens addresses"),
            ),
            ("closed by another one", vec![own(), policy("x", None, any.clone(), json!([]))], None),
            (
                "opened by another one",
                vec![own(), policy("x", None, any.clone(), internet.clone())],
                Some("x opens a further"),
            ),
            (
                "of other Pods",
                vec![own(), policy("x", None, json!({"matchLabels": {"app": "y"}}), internet.clone())],
                None,
            ),
            (
                "by an expression",
                vec![own(), policy("x", None, expressions("Exists"), internet.clone())],
                Some("x opens"),
            ),
            (
                "not by an expression",
                vec![own(), policy("x", None, expressions("DoesNotExist"), internet)],
                None,
            ),
        ];
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "s", "namespace": "d", "labels": {"template": "t"}}, "spec": {"containers": []}}),
        )
        .unwrap();
        let mut unknown = Mirror::default();
        unknown.take(watcher::Event::Apply(own()), Closing::of);
        let found = Closings::new(&unknown).way_out(&pod, &[template]);
        assert!(found.unwrap().contains("not known"));
        for (name, policies, expected) in cases {
            let mut mirror = Mirror::default();
            mirror.take(watcher::Event::Init, Closing::of);
            for policy in policies {
                mirror.take(watcher::Event::InitApply(policy), Closing::of);
            }
            mirror.take(watcher::Event::InitDone, Closing::of);
            let found = Closings::new(&mirror).way_out(&pod, &[sandbox, template]);
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
