//! Sandbox that is created for a claim, and validation of the claim.

use super::*;

#[test]
fn hostile_claim_metadata_is_refused() {
    let long = "x".repeat(1 << 20);
    let domains = ["sandbox.users.io".to_owned()];
    let label = |key: &str, value: &str| {
        let claim = claim(json!({"spec": {"additionalPodMetadata": {"labels": {key: value}}}}));
        let refusal = super::metadata::validate(&claim, &domains).unwrap_err();
        assert_eq!(refusal.reason, "InvalidMetadata");
        let said = says(&claim, &State::Refused(&refusal));
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
fn pod_metadata_of_a_claim_is_validated() {
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
    let observed = Observed { template: Some(template(template_more)), ..observed(claim(claim_more)) };
    super::create::desired(&observed).map(|sandbox| serde_json::to_value(sandbox).unwrap())
}

#[test]
fn cold_sandbox_has_the_metadata_of_its_claim() {
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
fn attributes_of_the_task_come_with_the_claim_and_keep_the_warm_start() {
    let attributes = json!({"metadata": {"annotations": {
        "attr.policy.hutch.dev/risk": "2", "attr.policy.hutch.dev/id": "T-1", "other/key": "x",
    }}});
    let cold = made(attributes.clone(), json!({})).unwrap();
    let sandbox = pooled("p", json!({}));
    let change = patch(&sandbox, &claim(attributes), Some(&template(json!({})))).unwrap();
    let warm = serde_json::to_value(patched(sandbox.as_ref(), &change).as_ref()).unwrap();
    for sandbox in [cold, warm] {
        let annotations = &sandbox["metadata"]["annotations"];
        assert_eq!(annotations["attr.policy.hutch.dev/risk"], "2");
        assert_eq!(annotations["attr.policy.hutch.dev/id"], "T-1");
        assert_eq!(annotations.get("other/key"), None);
        assert!(!sandbox["spec"].to_string().contains("attr.policy"), "the Pod does not have them");
    }
}

#[test]
fn a_claim_that_names_only_a_template() {
    let shadow = |template: Option<Arc<SandboxTemplate>>| {
        let claim = claim(json!({"spec": {"warmPoolRef": {"name": "shadow-pool-t"}}}));
        super::create::desired(&Observed { pool: None, template, ..observed(claim) })
    };
    assert_eq!(shadow(Some(template(json!({})))).unwrap().name_any(), "c");
    let refusal = shadow(None).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.message.as_str()),
        ("WarmPoolNotFound", "SandboxWarmPool \"shadow-pool-t\" not found")
    );
    let refusal =
        super::create::desired(&Observed { template: None, ..observed(claim(json!({}))) }).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.message.as_str()),
        ("TemplateNotFound", "SandboxTemplate \"t\" not found")
    );
}

#[test]
fn variables_follow_the_policy() {
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
fn only_valid_variables_may_come_late() {
    let allowed = |policy: &str, env: Value| {
        let spec = json!({"spec": {"envVarsInjectionPolicy": policy, "podTemplate": {"spec": {
            "initContainers": [{"name": "init"}]}}}});
        let claim = claim(json!({"spec": {"env": env}}));
        super::late_env::allows_pool(&Observed { template: Some(template(spec)), ..observed(claim) })
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
    let untold = Observed { template: None, ..observed(claim(json!({"spec": {"env": one("A", "1")}}))) };
    assert_eq!(super::late_env::allows_pool(&untold).unwrap_err().reason, "TemplateNotFound");
}

#[test]
fn volumes_follow_the_policy() {
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
fn metadata_of_the_template_wins() {
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
