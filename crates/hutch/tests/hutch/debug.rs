//! `kubectl debug`: ephemeral containers in a Pod that runs, copies of Pods, and what it requests of a node.

use serde_json::{Value, json};

use crate::client_commands::terminal::Screen;
use crate::harness::{Up, succeeded, text};
use crate::policies::applied;

/// A Pod with a server on port 8000, whose page is in a volume.
fn server(name: &str, class: &str) -> Value {
    let script = "echo page > /srv/index.html; exec python3 -m http.server --directory /srv 8000";
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "runtimeClassName": class, "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "srv", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "srv", "mountPath": "/srv"}],
            "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}],
    }})
}

fn started(class: &str) -> Up {
    let up = Up::start(&[]);
    applied(&up, &server("web", class));
    up.ok("wait --for=condition=Ready pod/web --timeout=180s");
    up
}

/// A field of the status of an ephemeral container, once it holds.
#[track_caller]
fn status(up: &Up, container: &str, field: &str, holds: impl Fn(&str) -> bool) -> String {
    let path = format!("jsonpath={{.status.ephemeralContainerStatuses[?(@.name==\"{container}\")].{field}}}");
    up.eventually(&format!("get pod web -o {path}"), holds)
}

fn attached(class: &str) {
    let mut up = started(class);
    let words = ["debug", "-it", "web", "--image=hutch/host", "--target=c", "--container=first", "--", "sh"];
    let mut screen = Screen::of(&up, "kubectl", &words);
    screen.shows("the processes of container \"c\" are not visible");
    screen.shows("traces others (SYS_PTRACE)");
    let get = "curl -s -w '<%{http_code}>' localhost:8000\r";
    // What is typed before the client is attached is read by nothing.
    hutch_testkit::wait::until("an answer on the screen", || {
        screen.types(get);
        std::thread::sleep(std::time::Duration::from_millis(300));
        screen.text().contains("<200>")
    });
    screen.types("cat /proc/[0-9]*/comm | sort | tr '\\n' ' '; echo listed\r");
    screen.shows(" listed");
    assert!(!screen.text().contains("python3"), "{}", screen.text());
    screen.types("exit 7\r");
    screen.ends();
    status(&up, "first", "state.terminated.exitCode", |code| code == "7");
    assert!(up.ok("logs web -c first").contains("<200>"));
    let of_pod = "get pod web -o jsonpath={.status.phase},{.status.containerStatuses[0].restartCount}";
    assert_eq!(up.ok(of_pod), "Running,0");
    up.ok("wait --for=condition=Ready pod/web --timeout=60s");

    // Another one, to which no client attaches, with a volume of the Pod.
    let containers = json!({"spec": {"ephemeralContainers": [{"name": "second", "image": "hutch/host",
        "command": ["sleep", "1000"], "volumeMounts": [{"name": "srv", "mountPath": "/mnt", "readOnly": true}]}]}});
    let patch = containers.to_string();
    up.ok_args(&[
        "patch",
        "pod",
        "web",
        "--subresource=ephemeralcontainers",
        "--type=strategic",
        "-p",
        &patch,
    ]);
    status(&up, "second", "state.running.startedAt", |at| !at.is_empty());
    let exec = |script: &str| up.ok_args(&["exec", "web", "-c", "second", "--", "sh", "-c", script]);
    assert_eq!(exec("cat /mnt/index.html; curl -s localhost:8000"), "page\npage\n");
    let events = up.ok("get events -o jsonpath={range.items[*]}{.involvedObject.fieldPath}:{.reason},{end}");
    for event in ["{first}:Created", "{first}:Started", "{second}:Started"] {
        assert!(events.contains(&format!("spec.ephemeralContainers{event}")), "{event}: {events}");
    }

    // After a crash of the node the container of the spec starts again, and these do not.
    up.kill();
    up.restart();
    status(&up, "second", "state.terminated.reason", |reason| reason == "ContainerStatusUnknown");
    up.ok("wait --for=condition=Ready pod/web --timeout=180s");
    up.eventually(of_pod, |printed| printed == "Running,1");
    status(&up, "first", "state.terminated.exitCode", |code| code == "7");
    status(&up, "second", "restartCount", |count| count == "0");
    assert!(up.ok("logs web -c first").contains("<200>"));
    up.ok("delete pod web --timeout=60s");
}

#[test]
fn debug_container_shares_the_network_and_volumes_of_its_pod_and_never_restarts() {
    hutch_testkit::require!(root, kubectl);
    attached("hutch");
}

#[test]
fn debug_container_runs_in_gvisor() {
    hutch_testkit::require!(root, kubectl, runsc);
    attached("gvisor");
}

#[test]
fn ephemeral_containers_are_added_and_never_changed() {
    hutch_testkit::require!(root, kubectl);
    let up = started("hutch");
    up.ok("debug web --image=hutch/host --container=e --profile=legacy -- sleep 1000");
    let patched = |kind: &str, patch: Value| {
        let patch = patch.to_string();
        let words = ["patch", "pod", "web", "--subresource=ephemeralcontainers", "-p", &patch, kind];
        text(&up.kubectl_args(&words).stderr)
    };
    let of = |fields: Value| json!({"spec": {"ephemeralContainers": [fields]}});
    for (kind, patch, message) in [
        (
            "--type=strategic",
            of(json!({"name": "e", "image": "other"})),
            "existing ephemeral containers \"e\" may not be changed",
        ),
        (
            "--type=merge",
            of(json!({"name": "f", "image": "i"})),
            "existing ephemeral containers \"e\" may not be removed",
        ),
        (
            "--type=json",
            json!([{"op": "remove", "path": "/spec/ephemeralContainers"}]),
            "existing ephemeral containers \"e\" may not be removed",
        ),
        (
            "--type=strategic",
            of(json!({"name": "c", "image": "i"})),
            "spec.ephemeralContainers[0].name: Duplicate value: \"c\"",
        ),
        (
            "--type=strategic",
            of(json!({"name": "f", "image": "i", "ports": [{"containerPort": 80}]})),
            "ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            "--type=strategic",
            of(json!({"name": "f", "image": "i", "targetContainerName": "x"})),
            "targetContainerName: Not found: \"x\"",
        ),
    ] {
        let printed = patched(kind, patch.clone());
        assert!(printed.contains(message), "{kind} {patch}: {printed}");
    }
    // The object itself does not change them, and keeps them when something else of it changes.
    let image = r#"{"spec":{"ephemeralContainers":[{"name":"f","image":"i"}]}}"#;
    let refused = up.kubectl_args(&["patch", "pod", "web", "-p", image]);
    assert!(text(&refused.stderr).contains("pod updates may not change fields other than"), "{refused:?}");
    up.ok_args(&["patch", "pod", "web", "-p", r#"{"spec":{"activeDeadlineSeconds":100000}}"#]);
    let path = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
    let read: Value = serde_json::from_str(&up.ok_args(&["get", "--raw", path])).expect("JSON");
    assert_eq!(read["spec"]["ephemeralContainers"][0]["name"], "e");
    assert_eq!(read["kind"], "Pod");
    // A whole object, of which only these containers count.
    let file = up.folder().join("whole.json");
    let mut whole = read;
    // The node writes the status meanwhile.
    whole["metadata"]["resourceVersion"] = Value::Null;
    whole["spec"]["containers"][0]["image"] = "ignored".into();
    let added = json!({"name": "g", "image": "hutch/host", "command": ["true"]});
    whole["spec"]["ephemeralContainers"].as_array_mut().expect("a list").push(added);
    std::fs::write(&file, whole.to_string()).expect("written");
    let file = file.display().to_string();
    up.ok_args(&["replace", "--raw", path, "-f", &file]);
    status(&up, "g", "state.terminated.reason", |reason| reason == "Completed");
    assert_eq!(up.ok("get pod web -o jsonpath={.spec.containers[0].image}"), "hutch/host");
}

#[test]
fn debug_container_with_rights_of_the_machine_is_refused_by_name() {
    hutch_testkit::require!(root, kubectl);
    let up = started("hutch");
    let refusal = |words: &str| {
        let output = up.kubectl(words);
        assert!(!output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    let strong = refusal("debug web --image=hutch/host --container=strong --profile=sysadmin -- sleep 1000");
    let why = "spec.ephemeralContainers[0].securityContext.privileged: Forbidden: is not supported";
    assert!(strong.contains(why), "{strong}");
    up.ok("wait --for=condition=Ready pod/web --timeout=60s");
    let node = up.ok("get nodes -o jsonpath={.items[0].metadata.name}");
    let on_node = refusal(&format!("debug node/{node} --image=hutch/host -- sleep 1000"));
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(on_node.contains(&format!("spec.{field}: Forbidden: is not supported")), "{on_node}");
    }
    assert_eq!(up.ok("get pods -o name"), "pod/web\n");
}

#[test]
fn copy_of_a_pod_runs_with_a_debug_container() {
    hutch_testkit::require!(root, kubectl);
    let up = started("hutch");
    let words = "debug web --copy-to=copy --image=hutch/host --container=extra -- sleep 1000";
    let output = up.kubectl(words);
    succeeded(words, &output);
    let warned = text(&output.stderr);
    assert!(warned.contains("Warning: spec.shareProcessNamespace: has no effect"), "{warned}");
    up.ok("wait --for=condition=Ready pod/copy --timeout=180s");
    // The copy has no probe, so its server may not listen yet.
    let curl = ["curl", "-s", "--retry", "60", "--retry-delay", "1", "--retry-connrefused", "localhost:8000"];
    assert_eq!(up.ok_args(&[&["exec", "copy", "-c", "extra", "--"], &curl[..]].concat()), "page\n");
}
