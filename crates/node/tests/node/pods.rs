//! Pods in native jails, through the API.

use std::time::{Duration, Instant};

use crate::machine::{Machine, address, id, is_ready, phase_of};
use hutch_kubelet::{Exit, Kubelet, LogRequest};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_is_reached_and_leaves_nothing() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let start = Instant::now();
    machine.run("one", "echo hello; exec sleep 1000", json!({})).await;
    let pod = machine.ready("one").await;
    println!("created to ready: {:?}", start.elapsed());
    assert_eq!(phase_of(&pod), "Running");
    assert!(address(&pod).starts_with("10.89."), "{}", address(&pod));

    let (exit, text) = machine.exec(&pod, &["sh", "-c", "id -u; hostname; pwd; exit 3"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(3), "0\none\n/\n"));
    let (exit, _) = machine.exec(&pod, &["no-such-program"]).await;
    assert!(matches!(&exit, Exit::Failed(why) if why.contains("no-such-program")), "{exit:?}");
    assert_eq!(machine.log(&pod, LogRequest::default()).await, "hello\n");

    let refused = machine.node.connect(&id(&pod), 9).await.err().expect("nothing listens there");
    assert!(refused.to_string().contains("port 9"), "{refused}");
    machine.event("one", "Started: Container started: main").await;
    let start = Instant::now();
    machine.run("second", "exec sleep 1000", json!({})).await;
    let second = machine.ready("second").await;
    println!("the second, created to ready: {:?}", start.elapsed());
    assert_ne!(address(&second), address(&pod));
    machine.delete("one").await;
    assert!(!dir.path().join("pods").join(pod.uid().unwrap()).exists());
    assert!(machine.node.connect(&id(&pod), 9).await.is_err());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_a_sandbox_open_without_a_process() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let pause = json!({"image": "hutch/pause", "command": null});
    machine.run("idle", "", json!({"main": pause, "restartPolicy": "Never"})).await;
    let pod = machine.ready("idle").await;
    let (exit, _) = machine.exec(&pod, &["/bin/sh"]).await;
    assert!(matches!(exit, Exit::Failed(_)), "there is no program in it: {exit:?}");
    assert_eq!(machine.log(&pod, LogRequest::default()).await, "");
    machine.delete("idle").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_decide_after_an_exit() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("ok", "exit 0", json!({"restartPolicy": "Never"})).await;
    machine.run("bad", "echo last words; exit 7", json!({"restartPolicy": "Never"})).await;
    machine.run("once", "exit 0", json!({"restartPolicy": "OnFailure"})).await;
    machine.run("loop", "echo again; exit 1", json!({"restartPolicy": "Always"})).await;
    machine.run("missing", "", json!({"main": {"command": ["/no/such"]}, "restartPolicy": "Never"})).await;
    machine.phase("ok", "Succeeded").await;
    machine.phase("once", "Succeeded").await;
    let bad = machine.phase("bad", "Failed").await;
    let status = bad.status.clone().unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 7);
    assert_eq!(machine.log(&bad, LogRequest::default()).await, "last words\n");
    let missing = machine.phase("missing", "Failed").await;
    let text = serde_json::to_string(&missing.status).unwrap();
    assert!(text.contains("StartError") && text.contains("/no/such"), "{text}");
    let looping = machine
        .wait("loop", "in back-off", |pod| {
            serde_json::to_string(&pod.status).is_ok_and(|text| text.contains("CrashLoopBackOff"))
        })
        .await;
    assert_eq!(looping.status.clone().unwrap().container_statuses.unwrap()[0].restart_count, 1);
    machine.event("loop", "BackOff").await;
    let previous = LogRequest { previous: true, ..LogRequest::default() };
    assert_eq!(machine.log(&looping, previous).await, "again\n");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_a_pod_share_network_and_volumes() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let _: k8s_openapi::api::core::v1::ConfigMap =
        machine.create(json!({"metadata": {"name": "settings"}, "data": {"color": "blue"}})).await;
    let _: k8s_openapi::api::core::v1::Secret =
        machine.create(json!({"metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}})).await;
    let mounts = json!([
        {"name": "shared", "mountPath": "/shared"}, {"name": "conf", "mountPath": "/conf"},
        {"name": "keys", "mountPath": "/keys"}, {"name": "shared", "mountPath": "/part", "subPath": "a/b"},
    ]);
    let server = "python3 -m http.server 8000 --bind 127.0.0.1 --directory /shared 2>/dev/null & wait";
    machine
        .run(
            "two",
            "echo \"$COLOR $TOKEN $IP $(WHO)\"; cat /conf/color /keys/token; echo; exec sleep 1000",
            json!({
                "main": {
                    "volumeMounts": mounts,
                    "env": [
                        {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}}},
                        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "WHO", "value": "me"},
                    ],
                },
                "more": [{
                    "name": "web", "image": "hutch/host", "command": ["/bin/sh", "-c", server],
                    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                    "readinessProbe": {"httpGet": {"path": "/file", "port": 8000}, "periodSeconds": 1},
                }],
                "initContainers": [{
                    "name": "first", "image": "hutch/host",
                    "command": ["/bin/sh", "-c", "echo from init > /shared/file"],
                    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                }],
                "volumes": [
                    {"name": "shared", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "settings"}},
                    {"name": "keys", "secret": {"secretName": "keys"}},
                ],
            }),
        )
        .await;
    let pod = machine.ready("two").await;
    let log = machine.log(&pod, LogRequest::default()).await;
    assert_eq!(log, format!("blue s3cret {} me\nblues3cret\n", address(&pod)));
    let (exit, _) = machine.exec(&pod, &["sh", "-c", "echo x > /conf/new"]).await;
    assert_ne!(exit, Exit::Code(0), "a ConfigMap is read-only");
    let (exit, text) =
        machine.exec(&pod, &["sh", "-c", "echo in > /part/f && cat /shared/a/b/f /shared/file"]).await;
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "in\nfrom init\n"));

    let mut connection = machine.node.connect(&id(&pod), 8000).await.expect("the server answers");
    connection.write_all(b"GET /file HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("from init\n"), "{answer}");
    let (exit, _) = machine.exec_in(&pod, Some("web"), &["true"]).await;
    assert_eq!(exit, Exit::Code(0));
    machine.delete("two").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_projected_volume_all_but_the_way_to_the_api_is_mounted() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let _: k8s_openapi::api::core::v1::ConfigMap =
        machine.create(json!({"metadata": {"name": "settings"}, "data": {"color": "blue"}})).await;
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let certificate = json!({"configMap": {"name": "kube-root-ca.crt"}});
    let fact = |field: &str| {
        let path = field.rsplit('.').next();
        json!({"downwardAPI": {"items": [{"path": path, "fieldRef": {"fieldPath": field}}]}})
    };
    let volume = |name: &str, sources: Value| json!({"name": name, "projected": {"sources": sources}});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let script = "for each in own api bare; do test -d /$each && cd /$each && grep . *; done; true";
    machine
        .run(
            "projected",
            script,
            json!({
                "main": {"volumeMounts": [mount("own"), mount("api"), mount("bare")]},
                "volumes": [
                    volume("own", json!([token, {"configMap": {"name": "settings"}}, fact("metadata.name")])),
                    // As Kubernetes adds it to a Pod.
                    volume("api", json!([token, certificate, fact("metadata.namespace")])),
                    volume("bare", json!([token, certificate])),
                ],
                "restartPolicy": "Never",
            }),
        )
        .await;
    let pod = machine.phase("projected", "Succeeded").await;
    let log = machine.log(&pod, LogRequest::default()).await;
    assert_eq!(log, "color:blue\nname:projected\ndefault\n");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_volume_outlives_its_pods_and_goes_with_its_claim() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim = machine
        .create(json!({"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    let spec = || {
        json!({
            "main": {"volumeMounts": [{"name": "v", "mountPath": "/data"}]},
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}], "restartPolicy": "Never",
        })
    };
    machine.run("writer", "echo kept > /data/file", spec()).await;
    machine.phase("writer", "Succeeded").await;
    machine.delete("writer").await;
    machine.run("reader", "stat -c %u /data/file; cat /data/file", spec()).await;
    let pod = machine.phase("reader", "Succeeded").await;
    assert_eq!(machine.log(&pod, LogRequest::default()).await, "0\nkept\n");
    let folder = dir.path().join("volumes/default").join(claim.uid().unwrap());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(folder.join("file")).unwrap().uid(), 0, "ids on disk are those inside");
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::namespaced(machine.client.clone(), "default");
    let until = Instant::now() + Duration::from_secs(10);
    while claims.get("data").await.unwrap().status.and_then(|s| s.phase).as_deref() != Some("Bound") {
        assert!(Instant::now() < until, "the claim is not bound");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    machine.delete("reader").await;
    claims.delete("data", &Default::default()).await.unwrap();
    assert_eq!(claims.get_opt("data").await.unwrap(), None, "nothing keeps the claim");
    while folder.exists() {
        assert!(Instant::now() < until, "the folder is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_fields_are_reported() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("image", "", json!({"main": {"image": "python:3.12"}})).await;
    machine.run("host", "", json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]})).await;
    machine.run("mighty", "", json!({"main": {"securityContext": {"privileged": true}}})).await;
    machine
        .run("noclaim", "", json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}))
        .await;
    machine.run("nomap", "", json!({"main": {"envFrom": [{"configMapRef": {"name": "later"}}]}})).await;
    machine.run("tiny", "", json!({"main": {"resources": {"limits": {"memory": "1"}}}})).await;
    for (name, part) in [
        ("image", "hutch up --pull-from docker.io allows it"),
        ("host", "is not beneath a folder that `hutch up --host-path` allows"),
        ("mighty", "privileged is not supported"),
        ("noclaim", "persistentvolumeclaim \"x\" not found"),
        ("nomap", "configmap \"later\" not found"),
        ("tiny", "too little to start"),
    ] {
        machine.event(name, part).await;
        let pod = machine.phase(name, "Pending").await;
        assert!(!is_ready(&pod), "{name}");
    }
    let image = machine.wait("image", "waiting", |pod| {
        serde_json::to_string(&pod.status).is_ok_and(|text| text.contains("ErrImagePull"))
    });
    image.await;
    // The missing object is created, and the Pod continues.
    let _: k8s_openapi::api::core::v1::ConfigMap =
        machine.create(json!({"metadata": {"name": "later"}, "data": {"A": "1"}})).await;
    machine.wait("nomap", "running", |pod| phase_of(pod) == "Running").await;
    for name in ["image", "host", "mighty"] {
        machine.delete(name).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_memory_ends_the_container_and_says_so() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let eat = "echo eating; exec python3 -c 'b = bytearray(200 << 20); print(len(b))'";
    let limited = json!({"main": {"resources": {"limits": {"memory": "64Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError"}, "restartPolicy": "Never"});
    machine.run("hungry", eat, limited).await;
    let pod = machine.phase("hungry", "Failed").await;
    let ended = pod.status.unwrap().container_statuses.unwrap().remove(0).state.unwrap().terminated.unwrap();
    assert_eq!((ended.reason.as_deref(), ended.exit_code), (Some("OOMKilled"), 137));
    assert_eq!(ended.message.as_deref(), Some("eating\n"));
    machine.event("hungry", "ran out of memory").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_memory_of_a_command_is_an_event() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let limited = json!({"main": {"resources": {"limits": {"memory": "64Mi"}}}});
    machine.run("hungry", "exec sleep 1000", limited).await;
    let pod = machine.phase("hungry", "Running").await;
    machine.exec(&pod, &["python3", "-c", "b = bytearray(200 << 20); print(len(b))"]).await;
    machine.event("hungry", "Container main ran out of memory").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_command_did_not_run_out_of_memory_that_ran_out_before() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let limited = json!({"main": {"resources": {"limits": {"memory": "64Mi"}}}});
    let eat = "python3 -c 'b = bytearray(200 << 20); print(len(b))'; echo $?; exec sleep 1000";
    machine.run("hungry", eat, limited).await;
    let pod = machine.phase("hungry", "Running").await;
    let killed = async {
        while !machine.log(&pod, LogRequest::default()).await.contains("137\n") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), killed).await.expect("the process is killed");
    assert_eq!(machine.exec(&pod, &["sh", "-c", "kill -9 $$"]).await.0, Exit::Signal(9));
    let eat = ["python3", "-c", "b = bytearray(200 << 20); print(len(b))"];
    assert_eq!(machine.exec(&pod, &eat).await.0, Exit::OutOfMemory);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_make_ready_and_restart() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let spec = json!({"main": {
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1, "failureThreshold": 1},
    }});
    machine.run("probed", "exec sleep 1000", spec).await;
    let pod = machine.phase("probed", "Running").await;
    assert!(!is_ready(&pod));
    machine.exec(&pod, &["touch", "/tmp/ready"]).await;
    machine.ready("probed").await;
    machine.exec(&pod, &["touch", "/tmp/dead"]).await;
    let again = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status
            .as_ref()
            .and_then(|s| s.container_statuses.as_ref())
            .is_some_and(|c| c[0].restart_count == 1)
    };
    let restarted = machine.wait("probed", "restarted", again).await;
    assert_eq!(address(&restarted), address(&pod));
    machine.event("probed", "Liveness probe failed").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_ends_by_its_own_signal_and_by_the_grace_of_its_probe() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let spec = |grace: i64| {
        json!({"terminationGracePeriodSeconds": 3600, "main": {
            "lifecycle": {"stopSignal": "SIGUSR1"},
            "livenessProbe": {"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1,
                "failureThreshold": 1, "terminationGracePeriodSeconds": grace},
        }})
    };
    let held = "while :; do sleep 0.1; done";
    let ends = format!("trap 'exit 7' USR1; trap '' TERM; {held}");
    machine.run("signalled", &ends, spec(3600)).await;
    machine.run("deaf", &format!("trap '' USR1 TERM; {held}"), spec(1)).await;
    for (name, code) in [("signalled", 7), ("deaf", 137)] {
        let pod = machine.ready(name).await;
        machine.exec(&pod, &["touch", "/tmp/dead"]).await;
        let ended = |pod: &k8s_openapi::api::core::v1::Pod| {
            let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            let last = statuses.and_then(|all| all[0].last_state.as_ref()?.terminated.as_ref());
            last.is_some_and(|last| last.exit_code == code)
        };
        machine.wait(name, "ended as it should", ended).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn class_of_a_user_names_a_handler() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let classes: kube::Api<k8s_openapi::api::node::v1::RuntimeClass> = kube::Api::all(machine.client.clone());
    for (name, handler) in [("mine", "hutch"), ("other", "kata")] {
        let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": name}, "handler": handler});
        classes
            .create(&kube::api::PostParams::default(), &serde_json::from_value(class).unwrap())
            .await
            .unwrap();
        machine.run(name, "exec sleep 1000", json!({"runtimeClassName": name})).await;
    }
    machine.ready("mine").await;
    machine.event("other", "no handler for runtimeClassName").await;
    let waits = |pod: &k8s_openapi::api::core::v1::Pod| {
        let pod = serde_json::to_value(pod).unwrap();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreatePodSandboxError"
    };
    machine.wait("other", "its container waits for a sandbox", waits).await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_node_continues_with_its_pods() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("stays", "echo begin; exec sleep 1000", json!({})).await;
    machine.run("never", "exec sleep 1000", json!({"restartPolicy": "Never"})).await;
    machine.run("leaves", "exec sleep 1000", json!({})).await;
    let before = machine.ready("stays").await;
    machine.ready("never").await;
    let leaves = machine.ready("leaves").await;
    let client = machine.client.clone();
    let server = machine.stop().await;
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(client, "default");
    let force = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    pods.delete("leaves", &force).await.unwrap();

    let machine = Machine::start_on(server, dir.path(), |_| {}).await;
    let restarted = machine
        .wait("stays", "restarted", |pod| {
            let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
            is_ready(pod) && status.is_some_and(|c| c[0].restart_count == 1)
        })
        .await;
    assert_eq!(address(&restarted), address(&before), "it keeps its address");
    let (exit, _) = machine.exec(&restarted, &["true"]).await;
    assert_eq!(exit, Exit::Code(0));
    machine.phase("never", "Failed").await;
    let folder = dir.path().join("pods").join(leaves.uid().unwrap());
    let until = Instant::now() + Duration::from_secs(10);
    while folder.exists() {
        assert!(Instant::now() < until, "the folder of a vanished Pod is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_that_no_clock_can_count_is_a_grace() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    machine.run("patient", script, json!({"terminationGracePeriodSeconds": i64::MAX})).await;
    machine.ready("patient").await;
    machine.delete("patient").await;
    machine.stop().await;
}
