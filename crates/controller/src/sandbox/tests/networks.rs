use super::*;
use crate::gateway::{Gateway, TokenKey};
use crate::sandbox::network;

fn behind_a_gateway(sandbox: Arc<Sandbox>, pods: &[Arc<PodView>], policy: Option<NetworkPolicy>) -> Observed {
    let key = TokenKey::new(&[1; 32]).unwrap();
    let gateway = Some(Arc::new(Gateway::at("10.96.0.9:3128".parse().unwrap(), key)));
    Observed { gateway, policy: policy.map(Arc::new), ..observed(sandbox, pods, None) }
}

/// Returns the policy that is created.
fn created(observed: &Observed) -> NetworkPolicy {
    let found = plan(observed, now()).actions.into_iter().find_map(|action| match action {
        Action::CreatePolicy(policy) => Some(*policy),
        _ => None,
    });
    found.unwrap()
}

/// Metadata of a Sandbox that a pool has made from a template.
fn of_a_template() -> Value {
    let pool = owned_by("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "p");
    json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t")},
        "annotations": {"agents.x-k8s.io/sandbox-template-ref": "t"}, "ownerReferences": pool}})
}

#[test]
fn network_is_closed_before_the_pod_starts() {
    let observed = behind_a_gateway(sandbox(noted()), &[], None);
    assert_eq!(steps(&observed), ["create policy s-sandbox-network", "create pod s"]);
    let policy = serde_json::to_value(created(&observed)).unwrap();
    assert_eq!(policy["metadata"]["ownerReferences"], mine());
    assert_eq!(
        policy["spec"]["podSelector"]["matchLabels"],
        json!({"agents.x-k8s.io/sandbox-name-hash": name_hash("s")})
    );
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["spec"]["egress"][0]["to"], json!([{"ipBlock": {"cidr": "10.96.0.9/32"}}]));
    let [_, pod] = &plan(&observed, now()).actions[..] else { panic!("two actions") };
    let parts = plan(&observed, now()).actions.iter().map(Action::part).collect::<Vec<_>>();
    assert!(parts.iter().all(|part| *part == pod.part()), "a policy that fails keeps the Pod back");
}

/// The Pod started with an open network.
#[test]
fn sandbox_has_a_policy_until_its_template_has_one() {
    let plan = |template_closes| {
        let of_template = behind_a_gateway(sandbox(of_a_template()), &[], None);
        steps(&Observed { template_closes, ..of_template })
    };
    assert_eq!(plan(false).first().map(String::as_str), Some("create policy s-sandbox-network"));
    assert!(!plan(true).iter().any(|step| step.contains("policy")), "{:?}", plan(true));
}

#[test]
fn policy_of_a_sandbox_table() {
    let new = || behind_a_gateway(sandbox(noted()), &[], None);
    let own = created(&new());
    let pods = [pod("s", running())];
    let with = |sandbox: Value, pods: &[Arc<PodView>], policy: Option<&NetworkPolicy>| {
        let steps = steps(&behind_a_gateway(self::sandbox(sandbox), pods, policy.cloned()));
        steps.into_iter().filter(|step| !step.starts_with("sync pod")).collect::<Vec<_>>()
    };
    assert_eq!(with(noted(), &pods, Some(&own)), [""; 0]);
    assert_eq!(with(noted(), &pods, None), ["create policy s-sandbox-network"], "a Pod that runs already");
    let mut changed = own.clone();
    changed.spec.as_mut().unwrap().egress = None;
    assert_eq!(with(noted(), &pods, Some(&changed)), ["patch policy s-sandbox-network"]);
    let mut foreign = own.clone();
    foreign.metadata.owner_references = None;
    let refused = with(noted(), &[], Some(&foreign));
    assert!(
        refused.len() == 1 && refused[0].starts_with("Pod: NetworkPolicy \"s-sandbox-network\""),
        "{refused:?}"
    );

    // The policy of the template takes over once it selects the Pod.
    let mut template = noted();
    json_patch::merge(&mut template, &of_a_template());
    assert_eq!(with(template.clone(), &[], None), ["create pod s"]);
    assert_eq!(with(template.clone(), &pods, Some(&own)), [""; 0]);
    let mut labeled = running();
    labeled["metadata"]["labels"] = json!({"agents.x-k8s.io/sandbox-template-ref-hash": name_hash("t")});
    let labeled = [pod("s", labeled)];
    assert_eq!(with(template.clone(), &labeled, Some(&own)), ["delete policy s-sandbox-network"]);
    // Regression: any label, with any owner of the group, took the policy away, and none of a template selected the Pod.
    for (part, key, value) in [
        ("labels", "agents.x-k8s.io/sandbox-template-ref-hash", json!("x")),
        ("annotations", "agents.x-k8s.io/sandbox-template-ref", json!("other")),
        ("annotations", "agents.x-k8s.io/sandbox-template-ref", Value::Null),
    ] {
        let mut wrong = template.clone();
        wrong["metadata"][part][key] = value.clone();
        if value.is_null() {
            wrong["metadata"][part].as_object_mut().unwrap().remove(key);
        }
        assert_eq!(with(wrong.clone(), &labeled, Some(&own)), [""; 0], "{key} {value}");
        assert_eq!(
            with(wrong, &[], None),
            ["create policy s-sandbox-network", "create pod s"],
            "{key} {value}"
        );
    }

    let without = Observed { gateway: None, ..behind_a_gateway(sandbox(noted()), &pods, Some(own)) };
    assert_eq!(steps(&without), ["delete policy s-sandbox-network"], "without a gateway");
    assert_eq!(network::name("s"), "s-sandbox-network");
}
