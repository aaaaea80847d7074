use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Name of the Node.
pub(super) const NAME: &str = "worker-1";
/// Where the Nodes' leases are.
const LEASES: &str = "kube-node-lease";
/// How often the Node says that it lives; the controller manager gives it ten times that.
const BEAT: Duration = Duration::from_secs(5);

/// Makes the Node object, with the address of its kubelet.
pub(super) async fn register(client: &Client, kubelet: SocketAddr) -> anyhow::Result<()> {
    let resources = json!({"cpu": "1000", "memory": "1000Gi", "pods": "9999"});
    let time = Timestamp::now().to_string();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": NAME, "labels": {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": kubelet.ip()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it serves",
                "lastHeartbeatTime": time, "lastTransitionTime": time}],
        },
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &node).await?;
    Ok(())
}

/// Renews the Node's lease, without an end.
pub(super) async fn beat(client: Client) {
    let leases: Api<Lease> = Api::namespaced(client, LEASES);
    let params = PatchParams::apply("hutch-testkit-worker").force();
    loop {
        let time = format!("{:.6}", Timestamp::now());
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME},
            "spec": {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": time}});
        // The next one may get through.
        let _ = leases.patch(NAME, &params, &Patch::Apply(lease)).await;
        tokio::time::sleep(BEAT).await;
    }
}
