use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const OLD: &str = "extensions.agents.x-k8s.io/v1alpha1";
const NEW: &str = "extensions.agents.x-k8s.io/v1beta1";
const OLD_CORE: &str = "agents.x-k8s.io/v1alpha1";
const NEW_CORE: &str = "agents.x-k8s.io/v1beta1";

fn object(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "one", "namespace": "default"}, "spec": spec})
}

#[test]
fn same_version_is_untouched() {
    let claim = object(NEW, "SandboxClaim", json!({"warmPoolRef": {"name": "p"}}));
    assert_eq!(convert(claim.clone(), NEW).unwrap(), claim);
}

#[test]
fn unknown_kinds_and_versions_are_refused() {
    for (object, to) in [
        (object(OLD, "Pod", json!({})), NEW),
        (object(OLD_CORE, "SandboxClaim", json!({})), NEW_CORE),
        (object(OLD, "SandboxClaim", json!({})), "extensions.agents.x-k8s.io/v2"),
    ] {
        assert!(matches!(convert(object, to), Err(Error::Unsupported { .. })));
    }
    assert_eq!(convert(json!([]), NEW), Err(Error::Shape("the object")));
}

#[test]
fn sandbox_replicas_become_a_mode() {
    for (replicas, mode) in [(json!(0), "Suspended"), (json!(1), "Running"), (Value::Null, "Running")] {
        let up = convert(object(OLD_CORE, "Sandbox", json!({"replicas": replicas})), NEW_CORE).unwrap();
        assert_eq!(up["spec"], json!({"operatingMode": mode}), "{replicas}");
        assert_eq!(up["apiVersion"], NEW_CORE);
    }
}

#[test]
fn sandbox_mode_becomes_replicas() {
    for (mode, replicas) in [("Suspended", 0), ("Running", 1), ("", 1)] {
        let mut sandbox = object(NEW_CORE, "Sandbox", json!({"operatingMode": mode}));
        sandbox["status"] = json!({"nodeName": "n", "selector": "a=b"});
        let down = convert(sandbox, OLD_CORE).unwrap();
        assert_eq!(down["spec"], json!({"replicas": replicas}), "{mode}");
        let mut status = json!({"selector": "a=b"});
        if replicas > 0 {
            status["replicas"] = json!(replicas);
        }
        assert_eq!(down["status"], status, "{mode}");
    }
}

#[test]
fn changed_mode_overrides_the_saved_replicas() {
    for (written, mode, read) in [
        (json!({"replicas": 0}), "Running", json!({"replicas": 1})),
        (json!({"replicas": 1}), "Suspended", json!({"replicas": 0})),
        (json!({}), "Suspended", json!({"replicas": 0})),
        (json!({}), "Running", json!({})),
        (json!({}), "", json!({"replicas": 1})),
    ] {
        let mut up = convert(object(OLD_CORE, "Sandbox", written.clone()), NEW_CORE).unwrap();
        up["spec"]["operatingMode"] = mode.into();
        assert_eq!(convert(up, OLD_CORE).unwrap()["spec"], read, "{written} then {mode}");
    }
}

#[test]
fn old_claims_find_their_pool() {
    let reference = json!({"name": "tmpl"});
    for (warmpool, bound, pool) in [
        (json!("special"), "", "special"),
        (json!("special"), "pool-ab12c", "special"),
        (json!("default"), "", "shadow-pool-tmpl"),
        (json!("none"), "", "shadow-pool-tmpl"),
        (json!(""), "", "shadow-pool-tmpl"),
        (json!("default"), "one", "shadow-pool-tmpl"),
        (json!("default"), "my-pool-ab12c", "my-pool"),
    ] {
        let mut claim =
            object(OLD, "SandboxClaim", json!({"sandboxTemplateRef": reference, "warmpool": warmpool}));
        claim["status"] = json!({"sandbox": {"name": bound}});
        let up = convert(claim.clone(), NEW).unwrap();
        assert_eq!(up["spec"], json!({"warmPoolRef": {"name": pool}}), "{warmpool} {bound}");
        assert_eq!(convert(up, OLD).unwrap(), claim, "comes back as it was");
    }
}

#[test]
fn new_claims_are_readable_as_old_ones() {
    for (pool, template, warmpool) in [("shadow-pool-t", "t", "default"), ("p", "p", "p")] {
        let claim =
            object(NEW, "SandboxClaim", json!({"warmPoolRef": {"name": pool}, "volumeClaimTemplates": []}));
        let down = convert(claim, OLD).unwrap();
        assert_eq!(down["spec"], json!({"sandboxTemplateRef": {"name": template}, "warmpool": warmpool}));
    }
}

#[test]
fn changed_pool_appears_in_the_old_claim() {
    let old = object(OLD, "SandboxClaim", json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": "none"}));
    let mut up = convert(old, NEW).unwrap();
    for (pool, bound, warmpool) in [
        ("other", "", "other"),
        ("t", "", "none"),
        ("other", "other-x1y2z", "none"),
        ("shadow-pool-t", "", "none"),
    ] {
        up["spec"]["warmPoolRef"]["name"] = pool.into();
        up["status"] = json!({"sandbox": {"name": bound}});
        let down = convert(up.clone(), OLD).unwrap();
        assert_eq!(
            down["spec"],
            json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": warmpool}),
            "{pool} {bound}"
        );
    }
}

#[test]
fn template_policy_travels_in_an_annotation() {
    let template = object(NEW, "SandboxTemplate", json!({"volumeClaimTemplatesPolicy": "Overrides"}));
    let down = convert(template, OLD).unwrap();
    assert_eq!(down["spec"], json!({}));
    assert_eq!(down["metadata"]["annotations"][annotation::VOLUME_CLAIM_TEMPLATES_POLICY], "Overrides");
    let up = convert(down, NEW).unwrap();
    assert_eq!(up["spec"], json!({"volumeClaimTemplatesPolicy": "Overrides"}));
}

#[test]
fn pool_gets_its_default_and_loses_what_the_old_version_lacks() {
    let mut pool = object(NEW, "SandboxWarmPool", json!({"sandboxTemplateRef": {"name": "t"}}));
    pool["status"] = json!({"replicas": 1, "observedGeneration": 3});
    let down = convert(pool, OLD).unwrap();
    assert_eq!(down["spec"]["replicas"], 1);
    assert_eq!(down["status"], json!({"replicas": 1}));
}

/// Returns an object with one annotation, and the same object without any.
fn with_and_without(version: &str, kind: &str, spec: Value, key: &str, value: &str) -> [Value; 2] {
    let mut with = object(version, kind, spec);
    let without = with.clone();
    with["metadata"]["annotations"] = json!({key: value});
    [with, without]
}

#[test]
fn undecodable_saved_object_is_ignored_and_kept() {
    let template = r#"{"spec": {"sandboxTemplateRef": {"name": 7}}}"#;
    for state in ["", "{", "[]", "7", "null", template, r#"{"spec": {"warmpool": []}}"#] {
        let spec = json!({"warmPoolRef": {"name": "p"}});
        let [claim, without] = with_and_without(NEW, "SandboxClaim", spec, annotation::CLAIM_STATE, state);
        let mut without = convert(without, OLD).unwrap();
        without["metadata"]["annotations"] = json!({annotation::CLAIM_STATE: state});
        assert_eq!(convert(claim, OLD).unwrap(), without, "{state}");
    }
    for state in
        [r#"{"spec": {"replicas": "1"}}"#, r#"{"status": {"replicas": 4294967296}}"#, r#"{"spec": []}"#]
    {
        let (spec, key) = (json!({"operatingMode": "Running"}), annotation::SANDBOX_STATE);
        let [sandbox, without] = with_and_without(NEW_CORE, "Sandbox", spec, key, state);
        let mut without = convert(without, OLD_CORE).unwrap();
        without["metadata"]["annotations"] = json!({key: state});
        assert_eq!(convert(sandbox, OLD_CORE).unwrap(), without, "{state}");
    }
}

/// The annotations that carry fields the older version lacks, each with undecodable values.
#[test]
fn undecodable_carried_field_is_ignored_and_kept() {
    let claim = json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": "p"});
    for (kind, spec, key, values) in [
        (
            "SandboxTemplate",
            json!({}),
            annotation::VOLUME_CLAIM_TEMPLATES_POLICY,
            vec!["Maybe", "", "allowed"],
        ),
        (
            "SandboxClaim",
            claim.clone(),
            annotation::VOLUME_CLAIM_TEMPLATES,
            vec![
                "",
                "x",
                "7",
                "[7]",
                "[{}]",
                r#"[{"spec": 1}]"#,
                r#"[{"spec": {}, "metadata": []}]"#,
                r#"[{"spec": {}, "status": {}}]"#,
            ],
        ),
        (
            "SandboxClaim",
            claim,
            annotation::WARM_POOL_REF,
            vec![
                "",
                "{",
                "[]",
                "{}",
                r#"{"pool": 7, "template": "t"}"#,
                r#"{"pool": "q", "template": "t", "x": 1}"#,
            ],
        ),
    ] {
        for value in values {
            let [old, without] = with_and_without(OLD, kind, spec.clone(), key, value);
            let up = convert(old.clone(), NEW).unwrap();
            assert_eq!(up["spec"], convert(without, NEW).unwrap()["spec"], "{key} {value}");
            assert_eq!(up["metadata"]["annotations"][key], value);
            assert_eq!(convert(up, OLD).unwrap(), old, "{key} {value}");
        }
    }
}

#[test]
fn carried_field_of_a_newer_object_is_ignored() {
    for (kind, spec, key, value) in [
        ("SandboxTemplate", json!({"service": true}), annotation::VOLUME_CLAIM_TEMPLATES_POLICY, "Overrides"),
        (
            "SandboxClaim",
            json!({"warmPoolRef": {"name": "p"}}),
            annotation::VOLUME_CLAIM_TEMPLATES,
            r#"[{"spec": {}}]"#,
        ),
    ] {
        let [new, without] = with_and_without(NEW, kind, spec, key, value);
        let down = convert(new, OLD).unwrap();
        assert_eq!(down, convert(without.clone(), OLD).unwrap());
        assert_eq!(convert(down, NEW).unwrap()["spec"], without["spec"]);
    }
}

#[test]
fn volumes_of_a_claim_survive_an_old_client() {
    let volumes = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let spec = json!({"warmPoolRef": {"name": "p"}, "volumeClaimTemplates": volumes});
    let down = convert(object(NEW, "SandboxClaim", spec.clone()), OLD).unwrap();
    assert_eq!(down["spec"], json!({"sandboxTemplateRef": {"name": "p"}, "warmpool": "p"}));
    assert_eq!(convert(down, NEW).unwrap()["spec"], spec);
}

#[test]
fn pool_named_like_a_keyword_round_trips() {
    for pool in ["default", "none", "shadow-pool-default"] {
        let spec = json!({"warmPoolRef": {"name": pool}});
        let mut down = convert(object(NEW, "SandboxClaim", spec.clone()), OLD).unwrap();
        assert_eq!(convert(down.clone(), NEW).unwrap()["spec"], spec);
        down["spec"]["warmpool"] = "chosen".into();
        let chosen = convert(down, NEW).unwrap();
        assert_eq!(chosen["spec"], json!({"warmPoolRef": {"name": "chosen"}}));
        assert!(chosen["metadata"]["annotations"].get(annotation::WARM_POOL_REF).is_none());
    }
}

/// Kubernetes limits annotations to 256 KiB; an object above half of that does not fit with its copy.
#[test]
fn large_object_saves_only_fields_the_new_version_lacks() {
    let big = "x".repeat(200 << 10);
    let mut old = object(
        OLD_CORE,
        "Sandbox",
        json!({"replicas": 0, "podTemplate": {"spec": {"containers": [{"name": "c", "args": [big]}]}}}),
    );
    old["metadata"]["annotations"] = json!({"other": "y".repeat(100 << 10)});
    old["status"] = json!({"replicas": 1});
    let up = convert(old.clone(), NEW_CORE).unwrap();
    let annotations = up["metadata"]["annotations"].as_object().unwrap();
    let total: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().unwrap().len()).sum();
    assert!(total <= 256 << 10, "{total}");
    assert_eq!(convert(up, OLD_CORE).unwrap(), old);
}

#[test]
fn unchanged_write_back_changes_nothing() {
    let mut claim = object(OLD, "SandboxClaim", json!({"sandboxTemplateRef": {"name": "t"}}));
    let first = convert(claim.clone(), NEW).unwrap();
    claim["metadata"]["resourceVersion"] = "7".into();
    claim["metadata"]["generation"] = 2.into();
    claim["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let second = convert(claim, NEW).unwrap();
    assert_eq!(first["metadata"]["annotations"], second["metadata"]["annotations"]);
}

fn pool_word() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("")),
        Just(json!("none")),
        Just(json!("default")),
        "[a-z]{1,8}(-[a-z0-9]{1,5})?".prop_map(Value::from),
    ]
}

fn annotations() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z]{1,5}(/[a-z]{1,5})?", ".{0,8}", 1..4).prop_map(|map| json!(map))
}

proptest! {
    #[test]
    fn old_objects_come_back(
        replicas in prop::option::of(0..2),
        template in "[a-z]{1,8}",
        warmpool in pool_word(),
        bound in prop_oneof![Just(String::new()), Just("one".to_owned()), "[a-z]{1,8}-[a-z0-9]{5}"],
        annotations in annotations(),
    ) {
        let mut sandbox = object(OLD_CORE, "Sandbox", json!({"podTemplate": {"spec": {"containers": []}}}));
        if let Some(replicas) = replicas {
            sandbox["spec"]["replicas"] = json!(replicas);
            sandbox["status"] = json!({"replicas": replicas});
        }
        let mut claim = object(OLD, "SandboxClaim", json!({"sandboxTemplateRef": {"name": template}}));
        claim["spec"]["warmpool"] = warmpool;
        claim["status"] = json!({"sandbox": {"name": bound}});
        let pool = object(OLD, "SandboxWarmPool", json!({"replicas": 3, "sandboxTemplateRef": {"name": "t"}}));
        let tmpl = object(OLD, "SandboxTemplate", json!({"podTemplate": {"spec": {"containers": []}}}));
        for mut old in [sandbox, claim, pool, tmpl] {
            old["metadata"]["annotations"] = annotations.clone();
            let to = old["apiVersion"].as_str().unwrap().replace("v1alpha1", "v1beta1");
            let from = old["apiVersion"].as_str().unwrap().to_owned();
            prop_assert_eq!(convert(convert(old.clone(), &to).unwrap(), &from).unwrap(), old);
        }
    }

    /// Everything that the older version can express survives a read and a write by an old client.
    #[test]
    fn new_objects_keep_their_meaning(
        suspended: bool, pool in "(shadow-pool-)?[a-z]{1,8}", policy in 0..3_usize, replicas in 0..5,
    ) {
        let mode = if suspended { "Suspended" } else { "Running" };
        let policy = ["Disallowed", "Allowed", "Overrides"][policy];
        for new in [
            object(NEW_CORE, "Sandbox", json!({"operatingMode": mode, "podTemplate": {"spec": {}}})),
            object(NEW, "SandboxClaim", json!({"warmPoolRef": {"name": pool}, "env": [{"name": "A", "value": "b"}]})),
            object(NEW, "SandboxTemplate", json!({"volumeClaimTemplatesPolicy": policy, "service": true})),
            object(NEW, "SandboxWarmPool", json!({"replicas": replicas, "sandboxTemplateRef": {"name": "t"}})),
        ] {
            let to = new["apiVersion"].as_str().unwrap().replace("v1beta1", "v1alpha1");
            let from = new["apiVersion"].as_str().unwrap().to_owned();
            let back = convert(convert(new.clone(), &to).unwrap(), &from).unwrap();
            prop_assert_eq!(&back["spec"], &new["spec"]);
        }
    }
}
