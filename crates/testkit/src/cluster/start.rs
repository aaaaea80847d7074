//! The programs of the control plane and their flags.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::Cluster;
use crate::tool;

/// The one Node. It takes every Pod without a node name.
const NODE: &str = "node-1";
/// Requests a second that the controller manager and the scheduler may send: enough to be never what is waited for.
const CLIENT_QPS: &str = "--kube-api-qps=2000";
const CLIENT_BURST: &str = "--kube-api-burst=4000";
/// Writes are noted, reads are not.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
"rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}]}"#;

impl Cluster {
    pub(super) fn start_etcd(&mut self, clients: u16, peers: u16) -> anyhow::Result<()> {
        let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let mut command = program("etcd")?;
        command.arg("--data-dir").arg(self.folder.join("etcd"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level=warn"]);
        // What is written need not survive a power cut.
        command.arg("--unsafe-no-fsync");
        self.spawn("etcd", command)?;
        Ok(())
    }

    pub(super) fn start_apiserver(&mut self, etcd: u16, port: u16) -> anyhow::Result<()> {
        let policy = self.folder.join("audit-policy.json");
        std::fs::write(&policy, AUDIT_POLICY).context("the audit policy")?;
        let mut command = program("kube-apiserver")?;
        command.arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"));
        command.args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")]);
        // No Pod dials the Service `kubernetes`, so it needs no endpoint, and the machine no network.
        command.args(["--advertise-address=198.51.100.1", "--endpoint-reconciler-type=none"]);
        command.args(["--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16"]);
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        // Webhooks are called at the addresses of their EndpointSlices: there is no kube-proxy.
        command.arg("--enable-aggregator-routing=true");
        // Off by default, on in stricter clusters; what passes with it passes without.
        command.arg("--enable-admission-plugins=OwnerReferencesPermissionEnforcement");
        for (flag, file) in [
            ("cert-dir", ""),
            ("tls-cert-file", "server.crt"),
            ("tls-private-key-file", "server.key"),
            // Kubelets prove themselves with the same certificate, and want to see it.
            ("kubelet-certificate-authority", "server.crt"),
            ("kubelet-client-certificate", "server.crt"),
            ("kubelet-client-key", "server.key"),
            ("token-auth-file", "tokens.csv"),
            ("service-account-key-file", "accounts.pub"),
            ("service-account-signing-key-file", "accounts.key"),
            ("audit-policy-file", "audit-policy.json"),
            ("audit-log-path", "audit.log"),
        ] {
            command.arg(format!("--{flag}={}", self.folder.join(file).display()));
        }
        self.spawn("kube-apiserver", command)?;
        Ok(())
    }

    pub(super) fn start_controller_manager(&mut self) -> anyhow::Result<()> {
        let mut command = program("kube-controller-manager")?;
        command.args([
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            CLIENT_QPS,
            CLIENT_BURST,
        ]);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--root-ca-file").arg(self.folder.join("server.crt"));
        self.spawn("kube-controller-manager", command)?;
        Ok(())
    }

    /// kube-scheduler, kwok, and the Node as soon as it takes Pods.
    pub(super) async fn start_node(&mut self, client: &Client, port: u16) -> anyhow::Result<()> {
        let mut command = program("kube-scheduler")?;
        command.args([
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            CLIENT_QPS,
            CLIENT_BURST,
        ]);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        self.spawn("kube-scheduler", command)?;

        let capacity = json!({"cpu": "100000", "memory": "1000Ti", "pods": "9999"});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
            "status": {"capacity": capacity, "allocatable": capacity},
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &node).await.context("the Node")?;

        let kwok = tool("kwok").context("kwok is not installed")?;
        let stages =
            kwok.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("share/kwok-stages.yaml");
        let mut command = Command::new(kwok);
        command.args(["--manage-all-nodes=true", "--node-lease-duration-seconds=40"]);
        command.arg("--kubeconfig").arg(self.kubeconfig()).arg("--config").arg(stages);
        command.args([&format!("--server-address=127.0.0.1:{port}")]);
        self.spawn("kwok", command)?;
        self.until("the Node takes Pods", || takes_pods(client)).await
    }
}

fn program(name: &str) -> anyhow::Result<Command> {
    Ok(Command::new(tool(name).with_context(|| format!("{name} is not installed"))?))
}

/// Returns true if the Node is Ready and the taint of new Nodes is gone.
async fn takes_pods(client: &Client) -> bool {
    let Ok(node) = Api::<Node>::all(client.clone()).get(NODE).await else { return false };
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && node.spec.and_then(|spec| spec.taints).unwrap_or_default().is_empty()
}
