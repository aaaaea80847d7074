//! ReplicationControllers, PodTemplates, ControllerRevisions, Ingresses and their classes.

use super::cases::{Case, SANDBOXES, THINGS};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";
const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";

pub(crate) fn cases() -> Vec<Case> {
    [controllers(), templates(), revisions(), ingresses(), classes(), budgets(), claims(), strict()].concat()
}

fn template(fields: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    json!({"metadata": {"labels": {"a": "b"}}, "spec": spec})
}

fn controllers() -> Vec<Case> {
    let plain = || template(&json!({}));
    let specs = [
        ("a template alone", json!({"template": plain()}), "/spec/selector"),
        ("a selector", json!({"selector": {"a": "b"}, "template": plain()}), "/metadata/labels"),
        ("another selector", json!({"selector": {"a": "c"}, "template": plain()}), ""),
        ("no template", json!({"selector": {"a": "b"}}), ""),
        ("no labels", json!({"template": {"spec": plain()["spec"]}}), ""),
        ("nothing", json!({}), ""),
        ("fewer than no replicas", json!({"replicas": -1, "template": plain()}), ""),
        ("no number of replicas", json!({"template": plain()}), "/spec/replicas"),
        ("a status", json!({"template": plain()}), "/status/replicas"),
        ("a generation", json!({"template": plain()}), "/metadata/generation"),
        ("Pods that end", json!({"template": template(&json!({"restartPolicy": "Never"}))}), ""),
        ("Pods without containers", json!({"template": template(&json!({"containers": []}))}), ""),
    ];
    let controller = |(what, spec, place): (&str, Value, &str)| {
        let object = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "x"}, "spec": spec});
        Case::new(format!("ReplicationController with {what}"), "POST", CONTROLLERS, object).showing(place)
    };
    let mut cases: Vec<Case> = specs.into_iter().map(controller).collect();
    for policy in ["Never", "OnFailure", "Always"] {
        let template = template(&json!({"restartPolicy": policy}));
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        let set =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"}, "spec": spec});
        cases.push(Case::new(format!("ReplicaSet whose Pods restart {policy}"), "POST", SETS, set));
    }
    cases
}

fn templates() -> Vec<Case> {
    let of = |what: &str, template: Value, place: &str| {
        let object = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template});
        Case::new(format!("PodTemplate {what}"), "POST", TEMPLATES, object).showing(place)
    };
    vec![
        of("with a container", template(&json!({})), "/template/spec/restartPolicy"),
        of("that ends", template(&json!({"restartPolicy": "Never"})), "/metadata/generation"),
        of("without containers", template(&json!({"containers": []})), ""),
        of("with a wrong volume", template(&json!({"volumes": [{"name": "A", "emptyDir": {}}]})), ""),
    ]
}

fn revisions() -> Vec<Case> {
    let of = |what: &str, fields: Value| {
        let mut object =
            json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "x"}});
        object.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Case::new(format!("ControllerRevision {what}"), "POST", REVISIONS, object).showing("/data")
    };
    vec![
        of("with data", json!({"revision": 1, "data": {"spec": {"$patch": "replace", "any": [1]}}})),
        of("without data", json!({"revision": 1})),
        of("with nothing as data", json!({"revision": 1, "data": null})),
        of("with a number before all", json!({"revision": -1, "data": {}})),
    ]
}

fn ingresses() -> Vec<Case> {
    let service = |name: &str, port: Value| json!({"service": {"name": name, "port": port}});
    let web = || service("web", json!({"number": 80}));
    let path = |path: Value, kind: Value, backend: Value| json!({"rules": [{"http": {"paths": [{"path": path, "pathType": kind, "backend": backend}]}}]});
    let mut specs: Vec<(String, Value)> = vec![
        ("nothing".into(), json!({})),
        ("a default".into(), json!({"defaultBackend": web()})),
        ("a rule without paths".into(), json!({"rules": [{"http": {"paths": []}}]})),
        ("a rule without all".into(), json!({"rules": [{}]})),
        (
            "no type of a path".into(),
            json!({"rules": [{"http": {"paths": [{"path": "/", "backend": web()}]}}]}),
        ),
        ("another type of a path".into(), path("/".into(), "Regex".into(), web())),
        (
            "a secret".into(),
            json!({"defaultBackend": web(), "tls": [{"hosts": ["*.a.b", "A"], "secretName": "-"}]}),
        ),
        ("a class".into(), json!({"defaultBackend": web(), "ingressClassName": "A"})),
    ];
    for host in ["a.example.com", "*.example.com", "a.*.com", "*", "10.0.0.1", "A.b", "a.b:80"] {
        specs.push((format!("host {host}"), json!({"rules": [{"host": host}]})));
    }
    for text in ["", "/", "a", "/a//b", "/a/./b", "/a/..", "/%2f"] {
        for kind in ["Exact", "Prefix", "ImplementationSpecific"] {
            specs.push((format!("{kind} path {text:?}"), path(text.into(), kind.into(), web())));
        }
    }
    for (what, backend) in [
        ("nothing", json!({})),
        ("no name", service("", json!({"number": 80}))),
        ("a wrong name", service("A", json!({"number": 80}))),
        ("no port", service("web", json!({}))),
        ("two ports", service("web", json!({"number": 80, "name": "http"}))),
        ("a wrong port", service("web", json!({"number": 65536}))),
        ("a wrong name of a port", service("web", json!({"name": "HTTP--"}))),
        ("a resource", json!({"resource": {"kind": "Bucket", "name": "b"}})),
        ("an empty resource", json!({"resource": {"kind": "", "name": ""}})),
        (
            "both",
            json!({"resource": {"kind": "Bucket", "name": "b"}, "service": {"name": "web", "port": {"number": 80}}}),
        ),
    ] {
        specs.push((format!("{what} behind it"), json!({"defaultBackend": backend})));
    }
    let of = |(what, spec): (String, Value)| {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "x"}, "spec": spec});
        Case::new(format!("Ingress with {what}"), "POST", INGRESSES, object).showing("/metadata/generation")
    };
    let mut cases: Vec<Case> = specs.into_iter().map(of).collect();
    let two = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "x", "annotations": {"kubernetes.io/ingress.class": "a"}},
        "spec": {"defaultBackend": web(), "ingressClassName": "b"}});
    cases.push(Case::new("Ingress with two classes", "POST", INGRESSES, two));
    cases
}

fn classes() -> Vec<Case> {
    let of = |controller: &str| {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "x"},
            "spec": {"controller": controller}});
        Case::new(format!("IngressClass of {controller:.20?}"), "POST", CLASSES, object)
    };
    let long = format!("a.b/{}", "c".repeat(247));
    ["a.b/c", "", "a", "A/b", "a/", "/b", &long].into_iter().map(of).collect()
}

fn budgets() -> Vec<Case> {
    let specs = [
        json!({"minAvailable": 1}),
        json!({"minAvailable": -1}),
        json!({"minAvailable": "50%"}),
        json!({"maxUnavailable": "101%"}),
        json!({"maxUnavailable": "some"}),
        json!({"maxUnavailable": "%"}),
        json!({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "Never"}),
        json!({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        json!({}),
    ];
    let of = |spec: Value| {
        let name = format!("PodDisruptionBudget of {spec}");
        let object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"}, "spec": spec});
        Case::new(name, "POST", BUDGETS, object).showing("/status/disruptionsAllowed")
    };
    specs.into_iter().map(of).collect()
}

/// Sizes of volume claims.
fn claims() -> Vec<Case> {
    let of = |size: Value| {
        let name = format!("PersistentVolumeClaim of {size}");
        let spec = json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}});
        let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x"}, "spec": spec});
        Case::new(name, "POST", "/api/v1/namespaces/default/persistentvolumeclaims", object)
    };
    [json!("1"), json!("0"), json!(0), json!("-1Gi"), json!("0.5m")].into_iter().map(of).collect()
}

/// Unknown and duplicate fields, which strict requests are refused for.
fn strict() -> Vec<Case> {
    let pod = r#"{"kind":"Pod","apiVersion":"v1","zeta":1,"metadata":{"name":"p","wrong":1,"labels":{"a":"b","a":"c"}},
        "spec":{"restartPolicy":"Always","restartPolicy":"Always","unknown":{"inner":1,"inner":2},
        "containers":[{"name":"c","imagee":"i","image":"i","env":[{"name":"E","valu":"x"}]},{"foo":1,"name":"d","image":"i"}],
        "alpha":1},"alpha":1}"#;
    let revision = r#"{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{"name":"r"},
        "data":{"a":1,"a":2,"any":{"b":1}},"revision":1,"revision":2,"more":1}"#;
    let thing = r#"{"kind":"Thing","apiVersion":"example.com/v1","zeta":1,"metadata":{"name":"t","wrong":1,"name":"t"},
        "spec":{"free":1,"free":2},"alpha":[{"x":1}],"status":{"a":1}}"#;
    let sandbox = r#"{"kind":"Sandbox","apiVersion":"agents.x-k8s.io/v1beta1","metadata":{"name":"s","labelz":{}},
        "spec":{"zeta":1,"podTemplate":{"spec":{"containers":[{"name":"c","image":"i","imagee":"x"}],"alpha":1}},"beta":2},"gamma":1}"#;
    [
        ("Pod", PODS, pod),
        ("ControllerRevision", REVISIONS, revision),
        ("Thing", THINGS, thing),
        ("Sandbox", SANDBOXES, sandbox),
    ]
    .into_iter()
    .map(|(kind, path, text)| {
        let path = format!("{path}?fieldValidation=Strict");
        Case::new(format!("strict {kind} with wrong fields"), "POST", &path, text)
    })
    .collect()
}
