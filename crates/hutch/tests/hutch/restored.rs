//! Sandboxes that start from snapshots of others.

use serde_json::{Value, json};

use crate::harness::{Up, hutch};
use crate::kept::{apply, fork, ready, resume, snapshot, suspend};

/// Answers `/random` with numbers of the generators of Python and of OpenSSL, and renews both for `/renew`.
const SERVER: &str = r#"
import http.server, os, random, ssl
random.seed()
ssl.RAND_bytes(8)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/renew":
            random.seed()
            ssl.RAND_add(os.urandom(48), 48.0)
        body = ("%032x %s" % (random.getrandbits(128), ssl.RAND_bytes(16).hex())).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

/// Requests this path of the server inside.
fn get(path: &str) -> Vec<String> {
    let script = "import sys, urllib.request as u; print(u.urlopen('http://127.0.0.1:8888' + sys.argv[1]).read().decode())";
    ["/usr/bin/env", "python3", "-c", script, path].map(str::to_owned).to_vec()
}

fn sandbox(name: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", SERVER],
                "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1, "failureThreshold": 1},
                "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo x >> /starts"]}}},
            }],
        }}},
    })
}

/// The numbers of both generators of a Sandbox.
fn random(up: &Up, name: &str) -> String {
    let words = get("/random");
    let words: Vec<&str> = ["exec", name, "--"].into_iter().chain(words.iter().map(String::as_str)).collect();
    up.ok_args(&words)
}

#[test]
fn forks_repeat_random_numbers_unless_a_command_renews_their_generators() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = Up::start(&[]);
    apply(&up, &sandbox("s", json!({})));
    ready(&up, "s");
    let taken = snapshot(&up, "snap", "s", "Full");
    assert_eq!(taken["status"]["handler"], "gvisor", "{taken:#}");
    // The source runs on.
    let of_source = random(&up, "s");

    apply(&up, &sandbox("refused", json!({"hutch.dev/restore-from": "snap"})));
    let told = up.eventually("get events -o json", |events| events.contains("RestoreFailed"));
    assert!(
        told.contains("hutch.dev/after-restore") && told.contains("hutch.dev/shares-generators"),
        "{told}"
    );
    up.ok("delete sandbox refused --wait=false");

    // The control: without renewal, the memory is the same.
    for name in ["a", "b"] {
        let shared = json!({"hutch.dev/restore-from": "snap", "hutch.dev/shares-generators": "true"});
        apply(&up, &sandbox(name, shared));
        ready(&up, name);
        assert_eq!(random(&up, name), of_source);
        // What ran before the snapshot is not run again.
        assert_eq!(up.ok(&format!("exec {name} -- cat /starts")), "x\n");
    }
    let hook = serde_json::to_string(&get("/renew")).expect("JSON");
    let mut seen = vec![of_source];
    for name in ["c", "d"] {
        apply(
            &up,
            &sandbox(name, json!({"hutch.dev/restore-from": "snap", "hutch.dev/after-restore": hook})),
        );
        ready(&up, name);
        let numbers = random(&up, name);
        for other in &seen {
            for (one, other) in numbers.split_whitespace().zip(other.split_whitespace()) {
                assert_ne!(one, other, "{name}");
            }
        }
        seen.push(numbers);
    }
    let hook = r#"["/bin/sh", "-c", "echo $HUTCH_RESTORE $HUTCH_GENERATION; echo no >&2; exit 3"]"#;
    apply(&up, &sandbox("e", json!({"hutch.dev/restore-from": "snap", "hutch.dev/after-restore": hook})));
    up.eventually("get events -o json", |events| {
        events.contains("hutch.dev/after-restore: exit status 3: no")
    });
    let uid = taken["metadata"]["uid"].as_str().expect("a uid").to_owned();
    assert!(up.data().join("snapshots").join(&uid).is_dir());
    up.ok("delete sandboxsnapshot snap");
    up.eventually("get sandboxsnapshots -o name", str::is_empty);
    hutch_testkit::wait::until("the image goes with its object", || {
        !up.data().join("snapshots").join(&uid).exists()
    });
}

#[test]
fn files_of_a_snapshot_are_those_of_its_moment_in_both_handlers() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut classes = vec!["hutch"];
    match hutch_testkit::Need::Runsc.missing() {
        Some(reason) => hutch_testkit::note_skip("snapshots of files in gVisor", reason),
        None => classes.push("gvisor"),
    }
    for class in classes {
        let make = |name: &str, annotations: Value| {
            let mut object = sandbox(&format!("{name}-{class}"), annotations);
            let spec = &mut object["spec"]["podTemplate"]["spec"];
            spec["runtimeClassName"] = class.into();
            spec["containers"] =
                json!([{"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]);
            apply(&up, &object);
            ready(&up, &format!("{name}-{class}"));
        };
        make("s", json!({"hutch.dev/idle-after": ""}));
        let run = |name: &str, script: &str| {
            up.ok_args(&["exec", &format!("{name}-{class}"), "--", "sh", "-c", script])
        };
        run(
            "s",
            "mkdir /d && echo before > /d/file && ln -s file /d/link && chmod 4750 /d/file && mkdir /etc/own",
        );
        snapshot(&up, &format!("snap-{class}"), &format!("s-{class}"), "Filesystem");
        run("s", "echo after > /d/file && rm /d/link");
        make("t", json!({"hutch.dev/restore-from": format!("snap-{class}")}));
        assert_eq!(
            run("t", "cat /d/link; stat -c %a /d/file; test -d /etc/own && echo own"),
            "before\n4750\nown\n"
        );
        assert_eq!(run("s", "cat /d/file"), "after\n");
        // A later life of the container has what it wrote itself removed, as always.
        run("t", "echo own > /d/file");
        suspend(&up, &format!("t-{class}"));
        resume(&up, &format!("t-{class}"));
        assert_eq!(run("t", "cat /d/file"), "before\n");
    }
}

/// Regression: what a Sandbox with a template had in memory and files came to Sandboxes without the policies of the template,
/// which named the snapshot before it existed, had another template, or were no Sandboxes.
#[test]
fn snapshot_of_a_sandbox_with_a_template_begins_in_that_template_only() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]});
    let from = json!({"hutch.dev/restore-from": "snap"});
    let template = |name: &str, annotations: Value| {
        apply(
            &up,
            &json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": name},
                "spec": {"podTemplate": {"metadata": {"annotations": annotations}, "spec": spec}}}),
        );
        apply(
            &up,
            &json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": name},
                "spec": {"replicas": 0, "sandboxTemplateRef": {"name": name}}}),
        );
    };
    let claim = |name: &str, pool: &str, annotations: Value| {
        apply(
            &up,
            &json!({"apiVersion": group, "kind": "SandboxClaim", "metadata": {"name": name},
                "spec": {"warmPoolRef": {"name": pool}, "additionalPodMetadata": {"annotations": annotations}}}),
        );
    };
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": from}, "spec": spec});
    let mut early = sandbox("early", from.clone());
    early["spec"]["podTemplate"]["spec"] = spec.clone();
    apply(&up, &early);
    template("strict", json!({"hutch.dev/idle-after": ""}));
    template("other", from.clone());
    claim("c", "strict", json!({}));
    up.ok("wait --for=condition=Ready sandboxclaim/c --timeout=60s");
    let source = up.ok("get sandboxclaim c -o jsonpath={.status.sandbox.name}");
    up.ok_args(&["exec", &source, "--", "sh", "-c", "echo secret > /opt/file"]);
    snapshot(&up, "snap", &source, "Filesystem");
    claim("d", "other", json!({}));
    apply(&up, &pod("plain"));
    for name in ["early", "d", "plain"] {
        up.eventually("get events -o json", |events| {
            let events: Value = serde_json::from_str(events).unwrap_or_default();
            let is_refused = |event: &Value| {
                let of = event["involvedObject"]["name"].as_str().unwrap_or_default();
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == "RestoreFailed"
                    && of.starts_with(name)
                    && message.contains("is of template \"strict\"")
            };
            events["items"].as_array().is_some_and(|events| events.iter().any(is_refused))
        });
        let phases = up.ok("get pods -o jsonpath={range.items[*]}{.metadata.name}={.status.phase},{end}");
        let phases: Vec<&str> = phases.split(',').filter(|one| one.starts_with(name)).collect();
        assert!(
            !phases.is_empty() && phases.iter().all(|one| one.ends_with("=Pending")),
            "{name}: {phases:?}"
        );
    }
    // The same template: that of the policies.
    claim("e", "strict", from.clone());
    up.ok("wait --for=condition=Ready sandboxclaim/e --timeout=60s");
    let same = up.ok("get sandboxclaim e -o jsonpath={.status.sandbox.name}");
    assert_eq!(up.ok(&format!("exec {same} -- cat /opt/file")), "secret\n");
}

#[test]
fn snapshot_that_cannot_be_had_says_why() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut native = sandbox("n", json!({}));
    native["spec"]["podTemplate"]["spec"] = json!({"containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]});
    apply(&up, &native);
    ready(&up, "n");
    for (name, sandbox, uid, reason, words) in [
        ("memory", "n", None, "Failed", "runtimeClassName: gvisor"),
        ("absent", "nothing", None, "Failed", "has no Pod"),
        ("other", "n", Some("another"), "SourceReplaced", "has the uid"),
    ] {
        apply(
            &up,
            &json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": name},
                "spec": {"source": {"sandbox": sandbox, "uid": uid}, "content": "Full"}}),
        );
        let path = "jsonpath={.status.conditions[0].reason}:{.status.conditions[0].message}";
        let said =
            up.eventually(&format!("get sandboxsnapshot {name} -o {path}"), |said| said.starts_with(reason));
        assert!(said.contains(words), "{name}: {said}");
    }
    up.ok("exec n -- true");
    let mut from = native.clone();
    from["metadata"] = json!({"name": "f", "annotations": {"hutch.dev/restore-from": "memory"}});
    apply(&up, &from);
    up.eventually("get events -o json", |events| {
        events.contains("RestoreFailed") && events.contains("is not complete")
    });
    assert_eq!(up.ok("get pod f -o jsonpath={.status.phase}"), "Pending");
    // An empty name restores nothing, also on a Pod without a Sandbox.
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"hutch.dev/restore-from": ""}},
        "spec": native["spec"]["podTemplate"]["spec"]});
    apply(&up, &pod);
    up.ok("wait --for=condition=Ready pod/p --timeout=60s");
}

#[test]
fn fork_makes_sandboxes_with_the_memory_of_a_running_one() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = Up::start(&[]);
    let hook = serde_json::to_string(&get("/renew")).expect("JSON");
    apply(&up, &sandbox("s", json!({"hutch.dev/after-restore": hook, "hutch.dev/suspend-keeps": "memory"})));
    ready(&up, "s");
    up.ok_args(&["exec", "s", "--", "sh", "-c", "echo of the source > /opt/file"]);
    let of_source = random(&up, "s");
    fork(&up, &["s", "-n", "3", "--name", "f"]);
    let mut seen = vec![of_source];
    for name in ["f-0", "f-1", "f-2"] {
        assert_eq!(up.ok(&format!("exec {name} -- cat /opt/file /starts")), "of the source\nx\n");
        assert_eq!(up.ok(&format!("exec {name} -- hostname")), format!("{name}\n"));
        let numbers = random(&up, name);
        for other in &seen {
            for (one, other) in numbers.split_whitespace().zip(other.split_whitespace()) {
                assert_ne!(one, other, "{name}");
            }
        }
        seen.push(numbers);
    }
    // A fork lives by itself: it is suspended with its own memory, and stays when the fork goes.
    up.ok_args(&["exec", "f-1", "--", "sh", "-c", "echo own > /opt/file"]);
    suspend(&up, "f-1");
    resume(&up, "f-1");
    assert_eq!(up.ok("exec f-1 -- cat /opt/file"), "own\n");
    up.ok("delete sandboxfork f");
    up.eventually("get sandboxsnapshots -o name", |names| !names.contains("/f"));
    assert_eq!(up.ok("exec f-1 -- cat /opt/file"), "own\n");
}

#[test]
fn runtime_is_forked_without_annotations_while_it_runs_no_other_program() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = Up::start(&[]);
    let mut runtime = sandbox("s", json!({}));
    let container = &mut runtime["spec"]["podTemplate"]["spec"]["containers"][0];
    *container = json!({"name": "main", "image": "hutch/python-runtime",
        "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1, "failureThreshold": 1}});
    apply(&up, &runtime);
    ready(&up, "s");
    up.ok_args(&["exec", "s", "--", "sh", "-c", "echo of the source > /app/file"]);
    fork(&up, &["s", "-n", "2", "--name", "f"]);
    for name in ["f-0", "f-1"] {
        assert_eq!(up.ok(&format!("exec {name} -- cat /app/file")), "of the source\n");
    }
    // The control: a program that could have a generator. One that `kubectl exec` has started is not in the copy.
    let script = "import json, urllib.request as u\n\
        body = json.dumps({'command': \"sh -c 'setsid sleep 1000 > /dev/null 2>&1 &'\"}).encode()\n\
        headers = {'content-type': 'application/json'}\n\
        print(u.urlopen(u.Request('http://127.0.0.1:8888/execute', data=body, headers=headers)).read().decode())";
    let started = up.ok_args(&["exec", "s", "--", "python3", "-c", script]);
    assert!(started.contains("\"exit_code\":0"), "{started}");
    let forked = hutch(&up, &["fork", "s", "--name", "g", "--wait", "60s"]);
    assert!(!forked.status.success());
    let events = up.ok("get events --field-selector reason=RestoreFailed -o jsonpath={.items[*].message}");
    assert!(
        events.contains("random numbers of these processes would repeat: ") && events.contains("(sleep)"),
        "{events}"
    );
    assert!(events.contains("hutch/python-runtime without annotation hutch.dev/after-restore"), "{events}");
}

#[test]
fn pool_is_filled_from_a_snapshot_and_a_sandbox_returns_to_one() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = Up::start(&[]);
    apply(&up, &sandbox("s", json!({"hutch.dev/shares-generators": "true"})));
    ready(&up, "s");
    up.ok_args(&["exec", "s", "--", "sh", "-c", "echo warm > /opt/file"]);
    snapshot(&up, "warm", "s", "Full");
    let of_snapshot = random(&up, "s");

    // The memory of the snapshot, in a Sandbox that a claim gets from a pool.
    let mut spec = sandbox("any", json!({}))["spec"].clone();
    spec["podTemplate"]["metadata"] =
        json!({"annotations": {"hutch.dev/restore-from": "warm", "hutch.dev/shares-generators": "true"}});
    let group = "extensions.agents.x-k8s.io/v1beta1";
    for object in [
        json!({"apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": "t"}, "spec": spec}),
        json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "p"},
            "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}}),
    ] {
        apply(&up, &object);
    }
    up.eventually("get sandboxwarmpool p -o jsonpath={.status.readyReplicas}", |ready| ready == "1");
    let claim = json!({"apiVersion": group, "kind": "SandboxClaim", "metadata": {"name": "c"},
        "spec": {"warmPoolRef": {"name": "p"}}});
    apply(&up, &claim);
    up.ok("wait --for=condition=Ready sandboxclaim/c --timeout=120s");
    let name = up.ok("get sandboxclaim c -o jsonpath={.status.sandbox.name}");
    assert_eq!(random(&up, &name), of_snapshot);

    // The Sandbox itself, with what came later undone.
    up.ok_args(&["exec", "s", "--", "sh", "-c", "echo later > /opt/file"]);
    assert_ne!(random(&up, "s"), of_snapshot);
    let before = up.ok("get pod s -o jsonpath={.metadata.uid}");
    up.ok("annotate sandbox s hutch.dev/restore-from=warm");
    up.ok("delete pod s");
    up.eventually("get pod s -o jsonpath={.metadata.uid}", |uid| !uid.is_empty() && uid != before);
    up.ok("wait --for=condition=PodRestored pod/s --timeout=120s");
    ready(&up, "s");
    assert_eq!(up.ok("exec s -- cat /opt/file"), "warm\n");
    assert_eq!(random(&up, "s"), of_snapshot);

    let audited = "container main started (from snapshot warm)";
    crate::audited::eventually(&up, &["list", "--kind", "lifecycle", "--sandbox", "s"], audited);

    // A container that begins without it later says so, for the Pod and for the Sandbox.
    let anew = "get events --field-selector reason=StartedAnew,involvedObject.name=s -o jsonpath={.items[*].involvedObject.kind}{.items[*].message}";
    assert_eq!(up.ok(anew), "");
    up.kill();
    up.restart();
    ready(&up, "s");
    let events = up.eventually(anew, |events| events.matches(r#"of snapshot "warm""#).count() == 2);
    assert!(events.contains("Pod") && events.contains("Sandbox"), "{events}");
}
