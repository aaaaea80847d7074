//! The node's own objects: Node, Lease, RuntimeClasses.

use hutch_api::architecture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::capacity::Amount;
use crate::shared::{HOST_IP, Shared};
use crate::{Error, claims, cordon};

/// How often the lease is renewed, as a kubelet does.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// After so many seconds without renewal others may call the node dead.
const LEASE_SECONDS: i32 = 40;
/// How often conditions are written that have not changed, as a kubelet does.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The node is under pressure when less than one in so many processes can still begin.
const LEAST_PIDS_PART: u64 = 20;
/// Where leases of nodes are.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Registers the Node object, and says that it is ready.
pub(crate) async fn node(node: &Shared) -> Result<(), Error> {
    let api: Api<Node> = Api::all(node.client.clone());
    let name = &node.config.node_name;
    let labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture(),
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": node.config.pod_cidr, "podCIDRs": [node.config.pod_cidr]},
    });
    // Every field above is one of the type's.
    let object: Node = serde_json::from_value(object).unwrap_or_default();
    let own = match api.create(&PostParams::default(), &object).await {
        Ok(own) => own,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            api.get(name).await.map_err(Error::api("read the node"))?
        }
        Err(error) => return Err(Error::api("register the node")(error)),
    };
    // No Pod starts before this. Later changes are followed.
    node.capacity.set_cordoned(cordon::is_marked(&own));
    report(node, &api, own).await.map_err(Error::api("say that the node is ready"))
}

/// Writes the conditions as they are now, and registers a node again whose object was deleted. A write that fails is made up
/// for by the next one.
pub(crate) async fn report_conditions(node: &Shared) {
    let api: Api<Node> = Api::all(node.client.clone());
    let written = async { report(node, &api, api.get(&node.config.node_name).await?).await };
    let written = match written.await {
        Err(kube::Error::Api(status)) if status.code == 404 => self::node(node).await,
        written => written.map_err(Error::api("write the conditions of the node")),
    };
    if let Err(error) = written {
        tracing::warn!(%error, "failed to report the node");
    }
}

/// Writes the conditions. `own` is the object as it is.
async fn report(node: &Shared, api: &Api<Node>, own: Node) -> Result<(), kube::Error> {
    let name = &node.config.node_name;
    let before = own.status.and_then(|status| status.conditions).unwrap_or_default();
    let conditions = conditions(Pressure::of(node), &before, Timestamp::now());
    let status = json!({ "status": status(name, node.capacity.total(), &conditions) });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

/// Resources of which the machine has too little left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pressure {
    memory: bool,
    disk: bool,
    pids: bool,
}

impl Pressure {
    fn of(node: &Shared) -> Pressure {
        Pressure {
            memory: node.memory.read().is_short,
            disk: node.disk_pressure(),
            pids: free_pids().is_some_and(|(free, total)| free < total / LEAST_PIDS_PART),
        }
    }
}

/// Returns how many processes and threads can still begin on the machine, and how many there can be.
fn free_pids() -> Option<(u64, u64)> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let total = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let running = load.split(' ').nth(3)?.split_once('/')?.1.parse().ok()?;
    Some((total.saturating_sub(running), total))
}

/// Returns the conditions of the node. The time of a transition stays while the status does.
fn conditions(pressure: Pressure, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let (memory, disk, pids) = (pressure.memory, pressure.disk, pressure.pids);
    let reasons = [
        ("MemoryPressure", memory, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"),
        ("DiskPressure", disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure"),
        ("PIDPressure", pids, "KubeletHasInsufficientPID", "KubeletHasSufficientPID"),
        ("Ready", true, "KubeletReady", ""),
    ];
    let messages = [
        ("kubelet has insufficient memory available", "kubelet has sufficient memory available"),
        ("kubelet has disk pressure", "kubelet has no disk pressure"),
        ("kubelet has insufficient PID available", "kubelet has sufficient PID available"),
        ("hutch is running Pods", ""),
    ];
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let all =
        reasons.into_iter().zip(messages).map(|((kind, holds, reason, or_reason), (message, or_message))| {
            let status = if holds { "True" } else { "False" };
            let same = before.iter().find(|old| old.type_ == kind && old.status == status);
            NodeCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(if holds { reason } else { or_reason }.into()),
                message: Some(if holds { message } else { or_message }.into()),
                last_heartbeat_time: Some(now.clone()),
                last_transition_time: same
                    .and_then(|old| old.last_transition_time.clone())
                    .or(Some(now.clone())),
            }
        });
    all.collect()
}

fn status(name: &str, total: Amount, conditions: &[NodeCondition]) -> Value {
    let Amount { cpu_millis, memory_bytes, disk_bytes, pods } = total;
    let kibibytes = |bytes: u64| format!("{}Ki", bytes / 1024);
    let resources = json!({
        "cpu": (cpu_millis / 1000).to_string(), "memory": kibibytes(memory_bytes),
        "ephemeral-storage": kibibytes(disk_bytes), "pods": pods.to_string(),
    });
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
        "conditions": conditions,
        "nodeInfo": {
            "kernelVersion": read("/proc/sys/kernel/osrelease"), "operatingSystem": "linux",
            "osImage": os_name(), "architecture": hutch_api::architecture(), "machineID": "", "systemUUID": "",
            "bootID": read("/proc/sys/kernel/random/boot_id"),
            "containerRuntimeVersion": format!("hutch://{}", env!("CARGO_PKG_VERSION")),
            "kubeletVersion": format!("v1.36.0-hutch.{}", env!("CARGO_PKG_VERSION")), "kubeProxyVersion": "",
        },
    })
}

fn os_name() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

/// Keeps the lease and the conditions of the node, until it stops.
pub(crate) async fn keep(node: Arc<Shared>) {
    claims::announce(&node.client).await;
    let mut renew = tokio::time::interval(RENEW_EVERY);
    renew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut reported, mut pressure) = (Instant::now(), Pressure::of(&node));
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            _ = renew.tick() => {}
        }
        let current = Pressure::of(&node);
        if current != pressure || reported.elapsed() >= HEARTBEAT {
            report_conditions(&node).await;
            (reported, pressure) = (Instant::now(), current);
        }
        if let Err(error) = renew_lease(&node).await {
            tracing::debug!(%error, "the node's lease was not renewed");
        }
    }
}

async fn renew_lease(node: &Shared) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(node.client.clone(), LEASE_NAMESPACE);
    let name = &node.config.node_name;
    let now = format!("{:.6}", Timestamp::now());
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now});
    let change = json!({ "spec": spec });
    match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                               "metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": spec});
            let lease: Lease = serde_json::from_value(lease).unwrap_or_default();
            api.create(&PostParams::default(), &lease).await.map(drop)
        }
        other => other.map(drop),
    }
}

/// One object for each class, so that Pods may name it. One that exists already stays as it is, unless its handler
/// is another: that field cannot change, so the object is made anew.
pub(crate) async fn runtime_classes(node: &Shared) {
    let api: Api<RuntimeClass> = Api::all(node.client.clone());
    for (name, handler) in &node.config.runtime_classes {
        let mut class = RuntimeClass { handler: handler.name().into(), ..RuntimeClass::default() };
        class.metadata.name = Some(name.clone());
        let mut made = api.create(&PostParams::default(), &class).await.map(drop);
        if let Err(kube::Error::Api(status)) = &made
            && status.code == 409
        {
            made = match api.get(name).await {
                Ok(found) if found.handler == class.handler => Ok(()),
                Ok(_) => match api.delete(name, &kube::api::DeleteParams::default()).await {
                    Ok(_) => api.create(&PostParams::default(), &class).await.map(drop),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
        }
        if let Err(error) = made {
            tracing::warn!(class = name, %error, "a runtime class was not announced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_keeps_the_time_of_a_transition() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let calm = Pressure { memory: false, disk: false, pids: false };
        let first = conditions(calm, &[], at(1));
        let second = conditions(Pressure { memory: true, ..calm }, &first, at(9));
        let shown = |list: &[NodeCondition]| {
            let time = |time: &Option<Time>| time.as_ref().unwrap().0.as_second();
            let row = |c: &NodeCondition| {
                (c.status == "True", time(&c.last_transition_time), time(&c.last_heartbeat_time))
            };
            list.iter().map(row).collect::<Vec<_>>()
        };
        assert_eq!(shown(&first), [(false, 1, 1), (false, 1, 1), (false, 1, 1), (true, 1, 1)]);
        assert_eq!(shown(&second), [(true, 9, 9), (false, 1, 9), (false, 1, 9), (true, 1, 9)]);
        assert_eq!(second[0].reason.as_deref(), Some("KubeletHasInsufficientMemory"));
    }
}
