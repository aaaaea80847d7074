//! Termination messages: what containers write at `terminationMessagePath` is in their status.

use serde_json::{Value, json};

use crate::harness::{Up, succeeded, text};
use crate::policies::apply;

/// Starts a Pod whose container runs a script once; the message of its status.
fn message(up: &Up, class: &str, name: &str, script: &str, container: Value) -> String {
    let mut whole = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "work", "mountPath": "/work"}]});
    whole.as_object_mut().expect("fields").extend(container.as_object().expect("fields").clone());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "runtimeClassName": class, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "work", "emptyDir": {}}], "containers": [whole]}});
    let output = apply(up, &pod);
    succeeded("kubectl apply", &output);
    assert_eq!(text(&output.stderr), "", "{name}");
    let ended = "jsonpath={.status.containerStatuses[0].state.terminated}";
    let printed = up.eventually(&format!("get pod {name} -o {ended}"), |printed| !printed.is_empty());
    let ended: Value = serde_json::from_str(&printed).expect("JSON");
    up.ok(&format!("delete pod {name} --wait=false"));
    ended["message"].as_str().unwrap_or_default().to_owned()
}

/// Code of an earlier container chose where the path leads.
fn link_on_the_way(up: &Up, class: &str) {
    let mount = json!([{"name": "work", "mountPath": "/work"}]);
    let image = "hutch/host";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "way"}, "spec": {
        "runtimeClassName": class, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "work", "emptyDir": {}}],
        "initContainers": [{"name": "i", "image": image, "command": ["ln", "-s", "/etc", "/work/way"], "volumeMounts": mount}],
        "containers": [{"name": "c", "image": image, "command": ["true"], "volumeMounts": mount,
            "terminationMessagePath": "/work/way/hostname"}]}});
    succeeded("kubectl apply", &apply(up, &pod));
    let ended = "jsonpath={.status.containerStatuses[0].state.terminated.reason}";
    assert_eq!(up.eventually(&format!("get pod way -o {ended}"), |reason| !reason.is_empty()), "StartError");
}

fn all(class: &str) {
    let up = Up::start(&[]);
    link_on_the_way(&up, class);
    let get = |name: &str, script: &str, container: Value| message(&up, class, name, script, container);
    let usual = "echo done > /dev/termination-log";
    assert_eq!(get("usual", usual, json!({})), "done\n");
    assert_eq!(get("silent", "true", json!({})), "");
    let locked = json!({"securityContext": {"runAsUser": 65532, "readOnlyRootFilesystem": true}});
    assert_eq!(get("locked", usual, locked), "done\n");
    let long = "head -c 10000 /dev/zero | tr '\\0' x > /dev/termination-log; echo end >> /dev/termination-log; exit 3";
    let printed = get("long", long, json!({}));
    assert_eq!((printed.len(), printed.ends_with("xxend\n")), (4096, true), "{}", printed.len());

    let at = |path: &str| json!({ "terminationMessagePath": path });
    assert_eq!(get("own", "echo mine > /tmp/why; echo no > /dev/null", at("/tmp/why")), "mine\n");
    assert_eq!(get("volume", "echo mine > /work/why", at("/work/why")), "mine\n");
    // A link in the place of the file, or on the way to it, is not followed outside.
    let link =
        "echo mine > /work/why; rm -f /work/why; ln -sf /etc/passwd /work/why; mv /work /elsewhere; true";
    assert_eq!(get("link", link, at("/work/why")), "mine\n");

    let fallback = |script: &str| {
        let script = format!("echo printed; {script} exit 3");
        get("fallback", &script, json!({"terminationMessagePolicy": "FallbackToLogsOnError"}))
    };
    assert_eq!(fallback(""), "printed\n");
    up.ok("wait --for=delete pod/fallback --timeout=60s");
    assert_eq!(fallback("echo written > /dev/termination-log;"), "written\n");
}

#[test]
fn termination_message_is_what_the_container_wrote() {
    hutch_testkit::require!(root, kubectl);
    all("hutch");
}

#[test]
fn termination_message_of_gvisor_is_what_the_container_wrote() {
    hutch_testkit::require!(root, kubectl, runsc);
    all("gvisor");
}

#[test]
fn path_of_the_message_is_refused_where_nothing_can_be_mounted() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "hutch/host", "command": ["true"], "terminationMessagePath": "/proc/self/environ"}]}});
    succeeded("kubectl apply", &apply(&up, &pod));
    up.eventually("get events", |events| {
        events.contains("terminationMessagePath \"/proc/self/environ\" is at or below /proc")
    });
}
