//! `spec.files` of policies on `hutch up`: what they close is closed in every container of a Pod, whatever leads to it.

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{self, Up};
use crate::policies::{self, Server, applied, apply, enforced};
use crate::policy_commands::explained;

/// Runs in containers that have the volume at `/work` and another one within it. Prints `SECRET` or what it did where a rule
/// does not hold, and the last four lines.
const ATTEMPTS: &str = "mkdir -p /tmp; ln -sf /work/secret/key /tmp/link; \
    cat /work/secret/key /work/secret/deep/key /work/inner/key /tmp/link /proc/self/root/work/secret/key /again/secret/key; \
    cd /work/out; cat ../secret/key; find /work/secret /usr/share -mindepth 1; \
    for file in /work/new /work/docs/a /work/src/new /work/inner/new /work/secret/new /again/docs/a /opt/later; do \
        (echo x > $file) && echo written $file; done; \
    for path in /work/docs /work/secret /work/inner /opt/later /opt; do mv $path /tmp/moved && echo moved $path; done; \
    rm -rf /work/docs /work/secret /opt; mkdir /opt/later && echo made; \
    cat /work/docs/a /work/inner/file; echo y > /work/out/file; cat /work/out/file; echo z > /tmp/z; cat /tmp/z";
const WORKS: &str = "PLAIN\nPLAIN\ny\nz\n";

fn policy(kind: &str, name: &str, files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> =
        files.iter().map(|(path, access)| json!({"path": path, "access": access})).collect();
    json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": {"appliesTo": {}, "files": files}})
}

/// A Sandbox whose first container fills a volume, at paths that no rule names.
fn sandbox(name: &str, class: &str) -> Value {
    let fill = "cd /fill; mkdir -p secret/deep docs out src; echo SECRET | tee secret/key secret/deep/key; \
        echo PLAIN | tee docs/a src/a; echo SECRET > /fill-inner/key; echo PLAIN > /fill-inner/file";
    let shell = |script: &str| json!(["sh", "-c", script]);
    let mount = |volume: &str, path: &str| json!({"name": volume, "mountPath": path});
    let mounts = json!([mount("work", "/work"), mount("inner", "/work/inner"), mount("work", "/again")]);
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
    "spec": {"podTemplate": {"spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "inner", "emptyDir": {}}],
        "initContainers": [
            {"name": "fill", "image": "hutch/host", "command": shell(fill),
                "volumeMounts": [mount("work", "/fill"), mount("inner", "/fill-inner")]},
            {"name": "first", "image": "hutch/host", "command": shell(&format!("exec 2>/dev/null; {ATTEMPTS}")),
                "volumeMounts": mounts},
        ],
        "containers": [
            {"name": "main", "image": "hutch/host", "volumeMounts": mounts,
                "command": shell("while [ ! -e /run/end ]; do sleep 0.1; done; exit 1")},
            {"name": "runtime", "image": "hutch/python-runtime", "volumeMounts": mounts,
                "env": [{"name": "SANDBOX_BASE_DIR", "value": "/work"}]},
        ]}}}})
}

/// Handlers of this machine.
fn classes() -> Vec<&'static str> {
    match hutch_testkit::Need::Runsc.missing() {
        None => vec!["hutch", "gvisor"],
        Some(reason) => {
            hutch_testkit::note_skip("rules for files in gVisor", reason);
            vec!["hutch"]
        }
    }
}

fn shell(up: &Up, pod: &str, container: &str, script: &str) -> String {
    let script = format!("exec 2>/dev/null; {script}; true");
    up.ok_args(&["exec", pod, "-c", container, "--", "sh", "-c", &script])
}

fn message(up: &Up, sandbox: &str) -> String {
    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}";
    up.ok_args(&["get", "sandbox", sandbox, "-o", path])
}

#[test]
fn closed_files_stay_closed_in_every_container_and_on_every_way() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let floor = [
        ("/work/secret", "None"),
        ("/work/inner/key", "None"),
        ("/usr/share", "None"),
        ("/opt/later", "None"),
    ];
    let more = [("/work", "Read"), ("/work/out", "Write"), ("/work/secret", "Write")];
    for class in classes() {
        // Applied right before the Sandbox: its Pod must not be faster.
        applied(&up, &policy("ClusterSandboxPolicy", "floor", &floor));
        applied(&up, &policy("SandboxPolicy", "more", &more));
        applied(&up, &sandbox(class, class));
        up.ok(&format!("wait --for=condition=Ready sandbox/{class} --timeout=180s"));
        enforced(&up, class, "Enforced");
        let closed = message(&up, class);
        assert!(closed.contains("/work/secret (None)") && closed.contains("/work (Read)"), "{closed}");
        assert_eq!(up.ok(&format!("logs {class} -c first")), WORKS, "{class}: in an init container");
        for container in ["main", "runtime"] {
            assert_eq!(shell(&up, class, container, ATTEMPTS), WORKS, "{class}: {container}");
        }
        api_of_the_runtime(&up, class);
        up.ok_args(&["exec", class, "-c", "main", "--", "touch", "/run/end"]);
        let restarts = "jsonpath={.status.containerStatuses[?(@.name==\"main\")]['restartCount','ready']}";
        up.eventually(&format!("get pod {class} -o {restarts}"), |found| found.trim() == "1 true");
        assert_eq!(shell(&up, class, "main", ATTEMPTS), WORKS, "{class}: after a restart");

        // A Pod without policies can do all of it.
        for (kind, name) in [("SandboxPolicy", "more"), ("ClusterSandboxPolicy", "floor")] {
            up.ok(&format!("delete {kind} {name}"));
        }
        enforced(&up, class, "NoPolicy");
        assert!(message(&up, class).contains("/work/secret (None)"), "the Pod keeps its rules");
        assert_eq!(shell(&up, class, "main", ATTEMPTS), WORKS, "{class}: without the policies");
        recreated(&up, class);
        let found = up.ok(&format!("logs {class} -c first"));
        for done in ["SECRET", "written /work/docs/a", "moved /work/secret", "written /opt/later"] {
            assert!(found.contains(done), "{class}: {done} is possible without rules");
        }
        up.ok(&format!("delete sandbox {class}"));
    }
}

/// Deletes the Pod of a Sandbox and waits for the next one.
fn recreated(up: &Up, sandbox: &str) {
    let uid = format!("get pod {sandbox} -o jsonpath={{.metadata.uid}}");
    let before = up.ok(&uid);
    up.ok(&format!("delete pod {sandbox}"));
    up.eventually(&format!("{uid} --ignore-not-found"), |found| !found.is_empty() && found != before);
    up.ok(&format!("wait --for=condition=Ready pod/{sandbox} --timeout=180s"));
}

/// The API for files of the runtime, which is a process of the container.
fn api_of_the_runtime(up: &Up, pod: &str) {
    let status = |method: &str, path: &str| {
        let script = format!(
            "curl -s -o /dev/null -w '%{{http_code}}' -X {method} --data-binary x http://127.0.0.1:8080/v1/files/{path}"
        );
        shell(up, pod, "runtime", &script)
    };
    assert_eq!(status("GET", "docs/a"), "200");
    assert_eq!(status("PUT", "out/of-api"), "204");
    assert_eq!(status("GET", "secret/key"), "404");
    for path in ["docs/a", "docs/new", "secret/key", "inner/new"] {
        let status = status("PUT", path);
        assert!(status.starts_with(['4', '5']), "{pod}: {path}: {status}");
    }
    let key = shell(up, pod, "runtime", "curl -s http://127.0.0.1:8080/v1/files/inner/key");
    assert!(!key.contains("SECRET"), "{pod}: {key}");
}

#[test]
fn rule_that_comes_after_the_start_is_reported_and_closes_the_network() {
    hutch_testkit::require!(root, kubectl);
    let (mut up, server) = (policies::start(), Server::start());
    let rules = json!([policies::rule("web.example", &server)]);
    applied(&up, &policies::policy("ClusterSandboxPolicy", "web", &json!({}), &rules));
    let answer = |up: &Up| policies::get(up, "a", "web.example", &server);
    applied(&up, &policy("SandboxPolicy", "first", &[("/work/secret", "None")]));
    applied(&up, &sandbox("a", "hutch"));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced(&up, "a", "Enforced");
    until("the network is open", || answer(&up) == "hello");
    // What is stricter already needs nothing.
    applied(&up, &policy("SandboxPolicy", "second", &[("/work/secret/key", "Read")]));
    up.eventually(
        "get sandbox a -o jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")].message}",
        |text| text.contains("second"),
    );
    enforced(&up, "a", "Enforced");
    applied(&up, &policy("SandboxPolicy", "second", &[("/work/src", "None"), ("/usr/share", "Read")]));
    enforced(&up, "a", "PolicyNotEnforceable");
    let found = explained(&up, 1, &["a", "pypi.org"]);
    assert!(found.contains("not enforceable") && found.contains("recreate the Pod"), "{found}");
    let text = message(&up, "a");
    for part in ["\"second\"", "/usr/share, /work/src", "recreate the Pod"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(shell(&up, "a", "main", "cat /work/src/a"), "PLAIN\n", "as before");
    until("the network is closed", || answer(&up).is_empty());
    recreated(&up, "a");
    enforced(&up, "a", "Enforced");
    assert_eq!(shell(&up, "a", "main", "cat /work/src/a; ls -A /work/src"), "");
    until("the network is open again", || answer(&up) == "hello");
    up.kill();
    up.restart();
    // The Pod may still be Ready by what was stored before.
    until("the container runs", || {
        up.kubectl_args(&["exec", "a", "-c", "main", "--", "true"]).status.success()
    });
    enforced(&up, "a", "Enforced");
    assert_eq!(
        shell(&up, "a", "main", "cat /work/src/a /work/secret/key"),
        "",
        "after a crash of the server"
    );
    // The other way round nothing is to be done.
    applied(&up, &policy("SandboxPolicy", "second", &[("/usr/share", "Read")]));
    up.ok("delete sandboxpolicy first");
    enforced(&up, "a", "Enforced");
}

#[test]
fn rule_that_comes_after_the_start_leaves_the_network_open_if_it_is_to_be_reported() {
    hutch_testkit::require!(root, kubectl);
    let (up, server) = (policies::start(), Server::start());
    let rules = json!([policies::rule("web.example", &server)]);
    applied(&up, &policies::policy("ClusterSandboxPolicy", "web", &json!({}), &rules));
    let answer = || policies::get(&up, "a", "web.example", &server);
    applied(&up, &sandbox("a", "hutch"));
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    until("the network is open", || answer() == "hello");
    let reported = |name: &str, path: &str| {
        let mut found = policy("SandboxPolicy", name, &[(path, "None")]);
        found["spec"]["onUnsupported"] = "Report".into();
        found
    };
    applied(&up, &reported("late", "/work/src"));
    enforced(&up, "a", "PartlyEnforced");
    let text = message(&up, "a");
    for part in ["\"late\"", "/work/src", "recreate the Pod", "web"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(answer(), "hello");
    let found = explained(&up, 0, &["a", &format!("web.example:{}", server.port)]);
    assert!(!found.contains("not enforceable"), "{found}");
    // Another policy that closes as much without reporting it.
    applied(&up, &policy("SandboxPolicy", "needed", &[("/work/src/a", "Read")]));
    enforced(&up, "a", "PolicyNotEnforceable");
    until("the network is closed", || answer().is_empty());
    up.ok("delete sandboxpolicy needed");
    enforced(&up, "a", "PartlyEnforced");
    until("the network is open again", || answer() == "hello");
    recreated(&up, "a");
    enforced(&up, "a", "Enforced");
    assert_eq!(shell(&up, "a", "main", "ls -A /work/src"), "");
}

#[test]
fn rule_that_cannot_be_enforced_keeps_the_container_from_starting_until_it_is_changed() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for class in classes() {
        applied(&up, &policy("SandboxPolicy", "files", &[("/usr/share", "Read"), ("/etc/hosts/x", "None")]));
        applied(&up, &sandbox(class, class));
        let named = "policy \"files\": spec.files[1].path: /etc/hosts/x";
        up.eventually("get events", |events| events.contains(named) && events.contains("is not a folder"));
        enforced(&up, class, "PolicyNotEnforceable");
        assert!(message(&up, class).contains(named), "{class}");
        if class == "gvisor" {
            // An empty one is memory of runsc, which can be written.
            applied(&up, &policy("SandboxPolicy", "files", &[("/tmp", "None")]));
            up.eventually("get events", |events| events.contains("/tmp cannot be closed as a whole"));
        }
        applied(&up, &policy("SandboxPolicy", "files", &[("/usr/share", "Read")]));
        up.ok(&format!("wait --for=condition=Ready sandbox/{class} --timeout=180s"));
        enforced(&up, class, "Enforced");
        up.ok(&format!("delete sandbox {class}"));
    }
}

#[test]
fn volume_that_is_not_refreshed_beside_closed_files_is_reported() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    up.ok("create configmap settings --from-literal=key=1");
    applied(&up, &policy("SandboxPolicy", "files", &[("/settings/key", "None"), ("/usr/share", "Read")]));
    let mut sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "a"},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0}}}});
    sandbox["spec"]["podTemplate"]["spec"]["containers"] = json!([{"name": "main", "image": "hutch/host",
        "command": ["sleep", "1000"], "volumeMounts": [{"name": "v", "mountPath": "/settings"}]}]);
    sandbox["spec"]["podTemplate"]["spec"]["volumes"] =
        json!([{"name": "v", "configMap": {"name": "settings"}}]);
    applied(&up, &sandbox);
    up.ok("wait --for=condition=Ready sandbox/a --timeout=180s");
    enforced(&up, "a", "Enforced");
    up.ok_args(&["patch", "configmap", "settings", "-p", r#"{"data": {"key": "SECRET"}}"#]);
    let events = "get events --field-selector reason=VolumeNotRefreshed -o jsonpath={.items[*].message}";
    let message = up.eventually(events, |messages| !messages.is_empty());
    assert!(message.contains("volume \"v\"") && message.contains("/settings/key (None)"), "{message}");
    assert_eq!(shell(&up, "a", "main", "cat /settings/key"), "");
}

#[test]
fn pooled_sandbox_has_the_files_of_its_template_closed() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let mut named = policy("SandboxPolicy", "named", &[("/usr/share", "None")]);
    named["spec"].as_object_mut().expect("a spec").remove("appliesTo");
    applied(&up, &named);
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "main", "image": "hutch/host", "command": ["sleep", "1000"]},
    ]}});
    applied(
        &up,
        &json!({"apiVersion": group, "kind": "SandboxTemplate",
            "metadata": {"name": "python", "annotations": {"policy.hutch.dev/policies": "named"}},
            "spec": {"podTemplate": pod}}),
    );
    applied(
        &up,
        &json!({"apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": "pool"},
            "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "python"}}}),
    );
    up.eventually("get sandboxwarmpool pool -o jsonpath={.status.readyReplicas}", |ready| {
        ready.trim() == "1"
    });
    applied(
        &up,
        &json!({"apiVersion": group, "kind": "SandboxClaim", "metadata": {"name": "mine"},
            "spec": {"warmPoolRef": {"name": "pool"}}}),
    );
    up.ok("wait --for=condition=Ready sandboxclaim/mine --timeout=180s");
    let sandbox = up.ok("get sandboxclaim mine -o jsonpath={.status.sandbox.name}");
    let launch = "jsonpath={.metadata.labels.agents\\.x-k8s\\.io/launch-type}";
    assert_eq!(up.ok(&format!("get sandbox {sandbox} -o {launch}")), "warm");
    enforced(&up, &sandbox, "Enforced");
    assert_eq!(shell(&up, &sandbox, "main", "ls -A /usr/share; ls -d /usr/bin"), "/usr/bin\n");
    let mut late = policy("SandboxPolicy", "late", &[("/srv", "Read")]);
    late["spec"]["appliesTo"] = json!({"sandboxes": [sandbox]});
    applied(&up, &late);
    enforced(&up, &sandbox, "PolicyNotEnforceable");
}

#[test]
fn path_that_a_server_cannot_close_is_refused_by_its_field() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for (path, reason) in [
        ("/proc/self", "spec.files[0].path"),
        ("/dev/shm", "spec.files[0].path"),
        ("/.hutch/env", "spec.files[0].path"),
        ("work", "spec.files[0].path"),
        ("/work/../etc", "spec.files[0].path"),
        ("/work/", "spec.files[0].path"),
    ] {
        let output = apply(&up, &policy("SandboxPolicy", "p", &[(path, "None")]));
        let stderr = harness::text(&output.stderr);
        assert!(!output.status.success() && stderr.contains(reason), "{path}: {stderr}");
    }
    let twice = apply(&up, &policy("SandboxPolicy", "p", &[("/a", "None"), ("/a", "Read")]));
    assert!(!twice.status.success(), "{twice:?}");
    let explained = up.ok("explain sandboxpolicy.spec.files");
    assert!(explained.contains("access") && explained.contains("cannot read or write"), "{explained}");
}
