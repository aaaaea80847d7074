//! The cells of kinds that need a few lines each.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{array, created, integer, labels, name, or_none, text};
use crate::selector::LabelSelector;
use crate::table::age::{age, human_duration};

/// The most addresses or ports that one cell lists.
const MAX_LISTED: usize = 3;

pub(super) fn any(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/metadata/creationTimestamp").into()]
}

pub(super) fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/status/phase").into(), created(object, now)]
}

fn size(object: &Value, field: &str) -> usize {
    object[field].as_object().map_or(0, serde_json::Map::len)
}

pub(super) fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/type").into(), size(object, "data").into(), created(object, now)]
}

pub(super) fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), (size(object, "data") + size(object, "binaryData")).into(), created(object, now)]
}

pub(super) fn service_account(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), created(object, now)]
}

pub(super) fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/spec/holderIdentity").into(), created(object, now)]
}

pub(super) fn validating_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    let kind = &object["spec"]["paramKind"];
    let kind = match (text(kind, "/apiVersion"), text(kind, "/kind")) {
        (_, "") => "<unset>".to_owned(),
        (version, kind) => format!("{version}/{kind}"),
    };
    let count = array(object, "/spec/validations").len();
    vec![name(object), count.into(), kind.into(), created(object, now)]
}

pub(super) fn policy_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference = &object["spec"]["paramRef"];
    let reference = match (text(reference, "/namespace"), text(reference, "/name")) {
        (_, "") => "<unset>".to_owned(),
        ("", name) => format!("*/{name}"),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    vec![name(object), text(object, "/spec/policyName").into(), reference.into(), created(object, now)]
}

pub(super) fn webhooks(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), array(object, "/webhooks").len().into(), created(object, now)]
}

pub(super) fn runtime_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/handler").into(), created(object, now)]
}

pub(super) fn priority_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let default = object["globalDefault"] == true;
    let preemption = text(object, "/preemptionPolicy").into();
    vec![name(object), integer(object, "/value").into(), default.into(), created(object, now), preemption]
}

pub(super) fn storage_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut name = text(object, "/metadata/name").to_string();
    if object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true" {
        name += " (default)";
    }
    let or = |pointer: &str, default: &'static str| {
        Some(text(object, pointer)).filter(|t| !t.is_empty()).unwrap_or(default).to_string()
    };
    vec![
        name.into(),
        text(object, "/provisioner").into(),
        or("/reclaimPolicy", "Delete").into(),
        or("/volumeBindingMode", "Immediate").into(),
        (object["allowVolumeExpansion"] == true).into(),
        created(object, now),
    ]
}

pub(super) fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let port = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match integer(port, "/nodePort") {
            0 => format!("{}/{protocol}", integer(port, "/port")),
            node => format!("{}:{node}/{protocol}", integer(port, "/port")),
        }
    };
    let ports: Vec<_> = array(object, "/spec/ports").iter().map(port).collect();
    let kind = Some(text(object, "/spec/type")).filter(|t| !t.is_empty()).unwrap_or("ClusterIP");
    let address = [text(object, "/spec/clusterIPs/0"), text(object, "/spec/clusterIP")];
    vec![
        name(object),
        kind.into(),
        or_none(address.into_iter().find(|a| !a.is_empty()).unwrap_or_default()).into(),
        external_address(object, kind).into(),
        or_none(&ports.join(",")).into(),
        created(object, now),
        labels(object.pointer("/spec/selector")).into(),
    ]
}

fn external_address(service: &Value, kind: &str) -> String {
    let external = array(service, "/spec/externalIPs").iter().filter_map(Value::as_str);
    match kind {
        "ExternalName" => text(service, "/spec/externalName").into(),
        "LoadBalancer" => {
            let address = |i: &Value| {
                let found = [text(i, "/ip"), text(i, "/hostname")];
                found.into_iter().find(|a| !a.is_empty()).map(ToString::to_string)
            };
            let balancer: BTreeSet<_> =
                array(service, "/status/loadBalancer/ingress").iter().filter_map(address).collect();
            let all: Vec<_> = balancer.into_iter().chain(external.map(Into::into)).collect();
            if all.is_empty() { "<pending>".into() } else { all.join(",") }
        }
        _ => or_none(&external.collect::<Vec<_>>().join(",")).into(),
    }
}

fn listed(all: &[String], none: &str) -> String {
    match all.len() {
        0 => none.into(),
        1..=MAX_LISTED => all.join(","),
        more => format!("{} + {} more...", all[..MAX_LISTED].join(","), more - MAX_LISTED),
    }
}

pub(super) fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in array(object, "/subsets") {
        let addresses = || array(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        let ports = array(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses().map(ToString::to_string));
        }
        for port in ports {
            let port = integer(port, "/port");
            let join =
                |ip: &str| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
            all.extend(addresses().map(join));
        }
    }
    vec![name(object), listed(&all, "<none>").into(), created(object, now)]
}

pub(super) fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let port = |port: &Value| match (port["port"].as_i64(), port["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.into(),
        (None, None) => "*".into(),
    };
    let ports: Vec<_> = array(object, "/ports").iter().map(port).collect();
    let addresses = array(object, "/endpoints").iter().flat_map(|e| array(e, "/addresses"));
    let addresses: Vec<_> = addresses.filter_map(Value::as_str).map(Into::into).collect();
    vec![
        name(object),
        text(object, "/addressType").into(),
        listed(&ports, "<unset>").into(),
        listed(&addresses, "<unset>").into(),
        created(object, now),
    ]
}

pub(super) fn network_policy(object: &Value, now: Timestamp) -> Vec<Value> {
    let selector = match object.pointer("/spec/podSelector").map(LabelSelector::from_object) {
        Some(Ok(selector)) => or_none(&selector.to_string()).to_string(),
        Some(Err(_)) => "<error>".into(),
        None => "<none>".into(),
    };
    vec![name(object), selector.into(), created(object, now)]
}

pub(super) fn certificate_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let conditions = array(object, "/status/conditions");
    let has = |kind: &str| conditions.iter().any(|condition| condition["type"] == kind);
    let mut condition = match () {
        () if has("Denied") => "Denied",
        () if has("Approved") => "Approved",
        () => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !text(object, "/status/certificate").is_empty() {
        condition.push_str(",Issued");
    }
    let duration = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    vec![
        name(object),
        created(object, now),
        text(object, "/spec/signerName").into(),
        text(object, "/spec/username").into(),
        duration.map_or("<none>".into(), |seconds| human_duration(seconds).into()),
        condition.into(),
    ]
}

pub(super) fn quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let hard = object.pointer("/status/hard").and_then(Value::as_object);
    let mut lines: Vec<_> = hard.into_iter().flatten().collect();
    lines.sort_by_key(|(resource, _)| *resource);
    let used = |resource: &str| object["status"]["used"][resource].as_str().unwrap_or("0");
    let cell = |limits: bool| {
        let of_cell = lines.iter().filter(|(resource, _)| resource.starts_with("limits.") == limits);
        let shown = of_cell.map(|(resource, hard)| {
            format!("{resource}: {}/{}", used(resource), hard.as_str().unwrap_or_default())
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    vec![name(object), cell(false).into(), cell(true).into(), created(object, now)]
}

pub(super) fn disruption_budget(object: &Value, now: Timestamp) -> Vec<Value> {
    let bound = |pointer: &str| match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "N/A".into(),
    };
    vec![
        name(object),
        bound("/spec/minAvailable").into(),
        bound("/spec/maxUnavailable").into(),
        integer(object, "/status/disruptionsAllowed").into(),
        created(object, now),
    ]
}

pub(super) fn role_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let of = |kind: &str| {
        let subjects = array(object, "/subjects").iter().filter(|s| s["kind"] == kind);
        let name = |s: &Value| match kind {
            "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            _ => text(s, "/name").to_string(),
        };
        subjects.map(name).collect::<Vec<_>>().join(", ")
    };
    vec![
        name(object),
        role.into(),
        created(object, now),
        of("User").into(),
        of("Group").into(),
        of("ServiceAccount").into(),
    ]
}

pub(super) fn autoscaler(object: &Value, now: Timestamp) -> Vec<Value> {
    let target = format!(
        "{}/{}",
        text(object, "/spec/scaleTargetRef/kind"),
        text(object, "/spec/scaleTargetRef/name")
    );
    let least = object.pointer("/spec/minReplicas").map_or_else(|| "<unset>".into(), ToString::to_string);
    vec![
        name(object),
        target.into(),
        least.into(),
        integer(object, "/spec/maxReplicas").into(),
        integer(object, "/status/currentReplicas").into(),
        created(object, now),
    ]
}

pub(super) fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = array(object, "/status/conditions").iter().find(|c| c["type"] == "Ready");
    let mut status = match ready {
        Some(ready) if ready["status"] == "True" => "Ready".to_string(),
        Some(_) => "NotReady".into(),
        None => "Unknown".into(),
    };
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status += ",SchedulingDisabled";
    }
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let role = |(key, value): (&String, &Value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_string()),
        None if key == "kubernetes.io/role" => value.as_str().map(Into::into),
        None => None,
    };
    let roles: BTreeSet<_> =
        labels.into_iter().flatten().filter_map(role).filter(|r| !r.is_empty()).collect();
    let roles = roles.into_iter().collect::<Vec<_>>().join(",");
    let address = |kind: &str| {
        let found = array(object, "/status/addresses").iter().find(|a| a["type"] == kind);
        or_none(found.map(|a| text(a, "/address")).unwrap_or_default()).to_string()
    };
    let info = |field: &str| text(object, &format!("/status/nodeInfo/{field}"));
    let or_unknown = |text: &str| if text.is_empty() { "<unknown>".to_string() } else { text.into() };
    let mut kernel = or_unknown(info("kernelVersion"));
    if !info("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("architecture"));
    }
    vec![
        name(object),
        status.into(),
        or_none(&roles).into(),
        created(object, now),
        info("kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        or_unknown(info("osImage")).into(),
        kernel.into(),
        or_unknown(info("containerRuntimeVersion")).into(),
    ]
}

/// `RWO,ROX` and so on, each once, in the usual order.
fn access_modes(object: &Value, pointer: &str) -> String {
    let modes = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| array(object, pointer).iter().any(|m| m == mode);
    modes.into_iter().filter(|(long, _)| has(long)).map(|(_, short)| short).collect::<Vec<_>>().join(",")
}

/// The phase, unless the object is going away.
fn phase(object: &Value) -> &str {
    if text(object, "/metadata/deletionTimestamp").is_empty() {
        text(object, "/status/phase")
    } else {
        "Terminating"
    }
}

fn or_unset<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("<unset>")
}

pub(super) fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = object.pointer("/spec/claimRef").filter(|c| c.is_object());
    let claim = claim.map(|c| format!("{}/{}", text(c, "/namespace"), text(c, "/name"))).unwrap_or_default();
    let capacity = Some(text(object, "/spec/capacity/storage")).filter(|c| !c.is_empty()).unwrap_or("0");
    vec![
        name(object),
        capacity.into(),
        access_modes(object, "/spec/accessModes").into(),
        text(object, "/spec/persistentVolumeReclaimPolicy").into(),
        phase(object).into(),
        claim.into(),
        text(object, "/spec/storageClassName").into(),
        or_unset(object, "/spec/volumeAttributesClassName").into(),
        text(object, "/status/reason").into(),
        created(object, now),
        or_unset(object, "/spec/volumeMode").into(),
    ]
}

pub(super) fn volume_claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = text(object, "/spec/volumeName");
    // Before it is bound, what it will get is not known.
    let (capacity, modes) = if volume.is_empty() {
        ("", String::new())
    } else {
        (text(object, "/status/capacity/storage"), access_modes(object, "/status/accessModes"))
    };
    vec![
        name(object),
        phase(object).into(),
        volume.into(),
        capacity.into(),
        modes.into(),
        text(object, "/spec/storageClassName").into(),
        or_unset(object, "/spec/volumeAttributesClassName").into(),
        created(object, now),
        or_unset(object, "/spec/volumeMode").into(),
    ]
}

/// The first of two texts that is not empty.
fn either<'a>(first: &'a str, second: &'a str) -> &'a str {
    if first.is_empty() { second } else { first }
}

pub(super) fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointer: &str| object.pointer(pointer).filter(|t| !t.is_null());
    let first = age(at("/firstTimestamp").or_else(|| at("/eventTime")), now);
    let (last, count) = match at("/series") {
        Some(series) => (age(series.get("lastObservedTime"), now), integer(series, "/count")),
        None => {
            let last = at("/lastTimestamp").map_or_else(|| first.clone(), |time| age(Some(time), now));
            (last, integer(object, "/count").max(1))
        }
    };
    let kind = text(object, "/involvedObject/kind").to_lowercase();
    let about = match text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = either(text(object, "/source/component"), text(object, "/reportingComponent"));
    let source = match either(text(object, "/source/host"), text(object, "/reportingInstance")) {
        "" => component.to_string(),
        host => format!("{component}, {host}"),
    };
    vec![
        last.into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        about.into(),
        text(object, "/involvedObject/fieldPath").into(),
        source.into(),
        text(object, "/message").trim().into(),
        first.into(),
        count.into(),
        name(object),
    ]
}
