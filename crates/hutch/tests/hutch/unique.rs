//! New parts of a Sandbox that starts from the snapshot of another: the number of its restore, its machine id, and its token.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::Up;
use crate::kept::{fork, ready, replace_pod, resume, run, snapshot, suspend};

const ID: &str = "0123456789abcdef0123456789abcdef";

fn sandbox(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"],
                "volumeMounts": [{"name": "token", "mountPath": "/token"}]}],
            "volumes": [{"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "audience": "https://web.example"}}]}}],
        }}},
    })
}

fn generation(up: &Up, name: &str) -> u64 {
    let text = up.ok(&format!("exec {name} -- cat /run/hutch/generation"));
    text.trim().parse().expect("a number")
}

fn machine_id(up: &Up, name: &str) -> String {
    let text = up.ok(&format!("exec {name} -- cat /etc/machine-id"));
    let id = text.strip_suffix('\n').expect("a line").to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id
}

/// Checks that the token inside is that of the Pod.
fn has_own_token(up: &Up, name: &str) -> String {
    let token = up.ok(&format!("exec {name} -- cat /token/token"));
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).expect("claims")).expect("base64");
    let claims: Value = serde_json::from_slice(&claims).expect("JSON");
    let pod = &claims["kubernetes.io"]["pod"];
    assert_eq!(pod["name"], name, "{claims}");
    assert_eq!(pod["uid"], up.ok(&format!("get pod {name} -o jsonpath={{.metadata.uid}}")), "{claims}");
    token
}

#[test]
fn forks_have_numbers_machine_ids_and_tokens_of_their_own() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = Up::start(&[]);
    run(
        &up,
        &sandbox("s", &json!({"hutch.dev/shares-generators": "true", "hutch.dev/suspend-keeps": "memory"})),
    );
    assert_eq!(generation(&up, "s"), 0);
    up.ok_args(&["exec", "s", "--", "sh", "-c", &format!("echo {ID} > /etc/machine-id")]);
    let of_source = has_own_token(&up, "s");

    // A Sandbox that is resumed stays the same.
    suspend(&up, "s");
    resume(&up, "s");
    let resumed = generation(&up, "s");
    assert!(resumed > 0);
    assert_eq!(machine_id(&up, "s"), ID);
    assert_ne!(has_own_token(&up, "s"), of_source, "its Pod is another one");

    fork(&up, &["s", "-n", "2", "--name", "f"]);
    let numbers = ["f-0", "f-1"].map(|name| generation(&up, name));
    assert!(numbers[0] != numbers[1] && numbers.iter().all(|number| *number > resumed), "{numbers:?}");
    let ids = ["f-0", "f-1"].map(|name| machine_id(&up, name));
    assert!(ids[0] != ids[1] && !ids.contains(&ID.to_owned()), "{ids:?}");
    for name in ["f-0", "f-1"] {
        assert_ne!(has_own_token(&up, name), of_source);
    }
    let written = up.kubectl_args(&["exec", "f-0", "--", "sh", "-c", "echo 1 > /run/hutch/generation"]);
    assert!(!written.status.success(), "a program cannot set the number");
    // The source has not changed.
    assert_eq!((generation(&up, "s"), machine_id(&up, "s")), (resumed, ID.to_owned()));

    // No number comes twice, also not after a kill. The next Pod of a fork has the same machine id.
    up.kill();
    up.restart();
    replace_pod(&up, "f-0");
    ready(&up, "f-0");
    assert!(numbers.iter().all(|number| generation(&up, "f-0") > *number), "{numbers:?}");
    assert_eq!(machine_id(&up, "f-0"), ids[0]);
}

#[test]
fn pod_that_no_snapshot_keeps_has_no_number() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut native = sandbox("n", &json!({}));
    native["spec"]["podTemplate"]["spec"]["runtimeClassName"] = Value::Null;
    run(&up, &native);
    up.ok("exec n -- test ! -e /run/hutch");
    // One that has the files of another Sandbox has a number.
    up.ok("annotate sandbox n hutch.dev/idle-after= --overwrite");
    let mut source = native.clone();
    source["metadata"] = json!({"name": "s", "annotations": {"hutch.dev/idle-after": ""}});
    run(&up, &source);
    up.ok_args(&["exec", "s", "--", "sh", "-c", &format!("echo {ID} > /etc/machine-id")]);
    snapshot(&up, "snap", "s", "Filesystem");
    let mut copy = native;
    copy["metadata"] = json!({"name": "c", "annotations": {"hutch.dev/restore-from": "snap"}});
    run(&up, &copy);
    assert!(generation(&up, "c") > 0);
    assert_ne!(machine_id(&up, "c"), ID);
}
