use super::*;
use crate::kinds::builtin;

const NOW: &str = "2026-01-01T00:10:00Z";
const THEN: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

fn kind(name: &str) -> Kind {
    builtin().into_iter().find(|k| k.kind == name).expect("a built-in kind")
}

/// The cells of one object, as kubectl would show them with `-o wide`.
fn cells(name: &str, mut object: Value) -> String {
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = THEN.into();
    let table = render(&kind(name), [&object], Include::None, now());
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), Into::into);
    let cells: Vec<String> = table["rows"][0]["cells"].as_array().expect("cells").iter().map(text).collect();
    assert_eq!(table["columnDefinitions"].as_array().expect("columns").len(), cells.len(), "{name}");
    cells.join("|")
}

#[test]
fn every_builtin_kind_has_as_many_cells_as_columns() {
    for kind in builtin().into_iter().filter(|k| !k.is_review()) {
        cells(&kind.kind, json!({"metadata": {}}));
    }
}

#[test]
fn rows_carry_the_requested_part_of_the_object() {
    let object = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"phase": "Failed"}});
    let row = |include| render(&kind("Pod"), [&object], include, now())["rows"][0].clone();
    assert_eq!(row(Include::None)["object"], Value::Null);
    assert_eq!(row(Include::Object)["object"], object);
    let partial = row(Include::Metadata)["object"].clone();
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert_eq!(partial["metadata"], object["metadata"]);
    assert_eq!(partial.get("status"), None);
    assert_eq!(row(Include::None)["conditions"][0]["reason"], "Failed");
    assert!("Everything".parse::<Include>().is_err());
}

fn pod(containers: usize, status: Value) -> Value {
    let containers: Vec<_> = (0..containers).map(|i| json!({"name": format!("c{i}")})).collect();
    json!({"metadata": {}, "spec": {"containers": containers}, "status": status})
}

#[test]
fn pods_show_the_state_that_matters() {
    let running = json!({"name": "c0", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let ended = |reason: &str, code: i64| json!({"name": "c0", "state": {"terminated": {"reason": reason, "exitCode": code}}});
    let waiting =
        |reason: &str| json!({"name": "c0", "ready": false, "state": {"waiting": {"reason": reason}}});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let cases = [
        (1, json!({"phase": "Pending"}), "0/1|Pending|0"),
        (
            1,
            json!({"phase": "Pending", "containerStatuses": [waiting("ContainerCreating")]}),
            "0/1|ContainerCreating|0",
        ),
        (1, json!({"phase": "Running", "containerStatuses": [running]}), "1/1|Running|0"),
        (1, json!({"phase": "Failed", "reason": "Evicted"}), "0/1|Evicted|0"),
        (1, json!({"phase": "Succeeded", "containerStatuses": [ended("Completed", 0)]}), "0/1|Completed|0"),
        (1, json!({"phase": "Failed", "containerStatuses": [ended("", 3)]}), "0/1|ExitCode:3|0"),
        (
            2,
            json!({"phase": "Running", "conditions": ready, "containerStatuses": [ended("Completed", 0), running]}),
            "1/2|Running|0",
        ),
        (
            2,
            json!({"phase": "Running", "containerStatuses": [ended("Completed", 0), running]}),
            "1/2|NotReady|0",
        ),
        (
            2,
            json!({"phase": "Failed", "containerStatuses": [ended("Completed", 0), ended("Error", 1)]}),
            "0/2|Error|0",
        ),
        (
            1,
            json!({"phase": "Running", "containerStatuses": [{"restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"finishedAt": "2026-01-01T00:06:40Z"}}}]}),
            "0/1|CrashLoopBackOff|4 (3m20s ago)",
        ),
        (
            1,
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            "0/1|Init:0/0|0",
        ),
        (
            1,
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2}}}]}),
            "0/1|Init:ExitCode:2|0",
        ),
        (
            1,
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            "0/1|SchedulingGated|0",
        ),
    ];
    for (containers, status, wanted) in cases {
        let got = cells("Pod", pod(containers, status));
        assert_eq!(got, format!("x|{wanted}|10m|<none>|<none>|<none>|<none>"));
    }
    let mut going =
        pod(1, json!({"phase": "Running", "containerStatuses": [running], "podIPs": [{"ip": "10.0.0.1"}]}));
    going["metadata"]["deletionTimestamp"] = NOW.into();
    going["spec"]["nodeName"] = "hutch".into();
    assert_eq!(cells("Pod", going), "x|1/1|Terminating|0|10m|10.0.0.1|hutch|<none>|<none>");
}

#[test]
fn builtin_kinds_show_what_kubectl_shows() {
    let template =
        json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}});
    let cases = [
        (
            "Deployment",
            json!({"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "r"}}, "template": template}, "status": {"readyReplicas": 1, "updatedReplicas": 2}}),
            "x|1/2|2|0|10m|a,b|i,j|app=r",
        ),
        (
            "StatefulSet",
            json!({"spec": {"template": template}, "status": {"readyReplicas": 1}}),
            "x|1/1|10m|a,b|i,j",
        ),
        ("ReplicaSet", json!({"spec": {"replicas": 0}}), "x|0|0|0|10m|||<none>"),
        (
            "ReplicationController",
            json!({"spec": {"replicas": 2, "selector": {"app": "r"}, "template": template}, "status": {"replicas": 1}}),
            "x|2|1|0|10m|a,b|i,j|app=r",
        ),
        ("PodTemplate", json!({"template": template}), "x|a,b|i,j|<none>"),
        ("ControllerRevision", json!({"revision": 3}), "x|<none>|3|10m"),
        (
            "Ingress",
            json!({"spec": {"tls": [{}], "rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}]},
                "status": {"loadBalancer": {"ingress": [{"hostname": "a.very.long.name"}, {"ip": "10.0.0.1"}]}}}),
            "x|<none>|a,b,c + 1 more...|10.0.0.1,a.ve...|80, 443|10m",
        ),
        ("Ingress", json!({"spec": {"ingressClassName": "c"}}), "x|c|*||80|10m"),
        (
            "IngressClass",
            json!({"spec": {"controller": "a/b", "parameters": {"apiGroup": "g", "kind": "K", "name": "n"}}}),
            "x|a/b|K.g/n|10m",
        ),
        (
            "ResourceQuota",
            json!({"status": {
                "hard": {"pods": "4", "requests.cpu": "2", "limits.memory": "1Gi", "limits.cpu": "3", "cpu": "1"},
                "used": {"pods": "1", "requests.cpu": "500m", "limits.memory": "512Mi"},
            }}),
            "x|cpu: 0/1, pods: 1/4, requests.cpu: 500m/2|limits.cpu: 0/3, limits.memory: 512Mi/1Gi|10m",
        ),
        (
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "a.b/c", "username": "admin", "expirationSeconds": 864_000},
                "status": {"conditions": [{"type": "Denied"}, {"type": "Failed"}]}}),
            "x|10m|a.b/c|admin|10d|Denied,Failed",
        ),
        (
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "a.b/c", "username": "admin"},
                "status": {"conditions": [{"type": "Approved"}], "certificate": "TUlJQg=="}}),
            "x|10m|a.b/c|admin|<none>|Approved,Issued",
        ),
        (
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "a.b/c", "username": "admin", "expirationSeconds": 3661}}),
            "x|10m|a.b/c|admin|61m|Pending",
        ),
        (
            "Job",
            json!({"spec": {"completions": 1}, "status": {"startTime": THEN, "conditions": [{"type": "Complete", "status": "True"}]}}),
            "x|Complete|0/1|10m|10m|||<none>",
        ),
        ("Job", json!({"spec": {"completions": 1}, "status": {}}), "x|NotRunning|0/1||10m|||<none>"),
        (
            "CronJob",
            json!({"spec": {"schedule": "* * * * *", "suspend": false}}),
            "x|* * * * *|<none>|False|0|<none>|10m|||<none>",
        ),
        (
            "Service",
            json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 1, "nodePort": 3, "protocol": "UDP"}]}}),
            "x|ClusterIP|None|<none>|80/TCP,1:3/UDP|10m|<none>",
        ),
        (
            "Service",
            json!({"spec": {"type": "LoadBalancer", "selector": {"b": "1", "a": "2"}}}),
            "x|LoadBalancer|<none>|<pending>|<none>|10m|a=2,b=1",
        ),
        (
            "Node",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}, "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}],
                "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6", "architecture": "amd64"}}}),
            "x|Ready,SchedulingDisabled|control-plane|10m|v1|1.2.3.4|<none>|<unknown>|6 (amd64)|<unknown>",
        ),
        (
            "PersistentVolumeClaim",
            json!({"spec": {"volumeName": "v", "storageClassName": "s", "volumeMode": "Filesystem"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}),
            "x|Bound|v|1Gi|RWO|s|<unset>|10m|Filesystem",
        ),
        (
            "PersistentVolume",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete", "claimRef": {"namespace": "n", "name": "c"}}, "status": {"phase": "Bound"}}),
            "x|1Gi|RWO,RWX|Delete|Bound|n/c||<unset>||10m|<unset>",
        ),
        (
            "Event",
            json!({"type": "Normal", "reason": "Started", "message": " it runs\n", "count": 3, "lastTimestamp": "2026-01-01T00:09:55Z", "firstTimestamp": THEN,
                "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "kubelet", "host": "h"}}),
            "5s|Normal|Started|pod/p||kubelet, h|it runs|10m|3|x",
        ),
        ("Secret", json!({"type": "Opaque", "data": {"a": "", "b": ""}}), "x|Opaque|2|10m"),
        ("ConfigMap", json!({"data": {"a": ""}, "binaryData": {"b": ""}}), "x|2|10m"),
        (
            "EndpointSlice",
            json!({"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [{"addresses": ["1", "2"]}, {"addresses": ["3", "4"]}]}),
            "x|IPv4|80|1,2,3 + 1 more...|10m",
        ),
        (
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "::1"}], "ports": [{"port": 8}]}]}),
            "x|1.1.1.1:8,[::1]:8|10m",
        ),
        (
            "NetworkPolicy",
            json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}}}),
            "x|a=b,c in (d)|10m",
        ),
        (
            "RoleBinding",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            "x|Role/r|10m|u||n/s",
        ),
        ("CustomResourceDefinition", json!({}), "x|2026-01-01T00:00:00Z"),
        (
            "StorageClass",
            json!({"provisioner": "p", "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
            "x (default)|p|Delete|Immediate|false|10m",
        ),
        ("PodDisruptionBudget", json!({"spec": {"minAvailable": "50%"}}), "x|50%|N/A|0|10m"),
    ];
    for (kind, object, wanted) in cases {
        assert_eq!(cells(kind, object), wanted, "{kind}");
    }
}

#[test]
fn custom_kinds_show_their_printer_columns() {
    let crd = json!({"metadata": {"name": "boxes.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
        "names": {"kind": "Box", "plural": "boxes"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}},
            "additionalPrinterColumns": [
                {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                {"name": "On", "type": "boolean", "jsonPath": ".spec.on"},
                {"name": "First", "type": "string", "jsonPath": ".spec.names[*]"},
                {"name": "Map", "type": "string", "jsonPath": ".spec.map"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]}]}});
    let kind = &Kind::from_crd(&crd).expect("kinds")[0];
    let full = json!({"metadata": {"name": "a", "creationTimestamp": THEN},
        "spec": {"size": 3.0, "on": false, "names": ["x", "y"], "map": {"k": 1}},
        "status": {"conditions": [{"type": "Other", "status": "no"}, {"type": "Ready", "status": "True"}]}});
    let empty = json!({"metadata": {"name": "b"}, "spec": {"size": "three"}});
    let table = render(kind, [&full, &empty], Include::None, now());
    assert_eq!(table["columnDefinitions"][2]["priority"], 1);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "True", 3, false, "x", "{\"k\":1}", "10m"]));
    assert_eq!(table["rows"][1]["cells"], json!(["b", null, null, null, null, null, null]));
}
