//! The cluster is a real one, counts who writes, and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hutch_api::{Sandbox, SandboxTemplate};
use hutch_testkit::cluster::{Cluster, Options};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

/// Set in the copy of this program that is to be killed.
const VICTIM: &str = "HUTCH_TEST_VICTIM";
/// A cluster without what this test does not need.
const SMALL: Options = Options { crds: None, controllers: false, node: false };

fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("well formed")
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_owners_take_along_what_they_own_and_writes_are_counted() {
    hutch_testkit::require!(kubernetes);
    let cluster = Cluster::start(Options::default()).await.expect("a cluster");
    let client = cluster.client("tester").await.expect("a client");
    let namespace = cluster.namespace(&client, "t").await.expect("a namespace");

    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), &namespace);
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let template = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "t"}, "spec": spec});
    let template =
        templates.create(&PostParams::default(), &from(template)).await.expect("the CRDs are served");

    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "name": "t",
        "uid": template.metadata.uid, "controller": true});
    let pod =
        json!({"metadata": {"name": "p", "ownerReferences": [owner]}, "spec": spec["podTemplate"]["spec"]});
    pods.create(&PostParams::default(), &from(pod)).await.expect("a pod");
    let running = async || {
        pods.get_status("p").await.is_ok_and(|pod| {
            pod.status
                .is_some_and(|status| status.phase.as_deref() == Some("Running") && status.pod_ip.is_some())
        })
    };
    cluster.until("the pod runs", running).await.unwrap();

    templates.delete("t", &DeleteParams::default()).await.expect("deleted");
    cluster
        .until("the pod goes with its owner", async || matches!(pods.get_opt("p").await, Ok(None)))
        .await
        .unwrap();

    let counted = cluster.audit().count("tester", &namespace).expect("an audit log");
    let expected = [("create pods", 1), ("create sandboxtemplates", 1), ("delete sandboxtemplates", 1)];
    assert_eq!(counted, expected.map(|(what, times)| (what.to_owned(), times)).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_has_only_the_rights_it_was_given() {
    hutch_testkit::require!(kubernetes);
    let cluster = Cluster::start(Options { node: false, ..Options::default() }).await.expect("a cluster");
    let client = cluster.client("tester").await.expect("a client");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts
        .create(&PostParams::default(), &from(json!({"metadata": {"name": "reader"}})))
        .await
        .expect("an account");
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["list"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]});
    let apply = PatchParams::apply("tester");
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    roles.patch("reader", &apply, &Patch::Apply(role)).await.expect("a role");
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(client.clone());
    bindings.patch("reader", &apply, &Patch::Apply(binding)).await.expect("a binding");

    let reader =
        cluster.service_account("default", "reader").await.expect("a token").client("reader").await.unwrap();
    let sandboxes: Api<Sandbox> = Api::all(reader.clone());
    // The authoriser learns of the binding by a watch of its own.
    cluster
        .until("the role counts", async || sandboxes.list(&Default::default()).await.is_ok())
        .await
        .unwrap();
    let pods: Api<Pod> = Api::all(reader);
    let refused = pods.list(&Default::default()).await.expect_err("not its right");
    assert!(matches!(&refused, kube::Error::Api(status) if status.is_forbidden()), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_it_is_dropped() {
    hutch_testkit::require!(kubernetes);
    let cluster = Cluster::start(SMALL).await.expect("a cluster");
    let folder = cluster.folder().to_owned();
    let pids = ["etcd", "kube-apiserver"].map(|name| cluster.program(name).expect("runs").id());
    assert!(pids.iter().all(|pid| is_process(*pid)) && folder.is_dir());
    drop(cluster);
    assert!(!pids.iter().any(|pid| is_process(*pid)) && !folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_the_tests_are_killed() {
    hutch_testkit::require!(kubernetes);
    if std::env::var_os(VICTIM).is_some() {
        let cluster = Cluster::start(SMALL).await.expect("a cluster");
        let pids = ["etcd", "kube-apiserver"].map(|name| cluster.program(name).expect("runs").id());
        println!("victim {} {} {}", pids[0], pids[1], cluster.folder().display());
        std::future::pending::<()>().await;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nothing_is_left_when_the_tests_are_killed", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The harness has begun the line with the name of the test.
    let line = lines.into_iter().find_map(|line| line.split_once("victim ").map(|(_, rest)| rest.to_owned()));
    let line = line.expect("a line about what it started");
    let words: Vec<&str> = line.split(' ').collect();
    let pids: Vec<u32> = words[..2].iter().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_process(*pid)) && Path::new(words[2]).is_dir());
    victim.kill().unwrap();
    victim.wait().unwrap();
    let began = Instant::now();
    while pids.iter().any(|pid| is_process(*pid)) || Path::new(words[2]).exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "still there: {line}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns true if the process exists and is no zombie.
fn is_process(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
