//! Names in API objects that would become paths or lines of files on the node.

use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{Up, text};

/// `kubectl create` of an object.
fn create(up: &Up, object: &Value) -> Output {
    let file = up.folder().join("object.json");
    std::fs::write(&file, object.to_string()).expect("the object is written");
    up.kubectl_args(&["create", "-f", file.to_str().expect("a path")])
}

/// The server must refuse the object with these messages.
#[track_caller]
fn refused(up: &Up, object: &Value, messages: &[&str]) {
    let output = create(up, object);
    let printed = text(&output.stderr);
    assert!(!output.status.success(), "{object} was taken");
    for message in messages {
        assert!(printed.contains(message), "{message:?} is not in {printed:?}");
    }
}

fn pod(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

fn container(fields: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "hutch/pause"});
    container.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    container
}

fn with_volume(volume: &Value) -> Value {
    json!({"containers": [container(&json!({}))], "volumes": [volume]})
}

#[test]
fn volume_name_that_leads_out_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for name in ["..", "../../../outside", "a/b", "A", "a\nb"] {
        let volume = json!({"name": name, "emptyDir": {}});
        let field = "spec.volumes[0].name: Invalid value: ";
        refused(&up, &pod(&with_volume(&volume)), &[field, "a lowercase RFC 1123 label must consist of"]);
    }
    let volume = json!({"name": "v", "emptyDir": {}});
    let twice = json!({"containers": [container(&json!({}))], "volumes": [volume, volume]});
    refused(&up, &pod(&twice), &["spec.volumes[1].name: Duplicate value: \"v\""]);
}

#[test]
fn container_name_that_leads_out_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for name in ["..", "../../../outside", "a/b"] {
        let named = container(&json!({"name": name}));
        let message = "a lowercase RFC 1123 label must consist of";
        refused(
            &up,
            &pod(&json!({"containers": [named]})),
            &["spec.containers[0].name: Invalid value: ", message],
        );
        let spec = json!({"containers": [container(&json!({}))], "initContainers": [named]});
        refused(&up, &pod(&spec), &["spec.initContainers[0].name: Invalid value: ", message]);
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [named]}});
        let workload =
            json!({"selector": {"matchLabels": {"a": "b"}}, "template": template, "serviceName": "s"});
        for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
            let mut object =
                json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}, "spec": workload});
            if matches!(kind, "Deployment" | "ReplicaSet" | "DaemonSet") {
                object["spec"].as_object_mut().expect("an object").remove("serviceName");
            }
            refused(&up, &object, &["spec.template.spec.containers[0].name: Invalid value: ", message]);
        }
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": {"template": template}});
        refused(&up, &job, &["spec.template.spec.containers[0].name: Invalid value: ", message]);
    }
    let spec = json!({"containers": [container(&json!({}))], "initContainers": [container(&json!({}))]});
    refused(&up, &pod(&spec), &["spec.initContainers[0].name: Duplicate value: \"c\""]);
}

#[test]
fn file_of_a_volume_that_leads_out_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let items = json!([{"key": "k", "path": "../../outside"}]);
    for (volume, field) in [
        (json!({"name": "v", "configMap": {"name": "m", "items": items}}), "configMap.items[0].path"),
        (json!({"name": "v", "secret": {"secretName": "m", "items": items}}), "secret.items[0].path"),
        (
            json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "m", "items": items}}]}}),
            "projected.sources[0].configMap.items[0].path",
        ),
        (
            json!({"name": "v", "downwardAPI": {"items": [{"path": "../../outside", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            "downwardAPI.path",
        ),
    ] {
        let message =
            format!("spec.volumes[0].{field}: Invalid value: \"../../outside\": must not contain '..'");
        refused(&up, &pod(&with_volume(&volume)), &[&message]);
    }
    for list in ["containers", "initContainers"] {
        let mount = json!({"name": "v", "mountPath": "/v", "subPath": "../../outside"});
        let mut spec = with_volume(&json!({"name": "v", "emptyDir": {}}));
        spec[list] = json!([container(&json!({"name": "m", "volumeMounts": [mount]}))]);
        let message = format!(
            "spec.{list}[0].volumeMounts.subPath: Invalid value: \"../../outside\": must not contain '..'"
        );
        refused(&up, &pod(&spec), &[&message]);
    }
}

#[test]
fn key_that_is_no_file_name_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    for key in ["../../outside", "a/b", "..", ".", "..data", "a b"] {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {key: "x"}});
        let message = format!("data[{key}]: Invalid value: {key:?}: ");
        refused(&up, &map, &[&message]);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m"}, "stringData": {key: "x"}});
        refused(&up, &secret, &[&message]);
    }
    up.ok("create configmap m --from-literal=ok=x");
    let patch = json!({"data": {"../../outside": "x"}}).to_string();
    let output = up.kubectl_args(&["patch", "configmap", "m", "--type=merge", "-p", &patch]);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("a valid config key must consist of"), "{}", text(&output.stderr));
}

#[test]
fn name_that_would_be_a_line_of_etc_hosts_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let spec = |fields: Value| {
        let mut spec = json!({"containers": [container(&json!({}))]});
        spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        pod(&spec)
    };
    for (fields, message) in [
        (json!({"hostname": "a\n1.2.3.4 b"}), "spec.hostname: Invalid value: "),
        (json!({"subdomain": "../x"}), "spec.subdomain: Invalid value: "),
        (json!({"hostAliases": [{"ip": "1.2.3.4 x\n5.6.7.8"}]}), "must be a valid IP address"),
        (
            json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a\n5.6.7.8 b"]}]}),
            "spec.hostAliases[0].hostnames[0]: Invalid value: ",
        ),
        (
            json!({"securityContext": {"fsGroup": 4_294_967_296_i64}}),
            "must be between 0 and 2147483647, inclusive",
        ),
    ] {
        refused(&up, &spec(fields), &[message]);
    }
}
