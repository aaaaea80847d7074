//! Idle Pods sleep before their time while the machine is short of memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use hutch_api::{OperatingMode, Sandbox};
use hutch_apiserver::{ApiServer, Identity};
use hutch_kubelet::{Exit, Kubelet};
use hutch_testkit::swap::{Swap, anonymous_kib};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::machine::{Machine, id, is_ready, pod};

/// Holds 48 MiB of random bytes.
const HEAP: &str = "exec python3 -uc 'import os, time
data = os.urandom(48 << 20)
print(1)
time.sleep(1000)'";

/// A file such as `/proc/meminfo`.
struct Memory(PathBuf);

impl Memory {
    /// Sets the available memory. The other figures are those of this machine.
    fn set_available(&self, mebibytes: u64) {
        let real = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
        let line = |line: &str| match line.starts_with("MemAvailable:") {
            true => format!("MemAvailable: {} kB\n", mebibytes << 10),
            false => format!("{line}\n"),
        };
        let new = self.0.with_extension("new");
        std::fs::write(&new, real.lines().map(line).collect::<String>()).expect("written");
        std::fs::rename(&new, &self.0).expect("renamed");
    }
}

async fn start(dir: &Path) -> (Machine, Memory) {
    let memory = Memory(dir.join("meminfo"));
    memory.set_available(4096);
    let file = memory.0.clone();
    (Machine::start_with(&dir.join("node"), |config| config.meminfo = file).await, memory)
}

async fn run(machine: &Machine, name: &str, script: &str, annotations: Value) -> Pod {
    let mut object = pod(name, script, json!({}));
    object["metadata"]["annotations"] = annotations;
    let _: Pod = machine.create(object).await;
    machine.ready(name).await
}

fn reason(pod: &Pod) -> Option<String> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut frozen = conditions.filter(|one| one.type_ == "hutch.dev/Frozen" && one.status == "True");
    frozen.find_map(|one| one.reason.clone())
}

async fn paged_out(machine: &Machine, name: &str) -> Pod {
    machine.wait(name, "paged out", |pod| reason(pod).as_deref() == Some("PagedOut")).await
}

/// Versions of the events about short memory, and their texts.
async fn events(machine: &Machine, name: &str) -> Vec<(u64, String)> {
    let api: Api<Event> = Api::namespaced(machine.client.clone(), "default");
    let all = api.list(&ListParams::default()).await.expect("events");
    let of_pod = all.items.into_iter().filter(|event| {
        event.involved_object.name.as_deref() == Some(name)
            && event.reason.as_deref() == Some("MemoryPressure")
    });
    let shown = |event: Event| {
        let version = event.resource_version().expect("a version").parse().expect("a number");
        (version, event.message.unwrap_or_default())
    };
    of_pod.map(shown).collect()
}

async fn has_pressure(machine: &Machine) -> bool {
    let node = Api::<Node>::all(machine.client.clone()).get("hutch").await.expect("the node");
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    conditions.iter().any(|one| one.type_ == "MemoryPressure" && one.status == "True")
}

async fn pressure(machine: &Machine, expected: bool) {
    while has_pressure(machine).await != expected {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_memory_pages_out_the_longest_idle_pods_that_allow_it() {
    hutch_testkit::require!(root, swap);
    let _swap = Swap::new(256 << 20);
    let dir = tempfile::tempdir().unwrap();
    let (machine, memory) = start(dir.path()).await;
    let marker = format!("heap of pressure {}", std::process::id());
    let heap = HEAP.replace("import os,", &format!("# {marker}\nimport os,"));
    let allows = json!({"hutch.dev/idle-after": "1h", "hutch.dev/page-out-after": "2h"});
    let old = run(&machine, "old", &heap, allows.clone()).await;
    run(&machine, "young", "exec sleep 1000", allows.clone()).await;
    run(&machine, "plain", "exec sleep 1000", json!({"hutch.dev/idle-after": "1h"})).await;
    run(&machine, "never", "exec sleep 1000", json!({})).await;
    run(&machine, "busy", "while :; do :; done", allows).await;
    assert!(!has_pressure(&machine).await);

    memory.set_available(50);
    pressure(&machine, true).await;
    let asleep = paged_out(&machine, "old").await;
    assert!(is_ready(&asleep), "it stays Ready");
    assert!(anonymous_kib(&marker).expect("the process") < 4 << 10);
    paged_out(&machine, "young").await;
    let (first, second) = loop {
        let found = (events(&machine, "old").await, events(&machine, "young").await);
        if let ([first], [second]) = (&found.0[..], &found.1[..]) {
            break (first.clone(), second.clone());
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert!(first.0 < second.0, "the one that is idle the longest is first");
    assert!(first.1.contains("50 MiB") && first.1.contains("written to swap"), "{first:?}");

    // Between the two bounds it stays short, above the higher one it does not.
    memory.set_available(150);
    let (exit, text) = machine.exec(&old, &["echo", "hi"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "hi\n"));
    machine.wait("old", "awake", |pod| reason(pod).is_none()).await;
    assert!(has_pressure(&machine).await);
    memory.set_available(201);
    pressure(&machine, false).await;

    // A removed annotation thaws it at once.
    let change = json!({"metadata": {"annotations": {"hutch.dev/page-out-after": null}}});
    machine.pods().patch("young", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    machine.wait("young", "awake", |pod| reason(pod).is_none()).await;
    for name in ["plain", "never", "busy"] {
        assert!(events(&machine, name).await.is_empty(), "{name}");
        assert_eq!(reason(&machine.pods().get(name).await.unwrap()), None, "{name}");
    }
    machine.stop().await;
}

/// Where the suspend of a Sandbox waits.
#[derive(Default)]
struct Stop {
    arrived: Notify,
    leaves: Notify,
    /// The server has answered with this status.
    answered: Notify,
    status: OnceLock<http::StatusCode>,
}

/// Stops of the suspends of two Sandboxes: of `early` before the server has it, and of `late` before the node has the answer.
#[derive(Default)]
struct Stops {
    early: Stop,
    late: Stop,
}

impl Stop {
    async fn wait(&self) {
        self.arrived.notify_one();
        self.leaves.notified().await;
    }
}

async fn pass(stops: Arc<Stops>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if request.method() != http::Method::PATCH || !path.contains("/sandboxes/") {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.expect("a body");
    let suspends = String::from_utf8_lossy(&body).contains("Suspended");
    if suspends && path.ends_with("/early") {
        stops.early.wait().await;
    }
    let response = next.run(Request::from_parts(head, Body::from(body))).await;
    if suspends && path.ends_with("/early") {
        let _ = stops.early.status.set(response.status());
        stops.early.answered.notify_one();
    }
    if suspends && path.ends_with("/late") {
        stops.late.wait().await;
    }
    response
}

/// Makes a Sandbox in gVisor that is suspended with its memory after an hour, and its Pod.
async fn sandbox(machine: &Machine, name: &str) -> Pod {
    let annotations = json!({"hutch.dev/suspend-after": "1h", "hutch.dev/suspend-keeps": "memory"});
    let sandbox: Sandbox = machine
        .create(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}},
        }))
        .await;
    let ready = json!({"type": "Ready", "status": "True", "reason": "r", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z", "observedGeneration": sandbox.metadata.generation});
    let api: Api<Sandbox> = Api::namespaced(machine.client.clone(), "default");
    let status = json!({"status": {"conditions": [ready]}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
    let mut object = pod(name, "exec sleep 1000", json!({"runtimeClassName": "gvisor"}));
    object["metadata"]["annotations"] = annotations;
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "name": name, "uid": sandbox.uid(), "controller": true}]);
    let _: Pod = machine.create(object).await;
    machine.ready(name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_suspend_for_memory_and_a_request_one_fails() {
    hutch_testkit::require!(root, runsc);
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory(dir.path().join("meminfo"));
    memory.set_available(50);
    let config = hutch_apiserver::Config {
        default_node: Some("hutch".into()),
        address: "127.0.0.1:0".into(),
        ..hutch_apiserver::Config::default()
    };
    let server = ApiServer::open(config).await.unwrap();
    let stops = Arc::new(Stops::default());
    let layer = {
        let stops = stops.clone();
        middleware::from_fn(move |request: Request, next: Next| pass(stops.clone(), request, next))
    };
    let app: axum::Router = server.router_as(Identity::admin()).layer(layer);
    let client = hutch_serve::memory::client(app, "default");
    let (folder, file) = (dir.path().join("node"), memory.0.clone());
    let machine = Machine::start_with_client(server, client, &folder, |config| config.meminfo = file).await;
    let (early, late) = (sandbox(&machine, "early").await, sandbox(&machine, "late").await);
    let api: Api<Sandbox> = Api::namespaced(machine.client.clone(), "default");
    let mode = async |name: &str| api.get(name).await.expect("the Sandbox").spec.operating_mode;

    let early_id = id(&early);
    let first = async {
        stops.early.arrived.notified().await;
        // Its report is written before it enters, so the suspend comes too late.
        let held = machine.node.hold(&early_id).await;
        stops.early.leaves.notify_one();
        stops.early.answered.notified().await;
        held.expect("the request enters")
    };
    let late_id = id(&late);
    let second = async {
        stops.late.arrived.notified().await;
        let refused = machine.node.hold(&late_id).await.is_err();
        stops.late.leaves.notify_one();
        refused
    };
    let (held, refused) = tokio::join!(first, second);
    assert!(refused, "the request finds the Sandbox suspended");
    assert_eq!(mode("late").await, Some(OperatingMode::Suspended));
    assert_eq!(stops.early.status.get(), Some(&http::StatusCode::CONFLICT));
    assert_ne!(mode("early").await, Some(OperatingMode::Suspended));
    drop(held);
    machine.stop().await;
}
