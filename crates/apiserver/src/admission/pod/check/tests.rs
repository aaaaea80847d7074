use serde_json::json;

use super::*;

/// The causes for a Pod with one good container and these fields, as `field: message`.
fn causes(fields: Value) -> Vec<String> {
    let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
    pod.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let causes = spec(&pod, "spec", Place::Pod);
    causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[track_caller]
fn refused(fields: Value, wanted: &[&str]) {
    let found = causes(fields);
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.starts_with(wanted), "{found}\n  is not\n{wanted}");
    }
}

fn volume(fields: Value) -> Value {
    json!({"volumes": [fields]})
}

#[test]
fn volume_name_that_is_no_label_is_refused() {
    for name in ["..", "../../x", "a/b", "A", "a.b.", ""] {
        let found = causes(volume(json!({"name": name, "emptyDir": {}})));
        assert_eq!(found.len(), 1, "{name:?}: {found:?}");
        assert!(found[0].starts_with("spec.volumes[0].name: "), "{found:?}");
    }
    refused(
        volume(json!({"name": "../x", "emptyDir": {}})),
        &["spec.volumes[0].name: Invalid value: \"../x\": a lowercase RFC 1123 label must consist of"],
    );
    refused(
        volume(json!({"name": "a.b", "emptyDir": {}})),
        &["spec.volumes[0].name: Invalid value: \"a.b\": must not contain dots"],
    );
    refused(volume(json!({"emptyDir": {}})), &["spec.volumes[0].name: Required value"]);
    let twice = json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]});
    refused(twice, &["spec.volumes[1].name: Duplicate value: \"a\""]);
}

#[test]
fn container_names_are_labels_and_unique() {
    let container = |name: &str| json!({"name": name, "image": "i"});
    refused(
        json!({"containers": [container(".."), container("c"), container("c")], "initContainers": [container("c")]}),
        &[
            "spec.containers[0].name: Invalid value: \"..\": a lowercase RFC 1123 label",
            "spec.containers[2].name: Duplicate value: \"c\"",
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ],
    );
    refused(json!({"containers": []}), &["spec.containers: Required value"]);
    refused(
        json!({"ephemeralContainers": [container("c")]}),
        &["spec.ephemeralContainers[0].name: Duplicate value: \"c\""],
    );
}

#[test]
fn mounts_name_a_valid_volume_and_stay_in_it() {
    let mounted = |field: &str, mounts: Value| {
        let container = json!({"name": "m", "image": "i", "volumeMounts": mounts});
        json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "../w", "emptyDir": {}}], field: [container]})
    };
    let volume = "spec.volumes[1].name: Invalid value: \"../w\"";
    refused(
        mounted(
            "initContainers",
            json!([{"name": "v", "mountPath": "/a"}, {"name": "../w", "mountPath": "/b"}]),
        ),
        &[volume, "spec.initContainers[0].volumeMounts[1].name: Not found: \"../w\""],
    );
    refused(
        mounted(
            "containers",
            json!([{"name": "v", "mountPath": "/a", "subPath": "../x"}, {"name": "v", "mountPath": "/a"}, {"name": "v"}]),
        ),
        &[
            volume,
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
            "spec.containers[0].volumeMounts[2].mountPath: Required value",
        ],
    );
    refused(
        mounted(
            "containers",
            json!([{"name": "v", "mountPath": "/a", "subPath": "/x", "subPathExpr": "$(A)/.."}]),
        ),
        &[
            volume,
            "spec.containers[0].volumeMounts.subPath: Invalid value: \"/x\": must be a relative path",
            "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"$(A)/..\": subPathExpr and subPath are mutually exclusive",
            "spec.containers[0].volumeMounts.subPathExpr: Invalid value: \"$(A)/..\": must not contain '..'",
        ],
    );
}

#[test]
fn files_of_volumes_stay_in_them() {
    let item = json!([{"key": "k", "path": "../x", "mode": 512}]);
    let in_item = |at: &str| {
        [
            format!("spec.volumes[0].{at}.path: Invalid value: \"../x\": must not contain '..'"),
            format!("spec.volumes[0].{at}.mode: Invalid value: 512: must be a number between 0 and 0777"),
        ]
    };
    for (source, at) in [
        (json!({"configMap": {"name": "m", "items": item}}), "configMap.items[0]"),
        (json!({"secret": {"secretName": "m", "items": item}}), "secret.items[0]"),
        (
            json!({"projected": {"sources": [{"secret": {"name": "m", "items": item}}]}}),
            "projected.sources[0].secret.items[0]",
        ),
    ] {
        let mut volume = source;
        volume["name"] = "v".into();
        let wanted = in_item(at);
        refused(json!({"volumes": [volume]}), &[&wanted[0], &wanted[1]]);
    }
    let file = json!({"path": "..x", "fieldRef": {"fieldPath": "metadata.name"}});
    refused(
        volume(json!({"name": "v", "downwardAPI": {"items": [file, {"path": "/y"}]}})),
        &[
            "spec.volumes[0].downwardAPI.path: Invalid value: \"..x\": must not start with '..'",
            "spec.volumes[0].downwardAPI.path: Invalid value: \"/y\": must be a relative path",
            "spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
        ],
    );
    let twice = json!({"name": "m", "items": [{"key": "k", "path": "x"}]});
    refused(
        volume(json!({"name": "v", "projected": {"defaultMode": -1, "sources": [
            {"configMap": twice}, {"configMap": twice, "serviceAccountToken": {"path": "../t", "expirationSeconds": 1}}]}})),
        &[
            "spec.volumes[0].projected.defaultMode: Invalid value: -1: must be a number",
            "spec.volumes[0].projected: Invalid value: \"m\": conflicting duplicate paths",
            "spec.volumes[0].projected.sources[1].serviceAccountToken.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
            "spec.volumes[0].projected.path: Invalid value: \"../t\": must not contain '..'",
            "spec.volumes[0].projected.sources[1]: Forbidden: may not specify more than 1 volume type per source",
        ],
    );
}

#[test]
fn volume_has_one_source_with_a_name() {
    refused(volume(json!({"name": "v"})), &["spec.volumes[0]: Required value: must specify a volume type"]);
    refused(
        volume(json!({"name": "v", "secret": {}, "configMap": {"name": "m"}})),
        &[
            "spec.volumes[0].secret.secretName: Required value",
            "spec.volumes[0].configMap: Forbidden: may not specify more than 1 volume type",
        ],
    );
    refused(
        volume(json!({"name": "v", "persistentVolumeClaim": {}})),
        &["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
    );
    refused(
        volume(json!({"name": "v", "hostPath": {"path": "/a/../b"}})),
        &["spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
    );
}

#[test]
fn environment_and_ports_have_valid_names() {
    let container = json!({"name": "c", "image": " i", "env": [{"name": "a=b"}, {"name": "ok", "valueFrom": {}},
            {"name": "k", "valueFrom": {"secretKeyRef": {"name": "S", "key": "../x"}}}],
        "envFrom": [{"prefix": "p="}, {"configMapRef": {"name": "../m"}}],
        "ports": [{"name": "Http", "containerPort": 1}, {"name": "a", "containerPort": 0}, {"name": "a", "containerPort": 70000, "protocol": "X"}],
        "imagePullPolicy": "Sometimes", "securityContext": {"runAsUser": -1, "runAsGroup": 4_294_967_296_i64}});
    refused(
        json!({"containers": [container]}),
        &[
            "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace",
            "spec.containers[0].ports[0].name: Invalid value: \"Http\": must contain only alpha-numeric",
            "spec.containers[0].ports[1].containerPort: Required value",
            "spec.containers[0].ports[2].name: Duplicate value: \"a\"",
            "spec.containers[0].ports[2].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[2].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`",
            "spec.containers[0].env[2].valueFrom.secretKeyRef.name: Invalid value: \"S\": a lowercase RFC 1123 subdomain",
            "spec.containers[0].env[2].valueFrom.secretKeyRef.key: Invalid value: \"../x\": a valid config key",
            "spec.containers[0].env[2].valueFrom.secretKeyRef.key: Invalid value: \"../x\": must not start with '..'",
            "spec.containers[0].envFrom[0].prefix: Invalid value: \"p=\"",
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1].configMapRef.name: Invalid value: \"../m\": a lowercase RFC 1123 subdomain",
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.containers[0].securityContext.runAsGroup: Invalid value: 4294967296: must be between 0 and",
        ],
    );
}

#[test]
fn names_and_ids_of_a_pod_are_valid() {
    refused(
        json!({"hostname": "a.b", "subdomain": "../x", "serviceAccountName": "../sa", "nodeName": "N", "runtimeClassName": "",
            "hostAliases": [{"ip": "1.2.3.4\n5.6.7.8", "hostnames": ["ok.example", "a b"]}],
            "restartPolicy": "Maybe", "dnsPolicy": "None", "hostnameOverride": "a".repeat(65),
            "securityContext": {"fsGroup": -1, "supplementalGroups": [1, 2_147_483_648_i64]}}),
        &[
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.securityContext.supplementalGroups[1]: Invalid value: 2147483648: must be between",
            "spec.hostnameOverride: Too long: may not be more than 64 bytes",
            "spec.serviceAccountName: Invalid value: \"../sa\": a lowercase RFC 1123 subdomain",
            "spec.nodeName: Invalid value: \"N\": a lowercase RFC 1123 subdomain",
            "spec.runtimeClassName: Invalid value: \"\": a lowercase RFC 1123 subdomain",
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
            "spec.subdomain: Invalid value: \"../x\": a lowercase RFC 1123 label",
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3.4\\n5.6.7.8\": must be a valid IP address",
            "spec.hostAliases[0].hostnames[1]: Invalid value: \"a b\": a lowercase RFC 1123 subdomain",
        ],
    );
}
