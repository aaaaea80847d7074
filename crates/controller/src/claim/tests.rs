use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::adopt::{Pick, alignment, is_candidate, patch, pick};
use super::find::{Step, find};
use super::refusal::{Refusal, Retry};
use super::status::{Outcome, status};
use super::*;
use crate::fixture::{object, owned_by, patched};
use crate::world::Times;

const CORE: &str = "agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn claim(more: Value) -> Arc<SandboxClaim> {
    let mut base = json!({"spec": {"warmPoolRef": {"name": "p"}}});
    json_patch::merge(&mut base, &more);
    object(EXTENSIONS, "SandboxClaim", "c", base)
}

fn template(more: Value) -> Arc<SandboxTemplate> {
    let mut base =
        json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main"}, {"name": "side"}]}}}});
    json_patch::merge(&mut base, &more);
    object(EXTENSIONS, "SandboxTemplate", "t", base)
}

fn mine() -> Value {
    json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "c")}})
}

/// A Ready member of pool `p`.
fn pooled(name: &str, more: Value) -> Arc<Sandbox> {
    let marks = json!({"agents.x-k8s.io/warm-pool-sandbox": name_hash_of_pool(), "agents.x-k8s.io/sandbox-template-ref-hash": "t",
        "agents.x-k8s.io/sandbox-template-hash": "h", "agents.x-k8s.io/sandbox-pod-template-hash": "h", "agents.x-k8s.io/created-by": "controller"});
    let mut base = json!({
        "metadata": {"labels": marks, "ownerReferences": owned_by(EXTENSIONS, "SandboxWarmPool", "p")},
        "spec": {"podTemplate": {"metadata": {"labels": marks, "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
            "spec": {"containers": [{"name": "main"}]}}},
        "status": {"podIPs": ["10.0.0.1"], "nodeName": "n1", "conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady",
            "message": "Pod is Ready", "lastTransitionTime": "2026-01-01T00:05:00Z", "observedGeneration": 9}]},
    });
    json_patch::merge(&mut base, &more);
    object(CORE, "Sandbox", name, base)
}

fn name_hash_of_pool() -> String {
    hutch_api::name_hash("p")
}

fn seen(claim: Arc<SandboxClaim>) -> Seen {
    let pool =
        object(EXTENSIONS, "SandboxWarmPool", "p", json!({"spec": {"sandboxTemplateRef": {"name": "t"}}}));
    Seen {
        claim,
        pool: Some(pool),
        template_name: Some("t".into()),
        template: Some(template(json!({}))),
        owned: vec![],
        recorded: None,
        namesake: None,
        late_env: false,
    }
}

fn bound_to(name: &str) -> Value {
    json!({"status": {"sandbox": {"name": name}}})
}

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
fn who_may_be_taken() {
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

#[test]
fn which_one_is_taken() {
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
fn the_patch_that_takes_a_sandbox() {
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
        json!({"agents.x-k8s.io/pod-name": "p-1", "opentelemetry.io/trace-context": "{}"})
    );
    let mut pod_labels = value["spec"]["podTemplate"]["metadata"]["labels"].clone();
    pod_labels.as_object_mut().unwrap().retain(|key, _| !key.starts_with("agents.x-k8s.io/"));
    assert_eq!(pod_labels, json!({"user": "x", "sandbox.users.io/a": "1"}));
    assert_eq!(
        value["spec"]["podTemplate"]["metadata"]["annotations"],
        Value::Null,
        "a mark that another controller's pool has put there goes"
    );
    assert!(!is_candidate(&taken, &claim), "nobody else may take it");
    assert_eq!(alignment(&taken, &claim, &template).unwrap(), None, "and there is nothing left to align");
    assert!(patch(&sandbox, &claim, None).is_ok(), "without its template too");
}

#[test]
fn taking_a_sandbox_that_has_all_the_claim_wants_changes_no_spec() {
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

#[test]
fn what_a_claim_is_annotated_with() {
    use super::annotate::{Look, patch};
    let (first, then) = ("2026-01-01T00:09:00Z", now());
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "X", "message": "", "lastTransitionTime": first}]}});
    let launched =
        |how: &str| pooled("p-1", json!({"metadata": {"labels": {"agents.x-k8s.io/launch-type": how}}}));
    let (warm, cold) = (launched("warm"), launched("cold"));
    let with = |more: Value, status: &str| {
        let mut more = more;
        json_patch::merge(&mut more, &ready(status));
        claim(more)
    };
    let seen_at = "agents.x-k8s.io/controller-first-observed-at";
    let ready_at = "agents.x-k8s.io/claim-first-ready-at";
    let record = "agents.x-k8s.io/sandbox-name";
    let all = json!({seen_at: first, ready_at: "2026-01-01T00:10:00Z", record: "p-1"});
    let done = json!({"metadata": {"annotations": {seen_at: "x", ready_at: "x", record: "p-1"}}});
    let old_label =
        json!({"metadata": {"labels": {record: "p-1"}, "annotations": {seen_at: "x", ready_at: "x"}}});
    let stale = json!({"metadata": {"annotations": {seen_at: "x", ready_at: "x", record: "gone"}}});
    type Case<'a> = (&'a str, Value, &'a str, &'a str, Option<&'a Arc<Sandbox>>, bool, Value);
    let cases: [Case<'_>; 10] = [
        ("warm", json!({}), "False", "True", Some(&warm), true, json!({"annotations": all})),
        (
            "cold",
            json!({}),
            "False",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {seen_at: first, ready_at: "2026-01-01T00:10:00Z"}}),
        ),
        (
            "no times wanted",
            json!({}),
            "False",
            "True",
            Some(&warm),
            false,
            json!({"annotations": {record: "p-1"}}),
        ),
        (
            "was Ready before",
            json!({}),
            "True",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {seen_at: first, ready_at: "unknown"}}),
        ),
        ("not Ready yet", json!({}), "False", "False", Some(&warm), true, Value::Null),
        ("has to wait", json!({}), "False", "False", None, true, json!({"annotations": {seen_at: first}})),
        ("all there", done.clone(), "True", "True", Some(&warm), true, Value::Null),
        (
            "an old record",
            old_label,
            "True",
            "True",
            Some(&warm),
            true,
            json!({"annotations": {record: "p-1"}, "labels": {record: null}}),
        ),
        (
            "a stale record",
            stale.clone(),
            "True",
            "True",
            Some(&cold),
            true,
            json!({"annotations": {record: null}}),
        ),
        ("another one", stale, "True", "True", Some(&warm), true, json!({"annotations": {record: "p-1"}})),
    ];
    for (name, more, before, after, sandbox, times, expected) in cases {
        let (before, after) = (with(more.clone(), before), with(more, after));
        let look = Look { before: &before, after: &after, sandbox: sandbox.map(Arc::as_ref) };
        let expected = (!expected.is_null()).then(|| json!({ "metadata": expected }));
        let ready = (!measure::is_ready(&before) && measure::is_ready(&after)).then_some(then);
        let times = times.then(|| Times { seen: first.parse().unwrap(), ready });
        assert_eq!(patch(&look, times), expected, "{name}");
    }
}

#[test]
fn how_long_a_claim_waits_for_an_address() {
    for (created, left) in [
        ("2026-01-01T00:10:00Z", 2),
        ("2026-01-01T00:09:59Z", 1),
        ("2026-01-01T00:09:58Z", 0),
        ("2020-01-01T00:00:00Z", 0),
        ("2030-01-01T00:00:00Z", 2),
    ] {
        let seen = seen(claim(json!({"metadata": {"creationTimestamp": created}})));
        assert_eq!(super::find::patience(&seen, now()).as_secs(), left, "{created}");
    }
}

#[test]
fn hostile_words_of_a_claim() {
    let long = "x".repeat(1 << 20);
    let domains = ["sandbox.users.io".to_owned()];
    let label = |key: &str, value: &str| {
        let claim = claim(json!({"spec": {"additionalPodMetadata": {"labels": {key: value}}}}));
        let refusal = super::metadata::validate(&claim, &domains).unwrap_err();
        assert_eq!(refusal.reason, "InvalidMetadata");
        let said = says(&claim, &Outcome::Refused(&refusal));
        assert!(
            said["conditions"][0]["message"].as_str().unwrap().len() <= 32_768,
            "a status that the server takes"
        );
    };
    label("sandbox.users.io/a", &long);
    label(&long, "v");
    label(&format!("sandbox.users.io/{long}"), "v");
    label(&format!("{long}.sandbox.users.io/a"), "v");
    label("", "");
    label("/", "v");
    label("sandbox.users.io/a/b", "v");
    let finished = json!({"conditions": [{"type": "Finished", "status": "True", "reason": "PodSucceeded", "message": "", "lastTransitionTime": "9999-12-30T00:00:00Z"}]});
    for seconds in [i32::MIN, -1, 0, i32::MAX] {
        let claim =
            claim(json!({"spec": {"lifecycle": {"ttlSecondsAfterFinished": seconds}}, "status": finished}));
        assert!(super::expiry::end(&claim).is_some());
        assert!(super::expiry::remaining(&claim, now()).unwrap() <= std::time::Duration::from_secs(60));
    }
}

#[test]
fn what_a_claim_may_put_on_a_pod() {
    let domains = ["sandbox.users.io".to_owned()];
    let check = |part: &str, key: &str, value: &str| {
        let claim = claim(json!({"spec": {"additionalPodMetadata": {part: {key: value}}}}));
        super::metadata::validate(&claim, &domains).map_err(|refusal| {
            assert_eq!((refusal.reason, refusal.retry), ("InvalidMetadata", Retry::Never));
            refusal.message
        })
    };
    for (part, key, value) in [
        ("labels", "sandbox.users.io/a", "b"),
        ("labels", "team.sandbox.users.io/a", ""),
        ("annotations", "plain", "anything at all"),
        ("annotations", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("annotations", "podsnapshot.gke.io/ps-name", "x"),
    ] {
        assert_eq!(check(part, key, value), Ok(()), "{key}");
    }
    for (part, key, value, text) in [
        (
            "labels",
            "app",
            "sandbox-router",
            "restricted system label value: \"app\"=\"sandbox-router\" is not allowed",
        ),
        ("labels", "APP", "Sandbox-Router", "restricted system label value"),
        ("labels", "app", "x", "label \"app\" must have a domain prefix"),
        ("labels", "evil.io/a", "x", "label domain \"evil.io\" is not in the allowlist"),
        ("labels", "notsandbox.users.io/a", "x", "is not in the allowlist"),
        (
            "labels",
            "sandbox.users.io/a",
            "b c",
            "invalid label value: \"b c\" does not match allowed pattern",
        ),
        ("labels", "sandbox.users.io/-a", "b", "invalid label key: \"sandbox.users.io/-a\""),
        ("annotations", "a b", "x", "invalid annotation key: \"a b\""),
        (
            "annotations",
            "x.kubernetes.io/a",
            "x",
            "restricted system domain: \"x.kubernetes.io/a\" is not allowed in AdditionalPodMetadata",
        ),
        ("annotations", "agents.x-k8s.io/a", "x", "restricted system domain"),
    ] {
        let message = check(part, key, value).unwrap_err();
        assert!(
            message.starts_with("invalid additionalPodMetadata: failed to validate ")
                && message.contains(text),
            "{message}"
        );
    }
}

fn made(claim_more: Value, template_more: Value) -> Result<Value, Refusal> {
    let seen = Seen { template: Some(template(template_more)), ..seen(claim(claim_more)) };
    super::create::desired(&seen).map(|sandbox| serde_json::to_value(sandbox).unwrap())
}

#[test]
fn a_sandbox_made_for_its_claim() {
    let sandbox = made(
        json!({"metadata": {"labels": {"agents.x-k8s.io/created-by": "x"}}}),
        json!({"spec": {"service": true}}),
    )
    .unwrap();
    assert_eq!(sandbox["metadata"]["name"], "c");
    assert_eq!(sandbox["metadata"]["ownerReferences"], owned_by(EXTENSIONS, "SandboxClaim", "c"));
    assert_eq!(sandbox["metadata"]["labels"]["agents.x-k8s.io/launch-type"], "cold");
    assert_eq!(
        sandbox["metadata"]["annotations"],
        json!({"agents.x-k8s.io/sandbox-template-ref": "t", "agents.x-k8s.io/pod-name": "c"})
    );
    let marks = &sandbox["spec"]["podTemplate"]["metadata"]["labels"];
    assert_eq!(
        (&marks["agents.x-k8s.io/claim-uid"], &marks["agents.x-k8s.io/created-by"]),
        (&json!("SandboxClaim-c"), &json!("x"))
    );
    assert_eq!(sandbox["spec"]["service"], true);
    for key in ["operatingMode", "shutdownTime", "shutdownPolicy"] {
        assert_eq!(sandbox["spec"].get(key), None, "{key} is the server's to default");
    }
}

#[test]
fn a_claim_that_names_only_a_template() {
    let shadow = |template: Option<Arc<SandboxTemplate>>| {
        let claim = claim(json!({"spec": {"warmPoolRef": {"name": "shadow-pool-t"}}}));
        super::create::desired(&Seen { pool: None, template, ..seen(claim) })
    };
    assert_eq!(shadow(Some(template(json!({})))).unwrap().name_any(), "c");
    let refusal = shadow(None).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.message.as_str()),
        ("WarmPoolNotFound", "SandboxWarmPool \"shadow-pool-t\" not found")
    );
    let refusal = super::create::desired(&Seen { template: None, ..seen(claim(json!({}))) }).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.message.as_str()),
        ("TemplateNotFound", "SandboxTemplate \"t\" not found")
    );
}

#[test]
fn variables_as_the_policy_says() {
    let env = |policy: &str, env: Value, has: Value| {
        let spec = json!({"spec": {"envVarsInjectionPolicy": policy, "podTemplate": {"spec": {
            "containers": [{"name": "main", "env": has["env"], "envFrom": has["envFrom"]}, {"name": "side"}],
            "initContainers": [{"name": "init"}]}}}});
        made(json!({"spec": {"env": env}}), spec)
            .map(|sandbox| {
                let pod = &sandbox["spec"]["podTemplate"]["spec"];
                json!([
                    pod["containers"][0]["env"],
                    pod["containers"][1]["env"],
                    pod["initContainers"][0]["env"]
                ])
            })
            .map_err(|refusal| refusal.reason)
    };
    let a = json!([{"name": "A", "value": "1"}]);
    let has_a = json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]});
    let to = |container: &str| json!([{"name": "A", "value": "1", "containerName": container}]);
    assert_eq!(env("Disallowed", a.clone(), json!({})), Err("EnvVarsInjectionRejected"));
    assert_eq!(env("Allowed", a.clone(), json!({})), Ok(json!([a, null, null])));
    assert_eq!(env("Allowed", to("side"), json!({})), Ok(json!([null, a, null])));
    assert_eq!(env("Allowed", to("init"), json!({})), Ok(json!([null, null, a])));
    assert_eq!(env("Allowed", to("nowhere"), json!({})), Err("ReconcilerError"));
    assert_eq!(env("Allowed", a.clone(), has_a.clone()), Err("ReconcilerError"));
    assert_eq!(
        env("Allowed", a.clone(), json!({"envFrom": [{"prefix": "x"}]})),
        Err("EnvVarsInjectionRejected")
    );
    assert_eq!(env("Overrides", a.clone(), has_a), Ok(json!([a, null, null])));
}

#[test]
fn which_variables_may_come_late() {
    let allowed = |policy: &str, env: Value| {
        let spec = json!({"spec": {"envVarsInjectionPolicy": policy, "podTemplate": {"spec": {
            "initContainers": [{"name": "init"}]}}}});
        let claim = claim(json!({"spec": {"env": env}}));
        super::late::allows_pool(&Seen { template: Some(template(spec)), ..seen(claim) })
            .map_err(|refusal| refusal.reason)
    };
    let one = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let to = |container: &str| json!([{"name": "A", "value": "1", "containerName": container}]);
    for (env, expected) in [
        (json!([]), Ok(true)),
        (one("A", "1"), Ok(true)),
        (to("side"), Ok(true)),
        (to("init"), Ok(false)),
        (to("nowhere"), Err("ReconcilerError")),
        (one("", "1"), Ok(false)),
        (one("A=B", "1"), Ok(false)),
        (one("A", "\0"), Ok(false)),
        (one("A", &"x".repeat(64 << 10)), Ok(false)),
        (one("SANDBOX_PORT", "1"), Ok(false)),
    ] {
        assert_eq!(allowed("Allowed", env.clone()), expected, "{env}");
    }
    assert_eq!(allowed("Disallowed", one("A", "1")), Err("EnvVarsInjectionRejected"));
    let untold = Seen { template: None, ..seen(claim(json!({"spec": {"env": one("A", "1")}}))) };
    assert_eq!(super::late::allows_pool(&untold).unwrap_err().reason, "TemplateNotFound");
}

#[test]
fn volumes_as_the_policy_says() {
    let volumes = |policy: &str, claim: Value, template: Value| {
        let spec = json!({"spec": {"volumeClaimTemplatesPolicy": policy, "volumeClaimTemplates": template}});
        made(json!({"spec": {"volumeClaimTemplates": claim}}), spec)
            .map(|sandbox| {
                let list = sandbox["spec"]["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
                list.iter()
                    .map(|v| {
                        format!(
                            "{}:{}",
                            v["metadata"]["name"].as_str().unwrap(),
                            v["spec"]["storageClassName"].as_str().unwrap_or("-")
                        )
                    })
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .map_err(|refusal| {
                assert_eq!((refusal.reason, refusal.retry), ("VolumeClaimTemplatesError", Retry::Never));
                refusal.message
            })
    };
    let named =
        |name: &str, class: &str| json!({"metadata": {"name": name}, "spec": {"storageClassName": class}});
    let (v, w, other) = (json!([named("v", "a")]), json!([named("w", "a")]), json!([named("v", "b")]));
    assert_eq!(volumes("Disallowed", json!([]), v.clone()), Ok("v:a".into()));
    assert_eq!(volumes("Allowed", w.clone(), v.clone()), Ok("v:a w:a".into()));
    assert_eq!(volumes("Overrides", other.clone(), v.clone()), Ok("v:b".into()));
    for (policy, claim, template, text) in [
        ("Disallowed", w, v.clone(), "volume claim templates are disallowed by the template"),
        ("Allowed", other, v.clone(), "cannot override template volume \"v\""),
        (
            "Allowed",
            json!([named("v", "a"), named("v", "a")]),
            json!([]),
            "templates: claim: invalid volume claim templates: duplicate name \"v\"",
        ),
        ("Allowed", json!([named("", "a")]), v, "name at index 0 is empty"),
        (
            "Disallowed",
            json!([]),
            json!([named("x", "a"), named("x", "a")]),
            "invalid volume claim templates in template: invalid volume claim templates: duplicate name \"x\"",
        ),
    ] {
        let message = volumes(policy, claim, template).unwrap_err();
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn the_templates_word_stands() {
    let template_more =
        json!({"spec": {"podTemplate": {"metadata": {"labels": {"sandbox.users.io/a": "1"}}}}});
    let with = |value: &str| {
        made(
            json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": value}}}}),
            template_more.clone(),
        )
    };
    assert!(with("1").is_ok());
    let refusal = with("2").unwrap_err();
    assert_eq!(refusal.reason, "ReconcilerError");
    assert!(refusal.message.contains("metadata override conflict: label \"sandbox.users.io/a\" is defined in template with value \"1\", but claim requests \"2\""), "{refusal:?}");
}

fn says(claim: &SandboxClaim, outcome: &Outcome<'_>) -> Value {
    serde_json::to_value(status(claim, outcome, now())).unwrap()
}

#[test]
fn the_status_mirrors_the_sandbox() {
    let sandbox = pooled("p-1", json!({}));
    let bound = says(&claim(json!({})), &Outcome::Bound(&sandbox));
    assert_eq!(bound["sandbox"], json!({"name": "p-1", "podIPs": ["10.0.0.1"]}));
    assert_eq!(
        bound["conditions"],
        json!([{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "Pod is Ready",
            "lastTransitionTime": "2026-01-01T00:05:00Z", "observedGeneration": 1}])
    );
    let silent = pooled("p-1", json!({"status": null}));
    let said = says(&claim(json!({})), &Outcome::Bound(&silent));
    assert_eq!(
        (&said["conditions"][0]["reason"], &said["conditions"][0]["message"]),
        (&json!("SandboxNotReady"), &json!("Sandbox is not ready"))
    );
    let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "False", "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 9});
    let ended = pooled(
        "p-1",
        json!({"status": {"conditions": [condition("Ready", "SandboxExpired"), condition("Finished", "PodFailed")]}}),
    );
    let said = says(&claim(json!({})), &Outcome::Bound(&ended));
    assert_eq!(said["conditions"][0], condition("Finished", "PodFailed"), "copied as it is, sorted by type");
    assert_eq!(
        said["conditions"][1]["message"],
        "Underlying Sandbox resource has expired independently of the Claim."
    );
}

#[test]
fn an_error_does_not_take_the_sandbox_from_the_status() {
    let refusal = Refusal::no_template("t");
    let said = says(&claim(bound_to("p-1")), &Outcome::Refused(&refusal));
    assert_eq!(said["sandbox"]["name"], "p-1");
    assert_eq!(said["conditions"][0]["reason"], "TemplateNotFound");
    let expired = says(&claim(bound_to("p-1")), &Outcome::Expired { sandbox: None, problem: None });
    assert_eq!(
        (&expired["sandbox"], &expired["conditions"][0]["message"]),
        (&json!({}), &json!("Claim expired. Sandbox cleanup initiated."))
    );
}

#[test]
fn when_a_claim_ends() {
    let finished = json!({"conditions": [{"type": "Finished", "status": "True", "reason": "PodSucceeded", "message": "", "lastTransitionTime": "2026-01-01T00:08:00Z"}]});
    for (lifecycle, status, end) in [
        (json!(null), finished.clone(), None),
        (json!({}), finished.clone(), None),
        (json!({"shutdownTime": "2026-01-01T00:09:00Z"}), json!(null), Some("2026-01-01T00:09:00Z")),
        (json!({"ttlSecondsAfterFinished": 30}), json!(null), None),
        (json!({"ttlSecondsAfterFinished": 30}), finished.clone(), Some("2026-01-01T00:08:30Z")),
        (
            json!({"ttlSecondsAfterFinished": 90, "shutdownTime": "2026-01-01T00:09:00Z"}),
            finished,
            Some("2026-01-01T00:09:00Z"),
        ),
    ] {
        let claim = claim(json!({"spec": {"lifecycle": lifecycle}, "status": status}));
        assert_eq!(super::expiry::end(&claim).map(|end| end.to_string()).as_deref(), end, "{lifecycle}");
    }
}

proptest! {
    /// Claims and the server in any order of reads and writes, each claim working on a view that may be old: the server
    /// refuses a patch that does not name its present version, so no Sandbox ever has two owners in turn.
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
            // A patch without a guard would be taken whatever happened meanwhile.
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
