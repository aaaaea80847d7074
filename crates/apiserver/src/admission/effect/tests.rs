use std::collections::BTreeSet;

use hutch_api::UNSCHEDULABLE_TAINT;
use serde_json::json;

use super::*;
use crate::kinds::definition;

/// Fields of each definition that have an effect, or that are refused by name: `volumeDevices`, `hostNetwork` and such.
/// Each other one must be in a table of fields without effect.
const OTHERS: &[(&str, &str)] = &[
    (
        "PodSpec",
        "automountServiceAccountToken containers enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork \
         hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName os readinessGates \
         resourceClaims resources restartPolicy runtimeClassName securityContext serviceAccount serviceAccountName \
         subdomain terminationGracePeriodSeconds volumes",
    ),
    (
        "PodSecurityContext",
        "fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seccompProfile supplementalGroups \
         supplementalGroupsPolicy",
    ),
    (
        "Container",
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resources \
         restartPolicy securityContext startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty \
         volumeDevices volumeMounts workingDir",
    ),
    (
        "SecurityContext",
        "allowPrivilegeEscalation capabilities privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot \
         runAsUser seccompProfile",
    ),
    ("ContainerPort", "containerPort name protocol"),
    ("ServiceSpec", "clusterIP clusterIPs internalTrafficPolicy ports publishNotReadyAddresses selector"),
    ("ServicePort", "appProtocol name port protocol targetPort"),
];

fn named<'a>(fields: &'a [Field], prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let inner = fields.iter().filter_map(move |field| field.name.strip_prefix(prefix));
    inner.filter(|name| !name.contains('.'))
}

#[test]
fn every_field_of_kubernetes_has_an_effect_or_a_warning() {
    for (name, others) in OTHERS {
        let without: Vec<&str> = match *name {
            "PodSpec" => named(POD, "").collect(),
            "PodSecurityContext" => named(POD, "securityContext.").collect(),
            "Container" => named(CONTAINER, "").collect(),
            "SecurityContext" => named(CONTAINER, "securityContext.").collect(),
            "ContainerPort" => named(CONTAINER_PORT, "").collect(),
            "ServiceSpec" => named(SERVICE, "").collect(),
            _ => named(SERVICE_PORT, "").collect(),
        };
        let schema = definition(&format!("io.k8s.api.core.v1.{name}")).unwrap();
        let fields: BTreeSet<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let known: Vec<&str> = others.split_whitespace().chain(without).collect();
        assert_eq!(known.iter().copied().collect::<BTreeSet<_>>(), fields, "{name}");
        assert_eq!(known.len(), fields.len(), "{name}: one is named twice");
    }
}

#[test]
fn fields_without_effect_are_named_and_others_are_not() {
    let plain = json!({"containers": [{"terminationMessagePath": "/message", "ports": [{"containerPort": 80}]}],
        "dnsPolicy": "ClusterFirst", "nodeSelector": {}, "tolerations": [], "schedulerName": "default-scheduler",
        "setHostnameAsFQDN": false});
    assert!(of_pod(&plain, "spec").is_empty());
    let spec = json!({
        "activeDeadlineSeconds": 5, "dnsPolicy": "None", "nodeSelector": {"a": "b"}, "schedulerName": "volcano",
        "securityContext": {"sysctls": [{"name": "a", "value": "b"}]}, "shareProcessNamespace": true,
        "containers": [{}, {"ports": [{"containerPort": 80, "hostPort": 80}]},
            {"securityContext": {"capabilities": {"add": ["CHOWN", "SYS_PTRACE"]}}}],
    });
    let found = of_pod(&spec, "spec.template.spec");
    let fields: Vec<_> = found.iter().filter_map(|warning| warning.split(':').next()).collect();
    let wanted = [
        "activeDeadlineSeconds",
        "dnsPolicy",
        "nodeSelector",
        "schedulerName",
        "shareProcessNamespace",
        "securityContext.sysctls",
        "containers[1].ports[0].hostPort",
        "containers[2].securityContext.capabilities.add",
    ];
    assert_eq!(fields, wanted.map(|field| format!("spec.template.spec.{field}")));
}

#[test]
fn service_that_opens_nothing_outside_is_named() {
    let plain = json!({"type": "ClusterIP", "sessionAffinity": "None", "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "ports": [{"port": 80}]});
    assert!(of_service(&plain, "spec").is_empty());
    let spec = json!({"type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{"port": 80, "nodePort": 30080}]});
    let found = of_service(&spec, "spec");
    let fields: Vec<_> = found.iter().filter_map(|warning| warning.split(':').next()).collect();
    assert_eq!(fields, ["spec.type", "spec.sessionAffinity", "spec.ports[0].nodePort"]);
}

#[test]
fn values_that_hold_here_too_give_no_warning_and_others_do() {
    let warned = |fields: &[Field], name: &str, value: Value| {
        let field = fields.iter().find(|field| field.name == name).unwrap();
        (field.matters)(&value)
    };
    for (fields, name, holds, other) in [
        (POD, "dnsPolicy", json!("Default"), json!("None")),
        (POD, "preemptionPolicy", json!("PreemptLowerPriority"), json!("Never")),
        (POD, "priority", json!(0), json!(1000)),
        (POD, "resources.limits", json!({}), json!({"memory": "1Gi"})),
        (POD, "schedulerName", json!("default-scheduler"), json!("volcano")),
        (POD, "setHostnameAsFQDN", json!(false), json!(true)),
        (POD, "shareProcessNamespace", json!(false), json!(true)),
        (POD, "tolerations", json!([{"key": UNSCHEDULABLE_TAINT}]), json!([{"key": "a"}])),
        (
            CONTAINER,
            "resizePolicy",
            json!([{"restartPolicy": "NotRequired"}]),
            json!([{"restartPolicy": "RestartContainer"}]),
        ),
        (CONTAINER, "securityContext.capabilities.add", json!(["CHOWN"]), json!(["SYS_PTRACE"])),
        (CONTAINER_PORT, "hostPort", json!(0), json!(80)),
        (SERVICE, "type", json!("ClusterIP"), json!("LoadBalancer")),
        (SERVICE, "ipFamilies", json!(["IPv4"]), json!(["IPv6"])),
        (SERVICE, "ipFamilyPolicy", json!("PreferDualStack"), json!("RequireDualStack")),
        (SERVICE, "sessionAffinity", json!("None"), json!("ClientIP")),
    ] {
        assert!(!warned(fields, name, holds) && !warned(fields, name, Value::Null), "{name}");
        assert!(warned(fields, name, other), "{name}");
    }
}
