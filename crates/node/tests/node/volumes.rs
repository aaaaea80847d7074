//! Volumes of Pods: their sizes, their refresh, and who may write them.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolumeClaim, Pod, Secret};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::machine::{Machine, pod};

/// Longest wait for a measurement or a refresh, which come every ten seconds.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Waits until a command in a Pod prints this.
async fn prints(machine: &Machine, pod: &Pod, script: &str, wanted: &str) {
    let until = Instant::now() + WAIT_LIMIT;
    loop {
        let (_, printed) = machine.exec(pod, &["sh", "-c", script]).await;
        if printed == wanted {
            return;
        }
        assert!(Instant::now() < until, "{script}: {printed:?} instead of {wanted:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn evicted(machine: &Machine, name: &str) -> String {
    let until = Instant::now() + WAIT_LIMIT;
    loop {
        let status = machine.pods().get(name).await.expect("the Pod").status.unwrap_or_default();
        if status.reason.as_deref() == Some("Evicted") {
            return status.message.unwrap_or_default();
        }
        assert!(Instant::now() < until, "{name} is not evicted: {status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn claims(machine: &Machine) -> Api<PersistentVolumeClaim> {
    Api::namespaced(machine.client.clone(), "default")
}

async fn claim(machine: &Machine, name: &str, size: &str, mode: &str) -> PersistentVolumeClaim {
    let spec = json!({"accessModes": [mode], "resources": {"requests": {"storage": size}}});
    machine.create(json!({"metadata": {"name": name}, "spec": spec})).await
}

/// A Pod that has a claim at `/data` and sleeps after a script.
fn with_claim(claim: &str, read_only: bool) -> Value {
    json!({
        "main": {"volumeMounts": [{"name": "v", "mountPath": "/data"}]},
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_volume_in_memory_has_a_size_of_its_own() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let volume = |name: &str, size: Option<&str>| json!({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let script = "for each in small large rest; do stat -f -c '%T %b %S' /$each; done; \
        head -c 3M /dev/zero > /small/file || echo full; head -c 3M /dev/zero > /large/file && echo fits; sleep 1000";
    let spec = json!({
        "main": {"volumeMounts": [mount("small"), mount("large"), mount("rest")],
                 "resources": {"limits": {"memory": "64Mi"}}},
        "volumes": [volume("small", Some("2Mi")), volume("large", Some("4Mi")), volume("rest", None)],
    });
    let ready = machine.run("sizes", script, spec).await;
    drop(ready);
    let pod = machine.ready("sizes").await;
    let size = |bytes: u64| format!("tmpfs {} 4096\n", bytes / 4096);
    let expected = [size(2 << 20), size(4 << 20), size(64 << 20), "full\nfits\n".into()].concat();
    let until = Instant::now() + WAIT_LIMIT;
    loop {
        let log = machine.log(&pod, hutch_kubelet::LogRequest::default()).await;
        let printed: Vec<&str> = log.lines().filter(|line| !line.contains("space left")).collect();
        if printed.join("\n") + "\n" == expected {
            break;
        }
        assert!(Instant::now() < until, "{log:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    machine.delete("sizes").await;
    machine.stop().await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_above_a_limit_evicts_with_the_message_of_a_kubelet() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let limits = json!({"limits": {"ephemeral-storage": "2Mi"}});
    let volume = json!({"main": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let noisy = "yes 123456789012345678901234567890123456789012345678901234567890 | head -c 4M; sleep 1000";
    machine.run("volume", "head -c 2M /dev/zero > /v/file; sleep 1000", volume).await;
    machine
        .run("root", "head -c 4M /dev/zero > /file; sleep 1000", json!({"main": {"resources": limits}}))
        .await;
    machine.run("log", noisy, json!({"main": {"resources": limits}})).await;
    assert_eq!(
        evicted(&machine, "volume").await,
        "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
    );
    let container = "Container main exceeded its local ephemeral storage limit \"2Mi\". ";
    assert_eq!(evicted(&machine, "root").await, container);
    assert_eq!(evicted(&machine, "log").await, container);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_over_its_capacity_gets_a_condition_and_no_further_writer() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    claim(&machine, "data", "1Mi", "ReadWriteOnce").await;
    machine.run("first", "head -c 3M /dev/zero > /data/file; sleep 1000", with_claim("data", false)).await;
    let first = machine.ready("first").await;
    let over = |claim: &PersistentVolumeClaim| {
        let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.filter(|one| one.type_ == "VolumeOverCapacity").any(|one| one.status == "True")
    };
    let until = Instant::now() + WAIT_LIMIT;
    while !over(&claims(&machine).get("data").await.unwrap()) {
        assert!(Instant::now() < until, "there is no condition");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let event = machine.event("data", "more than its capacity of 1048576 bytes").await;
    assert!(event.contains("VolumeOverCapacity"), "{event}");
    machine.pods().create(&Default::default(), &pod_of("second", with_claim("data", false))).await.unwrap();
    let refused = machine.event("second", "VolumeOverCapacity").await;
    assert!(refused.contains("1048576 bytes"), "{refused}");
    machine.run("reader", "sleep 1000", with_claim("data", true)).await;
    machine.ready("reader").await;
    machine.exec(&first, &["rm", "/data/file"]).await;
    machine.ready("second").await;
    let until = Instant::now() + WAIT_LIMIT;
    while over(&claims(&machine).get("data").await.unwrap()) {
        assert!(Instant::now() < until, "the condition stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_volumes_follow_their_objects_at_once_and_sub_paths_do_not() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let _: ConfigMap = machine
        .create(json!({"metadata": {"name": "settings"}, "data": {"a": "1", "b": "1", "old": "1"}}))
        .await;
    let _: Secret = machine.create(json!({"metadata": {"name": "keys"}, "stringData": {"key": "1"}})).await;
    let labels = json!({"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let sub = json!({"name": "map", "mountPath": "/sub", "subPath": "a"});
    let spec = |class: &str| {
        json!({
            "runtimeClassName": class,
            "main": {"volumeMounts": [mount("map", "/map"), mount("secret", "/secret"), mount("facts", "/facts"), mount("all", "/all"), sub]},
            "volumes": [
                {"name": "map", "configMap": {"name": "settings"}},
                {"name": "secret", "secret": {"secretName": "keys"}},
                {"name": "facts", "downwardAPI": labels},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "settings"}}, {"secret": {"name": "keys"}}, {"downwardAPI": labels}]}},
            ],
        })
    };
    // Both files are always of one version: the open folder behind `..data` has them.
    let script = "while true; do cd -P /map/..data && x=$(cat a) && y=$(cat b) && [ \"$x\" != \"$y\" ] && echo torn; done 2>/dev/null";
    machine.run("refreshed", script, spec("hutch")).await;
    let pod = machine.ready("refreshed").await;
    let mut others = Vec::new();
    if hutch_testkit::Need::Runsc.missing().is_none() {
        machine.run("in-gvisor", "sleep 1000", spec("gvisor")).await;
        others.push(machine.ready("in-gvisor").await);
    }
    let all = "cd /; cat map/a map/b secret/key sub all/a all/key; cat facts/labels all/labels; ls map | tr '\n' ' '";
    prints(&machine, &pod, all, "111111a b old ").await;
    let patch = Patch::Merge(json!({"data": {"a": "2", "b": "2", "old": null, "new": "2"}}));
    let maps: Api<ConfigMap> = Api::namespaced(machine.client.clone(), "default");
    maps.patch("settings", &PatchParams::default(), &patch).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(machine.client.clone(), "default");
    secrets
        .patch("keys", &PatchParams::default(), &Patch::Merge(json!({"stringData": {"key": "2"}})))
        .await
        .unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"color": "blue"}}}));
    machine.pods().patch("refreshed", &PatchParams::default(), &label).await.unwrap();
    prints(&machine, &pod, all, "222122color=\"blue\"color=\"blue\"a b new ").await;
    assert_eq!(machine.log(&pod, hutch_kubelet::LogRequest::default()).await, "");
    for other in &others {
        prints(
            &machine,
            other,
            "cd /; cat map/a sub all/a secret/key; ls map | tr '\\n' ' '",
            "2122a b new ",
        )
        .await;
    }
    // An object that is gone leaves the files as they are.
    maps.delete("settings", &Default::default()).await.unwrap();
    machine.event("refreshed", "configmap \"settings\" not found").await;
    prints(&machine, &pod, "cat /map/a", "2").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_with_an_audience_is_mounted_and_one_for_the_api_is_not() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    let _: k8s_openapi::api::core::v1::ServiceAccount =
        machine.create(json!({"metadata": {"name": "robot"}})).await;
    let token = |path: &str, audience: Option<&str>| json!({"serviceAccountToken": {"path": path, "audience": audience, "expirationSeconds": 600}});
    let spec = json!({
        "serviceAccountName": "robot",
        "main": {"volumeMounts": [{"name": "t", "mountPath": "/tokens"}]},
        "volumes": [{"name": "t", "projected": {"sources": [token("vault", Some("vault")), token("api", None)]}}],
    });
    machine.run("holder", "sleep 1000", spec).await;
    let pod = machine.ready("holder").await;
    assert_eq!(machine.exec(&pod, &["ls", "/tokens"]).await.1, "vault\n");
    let text = machine.exec(&pod, &["cat", "/tokens/vault"]).await.1;
    let review = json!({"spec": {"token": text, "audiences": ["vault"]}});
    let reviews: Api<k8s_openapi::api::authentication::v1::TokenReview> = Api::all(machine.client.clone());
    let review = serde_json::from_value(review).unwrap();
    let status = reviews.create(&Default::default(), &review).await.unwrap().status.unwrap();
    assert_eq!(status.authenticated, Some(true), "{status:?}");
    let user = status.user.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:robot"));
    let bound = user.extra.unwrap();
    assert_eq!(bound["authentication.kubernetes.io/pod-name"], ["holder"]);
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_modes_decide_which_pods_share_a_claim() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    claim(&machine, "shared", "1Gi", "ReadWriteMany").await;
    for name in ["one", "two"] {
        machine
            .run(name, &format!("echo {name} > /data/{name}; sleep 1000"), with_claim("shared", false))
            .await;
    }
    let (one, two) = (machine.ready("one").await, machine.ready("two").await);
    for pod in [&one, &two] {
        prints(&machine, pod, "cat /data/one /data/two", "one\ntwo\n").await;
    }
    claim(&machine, "set", "1Gi", "ReadOnlyMany").await;
    for name in ["reader-one", "reader-two"] {
        machine.run(name, "sleep 1000", with_claim("set", false)).await;
        let pod = machine.ready(name).await;
        prints(&machine, &pod, "touch /data/x 2>/dev/null || echo refused", "refused\n").await;
    }
    claim(&machine, "alone", "1Gi", "ReadWriteOncePod").await;
    machine.run("holder", "sleep 1000", with_claim("alone", false)).await;
    let holder = machine.ready("holder").await;
    let mut next = with_claim("alone", false);
    next["securityContext"] = json!({"fsGroup": 77});
    machine.pods().create(&Default::default(), &pod_of("next", next)).await.unwrap();
    machine.event("next", "ReadWriteOncePod allows one pod at a time").await;
    prints(&machine, &holder, "stat -c %g:%a /data", "0:777\n").await;
    machine.delete("holder").await;
    let next = machine.ready("next").await;
    prints(&machine, &next, "stat -c %g:%a /data", "77:2777\n").await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_that_a_group_cannot_have_is_refused_until_the_pod_is_created_again() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    claim(&machine, "deep", "1Gi", "ReadWriteMany").await;
    machine.run("maker", "sleep 1000", with_claim("deep", false)).await;
    let maker = machine.ready("maker").await;
    let deep = "cd /data; for i in $(seq 130); do mkdir d && cd d; done; echo made";
    prints(&machine, &maker, deep, "made\n").await;
    let mut spec = with_claim("deep", false);
    spec["securityContext"] = json!({"fsGroup": 77});
    machine.pods().create(&Default::default(), &pod_of("refused", spec.clone())).await.unwrap();
    machine.event("refused", "remove files, then create the pod again").await;
    prints(&machine, &maker, "rm -r /data/d; echo gone", "gone\n").await;
    // Another try reports the first walk.
    let events: Api<Event> = Api::namespaced(machine.client.clone(), "default");
    let tries = async || -> i32 {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let own = all.iter().filter(|event| event.involved_object.name.as_deref() == Some("refused"));
        own.map(|event| event.count.unwrap_or(1)).sum()
    };
    let (before, until) = (tries().await, Instant::now() + WAIT_LIMIT);
    while tries().await <= before + 1 {
        assert!(Instant::now() < until, "it is not tried again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    prints(&machine, &maker, "stat -c %g:%a /data", "0:777\n").await;
    machine.delete("refused").await;
    machine.run("next", "sleep 1000", spec).await;
    let next = machine.ready("next").await;
    prints(&machine, &next, "stat -c %g:%a /data", "77:2777\n").await;
    machine.stop().await;
}

fn pod_of(name: &str, spec: Value) -> Pod {
    serde_json::from_value(pod(name, "sleep 1000", spec)).expect("a Pod")
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_of_the_machine_are_mounted_beneath_allowed_folders_only() {
    hutch_testkit::require!(root);
    let (dir, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| host.path().join(name);
    for name in ["read/set", "write", "secret"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    std::fs::write(path("read/set/file"), "data\n").unwrap();
    std::os::unix::fs::symlink(path("secret"), path("write/out")).unwrap();
    let machine = Machine::start_with(dir.path(), |config| {
        let allowed = |name: &str, writable| hutch_node::HostPath { folder: path(name), writable };
        config.host_paths = vec![allowed("read", false), allowed("write", true)];
    })
    .await;
    let volume =
        |name: &str, kind: &str| json!({"name": "v", "hostPath": {"path": path(name), "type": kind}});
    let spec = |class: &str, volumes: Value, mounts: Value| json!({"runtimeClassName": class, "volumes": volumes, "main": {"volumeMounts": mounts}});
    let mut classes = vec!["hutch"];
    classes.extend(hutch_testkit::Need::Runsc.missing().is_none().then_some("gvisor"));
    for class in classes {
        let mut written = volume("write", "Directory");
        written["name"] = "w".into();
        let mounts = json!([{"name": "v", "mountPath": "/read"}, {"name": "w", "mountPath": "/write"},
            {"name": "v", "mountPath": "/sub", "subPath": "set"}]);
        let name = format!("allowed-{class}");
        machine.run(&name, "sleep 1000", spec(class, json!([volume("read", ""), written]), mounts)).await;
        let pod = machine.ready(&name).await;
        let script = "cat /read/set/file /sub/file; echo x 2>/dev/null > /read/set/file || echo read-only; \
            ls /write/out/ 2>/dev/null || echo no link; echo written > /write/file; cat /write/file";
        prints(&machine, &pod, script, "data\ndata\nread-only\nno link\nwritten\n").await;
        assert_eq!(std::fs::read_to_string(path("write/file")).unwrap(), "written\n");
        std::fs::remove_file(path("write/file")).unwrap();
        // A sandbox puts a link in place of a folder that a further Pod mounts.
        machine.exec(&pod, &["ln", "-s", path("secret").to_str().unwrap(), "/write/planted"]).await;
        for (number, (path, kind, part)) in [
            ("secret", "", "is not beneath a folder"),
            ("write/planted", "Directory", "leads over a link"),
            ("write/out", "", "leads over a link"),
            ("read/new", "DirectoryOrCreate", "type check failed"),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("refused-{class}-{number}");
            let spec = spec(class, json!([volume(path, kind)]), json!([{"name": "v", "mountPath": "/v"}]));
            machine.pods().create(&Default::default(), &pod_of(&name, spec)).await.unwrap();
            let refused = machine.event(&name, part).await;
            assert!(refused.starts_with("FailedMount"), "{refused}");
            machine.delete(&name).await;
        }
        std::fs::remove_file(path("write/planted")).unwrap();
    }
    machine.stop().await;
}
