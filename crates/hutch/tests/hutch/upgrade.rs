//! `deploy/` on a real control plane: applied by kubectl, its ServiceAccount's rights alone, the webhook called by the API
//! server, and a cluster of an older release brought to `v1beta1`.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use hutch_serve::Shutdown;
use hutch_testkit::cluster::{Cluster, Options, Write, machine_address};
use hutch_webhook::{Migration, Settings};
use kube::Client;
use serde_json::{Value, json};

use crate::deploy::confined::Admin;
use crate::deploy::{confined, manifests, work};
use crate::harness::HUTCH;

/// User agent, without its version.
const AGENT: &str = "hutch-controller";
const ACCOUNT: &str = "agent-sandbox-controller";
const OLDER: &str = "extensions.agents.x-k8s.io/v1alpha1";
const NEWER: &str = "extensions.agents.x-k8s.io/v1beta1";
const CRD: &str = "apiextensions.k8s.io/v1";

fn kubectl(cluster: &Cluster, words: &[&str]) -> String {
    let mut command = Command::new("kubectl");
    let output = command.args(words).env("KUBECONFIG", cluster.kubeconfig()).output().expect("kubectl");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "kubectl {words:?}: {printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

fn apply_deploy(cluster: &Cluster) {
    let folder = manifests::folder().display().to_string();
    kubectl(cluster, &["apply", "--server-side", "--force-conflicts", "-k", &folder]);
    // The node of this cluster runs nothing: the webhook is this process.
    let scaled = ["scale", "deployment", "--all", "--replicas=0", "-n", "agent-sandbox-system"];
    kubectl(cluster, &scaled);
}

/// The client of the ServiceAccount of `deploy/`.
async fn account(cluster: &Cluster) -> Client {
    let access = cluster.service_account("agent-sandbox-system", ACCOUNT).await.expect("a token");
    access.client(AGENT).await.expect("a client")
}

/// The webhook with the rights of that account, in this process.
async fn serve_webhook(cluster: &Cluster, shutdown: &Shutdown) -> u16 {
    let settings =
        Settings { port: 0, cert_dir: cluster.folder().join("certificates"), ..Settings::default() };
    let webhook = hutch_webhook::start(account(cluster).await, settings).await.expect("the webhook starts");
    let port = webhook.address().port();
    tokio::spawn(webhook.run(shutdown.clone()));
    port
}

/// `hutch controller` as the manifest starts it, with the permissions of that account and its own address.
async fn start_controller(cluster: &mut Cluster) -> u16 {
    let objects = manifests::objects();
    let deployments = manifests::of_kind(&objects, "Deployment");
    let ours = deployments.into_iter().find(|d| d["metadata"]["name"] == ACCOUNT).expect("the Deployment");
    let container = &ours["spec"]["template"]["spec"]["containers"][0];
    let access = cluster.service_account("agent-sandbox-system", ACCOUNT).await.expect("a token");
    let port = free_port();
    let mut command = Command::new(HUTCH);
    command.args(container["args"].as_array().expect("args").iter().map(|arg| arg.as_str().expect("text")));
    command.arg(format!("--kubeconfig={}", access.kubeconfig().display()));
    command.arg(format!("--webhook-cert-dir={}", cluster.folder().join("certificates").display()));
    command.arg(format!("--webhook-port={port}"));
    command.args(["--leader-election-namespace=agent-sandbox-system"]);
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    cluster.spawn("hutch-controller", command).expect("it starts");
    port
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Puts that port of this machine behind the Service of `deploy/`.
async fn lead_to(admin: &Admin, address: IpAddr, port: u16) {
    let settings = Settings::default();
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": settings.service_name}},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "ports": [{"name": "webhook", "port": port}],
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
    });
    let admin = Admin { client: admin.client.clone(), namespace: settings.namespace };
    admin.create("discovery.k8s.io/v1", "EndpointSlice", "webhook", slice).await;
}

/// Writes that the account was refused. A list or watch that is refused leaves its work undone.
fn refused(cluster: &Cluster) -> Vec<Write> {
    let writes = cluster.audit().writes().expect("the audit log");
    writes.into_iter().filter(|write| write.agent.starts_with(AGENT) && write.code == 403).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn account_of_the_manifests_has_enough_permissions() {
    hutch_testkit::require!(kubernetes, kubectl);
    let Some(address) = machine_address() else {
        return hutch_testkit::note_skip("the_account_of_the_manifests", "needs a network address");
    };
    let mut cluster = Cluster::start(Options { crds: None, ..Options::default() }).await.expect("a cluster");
    let admin =
        Admin { client: cluster.client("tester").await.expect("a client"), namespace: "default".into() };
    apply_deploy(&cluster);
    let port = start_controller(&mut cluster).await;
    lead_to(&admin, address, port).await;
    converts(&admin).await;
    work::on_sandboxes(&admin).await;
    work::on_extensions(&admin).await;
    let lease = "a3317529.agent-sandbox.x-k8s.io";
    let theirs = Admin { namespace: "agent-sandbox-system".into(), ..admin };
    let held =
        |lease: &Value| lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
    theirs.until("coordination.k8s.io/v1", "Lease", lease, held).await;
    cluster.stop("hutch-controller").expect("it stops");
    theirs.until("coordination.k8s.io/v1", "Lease", lease, |lease| !held(lease)).await;
    assert_eq!(refused(&cluster), []);
}

/// Both ways through the API server.
async fn converts(admin: &Admin) {
    let old = json!({"spec": {"sandboxTemplateRef": {"name": "python"}}});
    // The API server hears of the definition's bundle by a watch.
    let made =
        confined::until(async || admin.try_create(OLDER, "SandboxClaim", "old", old.clone()).await.is_ok());
    assert!(made.await, "{:?}", admin.try_create(OLDER, "SandboxClaim", "old", old.clone()).await);
    let pool = |claim: &Value| claim["spec"]["warmPoolRef"]["name"] == "shadow-pool-python";
    admin.until(NEWER, "SandboxClaim", "old", pool).await;
    let new = json!({"spec": {"warmPoolRef": {"name": "gophers"}}});
    admin.create(NEWER, "SandboxClaim", "new", new).await;
    let both = |claim: &Value| {
        claim["spec"]["warmpool"] == "gophers" && claim["spec"]["sandboxTemplateRef"]["name"] == "gophers"
    };
    admin.until(OLDER, "SandboxClaim", "new", both).await;
    for name in ["old", "new"] {
        admin.api(NEWER, "SandboxClaim").delete(name, &Default::default()).await.expect(name);
    }
}

/// The definitions of a release that knew `v1alpha1` alone.
fn older_definitions(folder: &Path) -> String {
    let mut text = String::new();
    for file in ["manifest.yaml", "extensions.yaml"] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hutch/fixtures/release-v0.1.0").join(file);
        for definition in manifests::read(&path).iter().filter(|d| d["kind"] == "CustomResourceDefinition") {
            text.push_str(&format!("---\n{definition}\n"));
        }
    }
    let file = folder.join("older.yaml");
    std::fs::write(&file, text).expect("a file");
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_of_an_older_release_is_upgraded() {
    hutch_testkit::require!(kubernetes, kubectl);
    let Some(address) = machine_address() else {
        return hutch_testkit::note_skip("a_cluster_of_an_older_release", "needs a network address");
    };
    let options = Options { crds: None, node: false, ..Options::default() };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let client = cluster.client("tester").await.expect("a client");
    let admin = Admin { client: client.clone(), namespace: "default".into() };
    kubectl(&cluster, &["apply", "--server-side", "-f", &older_definitions(cluster.folder())]);
    let pod = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let pool = json!({"spec": {"replicas": 2, "sandboxTemplateRef": {"name": "python"}}});
    let claim = json!({"spec": {"sandboxTemplateRef": {"name": "python"}}});
    let core = "agents.x-k8s.io/v1alpha1";
    let objects = [
        (core, "Sandbox", pod.clone()),
        (OLDER, "SandboxTemplate", pod),
        (OLDER, "SandboxWarmPool", pool),
        (OLDER, "SandboxClaim", claim),
    ];
    for (version, kind, object) in &objects {
        let made =
            confined::until(async || admin.try_create(version, kind, "python", object.clone()).await.is_ok());
        assert!(made.await, "{kind}: {:?}", admin.try_create(version, kind, "python", object.clone()).await);
    }

    let migration = Migration { client, namespace: None, dry_run: false };
    let mut printed = Vec::new();
    let early = migration.rewrite(&mut |line| printed.push(line)).await.expect_err("too early");
    assert!(early.to_string().contains("apply the new definitions first"), "{early}");
    migration.bootstrap(&mut |line| printed.push(line)).await.expect("bootstrap");
    assert!(printed.last().is_some_and(|line| line.contains("shadow-pool-python made")), "{printed:?}");

    apply_deploy(&cluster);
    let shutdown = Shutdown::new();
    let port = serve_webhook(&cluster, &shutdown).await;
    lead_to(&admin, address, port).await;
    let chosen = |claim: &Value| claim["spec"]["warmPoolRef"]["name"] == "shadow-pool-python";
    // A read is refused until the API server has heard of the bundle.
    assert!(confined::until(async || admin.api(NEWER, "SandboxClaim").get("python").await.is_ok()).await);
    admin.until(NEWER, "SandboxClaim", "python", chosen).await;
    migration.rewrite(&mut |line| printed.push(line)).await.expect("migrate");
    shutdown.trigger();
    only_newer(&admin, &objects).await;
}

/// The API server drops the older version, and can read all objects without it and without a webhook.
async fn only_newer(admin: &Admin, objects: &[(&str, &str, Value)]) {
    for text in hutch_api::crds() {
        let mut definition: Value = serde_saphyr::from_str(text).expect("YAML");
        let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
        definition["spec"]["conversion"] = json!({"strategy": "None", "webhook": null});
        definition["spec"]["versions"].as_array_mut().expect("versions").retain(|v| v["name"] == "v1beta1");
        let stored = |d: &Value| d["status"]["storedVersions"] == json!(["v1beta1"]);
        admin.until(CRD, "CustomResourceDefinition", &name, stored).await;
        admin.patch(CRD, "CustomResourceDefinition", &name, json!({"spec": definition["spec"]})).await;
    }
    for (version, kind, _) in objects {
        let version = version.replace("v1alpha1", "v1beta1");
        let marked = |object: &Value| {
            object["metadata"]["annotations"]["agents.x-k8s.io/storage-migrated-at"].is_string()
        };
        let read = confined::until(async || admin.api(&version, kind).get("python").await.is_ok());
        assert!(read.await, "{kind} cannot be read");
        admin.until(&version, kind, "python", marked).await;
    }
}
