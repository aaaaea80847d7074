//! Adoption of pooled Sandboxes.

use std::time::Duration;

use super::plan::{Choice, adoption_conflict, choose, waiting_time};
use super::*;

#[test]
fn candidates_belong_to_the_pool_and_are_not_deleted() {
    for (more, expected) in [
        (json!({}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
        (json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxWarmPool", "another")}}), false),
        (
            json!({"metadata": {"ownerReferences": owned_by("agents.x-k8s.io/v1beta1", "SandboxWarmPool", "p")}}),
            false,
        ),
        (
            json!({"metadata": {"ownerReferences": owned_by("extensions.agents.x-k8s.io/v9", "SandboxWarmPool", "p")}}),
            true,
        ),
        (mine(), false),
        (json!({"metadata": {"labels": {"agents.x-k8s.io/warm-pool-sandbox": null}}}), false),
        (json!({"metadata": {"labels": {"agents.x-k8s.io/sandbox-template-ref-hash": null}}}), false),
        (json!({"metadata": {"namespace": "elsewhere"}}), false),
    ] {
        assert_eq!(is_candidate(&pooled("a", more.clone()), &claim(json!({}))), expected, "{more}");
    }
}

/// Regression: a Sandbox that named a pool of the same name, but not its uid, was adopted with the program of its author.
#[test]
fn sandbox_of_another_pool_of_the_name_is_not_adopted() {
    let sandbox = pooled("a", json!({}));
    let uid = sandbox.metadata.owner_references.as_ref().unwrap()[0].uid.clone();
    let pool = |uid: &str, template: &str| -> SandboxWarmPool {
        let metadata = json!({"name": "p", "uid": uid});
        let spec = json!({"replicas": 1, "sandboxTemplateRef": {"name": template}});
        let pool =
            json!({"apiVersion": EXTENSIONS, "kind": "SandboxWarmPool", "metadata": metadata, "spec": spec});
        serde_json::from_value(pool).unwrap()
    };
    assert!(is_of_pool(&sandbox, Some(&pool(&uid, "t"))));
    assert!(!is_of_pool(&sandbox, Some(&pool("other", "t"))));
    // It would keep the policies for its template, and the pool may have a stricter one now.
    assert!(!is_of_pool(&sandbox, Some(&pool(&uid, "stricter"))));
}

#[test]
fn ready_then_full_node_then_old_sandbox_is_picked() {
    let at = |name: &str, node: &str, created: &str| {
        pooled(name, json!({"metadata": {"creationTimestamp": created}, "status": {"nodeName": node}}))
    };
    let (old, new) = ("2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z");
    let name = |pick: Pick| match pick {
        Pick::Take(sandbox) => sandbox.name_any(),
        Pick::Pending => "pending".into(),
        Pick::Nothing => "nothing".into(),
    };
    let unready = |name: &str| pooled(name, json!({"status": {"conditions": []}}));
    let no_address = |name: &str| pooled(name, json!({"status": {"podIPs": null, "conditions": []}}));
    assert_eq!(name(pick(vec![])), "nothing");
    assert_eq!(name(pick(vec![no_address("a")])), "pending");
    assert_eq!(name(pick(vec![no_address("a"), unready("b")])), "b");
    assert_eq!(name(pick(vec![unready("a"), at("b", "n1", new)])), "b", "Ready first");
    assert_eq!(name(pick(vec![at("a", "n1", new), at("b", "n1", old)])), "b", "then the oldest");
    assert_eq!(
        name(pick(vec![at("a", "n1", old), at("b", "n2", new), at("c", "n2", new)])),
        "b",
        "from the fullest node"
    );
    let starting = pooled("d", json!({"status": {"podIPs": null, "nodeName": "n2", "conditions": []}}));
    assert_eq!(
        name(pick(vec![at("a", "n1", old), at("b", "n2", new), starting])),
        "b",
        "a node is as full as what it runs of the pool"
    );
    let nowhere = pooled("e", json!({"status": {"nodeName": null}}));
    assert_eq!(name(pick(vec![nowhere.clone(), nowhere, at("a", "n1", new)])), "a", "a known node first");
}

#[test]
fn adoption_patch_moves_owner_and_labels() {
    let sandbox = pooled("p-1", json!({}));
    let claim = claim(json!({
        "metadata": {"labels": {"agents.x-k8s.io/created-by": "go-client"}, "annotations": {"opentelemetry.io/trace-context": "{}"}},
        "spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "1"}}},
    }));
    let template = template(json!({"spec": {"podTemplate": {"metadata": {"labels": {"user": "x"}}}}}));
    let change = patch(&sandbox, &claim, Some(&template)).unwrap();
    assert_eq!(change["metadata"]["resourceVersion"], "1", "guarded by what was seen");
    assert_eq!(change["spec"]["podTemplate"].get("spec"), None, "the Pod runs on");
    let taken = patched(sandbox.as_ref(), &change);
    let hash = hutch_api::name_hash("t");
    let value = serde_json::to_value(taken.as_ref()).unwrap();
    assert_eq!(value["metadata"]["ownerReferences"], owned_by(EXTENSIONS, "SandboxClaim", "c"));
    assert_eq!(
        value["metadata"]["labels"],
        json!({"agents.x-k8s.io/claim-uid": "SandboxClaim-c", "agents.x-k8s.io/launch-type": "warm",
            "agents.x-k8s.io/created-by": "go-client", "agents.x-k8s.io/sandbox-template-ref-hash": hash})
    );
    assert_eq!(
        value["metadata"]["annotations"],
        json!({"agents.x-k8s.io/pod-name": "p-1", "agents.x-k8s.io/sandbox-template-ref": "t",
            "opentelemetry.io/trace-context": "{}"})
    );
    let mut pod_labels = value["spec"]["podTemplate"]["metadata"]["labels"].clone();
    pod_labels.as_object_mut().unwrap().retain(|key, _| !key.starts_with("agents.x-k8s.io/"));
    assert_eq!(pod_labels, json!({"user": "x", "sandbox.users.io/a": "1"}));
    assert_eq!(
        value["spec"]["podTemplate"]["metadata"]["annotations"],
        Value::Null,
        "a mark that another controller's pool has put there goes"
    );
    assert!(!is_candidate(&taken, &claim), "no other claim may adopt it");
    assert_eq!(alignment(&taken, &claim, &template).unwrap(), None, "and there is nothing left to align");
    assert!(patch(&sandbox, &claim, None).is_ok(), "without its template too");
}

#[test]
fn adoption_of_an_aligned_sandbox_changes_no_spec() {
    let template = template(
        json!({"spec": {"podTemplate": {"metadata": {"labels": {"user": "x"}, "annotations": {"a": "b"}}}}}),
    );
    let pool =
        object(EXTENSIONS, "SandboxWarmPool", "p", json!({"spec": {"sandboxTemplateRef": {"name": "t"}}}));
    let made = crate::pool::new_member(&pool, &template, "p-1");
    let sandbox: Arc<Sandbox> = object(CORE, "Sandbox", "p-1", serde_json::to_value(&made).unwrap());
    let claim = claim(json!({"metadata": {"labels": {"agents.x-k8s.io/created-by": "go-client"}}}));
    let change = patch(&sandbox, &claim, Some(&template)).unwrap();
    assert_eq!(change.get("spec"), None, "{change}");
    assert_eq!(alignment(&patched(sandbox.as_ref(), &change), &claim, &template).unwrap(), None);
}

#[test]
fn claim_waits_for_an_address_until_the_timeout() {
    for (created, wait) in [
        ("2026-01-01T00:10:00Z", Some(500)),
        ("2026-01-01T00:09:58.1Z", Some(100)),
        ("2026-01-01T00:09:58Z", None),
        ("2020-01-01T00:00:00Z", None),
        ("2030-01-01T00:00:00Z", Some(500)),
    ] {
        let claim = claim(json!({"metadata": {"creationTimestamp": created}}));
        let wait = wait.map(Duration::from_millis);
        assert_eq!(waiting_time(&claim, now()), wait, "{created}");
        let starting = pooled("a", json!({"status": {"podIPs": null, "conditions": []}}));
        let choice = choose(vec![starting], &claim, false, now());
        assert_eq!(choice, wait.map_or(Choice::Leave, Choice::Wait), "{created}");
    }
}

#[test]
fn claim_without_candidates_leaves_the_pool_unless_it_lost_one() {
    let claim = claim(json!({}));
    let ready = pooled("a", json!({}));
    assert_eq!(choose(vec![ready.clone()], &claim, true, now()), Choice::Adopt(ready));
    assert_eq!(choose(vec![], &claim, false, now()), Choice::Leave);
    assert_eq!(choose(vec![], &claim, true, now()), Choice::Refuse(adoption_conflict()));
}

proptest! {
    /// Claims and the server in any order of reads and writes, each claim with a cache that may be stale: the server
    /// refuses a patch that does not name the current version, so no Sandbox ever has two owners in turn.
    #[test]
    fn no_sandbox_is_given_twice(order in prop::collection::vec((0..4_usize, any::<bool>()), 1..60)) {
        let names = ["a", "b", "c"];
        let mut server: Vec<Arc<Sandbox>> = names.iter().map(|name| pooled(name, json!({}))).collect();
        let claims: Vec<_> = (0..4).map(|n| claim(json!({"metadata": {"name": format!("c{n}"), "uid": format!("u{n}")}}))).collect();
        let mut views = vec![server.clone(); 4];
        let mut owners: Vec<Option<usize>> = vec![None; 3];
        let mut has: Vec<Option<String>> = vec![None; 4];
        for (who, look) in order {
            if look {
                views[who] = server.clone();
                continue;
            }
            if has[who].is_some() {
                continue;
            }
            let candidates = views[who].iter().filter(|s| is_candidate(s, &claims[who])).cloned().collect();
            let Pick::Take(chosen) = pick(candidates) else { continue };
            let change = patch(&chosen, &claims[who], Some(&template(json!({})))).unwrap();
            let at = server.iter().position(|s| s.name_any() == chosen.name_any()).unwrap();
            let guard = &change["metadata"]["resourceVersion"];
            // The server accepts a patch without a resourceVersion in any case.
            if !guard.is_null() && *guard != json!(server[at].resource_version()) {
                views[who] = server.clone();
                continue;
            }
            prop_assert_eq!(owners[at], None, "given twice");
            owners[at] = Some(who);
            has[who] = Some(chosen.name_any());
            let version: u64 = server[at].resource_version().unwrap().parse().unwrap();
            let mut change = change;
            change["metadata"]["resourceVersion"] = json!((version + 1).to_string());
            server[at] = patched(server[at].as_ref(), &change);
        }
    }
}
