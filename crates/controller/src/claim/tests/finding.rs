//! Which Sandbox a claim has already.

use super::*;

#[test]
fn which_sandbox_a_claim_has() {
    let (a, b) = (pooled("a", mine()), pooled("b", mine()));
    let going = pooled(
        "a",
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": mine()["metadata"]["ownerReferences"]}}),
    );
    let own = |name: &str, owned: Vec<Arc<Sandbox>>| Seen { owned, ..seen(claim(bound_to(name))) };
    assert_eq!(
        find(&own("b", vec![a.clone(), b.clone()])),
        Ok(Step::Use(b.clone())),
        "the one of the status"
    );
    assert_eq!(find(&own("", vec![a.clone()])), Ok(Step::Use(a.clone())), "the status was never written");
    assert_eq!(find(&own("gone", vec![going, b.clone()])), Ok(Step::Use(b)), "the one that lives");
    assert_eq!(find(&own("gone", vec![])), Ok(Step::TakeOrCreate), "a lost one is replaced");

    let recorded = |sandbox: Arc<Sandbox>| Seen { recorded: Some(sandbox), ..seen(claim(json!({}))) };
    assert_eq!(find(&recorded(pooled("r", json!({})))), Ok(Step::Adopt(pooled("r", json!({})))));
    let others = json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "other")}});
    assert_eq!(find(&recorded(pooled("r", others.clone()))), Ok(Step::TakeOrCreate), "somebody else has it");

    let taken = Seen { namesake: Some(pooled("c", others)), ..seen(claim(json!({}))) };
    let refusal = find(&taken).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.message.as_str(), refusal.retry),
        (
            "ReconcilerError",
            "Error seen: sandbox \"c\" is not controlled by claim \"c\". Please use a different claim name or delete the sandbox manually",
            Retry::Backoff
        )
    );
    let env = json!({"spec": {"env": [{"name": "A", "value": "b"}]}});
    assert_eq!(find(&seen(claim(env.clone()))), Ok(Step::Create));
    let late = |claim| Seen { late_env: true, ..seen(claim) };
    assert_eq!(find(&late(claim(env.clone()))), Ok(Step::TakeOrCreate));
    let recorded = Some(pooled("r", json!({})));
    assert_eq!(
        find(&Seen { recorded, ..late(claim(env)) }),
        Ok(Step::TakeOrCreate),
        "one that can be given variables"
    );
    let volumes = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}});
    assert_eq!(find(&late(claim(volumes.clone()))), Ok(Step::Create));
    assert_eq!(find(&seen(claim(volumes))), Ok(Step::Create));
    assert_eq!(find(&Seen { pool: None, ..seen(claim(json!({}))) }), Ok(Step::Create));
}

#[test]
fn how_a_sandbox_was_started_is_told_from_its_name() {
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
