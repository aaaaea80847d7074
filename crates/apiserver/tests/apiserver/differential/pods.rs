//! Names, paths and ids in Pods, templates, ConfigMaps and Secrets, and requests for tokens.

use super::cases::{CONFIG_MAPS, Case, DEPLOYMENTS, object};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Names that are labels, subdomains, paths, and none of them.
const NAMES: &[&str] = &["a", "a.b", "A", "..", "../x", "a/b", "-a", "a_b", "a\nb", "ä", ""];
/// Paths below a volume, and out of it.
const PATHS: &[&str] =
    &["a", "a/b", ".a", "a/..b", "..", "../a", "..a", "a/../b", "/a", "/../a", "a\\..", "."];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = [keys(), tokens(), workloads()].concat();
    let specs =
        [names(), volumes(), paths(), containers(), mounts(), variables(), ports(), ids(), whole()].concat();
    for (what, fields) in specs {
        let spec = spec(&fields);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        cases.push(Case::new(format!("Pod with {what}"), "POST", PODS, pod).showing("/metadata/name"));
        let mut deployment = object(DEPLOYMENTS, &json!({"name": "d"}));
        deployment["spec"]["template"]["spec"] = spec;
        let mut set = deployment.clone();
        let name = format!("Deployment with {what}");
        cases.push(Case::new(name, "POST", DEPLOYMENTS, deployment).showing("/metadata/name"));
        set["kind"] = "StatefulSet".into();
        set["spec"]["serviceName"] = "s".into();
        let name = format!("StatefulSet with {what}");
        cases.push(Case::new(name, "POST", SETS, set).showing("/metadata/name"));
    }
    cases
}

/// A spec with one container, and these fields in place of its own.
fn spec(fields: &Value) -> Value {
    let mut spec =
        json!({"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    spec
}

type Specs = Vec<(String, Value)>;

fn container(fields: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    container
}

fn names() -> Specs {
    let mut specs = Vec::new();
    let long = [63, 64].map(|length| "a".repeat(length));
    let brief =
        |name: &str| if name.len() > 60 { format!("{} letters", name.len()) } else { format!("{name:?}") };
    for name in NAMES.iter().copied().chain(long.iter().map(String::as_str)) {
        let shown = brief(name);
        specs.push((format!("a volume {shown}"), json!({"volumes": [{"name": name, "emptyDir": {}}]})));
        specs.push((
            format!("a container {shown}"),
            json!({"containers": [container(&json!({"name": name}))]}),
        ));
        let init = json!({"initContainers": [container(&json!({"name": name}))]});
        specs.push((format!("an init container {shown}"), init));
        for field in ["hostname", "subdomain", "hostnameOverride"] {
            specs.push((format!("{field} {shown}"), json!({field: name})));
        }
    }
    specs
}

fn volumes() -> Specs {
    let named = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        json!({"volumes": [volume]})
    };
    let mut specs = vec![
        ("a volume without a source".into(), named(json!({}))),
        ("a volume with null for a source".into(), named(json!({"emptyDir": null}))),
        (
            "two volumes of one name".into(),
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}),
        ),
        ("two sources".into(), named(json!({"emptyDir": {}, "secret": {"secretName": "s"}}))),
        ("three sources".into(), named(json!({"configMap": {}, "emptyDir": {}, "secret": {}}))),
        ("a Secret without a name".into(), named(json!({"secret": {}}))),
        ("a ConfigMap without a name".into(), named(json!({"configMap": {}}))),
        ("a claim without a name".into(), named(json!({"persistentVolumeClaim": {}}))),
        (
            "names of objects that are paths".into(),
            named(json!({"persistentVolumeClaim": {"claimName": "../x"}})),
        ),
        ("a Secret that is a path".into(), named(json!({"secret": {"secretName": "../x"}}))),
        ("a hostPath without a path".into(), named(json!({"hostPath": {}}))),
        ("a projected volume of nothing".into(), named(json!({"projected": {}}))),
    ];
    for mode in [-1, 0, 0o777, 0o1000] {
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            let name = if source == "secret" { "secretName" } else { "name" };
            let mut fields = json!({"defaultMode": mode});
            if matches!(source, "secret" | "configMap") {
                fields[name] = "n".into();
                fields["items"] = json!([{"key": "k", "path": "p", "mode": mode}]);
            }
            specs.push((format!("{source} of mode {mode}"), named(json!({source: fields}))));
        }
    }
    let item = json!({"name": "n", "items": [{"key": "k", "path": "p"}]});
    let file = json!({"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]});
    let projected = |sources: Value| named(json!({"projected": {"sources": sources}}));
    specs.extend([
        ("a file that is projected twice".into(), projected(json!([{"secret": item}, {"configMap": item}, {"downwardAPI": file}]))),
        ("two kinds in one projection".into(), projected(json!([{"secret": item, "configMap": {"name": "m"}}]))),
        ("projections without names".into(), projected(json!([{"secret": {}}, {"configMap": {}}]))),
        ("a short token".into(), projected(json!([{"serviceAccountToken": {"path": "p", "expirationSeconds": 599}}]))),
        ("a long token".into(), projected(json!([{"serviceAccountToken": {"path": "p", "expirationSeconds": 4_294_967_297_i64}}]))),
        ("a token without a path".into(), projected(json!([{"serviceAccountToken": {}}]))),
        ("a downward file of nothing".into(), named(json!({"downwardAPI": {"items": [{"path": "p"}]}}))),
        ("a downward file of both".into(), named(json!({"downwardAPI": {"items": [{"path": "p", "mode": 512,
            "fieldRef": {"fieldPath": "metadata.name"}, "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}}]}}))),
        ("an item without key and path".into(), named(json!({"configMap": {"name": "n", "items": [{}]}}))),
    ]);
    specs
}

fn paths() -> Specs {
    let mut specs = Vec::new();
    for path in PATHS {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = "v".into();
            json!({"volumes": [volume]})
        };
        let items = json!([{"key": "k", "path": path}]);
        let file = json!([{"path": path, "fieldRef": {"fieldPath": "metadata.name"}}]);
        for (what, source) in [
            ("a ConfigMap's", json!({"configMap": {"name": "n", "items": items}})),
            ("a Secret's", json!({"secret": {"secretName": "n", "items": items}})),
            ("a downward", json!({"downwardAPI": {"items": file}})),
            (
                "a projected ConfigMap's",
                json!({"projected": {"sources": [{"configMap": {"name": "n", "items": items}}]}}),
            ),
            ("a projected downward", json!({"projected": {"sources": [{"downwardAPI": {"items": file}}]}})),
            ("a token's", json!({"projected": {"sources": [{"serviceAccountToken": {"path": path}}]}})),
            ("a host", json!({"hostPath": {"path": path}})),
        ] {
            specs.push((format!("{what} file {path:?}"), volume(source)));
        }
        for field in ["subPath", "subPathExpr"] {
            let mount = json!({"name": "v", "mountPath": "/v", field: path});
            let mut spec = volume(json!({"emptyDir": {}}));
            spec["containers"] = json!([container(&json!({"volumeMounts": [mount]}))]);
            specs.push((format!("{field} {path:?}"), spec));
        }
        let mut spec = volume(json!({"emptyDir": {}}));
        spec["containers"] = json!([container(
            &json!({"volumeMounts": [{"name": "v", "mountPath": path}], "workingDir": path, "terminationMessagePath": path})
        )]);
        specs.push((format!("a mount and folders at {path:?}"), spec));
    }
    specs
}

fn containers() -> Specs {
    let one = |fields: Value| json!({"containers": [container(&fields)]});
    let twice = json!([container(&json!({})), container(&json!({}))]);
    vec![
        ("no containers".into(), json!({"containers": []})),
        ("two containers of one name".into(), json!({"containers": twice})),
        ("two init containers of one name".into(), json!({"initContainers": twice})),
        ("a container without an image".into(), one(json!({"image": ""}))),
        ("an image with spaces".into(), one(json!({"image": " i "}))),
        ("an unknown pull policy".into(), one(json!({"imagePullPolicy": "Sometimes"}))),
        ("an unknown message policy".into(), one(json!({"terminationMessagePolicy": "Mail"}))),
    ]
}

fn mounts() -> Specs {
    let of = |list: &str, mounts: Value| {
        let container = container(&json!({"name": "m", "volumeMounts": mounts}));
        json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "B", "emptyDir": {}}], list: [container]})
    };
    let mut specs = Vec::new();
    for list in ["containers", "initContainers"] {
        for (what, mounts) in [
            ("of nothing", json!([{}])),
            ("of an unknown volume", json!([{"name": "w", "mountPath": "/w"}])),
            ("of a bad volume", json!([{"name": "B", "mountPath": "/b"}])),
            (
                "twice at one place",
                json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]),
            ),
            (
                "with both kinds of subPath",
                json!([{"name": "v", "mountPath": "/v", "subPath": "a", "subPathExpr": "b"}]),
            ),
        ] {
            specs.push((format!("a mount in {list} {what}"), of(list, mounts)));
        }
    }
    specs
}

fn variables() -> Specs {
    let env = |variable: Value| json!({"containers": [container(&json!({"env": [variable]}))]});
    let from = |source: Value| json!({"containers": [container(&json!({"envFrom": [source]}))]});
    let mut specs = Vec::new();
    for name in ["A", "a.b-c", "1", "a b", "a=b", "", "a\n", "ä", "../x"] {
        specs.push((format!("a variable {name:?}"), env(json!({"name": name, "value": "x"}))));
        specs.push((format!("a prefix {name:?}"), from(json!({"prefix": name, "secretRef": {"name": "s"}}))));
    }
    for name in ["a.b", "../x", "A", ""] {
        for (kind, reference) in [("configMapKeyRef", "configMapRef"), ("secretKeyRef", "secretRef")] {
            let key = json!({"name": "V", "valueFrom": {kind: {"name": name, "key": "k"}}});
            specs.push((format!("{kind} of {name:?}"), env(key)));
            let key = json!({"name": "V", "valueFrom": {kind: {"name": "n", "key": name}}});
            specs.push((format!("{kind} of key {name:?}"), env(key)));
            specs.push((format!("{reference} of {name:?}"), from(json!({reference: {"name": name}}))));
        }
    }
    let field = json!({"fieldPath": "metadata.name"});
    let key = json!({"name": "n", "key": "k"});
    for (what, value, source) in [
        ("nothing", "", json!({})),
        ("two sources", "", json!({"fieldRef": field, "secretKeyRef": key})),
        ("a value and a source", "v", json!({"fieldRef": field})),
    ] {
        let variable = json!({"name": "V", "value": value, "valueFrom": source});
        specs.push((format!("a variable from {what}"), env(variable)));
    }
    specs.push(("variables from nothing".into(), from(json!({}))));
    let both = json!({"configMapRef": {"name": "n"}, "secretRef": {"name": "n"}});
    specs.push(("variables from both".into(), from(both)));
    specs
}

fn ports() -> Specs {
    let of = |ports: Value| json!({"containers": [container(&json!({"ports": ports}))]});
    let mut specs = Vec::new();
    for name in ["http", "a-1", "1", "-a", "a--b", "Http", "a234567890123456", "../x"] {
        specs.push((format!("a port {name:?}"), of(json!([{"name": name, "containerPort": 1}]))));
    }
    for number in [-1, 0, 1, 65535, 65536] {
        specs.push((format!("a port {number}"), of(json!([{"containerPort": number}]))));
    }
    specs.push((
        "a port on a host's port of none".into(),
        of(json!([{"containerPort": 1, "hostPort": 65536}])),
    ));
    let twice = json!([{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]);
    specs.push(("two ports of one name".into(), of(twice)));
    specs.push(("a port of another protocol".into(), of(json!([{"containerPort": 1, "protocol": "ICMP"}]))));
    specs
}

fn ids() -> Specs {
    let mut specs = Vec::new();
    for id in [-1, 0, 2_147_483_647, 2_147_483_648_i64] {
        for field in ["runAsUser", "runAsGroup", "fsGroup"] {
            specs.push((format!("{field} {id}"), json!({"securityContext": {field: id}})));
        }
        specs.push((
            format!("a supplemental group {id}"),
            json!({"securityContext": {"supplementalGroups": [1, id]}}),
        ));
        let context = json!({"securityContext": {"runAsUser": id, "runAsGroup": id}});
        specs.push((format!("a container's ids {id}"), json!({"containers": [container(&context)]})));
    }
    specs
}

fn whole() -> Specs {
    let mut specs = Vec::new();
    for ip in ["1.2.3.4", "::1", "", "1.2.3", "1.2.3.4 x", "1.2.3.4\n5.6.7.8 evil", "localhost"] {
        let aliases = json!({"hostAliases": [{"ip": ip, "hostnames": ["a.b"]}]});
        specs.push((format!("an alias of {ip:?}"), aliases));
    }
    for name in NAMES {
        let aliases = json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", name]}]});
        specs.push((format!("an alias {name:?}"), aliases));
    }
    specs.push(("an unknown DNS policy".into(), json!({"dnsPolicy": "Guess"})));
    specs.push((
        "ephemeral containers".into(),
        json!({"ephemeralContainers": [container(&json!({"name": "e"}))]}),
    ));
    specs
}

/// Templates of the kinds that make Pods.
fn workloads() -> Vec<Case> {
    let mounted = |mount: Value| json!({"containers": [container(&json!({"volumeMounts": [mount]}))]});
    let claimed = mounted(json!({"name": "data", "mountPath": "/data"}));
    let mut led_out = mounted(json!({"name": "v", "mountPath": "/v", "subPath": "../x"}));
    led_out["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let specs = [
        ("a good template", json!({})),
        ("a container that is a path", json!({"containers": [container(&json!({"name": "../x"}))]})),
        ("a volume that is a path", json!({"volumes": [{"name": "../x", "emptyDir": {}}]})),
        ("a subPath that leads out", led_out),
        ("a mount of a claim of its own", claimed),
        ("no containers", json!({"containers": []})),
        ("a hostname that is a path", json!({"hostname": "../x"})),
        (
            "a volume of the name of a claim",
            json!({"volumes": [{"name": "data", "emptyDir": {}}, {"name": "B", "emptyDir": {}}]}),
        ),
    ];
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let mut cases = Vec::new();
    for (what, fields) in specs {
        let mut spec = spec(&fields);
        for (version, kind, plural) in [
            ("apps/v1", "StatefulSet", "statefulsets"),
            ("apps/v1", "ReplicaSet", "replicasets"),
            ("apps/v1", "DaemonSet", "daemonsets"),
            ("batch/v1", "Job", "jobs"),
            ("batch/v1", "CronJob", "cronjobs"),
        ] {
            if version == "batch/v1" {
                spec["restartPolicy"] = "Never".into();
            }
            let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
            let selector = json!({"matchLabels": {"a": "b"}});
            let own = match kind {
                "StatefulSet" => {
                    json!({"serviceName": "s", "selector": selector, "template": template, "volumeClaimTemplates": [claim]})
                }
                "Job" => json!({"template": template}),
                "CronJob" => {
                    json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}})
                }
                _ => json!({"selector": selector, "template": template}),
            };
            let body = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": own});
            let path = format!("/apis/{version}/namespaces/default/{plural}");
            let name = format!("{kind} whose template has {what}");
            cases.push(Case::new(name, "POST", &path, body).showing("/metadata/name"));
        }
    }
    for (what, names) in [
        ("an own claim that is a path", &["../x"][..]),
        ("two own claims of one name", &["data", "data"]),
        ("an own claim without a name", &[""]),
    ] {
        let mut set = object(DEPLOYMENTS, &json!({"name": "d"}));
        set["kind"] = "StatefulSet".into();
        let claims = names.iter().map(|name| {
            let mut claim = claim.clone();
            claim["metadata"]["name"] = (*name).into();
            claim
        });
        set["spec"]["volumeClaimTemplates"] = claims.collect();
        cases
            .push(Case::new(format!("StatefulSet with {what}"), "POST", SETS, set).showing("/metadata/name"));
    }
    cases
}

fn keys() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = ["a".repeat(253), "a".repeat(254)];
    let keys = ["a", "A_b-c.d", ".a", "..", ".", "..a", "../a", "a/b", "a b", "a\n", "ä", ""];
    for key in keys.into_iter().chain(long.iter().map(String::as_str)) {
        let shown = if key.len() > 60 { format!("of {} letters", key.len()) } else { format!("{key:?}") };
        for field in ["data", "binaryData"] {
            let mut map = object(CONFIG_MAPS, &json!({"name": "m"}));
            map[field] = json!({key: "eA=="});
            let name = format!("ConfigMap with a key in {field} {shown}");
            cases.push(Case::new(name, "POST", CONFIG_MAPS, map).showing("/metadata/name"));
            let patched = json!({field: {key: "eA=="}});
            let name = format!("ConfigMap patched with a key in {field} {shown}");
            let path = format!("{CONFIG_MAPS}/there");
            cases.push(Case::new(name, "PATCH", &path, patched).showing("/metadata/name"));
        }
        for field in ["data", "stringData"] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, field: {key: "eA=="}});
            let name = format!("Secret with a key in {field} {shown}");
            cases.push(Case::new(name, "POST", SECRETS, secret).showing("/metadata/name"));
        }
    }
    let mut both = object(CONFIG_MAPS, &json!({"name": "m"}));
    both["data"] = json!({"a": "eA=="});
    both["binaryData"] = both["data"].clone();
    cases.push(Case::new("ConfigMap with one key in both", "POST", CONFIG_MAPS, both));
    cases
}

fn tokens() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut request = |what: &str, metadata: Value, spec: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": metadata, "spec": spec});
        cases.push(
            Case::new(format!("TokenRequest {what}"), "POST", TOKEN, body).showing("/spec/expirationSeconds"),
        );
    };
    for seconds in [0, 599, 600, 4_294_967_296_i64, 4_294_967_297] {
        request(&format!("for {seconds} s"), json!({}), json!({"expirationSeconds": seconds}));
    }
    request("for another account", json!({"name": "other"}), json!({}));
    request("for another namespace", json!({"namespace": "other"}), json!({}));
    for (what, reference) in [
        ("a Pod that is not there", json!({"apiVersion": "v1", "kind": "Pod", "name": "none"})),
        ("a Secret that is not there", json!({"apiVersion": "v1", "kind": "Secret", "name": "none"})),
        ("a Node that is not there", json!({"apiVersion": "v1", "kind": "Node", "name": "none"})),
        ("a ConfigMap", json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none"})),
    ] {
        request(&format!("bound to {what}"), json!({}), json!({"boundObjectRef": reference}));
    }
    let review = |spec: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
    for (what, spec) in [
        ("nothing", json!({})),
        ("Pods", json!({"resourceAttributes": {"verb": "list", "resource": "pods"}})),
        ("a path", json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}})),
    ] {
        let name = format!("SelfSubjectAccessReview of {what}");
        cases.push(Case::new(name, "POST", ACCESS, review(spec)).showing("/status/allowed"));
    }
    cases
}
