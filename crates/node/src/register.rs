//! The node's own objects: Node, Lease, RuntimeClasses.

use hutch_api::architecture;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::shared::{HOST_IP, Shared};
use crate::{Error, claims};

/// How often the lease is renewed, as a kubelet does.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// After so many seconds without renewal others may call the node dead.
const LEASE_SECONDS: i32 = 40;
/// Where leases of nodes are.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Most Pods at once: each has an id range and some processes, and the kernel has 32768 of those by default.
const MAX_PODS: u32 = 5000;

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
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(Error::api("register the node")(error)),
    }
    report(node, &api).await.map_err(Error::api("say that the node is ready"))
}

/// Writes the condition `DiskPressure` as it is now. A write that fails is made up for by the next change.
pub(crate) async fn report_disk_pressure(node: &Shared) {
    if let Err(error) = report(node, &Api::all(node.client.clone())).await {
        tracing::warn!(%error, "failed to write the conditions of the node");
    }
}

async fn report(node: &Shared, api: &Api<Node>) -> Result<(), kube::Error> {
    let name = &node.config.node_name;
    let status = json!({ "status": status(name, node.disk_pressure()) });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

fn status(name: &str, disk_pressure: bool) -> Value {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let disk = match disk_pressure {
        true => condition("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
        false => {
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let resources = json!({
        "cpu": cpus.to_string(), "memory": format!("{}Ki", memory_kib()), "pods": MAX_PODS.to_string(),
    });
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            disk,
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "hutch is running Pods"),
        ],
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

fn memory_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// Announces the runtime classes and keeps the lease, until the node stops.
pub(crate) async fn keep(node: Arc<Shared>) {
    runtime_classes(&node).await;
    claims::announce(&node.client).await;
    let mut renew = tokio::time::interval(RENEW_EVERY);
    renew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.shutdown.wait() => return,
            _ = renew.tick() => {}
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
async fn runtime_classes(node: &Shared) {
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
