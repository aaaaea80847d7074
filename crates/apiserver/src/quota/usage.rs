//! Use of a quota by an object.

use std::collections::BTreeMap;

use hutch_api::quantity::Quantity;
use serde_json::Value;

use crate::json::quantity;
use crate::kinds::Kind;
use crate::meta;

/// Amounts by the names that `spec.hard` of a quota uses.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// Resources for which each container must have a request or a limit when a quota names them.
const REQUIRED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

fn add(amounts: &mut Amounts, name: impl Into<String>, amount: Quantity) {
    let sum = amounts.entry(name.into()).or_default();
    *sum = sum.plus(amount);
}

/// The sum of both.
pub(super) fn sum(mut amounts: Amounts, others: Amounts) -> Amounts {
    for (name, amount) in others {
        add(&mut amounts, name, amount);
    }
    amounts
}

/// Returns what an object of a kind uses.
pub(super) fn of(kind: &Kind, object: &Value) -> Amounts {
    let mut amounts = Amounts::new();
    if is_exempt(kind, object) {
        return amounts;
    }
    let one = Quantity::of_units(1);
    add(&mut amounts, format!("count/{}", kind.group_resource()), one);
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "pods") => pod(&mut amounts, object),
        ("", "services") => service(&mut amounts, object),
        ("", "persistentvolumeclaims") => volume_claim(&mut amounts, object),
        ("", "configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers") => {
            add(&mut amounts, kind.plural.as_str(), one);
        }
        _ => {}
    }
    amounts
}

/// Returns true for the memory of a suspended Sandbox: no quota keeps a Sandbox from being suspended.
fn is_exempt(kind: &Kind, object: &Value) -> bool {
    has_exempt(kind) && hutch_api::state::is_suspend(meta::text(object, "name"))
}

/// Returns true if some objects of a kind do not count.
pub(super) fn has_exempt(kind: &Kind) -> bool {
    kind.group == hutch_api::state::GROUP && kind.plural == hutch_api::state::SANDBOX_SNAPSHOTS
}

/// Returns true if a Pod that has ended, or whose grace period is over, no longer counts.
fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        || (meta::is_terminating(pod) && pod["metadata"]["deletionGracePeriodSeconds"] == 0)
}

fn pod(amounts: &mut Amounts, pod: &Value) {
    if is_over(pod) {
        return;
    }
    add(amounts, "pods", Quantity::of_units(1));
    for (name, amount) in resources(&pod["spec"], "requests") {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-") {
            add(amounts, name.as_str(), amount);
        }
        add(amounts, format!("requests.{name}"), amount);
    }
    for (name, amount) in resources(&pod["spec"], "limits") {
        add(amounts, format!("limits.{name}"), amount);
    }
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

/// The amounts in an object such as `resources.requests`.
pub(super) fn amounts(object: &Value) -> Amounts {
    let fields = object.as_object().into_iter().flatten();
    fields.filter_map(|(name, amount)| Some((name.clone(), quantity(amount)?))).collect()
}

/// Requests or limits of a Pod: those of its containers together, or of an init container if that is more.
pub(super) fn resources(spec: &Value, field: &str) -> Amounts {
    let own = |container: &Value| amounts(&container["resources"][field]);
    let mut running = list(spec, "containers").iter().map(own).fold(Amounts::new(), sum);
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in list(spec, "initContainers") {
        let mut needed = own(container);
        if container["restartPolicy"] == "Always" {
            running = sum(running, needed.clone());
            sidecars = sum(sidecars, needed);
            needed = sidecars.clone();
        } else {
            needed = sum(needed, sidecars.clone());
        }
        starting = most(starting, needed);
    }
    let overhead = amounts(&spec["overhead"]);
    sum(most(running, starting), overhead)
}

fn most(mut amounts: Amounts, others: Amounts) -> Amounts {
    for (name, amount) in others {
        let own = amounts.entry(name).or_default();
        *own = own.max(amount);
    }
    amounts
}

fn service(amounts: &mut Amounts, service: &Value) {
    let ports = list(&service["spec"], "ports");
    let kind = service["spec"]["type"].as_str().unwrap_or_default();
    add(amounts, "services", Quantity::of_units(1));
    let allocated = service["spec"]["allocateLoadBalancerNodePorts"] != false;
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if allocated => ports.len(),
        "LoadBalancer" => ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count(),
        _ => 0,
    };
    add(amounts, "services.nodeports", Quantity::of_units(node_ports));
    add(amounts, "services.loadbalancers", Quantity::of_units(usize::from(kind == "LoadBalancer")));
}

fn volume_claim(total: &mut Amounts, claim: &Value) {
    let one = Quantity::of_units(1);
    let size = |list: &Value| amounts(list).get("storage").copied().unwrap_or_default();
    // A volume that could not become smaller counts as what it is.
    let storage = size(&claim["spec"]["resources"]["requests"]).max(size(&claim["status"]["capacity"]));
    add(total, "persistentvolumeclaims", one);
    add(total, "requests.storage", storage);
    if let Some(class) = claim["spec"]["storageClassName"].as_str().filter(|class| !class.is_empty()) {
        let of_class = format!("{class}.storageclass.storage.k8s.io");
        add(total, format!("{of_class}/requests.storage"), storage);
        add(total, format!("{of_class}/persistentvolumeclaims"), one);
    }
}

/// Returns the resources of a quota that containers of a Pod do not set, in the words of Kubernetes.
pub(super) fn lacking(pod: &Value, counted: &Amounts) -> Option<String> {
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let containers = list(&pod["spec"], "containers").iter().chain(list(&pod["spec"], "initContainers"));
    for container in containers {
        let has = |name: &str| {
            let (field, resource) = name.split_once('.').unwrap_or(("requests", name));
            !container["resources"][field][resource].is_null()
        };
        for name in REQUIRED.iter().filter(|name| counted.contains_key(**name) && !has(name)) {
            missing.entry(name).or_default().push(container["name"].as_str().unwrap_or_default());
        }
    }
    let texts = missing.iter_mut().map(|(name, containers)| {
        containers.sort_unstable();
        containers.dedup();
        format!("{name} for: {}", containers.join(","))
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| format!("must specify {}", texts.join("; ")))
}

/// Returns true if a Pod is in a scope of a quota. Other kinds are in none.
pub(super) fn is_in_scope(kind: &Kind, object: &Value, name: &str, operator: &str, values: &[Value]) -> bool {
    if kind.group_resource() != "pods" {
        return false;
    }
    let spec = &object["spec"];
    let terminating = spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    let best_effort = resources(spec, "requests").is_empty() && resources(spec, "limits").is_empty();
    let class = &spec["priorityClassName"];
    let classified = class.as_str().is_some_and(|class| !class.is_empty());
    match (name, operator) {
        ("Terminating", _) => terminating,
        ("NotTerminating", _) => !terminating,
        ("BestEffort", _) => best_effort,
        ("NotBestEffort", _) => !best_effort,
        ("PriorityClass", "In") => values.contains(class),
        ("PriorityClass", "NotIn") => !values.contains(class),
        ("PriorityClass", "DoesNotExist") => !classified,
        ("PriorityClass", _) => classified,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Regression: a claim that requested less again counted less than the volume in memory that it had.
    #[test]
    fn claim_counts_as_what_it_has_if_that_is_more_than_it_requests() {
        let counted = |requested: &str, given: &Value| {
            let mut total = Amounts::new();
            let claim = json!({"spec": {"resources": {"requests": {"storage": requested}}},
                "status": {"capacity": {"storage": given}}});
            volume_claim(&mut total, &claim);
            total["requests.storage"]
        };
        let size = |text: &str| Quantity::parse(text).unwrap();
        assert_eq!(counted("1Mi", &json!("900Mi")), size("900Mi"));
        assert_eq!(counted("2Gi", &json!("1Gi")), size("2Gi"));
        assert_eq!(counted("2Gi", &Value::Null), size("2Gi"));
    }
}
