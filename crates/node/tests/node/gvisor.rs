//! Pods that gVisor isolates, and those that hold no process at all.

use std::path::Path;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::machine::{Machine, address, id, is_ready, phase_of};
use hutch_kubelet::{Exit, Kubelet, LogRequest};
use hutch_node::{EmbeddedService, Handler, ServiceKind};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn gvisor_runs_a_pod_and_leaves_nothing() {
    hutch_testkit::require!(root, runsc);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let script = "dmesg | head -1; echo up; cd /tmp; exec python3 -m http.server 8000 2>/dev/null";
    let spec = json!({
        "runtimeClassName": "gvisor",
        "main": {
            "readinessProbe": {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1},
            "volumeMounts": [
                {"name": "v", "mountPath": "/data"},
                {"name": "v", "mountPath": "/part", "subPath": "a/b"},
                {"name": "v", "mountPath": "/data/nested/deep", "subPath": "c"},
                {"name": "v", "mountPath": "/read", "subPath": "d", "readOnly": true},
                {"name": "v", "mountPath": "/read/written", "subPath": "d/written"},
            ],
            "env": [{"name": "TOKEN", "value": "s3cret"}],
        },
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    machine.run("guest", script, spec).await;
    let pod = machine.ready("guest").await;
    assert!(address(&pod).starts_with("10.89."));
    let log = machine.log(&pod, LogRequest::default()).await;
    assert!(log.contains("Starting gVisor") && log.contains("up"), "{log}");
    let (exit, text) = machine.exec(&pod, &["sh", "-c", "echo $TOKEN > /data/f; cat /data/f; exit 4"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(4), "s3cret\n"));
    let script = "echo part > /part/f; echo nested > /data/nested/deep/f; cat /data/a/b/f /data/c/f
        echo x > /read/f || echo x > /read/written/f && cat /data/d/written/f
        mv /data/nested/deep /data/away || rmdir /data/nested/deep || echo stays";
    let (exit, text) = machine.exec(&pod, &["sh", "-c", script]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "part\nnested\nx\nstays\n"));
    let mut connection = machine.node.connect(&id(&pod), 8000).await.expect("the server answers");
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    machine.delete("guest").await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    // The folder for volumes in memory is the node's, as long as that runs.
    let (own, memory) = (dir.path().to_str().unwrap(), dir.path().join("memory"));
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let left: Vec<&str> =
        places.filter(|place| place.starts_with(own) && memory.as_path() != Path::new(place)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(std::fs::read_dir(dir.path().join("pods")).unwrap().count(), 0);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_right_after_the_start_waits_for_runsc() {
    hutch_testkit::require!(root, runsc);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    for name in ["one", "two", "three"] {
        machine.run(name, "exec sleep 1000", json!({"runtimeClassName": "gvisor"})).await;
        let pod = machine.phase(name, "Running").await;
        let (exit, text) = machine.exec(&pod, &["echo", "inside"]).await;
        assert_eq!((exit, text.as_str()), (Exit::Code(0), "inside\n"), "{name}");
        machine.delete(name).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_point_below_a_folder_of_this_machine_is_not_made_there() {
    hutch_testkit::require!(root, runsc);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let name = format!("hutch-test-{}", std::process::id());
    for class in ["hutch", "gvisor"] {
        let mounts = json!([{"name": "v", "mountPath": format!("/usr/{name}")}]);
        let spec = json!({"runtimeClassName": class, "main": {"volumeMounts": mounts},
                          "volumes": [{"name": "v", "emptyDir": {}}]});
        machine.run(class, "exec sleep 1000", spec).await;
        machine.event(class, "Read-only file system").await;
        assert!(!Path::new("/usr").join(&name).exists(), "{class}");
        machine.delete(class).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_without_handler_waits_and_says_why() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start_with(dir.path(), |config| {
        config.runtime_classes.insert("mapped".into(), Handler::Native);
    })
    .await;
    // A class of the API alone, which no handler of the node runs.
    let kata = json!({"metadata": {"name": "kata"}, "handler": "kata"});
    let kata: RuntimeClass = serde_json::from_value(kata).unwrap();
    Api::all(machine.client.clone()).create(&PostParams::default(), &kata).await.unwrap();
    machine.run("kata", "exec sleep 1000", json!({"runtimeClassName": "kata"})).await;
    machine.run("mapped", "exec sleep 1000", json!({"runtimeClassName": "mapped"})).await;
    machine.event("kata", "--runtime-class kata=hutch").await;
    machine.ready("mapped").await;
    assert_eq!(phase_of(&machine.phase("kata", "Pending").await), "Pending");
    machine.delete("kata").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_this_process_stands_for_its_pods() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let echo = Arc::new(Echo::default());
    let machine = Machine::start_with(dir.path(), |config| config.services = services(&echo)).await;
    let image = "us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/sandbox-router:v20251124-v0.1.0-10-ge26ddb2";
    machine.run("router", "", json!({"main": {"image": image}})).await;
    let pod = machine.phase("router", "Running").await;
    assert!(!is_ready(&pod));
    echo.on.store(true, Ordering::SeqCst);
    let pod = machine.ready("router").await;
    let mut connection = machine.node.connect(&id(&pod), 8080).await.expect("the service answers");
    connection.write_all(b"ping").await.unwrap();
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"ping");
    machine.delete("router").await;
    machine.stop().await;
}

/// A service that echoes and can be switched on.
#[derive(Default)]
struct Echo {
    on: std::sync::atomic::AtomicBool,
}

impl EmbeddedService for Echo {
    fn ready(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    fn connect(
        &self,
        _port: u16,
    ) -> futures::future::BoxFuture<'_, Result<Box<dyn hutch_kubelet::Duplex>, hutch_kubelet::StreamError>>
    {
        Box::pin(async {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(&mut theirs);
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
            Ok(Box::new(ours) as Box<dyn hutch_kubelet::Duplex>)
        })
    }
}

fn services(echo: &Arc<Echo>) -> BTreeMap<ServiceKind, Arc<dyn EmbeddedService>> {
    BTreeMap::from([(ServiceKind::Router, echo.clone() as Arc<dyn EmbeddedService>)])
}
