//! Plan of a claim.

use super::plan::{Attempt, Fallback, Plan, plan};
use super::*;
use crate::key::Key;
use crate::pending::Request;
use kube::api::PropagationPolicy;

use Attempt::{AdoptPooled, RepeatAdoption};

fn planned(observed: &Observed) -> Plan {
    plan(observed, &["sandbox.users.io".to_owned()], now())
}

fn keeps(sandbox: &Arc<Sandbox>, surplus: Vec<Arc<Sandbox>>) -> Plan {
    Plan::Bind(vec![], Fallback::Keep { sandbox: sandbox.clone(), surplus, update: Ok(None) })
}

/// Sandbox that the claim has adopted.
fn adopted(name: &str, more: Value) -> Arc<Sandbox> {
    let claim = claim(json!({}));
    let sandbox = pooled(name, json!({}));
    let change = patch(&sandbox, &claim, Some(&template(json!({})))).unwrap();
    let sandbox = patched(sandbox.as_ref(), &change);
    patched(sandbox.as_ref(), &more)
}

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

#[test]
fn claim_keeps_the_sandbox_that_it_has() {
    let (a, b) = (adopted("a", json!({})), adopted("b", json!({})));
    let own = |name: &str, owned: Vec<Arc<Sandbox>>| Observed {
        owned,
        refreshed: true,
        ..observed(claim(bound_to(name)))
    };
    let both = || vec![a.clone(), b.clone()];
    assert_eq!(planned(&own("b", both())), keeps(&b, vec![a.clone()]), "the one of the status, alone");
    assert_eq!(planned(&own("", both())), keeps(&a, vec![]), "the status was never written");
    let other = json!({"metadata": {"labels": {"agents.x-k8s.io/claim-uid": "other"}}});
    for surplus in [adopted("a", deleted()), adopted("a", other)] {
        assert_eq!(planned(&own("b", vec![surplus, b.clone()])), keeps(&b, vec![]));
    }
    let going = adopted("a", deleted());
    assert_eq!(planned(&own("gone", vec![going, b.clone()])), keeps(&b, vec![]), "the one that lives");
    let pending = Observed { pending: Some(Request::Create), ..own("a", both()) };
    assert_eq!(planned(&pending), keeps(&a, vec![b.clone()]), "whatever is pending");
}

#[test]
fn caches_that_disagree_are_refreshed_once() {
    let (claim, b) = (claim(bound_to("a")), adopted("b", json!({})));
    let key = |name| Key::of(claim.as_ref()).beside(name);
    let behind = Observed { owned: vec![b.clone()], ..observed(claim.clone()) };
    assert_eq!(planned(&behind), Plan::Refresh(vec![key("a"), key("b")]));
    assert_eq!(planned(&Observed { refreshed: true, ..behind }), keeps(&b, vec![]));
}

#[test]
fn claim_without_a_sandbox_is_bound_in_order() {
    let env = json!({"spec": {"env": [{"name": "A", "value": "b"}]}});
    let at_start = json!({"spec": {"env": [{"name": "SANDBOX_A", "value": "b"}]}});
    let volumes = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    let policies = json!({"metadata": {"annotations": {"policy.hutch.dev/policies": "a"}}});
    let restores =
        json!({"spec": {"additionalPodMetadata": {"annotations": {"hutch.dev/restore-from": "s"}}}});
    let of_gke =
        json!({"spec": {"additionalPodMetadata": {"annotations": {"podsnapshot.gke.io/ps-name": "s"}}}});
    let here = Observed { snapshots: true, ..observed(claim(of_gke.clone())) };
    let others = json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "other")}});
    let (sandbox, foreign) = (pooled("r", json!({})), pooled("r", others));
    let template = Some(template(json!({"spec": {"envVarsInjectionPolicy": "Overrides"}})));
    let plain = || observed(claim(json!({})));
    let late = |claim| Observed { late_env: true, template: template.clone(), ..observed(claim) };
    let lost = Observed { refreshed: true, ..observed(claim(bound_to("gone"))) };
    let (recorded, pending) = (Some(sandbox.clone()), Some(Request::Adopt(sandbox.clone())));
    let (repeat, record) = (RepeatAdoption(sandbox.clone()), Fallback::AdoptRecorded(sandbox.clone()));
    let (pending_create, recorded_too) = (Some(Request::Create), recorded.clone());
    for (case, observed, attempts, fallback) in [
        ("plain", plain(), vec![AdoptPooled], Fallback::Create),
        ("lost its Sandbox", lost, vec![AdoptPooled], Fallback::Create),
        ("no pool", Observed { pool: None, ..plain() }, vec![], Fallback::Create),
        ("volumes", observed(claim(volumes.clone())), vec![], Fallback::Create),
        ("volumes, late env", late(claim(volumes)), vec![], Fallback::Create),
        ("env", observed(claim(env.clone())), vec![], Fallback::Create),
        ("env, late env", late(claim(env.clone())), vec![AdoptPooled], Fallback::Create),
        ("env that is read at start", late(claim(at_start)), vec![], Fallback::Create),
        ("policies", late(claim(policies)), vec![], Fallback::Create),
        ("snapshot", observed(claim(restores)), vec![], Fallback::Create),
        ("PodSnapshot", here, vec![], Fallback::Create),
        ("PodSnapshot on a cluster", observed(claim(of_gke)), vec![AdoptPooled], Fallback::Create),
        ("record", Observed { recorded: recorded.clone(), ..plain() }, vec![], record.clone()),
        (
            "record of another claim's",
            Observed { recorded: Some(foreign), ..plain() },
            vec![AdoptPooled],
            Fallback::Create,
        ),
        ("record, late env", Observed { recorded, ..late(claim(env)) }, vec![AdoptPooled], Fallback::Create),
        ("pending create", Observed { pending: pending_create, ..plain() }, vec![], Fallback::Create),
        (
            "pending adoption",
            Observed { pending: pending.clone(), ..plain() },
            vec![repeat.clone(), AdoptPooled],
            Fallback::Create,
        ),
        ("pending, record", Observed { pending, recorded: recorded_too, ..plain() }, vec![repeat], record),
    ] {
        assert_eq!(planned(&observed), Plan::Bind(attempts, fallback), "{case}");
    }
}

#[test]
fn claim_without_a_valid_sandbox_is_refused() {
    let refused = |observed: &Observed| match planned(observed) {
        Plan::Bind(attempts, Fallback::Refuse(refusal)) if attempts.is_empty() => refusal,
        other => panic!("{other:?}"),
    };
    let others = json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "other")}});
    let taken = Observed {
        namesake: Some(pooled("c", others)),
        pending: Some(Request::Create),
        ..observed(claim(json!({})))
    };
    let refusal = refused(&taken);
    assert_eq!(
        (refusal.reason, refusal.message.as_str(), refusal.retry),
        (
            "ReconcilerError",
            "Error seen: sandbox \"c\" is not controlled by claim \"c\". Please use a different claim name or delete the sandbox manually",
            Retry::Backoff
        )
    );
    let label = json!({"spec": {"additionalPodMetadata": {"labels": {"a": "b"}}}});
    assert_eq!(refused(&observed(claim(label))).reason, "InvalidMetadata");
    let env = claim(json!({"spec": {"env": [{"name": "A", "value": "b"}]}}));
    let disallowed = Observed { late_env: true, ..observed(env) };
    assert_eq!(refused(&disallowed).reason, "EnvVarsInjectionRejected");
}

#[test]
fn expired_claim_is_announced_before_it_ends() {
    let expired = |policy: &str, announced: bool| {
        let ready = json!([{"type": "Ready", "status": "False", "reason": "ClaimExpired", "message": "",
            "lastTransitionTime": "2026-01-01T00:09:00Z"}]);
        let lifecycle = json!({"shutdownTime": "2026-01-01T00:09:00Z", "shutdownPolicy": policy});
        let status = announced.then(|| json!({"conditions": ready, "sandbox": {"name": "a"}}));
        observed(claim(json!({"spec": {"lifecycle": lifecycle}, "status": status})))
    };
    let foreign = pooled("a", json!({}));
    let problem =
        "sandbox not owned by this claim: sandbox \"a\" is not owned by claim \"c\"; deletion skipped.";
    let (a, going) = (adopted("a", json!({})), adopted("a", deleted()));
    let retain = |delete: Option<&Arc<Sandbox>>| Plan::Retain { delete: delete.cloned(), problem: None };
    for (policy, announced, owned, bound, expected) in [
        ("Delete", false, vec![], None, Plan::AnnounceExpiry),
        ("Delete", true, vec![a.clone()], None, Plan::DeleteClaim(None)),
        ("DeleteForeground", true, vec![], None, Plan::DeleteClaim(Some(PropagationPolicy::Foreground))),
        ("Retain", false, vec![a.clone()], None, Plan::AnnounceExpiry),
        ("Retain", true, vec![a.clone()], None, retain(Some(&a))),
        ("Retain", true, vec![], Some(a.clone()), retain(Some(&a))),
        ("Retain", true, vec![going], None, retain(None)),
        ("Retain", true, vec![], None, retain(None)),
        ("Retain", true, vec![], Some(foreign), Plan::Retain { delete: None, problem: Some(problem.into()) }),
    ] {
        let observed = Observed { owned, bound, ..expired(policy, announced) };
        assert_eq!(planned(&observed), expected, "{policy} {announced}");
    }
}

#[test]
fn launch_type_follows_from_the_name_of_the_sandbox() {
    let bare = |name: &str| {
        let labels = json!({"agents.x-k8s.io/launch-type": null, "agents.x-k8s.io/sandbox-template-ref-hash": hutch_api::name_hash("t")});
        let mut more = mine();
        more["metadata"]["labels"] = labels;
        pooled(name, more)
    };
    let recorded = json!({"metadata": {"annotations": {"agents.x-k8s.io/sandbox-name": "c"}}});
    for (name, claim_more, expected) in
        [("c", json!({}), "cold"), ("p-1", json!({}), "warm"), ("c", recorded, "warm")]
    {
        let claim = claim(claim_more);
        let with = alignment(&bare(name), &claim, &template(json!({}))).unwrap().unwrap();
        let without = super::adopt::alignment_without_template(&bare(name), &claim).unwrap();
        for change in [with, without] {
            assert_eq!(change["metadata"]["labels"]["agents.x-k8s.io/launch-type"], expected, "{name}");
        }
    }
    assert_eq!(
        super::adopt::alignment_without_template(
            &pooled("p-1", json!({"metadata": {"labels": {"agents.x-k8s.io/launch-type": "cold"}}})),
            &claim(json!({}))
        ),
        None
    );
}
