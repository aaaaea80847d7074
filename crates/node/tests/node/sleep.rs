//! Idle Pods are frozen, and every operation in them thaws them.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use hutch_kubelet::{Exit, Kubelet, LogRequest};
use hutch_testkit::swap::{Swap, anonymous_kib};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::machine::{Machine, id, is_ready, pod};

/// Prints a line twenty times a second, which needs next to no CPU time.
const COUNTER: &str = "exec python3 -uc 'import time
while True: print(1); time.sleep(0.05)'";
/// Sends back what it is sent.
const ECHO: &str = "exec python3 -uc 'import socket, threading
def serve(c):
  while data := c.recv(4096): c.sendall(data)
s = socket.create_server((\"127.0.0.1\", 7000))
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()'";

async fn run(machine: &Machine, name: &str, script: &str, idle_after: &str, spec: Value) -> Pod {
    let mut object = pod(name, script, spec);
    object["metadata"]["annotations"] = json!({"hutch.dev/idle-after": idle_after});
    let _: Pod = machine.create(object).await;
    machine.ready(name).await
}

fn is_frozen(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "hutch.dev/Frozen" && c.status == "True")
}

async fn frozen(machine: &Machine, name: &str) -> Pod {
    machine.wait(name, "frozen", is_frozen).await
}

async fn paged_out(machine: &Machine, name: &str) -> Pod {
    let reason = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut frozen = conditions.filter(|c| c.type_ == "hutch.dev/Frozen" && c.status == "True");
        frozen.find_map(|c| c.reason.clone())
    };
    machine.wait(name, "paged out", |pod| reason(pod).as_deref() == Some("PagedOut")).await
}

async fn awake(machine: &Machine, name: &str) -> Pod {
    machine.wait(name, "awake", |pod| !is_frozen(pod)).await
}

async fn lines(machine: &Machine, pod: &Pod) -> usize {
    machine.log(pod, LogRequest::default()).await.lines().count()
}

/// For as long as it would take many times to print a line.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(400)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_pod_is_frozen_and_a_command_thaws_it() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    run(&machine, "p", COUNTER, "1s", json!({})).await;
    let pod = frozen(&machine, "p").await;
    assert!(is_ready(&pod), "it stays Ready");
    a_while().await;
    let counted = lines(&machine, &pod).await;
    a_while().await;
    assert_eq!(lines(&machine, &pod).await, counted, "it is frozen");

    let (exit, text) = machine.exec(&pod, &["echo", "hi"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "hi\n"));
    awake(&machine, "p").await;
    while lines(&machine, &pod).await <= counted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(machine.ready("p").await.status.unwrap().container_statuses.unwrap()[0].restart_count, 0);

    // A thousand at once: all of them come in.
    frozen(&machine, "p").await;
    let name = id(&pod);
    let held = join_all((0..1000).map(|_| machine.node.hold(&name))).await;
    assert!(held.iter().all(Result::is_ok));
    drop(held);
    awake(&machine, "p").await;

    // Its end is not kept up by its sleep, nor does the main process miss its signal.
    frozen(&machine, "p").await;
    machine.delete("p").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_pause_and_do_not_count() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let probe =
        json!({"exec": {"command": ["touch", "/shared/probed"]}, "periodSeconds": 1, "failureThreshold": 1});
    let spec = json!({
        "main": {"readinessProbe": probe, "livenessProbe": probe, "volumeMounts": [{"name": "v", "mountPath": "/shared"}]},
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    run(&machine, "p", "exec sleep 1000", "2s", spec).await;
    let pod = frozen(&machine, "p").await;
    let probed = find(dir.path(), "probed").expect("the probe has left its mark");
    let last = || std::fs::metadata(&probed).unwrap().modified().unwrap();
    let before = last();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(last(), before, "not probed while it is frozen");
    let now = machine.pods().get("p").await.unwrap();
    assert!(is_frozen(&now) && is_ready(&now), "{:?}", now.status);
    machine.exec(&pod, &["true"]).await;
    while last() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let now = machine.ready("p").await;
    assert_eq!(now.status.unwrap().container_statuses.unwrap()[0].restart_count, 0);
    machine.stop().await;
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).find_map(|path| match path.file_name() {
        Some(file) if file == name => Some(path),
        _ if path.is_dir() && !path.is_symlink() => find(&path, name),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_lets_it_sleep_and_bytes_wake_it() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let pod = run(&machine, "p", ECHO, "1s", json!({})).await;
    let mut stream = loop {
        match machine.node.connect(&id(&pod), 7000).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    for round in 0..3_u8 {
        stream.write_all(&[round; 5]).await.unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [round; 5]);
        // That it is awake is reported after the answer.
        awake(&machine, "p").await;
        frozen(&machine, "p").await;
    }
    // A new connection too.
    let mut second = machine.node.connect(&id(&pod), 7000).await.unwrap();
    second.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_works_or_is_watched_is_not_idle() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    run(&machine, "busy", "while :; do :; done", "1s", json!({})).await;
    let attended = run(&machine, "attended", "exec sleep 1000", "1s", json!({})).await;
    let lasting = machine.exec(&attended, &["sleep", "4"]);
    let watch = async {
        loop {
            for name in ["busy", "attended"] {
                assert!(!is_frozen(&machine.pods().get(name).await.unwrap()), "{name}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        ended = lasting => assert_eq!(ended.0, Exit::Code(0)),
        () = watch => {}
    }
    frozen(&machine, "attended").await;
    assert!(!is_frozen(&machine.pods().get("busy").await.unwrap()));

    run(&machine, "typo", "exec sleep 1000", "ten minutes", json!({})).await;
    let event = machine.event("typo", "InvalidSleep").await;
    assert!(event.contains("hutch.dev/idle-after") && event.contains("ten minutes"), "{event}");
    machine.stop().await;
}

async fn ask(machine: &Machine, name: &str, idle_after: Value) {
    let asked = json!({"metadata": {"annotations": {"hutch.dev/idle-after": idle_after}}});
    machine.pods().patch(name, &PatchParams::default(), &Patch::Merge(asked)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_idle_time_applies_at_once_to_running_and_frozen_pods() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    // Never; that there is an annotation is enough to change it later.
    run(&machine, "p", "exec sleep 1000", "", json!({})).await;
    // Longer, never, unreadable, annotation removed: it is thawed without a request.
    for later in [json!("1h"), json!(""), json!("ten minutes"), json!(null)] {
        ask(&machine, "p", json!("1s")).await;
        frozen(&machine, "p").await;
        ask(&machine, "p", later).await;
        let pod = awake(&machine, "p").await;
        assert!(is_ready(&pod));
    }
    ask(&machine, "p", json!("1s")).await;
    let pod = frozen(&machine, "p").await;
    assert_eq!(pod.status.unwrap().container_statuses.unwrap()[0].restart_count, 0);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_ran_before_the_annotation_reports_it_and_is_frozen_after_its_next_start() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    // Ends on SIGTERM.
    let script = "while ! [ -e /tmp/end ]; do sleep 0.2; done; rm /tmp/end";
    let _: Pod = machine.create(pod("p", script, json!({}))).await;
    let pod = machine.ready("p").await;
    ask(&machine, "p", json!("1s")).await;
    let event = machine.event("p", "CannotFreeze").await;
    assert!(event.contains("runs since before"), "{event}");
    assert!(!is_frozen(&machine.pods().get("p").await.unwrap()));
    let (exit, _) = machine.exec(&pod, &["touch", "/tmp/end"]).await;
    assert_eq!(exit, Exit::Code(0));
    let pod = frozen(&machine, "p").await;
    assert_eq!(pod.status.unwrap().container_statuses.unwrap()[0].restart_count, 1);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_node_ends_frozen_pods_and_the_next_one_starts_them() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    run(&machine, "p", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done", "1s", json!({})).await;
    let pod = frozen(&machine, "p").await;
    let server = machine.stop().await;
    let machine = Machine::start_on(server, dir.path(), |_| {}).await;
    machine
        .wait("p", "started again and awake", |pod| {
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
            let again = statuses.is_some_and(|all| all[0].restart_count == 1);
            again && is_ready(pod) && !is_frozen(pod)
        })
        .await;
    let (exit, _) = machine.exec(&pod, &["true"]).await;
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(pod.uid(), machine.pods().get("p").await.unwrap().uid());
    machine.stop().await;
}

/// Holds 48 MiB of random bytes, and sends back their sum with each byte that it is sent.
const HEAP: &str = "exec python3 -uc 'import os, socket, threading
data = os.urandom(48 << 20)
def serve(c):
  while c.recv(1): c.sendall(b\"%20d\" % sum(data[::512]))
s = socket.create_server((\"127.0.0.1\", 7000))
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()'";

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_a_frozen_pod_goes_to_swap_and_a_byte_wakes_it() {
    hutch_testkit::require!(root, swap);
    let _swap = Swap::new(256 << 20);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let marker = format!("heap of test {}", std::process::id());
    let heap_kib = || anonymous_kib(&marker).expect("the process");
    let mut object = pod("p", &HEAP.replace("import os,", &format!("# {marker}\nimport os,")), json!({}));
    object["metadata"]["annotations"] =
        json!({"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "2s"});
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "128Mi"}});
    let _: Pod = machine.create(object).await;
    let pod = machine.ready("p").await;
    let mut stream = loop {
        match machine.node.connect(&id(&pod), 7000).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let mut first = None;
    for _ in 0..2 {
        stream.write_all(b"a").await.unwrap();
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(*first.get_or_insert(answer), answer, "content and connection are kept");
        assert!(heap_kib() > 48 << 10, "{} KiB", heap_kib());
        awake(&machine, "p").await;
        let pod = paged_out(&machine, "p").await;
        assert!(is_ready(&pod), "it stays Ready");
        assert!(heap_kib() < 4 << 10, "{} KiB", heap_kib());
    }
    // Requests at once: one thaw for all.
    let name = id(&pod);
    let held = join_all((0..100).map(|_| machine.node.hold(&name))).await;
    assert!(held.iter().all(Result::is_ok));
    drop(held);
    awake(&machine, "p").await;
    paged_out(&machine, "p").await;
    let (exit, text) = machine.exec(&pod, &["echo", "hi"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "hi\n"));
    awake(&machine, "p").await;
    // Never again from now on, and a frozen Pod is deleted.
    let change = json!({"metadata": {"annotations": {"hutch.dev/page-out-after": "1ms"}}});
    machine.pods().patch("p", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let event = machine.event("p", "InvalidSleep").await;
    assert!(event.contains("hutch.dev/page-out-after") && event.contains("1ms"), "{event}");
    let change = json!({"metadata": {"annotations": {"hutch.dev/page-out-after": "1s"}}});
    machine.pods().patch("p", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    paged_out(&machine, "p").await;
    machine.delete("p").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gvisor_is_frozen_too() {
    hutch_testkit::require!(root, runsc);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let mut object = pod("g", COUNTER, json!({"runtimeClassName": "gvisor"}));
    object["metadata"]["annotations"] =
        json!({"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "1s"});
    let _: Pod = machine.create(object).await;
    machine.ready("g").await;
    let pod = frozen(&machine, "g").await;
    let event = machine.event("g", "CannotPageOut").await;
    assert!(event.contains("hutch.dev/page-out-after has no effect"), "{event}");
    a_while().await;
    let counted = lines(&machine, &pod).await;
    a_while().await;
    assert_eq!(lines(&machine, &pod).await, counted, "it is frozen");
    let (exit, text) = machine.exec(&pod, &["echo", "hi"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "hi\n"));
    awake(&machine, "g").await;
    frozen(&machine, "g").await;
    machine.delete("g").await;
    machine.stop().await;
}
