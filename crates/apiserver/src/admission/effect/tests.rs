use std::collections::BTreeSet;

use hutch_api::{API_AUDIENCE, UNSCHEDULABLE_TAINT};
use serde_json::json;

use super::fields::SERVICE;
use super::*;
use crate::kinds::definition;

/// Fields of each definition that have an effect, or that are refused by name: `volumeDevices`, `hostNetwork` and such.
/// Each other one must be in a table of fields without effect. Before a definition stand its table and its path from there.
const OTHERS: &[(&[Field], &str, &str, &str)] = &[
    (
        POD,
        "",
        "core.v1.PodSpec",
        "containers enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname \
         hostnameOverride imagePullSecrets initContainers nodeName os readinessGates resourceClaims restartPolicy \
         runtimeClassName serviceAccount serviceAccountName terminationGracePeriodSeconds",
    ),
    (
        POD,
        "securityContext.",
        "core.v1.PodSecurityContext",
        "fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seccompProfile supplementalGroups \
         supplementalGroupsPolicy",
    ),
    (POD, "resources.", "core.v1.ResourceRequirements", "claims requests"),
    (
        POD,
        "volumes[].",
        "core.v1.Volume",
        "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI ephemeral fc flexVolume flocker \
         gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs persistentVolumeClaim photonPersistentDisk \
         portworxVolume projected quobyte rbd scaleIO secret storageos vsphereVolume",
    ),
    (POD, "volumes[].emptyDir.", "core.v1.EmptyDirVolumeSource", "sizeLimit"),
    (POD, "volumes[].projected.", "core.v1.ProjectedVolumeSource", "defaultMode"),
    (
        POD,
        "volumes[].projected.sources[].",
        "core.v1.VolumeProjection",
        "clusterTrustBundle configMap downwardAPI podCertificate secret",
    ),
    (
        CONTAINER,
        "",
        "core.v1.Container",
        "args command env envFrom image imagePullPolicy name resources restartPolicy stdin stdinOnce terminationMessagePath \
         terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
    ),
    (
        CONTAINER,
        "securityContext.",
        "core.v1.SecurityContext",
        "privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seccompProfile",
    ),
    (CONTAINER, "securityContext.capabilities.", "core.v1.Capabilities", "drop"),
    (CONTAINER, "ports[].", "core.v1.ContainerPort", "containerPort name protocol"),
    (CONTAINER, "lifecycle.", "core.v1.Lifecycle", "stopSignal"),
    (CONTAINER, "lifecycle.preStop.", "core.v1.LifecycleHandler", "exec sleep tcpSocket"),
    (CONTAINER, "lifecycle.postStart.", "core.v1.LifecycleHandler", "exec sleep tcpSocket"),
    (CONTAINER, "lifecycle.preStop.httpGet.", "core.v1.HTTPGetAction", "httpHeaders path port scheme"),
    (CONTAINER, "lifecycle.postStart.httpGet.", "core.v1.HTTPGetAction", "httpHeaders path port scheme"),
    (CONTAINER, "livenessProbe.", "core.v1.Probe", PROBE),
    (CONTAINER, "readinessProbe.", "core.v1.Probe", PROBE),
    (CONTAINER, "startupProbe.", "core.v1.Probe", PROBE),
    (CONTAINER, "livenessProbe.httpGet.", "core.v1.HTTPGetAction", "httpHeaders path port scheme"),
    (CONTAINER, "readinessProbe.httpGet.", "core.v1.HTTPGetAction", "httpHeaders path port scheme"),
    (CONTAINER, "startupProbe.httpGet.", "core.v1.HTTPGetAction", "httpHeaders path port scheme"),
    (CONTAINER, "livenessProbe.tcpSocket.", "core.v1.TCPSocketAction", "port"),
    (CONTAINER, "readinessProbe.tcpSocket.", "core.v1.TCPSocketAction", "port"),
    (CONTAINER, "startupProbe.tcpSocket.", "core.v1.TCPSocketAction", "port"),
    (
        SERVICE,
        "spec.",
        "core.v1.ServiceSpec",
        "clusterIP clusterIPs internalTrafficPolicy publishNotReadyAddresses selector",
    ),
    (SERVICE, "spec.ports[].", "core.v1.ServicePort", "appProtocol name port protocol targetPort"),
];
const PROBE: &str = "exec failureThreshold grpc initialDelaySeconds periodSeconds successThreshold \
    terminationGracePeriodSeconds timeoutSeconds";

/// Returns the first names of fields of a table beneath a path.
fn named<'a>(fields: &'a [Field], path: &'a str) -> BTreeSet<&'a str> {
    let inner = fields.iter().filter_map(move |field| field.name.strip_prefix(path));
    inner.map(|name| name.split(['.', '[']).next().unwrap_or(name)).collect()
}

#[test]
fn every_field_of_kubernetes_has_an_effect_or_a_warning() {
    for (table, path, name, others) in OTHERS {
        let schema = definition(&format!("io.k8s.api.{name}")).unwrap();
        let fields: BTreeSet<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let others: Vec<&str> = others.split_whitespace().collect();
        let known: BTreeSet<&str> = others.iter().copied().chain(named(table, path)).collect();
        assert_eq!(known, fields, "{name}");
        // Of what is named twice, the parts have no effect.
        for twice in others.iter().filter(|other| named(table, path).contains(**other)) {
            assert!(!table.iter().any(|field| field.name == format!("{path}{twice}")), "{name} {twice}");
        }
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
            {"securityContext": {"capabilities": {"add": ["CHOWN", "SYS_PTRACE"]}}},
            {"startupProbe": {"httpGet": {"host": "example.com", "port": 80}}, "livenessProbe": {"tcpSocket": {"port": 80}}}],
        "volumes": [{"projected": {"sources": [{"configMap": {}}, {"serviceAccountToken": {"path": "token"}}]}}],
    });
    let found = of_pod(&spec, "spec.template.spec");
    let fields: Vec<_> = found.iter().filter_map(|warning| warning.split(':').next()).collect();
    let wanted = [
        "volumes[0].projected.sources[1].serviceAccountToken",
        "activeDeadlineSeconds",
        "dnsPolicy",
        "nodeSelector",
        "schedulerName",
        "shareProcessNamespace",
        "securityContext.sysctls",
        "containers[1].ports[0].hostPort",
        "containers[2].securityContext.capabilities.add",
        "containers[3].startupProbe.httpGet.host",
    ];
    assert_eq!(fields, wanted.map(|field| format!("spec.template.spec.{field}")));
}

#[test]
fn service_that_opens_nothing_outside_is_named() {
    let plain = json!({"type": "ClusterIP", "sessionAffinity": "None", "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "ports": [{"port": 80}]});
    let warnings = |spec: &Value| of_object("", "services", &json!({ "spec": spec }));
    assert!(warnings(&plain).is_empty());
    let spec = json!({"type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{"port": 80, "nodePort": 30080}]});
    let found = warnings(&spec);
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
        (CONTAINER, "ports[].hostPort", json!(0), json!(80)),
        (CONTAINER, "securityContext.allowPrivilegeEscalation", json!(false), json!(true)),
        (INIT_CONTAINER, "restartPolicy", json!("Always"), json!("Never")),
        (POD, "volumes[].emptyDir.medium", json!("Memory"), json!("HugePages")),
        (
            POD,
            "volumes[].projected.sources[].serviceAccountToken",
            json!({"path": "token", "audience": "vault"}),
            json!({"path": "token"}),
        ),
        (
            POD,
            "volumes[].projected.sources[].serviceAccountToken",
            json!({"path": "token", "audience": "vault"}),
            json!({"path": "token", "audience": API_AUDIENCE}),
        ),
        (SERVICE, "spec.type", json!("ClusterIP"), json!("LoadBalancer")),
        (SERVICE, "spec.ipFamilies", json!(["IPv4"]), json!(["IPv6"])),
        (SERVICE, "spec.ipFamilyPolicy", json!("PreferDualStack"), json!("RequireDualStack")),
        (SERVICE, "spec.sessionAffinity", json!("None"), json!("ClientIP")),
    ] {
        assert!(!warned(fields, name, holds) && !warned(fields, name, Value::Null), "{name}");
        assert!(warned(fields, name, other), "{name}");
    }
}

#[test]
fn objects_of_other_kinds_are_warned_about_by_their_paths() {
    for (group, plural, object, expected) in [
        ("", "persistentvolumes", json!({"spec": {"capacity": {"storage": "1Gi"}}}), "spec"),
        ("", "nodes", json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}), "spec.taints"),
        ("", "nodes", json!({"spec": {"taints": [{"key": UNSCHEDULABLE_TAINT}]}}), ""),
        (
            "",
            "namespaces",
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted", "a": "b"}}}),
            "metadata.labels.pod-security.kubernetes.io/enforce",
        ),
        (
            "apps",
            "statefulsets",
            json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"}}}),
            "spec.persistentVolumeClaimRetentionPolicy.whenDeleted",
        ),
        ("storage.k8s.io", "storageclasses", json!({"provisioner": "a.b/c"}), "provisioner"),
        ("node.k8s.io", "runtimeclasses", json!({"handler": "gvisor"}), ""),
        (
            "",
            "resourcequotas",
            json!({"spec": {"scopes": ["BestEffort", "VolumeAttributesClass"]}}),
            "spec.scopes[1]",
        ),
        ("", "configmaps", json!({"data": {"a": "b"}}), ""),
    ] {
        let found = of_object(group, plural, &object);
        let fields: Vec<_> = found.iter().filter_map(|warning| warning.split(": ").next()).collect();
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(fields, expected, "{plural} {object}");
    }
}
