//! Claims of the class `hutch-memory`: volumes in memory that several Sandboxes share.

use std::process::Command;

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{HUTCH, Up, refused, succeeded, text};
use crate::volumes::apply;

/// Maps `/m/map` when it appears, waits for a 1 in the first byte and answers with a 2 in the second. Then it sleeps.
const ANSWERS: &str = "import mmap, os, time
while not os.path.exists('/m/map'): time.sleep(0.05)
m = mmap.mmap(os.open('/m/map', os.O_RDWR), 4096)
while m[0] != 1: time.sleep(0.01)
m[1] = 2
time.sleep(1000000)";

/// Makes `/m/map`, maps it, writes the 1 and waits for the 2.
const CALLS: &str = "import mmap, os, time
f = os.open('/m/new', os.O_RDWR | os.O_CREAT)
os.truncate(f, 4096)
m = mmap.mmap(f, 4096)
os.rename('/m/new', '/m/map')
m[0] = 1
while m[1] != 2: time.sleep(0.01)
print('answered')";

fn claim(name: &str, size: &str, modes: &[&str]) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
        "storageClassName": "hutch-memory", "accessModes": modes, "resources": {"requests": {"storage": size}}}})
}

/// A Sandbox that mounts a claim at `/m`.
fn sandbox(name: &str, class: &str, claim: &str, read_only: bool, command: &[&str]) -> Value {
    json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name}, "spec": {
        "podTemplate": {"spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": claim}}],
            "containers": [{"name": "c", "image": "hutch/host", "command": command,
                "volumeMounts": [{"name": "m", "mountPath": "/m", "readOnly": read_only}]}]}}}})
}

fn sleeping(name: &str, claim: &str, read_only: bool) -> Value {
    sandbox(name, "hutch", claim, read_only, &["sleep", "infinity"])
}

fn ready(up: &Up, names: &[&str]) {
    for name in names {
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=120s"));
    }
}

/// Runs a script in a Sandbox; output and errors.
fn run(up: &Up, name: &str, script: &str) -> (bool, String) {
    let output = up.kubectl_args(&["exec", name, "--", "sh", "-c", script]);
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Mounts of this machine below the folder of volumes in memory.
fn mounts(up: &Up) -> Vec<String> {
    let folder = up.data().join("memory-volumes").display().to_string();
    let all = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    all.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect()
}

fn on_disk(up: &Up, words: &[&str]) -> Command {
    let mut command = Command::new(HUTCH);
    command.arg("volume").args(words).arg("--kubeconfig").arg(up.kubeconfig());
    command.arg("--data-dir").arg(up.data());
    command
}

#[test]
fn sandboxes_see_each_others_writes_through_mappings() {
    hutch_testkit::require!(root, kubectl, python);
    let mut pairs = vec![("hutch", "hutch")];
    match hutch_testkit::Need::Runsc.missing() {
        None => pairs.extend([("gvisor", "gvisor"), ("hutch", "gvisor")]),
        Some(reason) => hutch_testkit::note_skip("memory that Sandboxes in gVisor share", reason),
    }
    let up = Up::start(&[]);
    for (one, two) in pairs {
        let name = |word: &str| format!("{word}-{one}-{two}");
        let (calls, answers) = (name("calls"), name("answers"));
        apply(&up, &claim(&name("shared"), "1Mi", &["ReadWriteMany"]));
        apply(&up, &sandbox(&answers, two, &name("shared"), false, &["python3", "-c", ANSWERS]));
        apply(&up, &sandbox(&calls, one, &name("shared"), false, &["sleep", "infinity"]));
        ready(&up, &[&answers, &calls]);
        let found = up.ok_args(&["exec", &calls, "--", "timeout", "120", "python3", "-c", CALLS]);
        assert_eq!(found, "answered\n", "{one} {two}");
        if one == "hutch" {
            let options = up.ok_args(&["exec", &calls, "--", "grep", " /m ", "/proc/mounts"]);
            assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
        }
    }
}

#[test]
fn volume_in_memory_is_bounded_and_keeps_readers_and_other_namespaces_out() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let class = up.eventually("get storageclass hutch-memory -o json", |text| !text.is_empty());
    let class: Value = serde_json::from_str(&class).expect("a class");
    assert_eq!(class["provisioner"], "hutch.dev/memory");
    assert!(class["metadata"]["annotations"]["kubernetes.io/description"].is_string(), "{class}");
    apply(&up, &claim("shared", "2Mi", &["ReadWriteMany"]));
    let mut writer = sleeping("writer", "shared", false);
    let spec = &mut writer["spec"]["podTemplate"]["spec"];
    spec["securityContext"] = json!({"fsGroup": 77});
    spec["containers"][0]["volumeMounts"]
        .as_array_mut()
        .expect("mounts")
        .push(json!({"name": "m", "mountPath": "/part", "subPath": "part"}));
    apply(&up, &writer);
    apply(&up, &sleeping("reader", "shared", true));
    ready(&up, &["writer", "reader"]);
    let (done, found) = run(&up, "writer", "stat -c %g /m && echo text > /part/file && cat /m/part/file");
    assert!(done && found == "77\ntext\n", "{found}");
    let (done, found) = run(&up, "writer", "head -c 3M /dev/zero > /m/large");
    assert!(!done && found.contains("No space left on device"), "{found}");
    let files = "rm /m/large; i=0; while [ $i -lt 3000 ]; do : > /m/$i || exit 1; i=$((i+1)); done";
    let (done, found) = run(&up, "writer", files);
    assert!(!done && found.contains("No space left on device"), "{found}");
    for script in ["echo x > /m/part/file", "touch /m/new", "rm /m/part/file", "chmod 777 /m"] {
        let (done, found) = run(&up, "reader", script);
        assert!(!done && found.contains("Read-only file system"), "{script}: {found}");
    }
    assert_eq!(run(&up, "reader", "cat /m/part/file"), (true, "text\n".to_owned()));

    up.ok("create namespace other");
    let uid = up.ok("get pvc shared -o jsonpath={.metadata.uid}");
    let mut stolen = claim("stolen", "2Mi", &["ReadWriteMany"]);
    stolen["spec"]["volumeName"] = format!("pvc-{}", uid.trim()).into();
    stolen["metadata"]["namespace"] = "other".into();
    apply(&up, &stolen);
    for (name, claim) in [("by-name", "shared"), ("by-volume", "stolen")] {
        let mut other = sleeping(name, claim, false);
        other["metadata"]["namespace"] = "other".into();
        apply(&up, &other);
    }
    up.eventually("get events -n other", |events| {
        events.contains("persistentvolumeclaim \"shared\" not found")
            && events.contains("is no volume of this node")
            && events.contains("ProvisioningFailed")
    });
    assert_eq!(up.ok("get pvc stolen -n other -o jsonpath={.status.phase}"), "Pending");
}

#[test]
fn claim_that_does_not_fit_waits_until_memory_is_released() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let memory = up.ok("get nodes -o jsonpath={.items[0].status.allocatable.memory}");
    let memory: u64 = memory.trim().trim_end_matches("Ki").parse().expect("KiB");
    let most = format!("{}Ki", memory / 6);
    apply(&up, &claim("first", &most, &["ReadWriteMany"]));
    up.ok("wait --for=jsonpath={.status.phase}=Bound pvc/first --timeout=60s");
    for (name, size) in [("second", most.as_str()), ("huge", "1Ei"), ("never", "100Ei")] {
        apply(&up, &claim(name, size, &["ReadWriteMany"]));
    }
    let lacks = "the volumes in memory would have more than half of the memory of the node";
    for (name, problem) in
        [("second", lacks), ("huge", lacks), ("never", "must be greater than zero, and less than 16Ei")]
    {
        let about = format!("get events --field-selector involvedObject.name={name}");
        up.eventually(&about, |events| events.contains("ProvisioningFailed") && events.contains(problem));
    }
    assert_eq!(up.ok("get pvc second -o jsonpath={.status.phase}"), "Pending");
    apply(&up, &sleeping("waits", "second", false));
    up.eventually("get events", |events| {
        events.lines().any(|line| line.contains("FailedMount") && line.contains(lacks))
    });
    up.ok("delete pvc first");
    up.ok("wait --for=jsonpath={.status.phase}=Bound pvc/second --timeout=120s");
    ready(&up, &["waits"]);
    for name in ["huge", "never"] {
        let phase = up.ok(&format!("get pvc {name} -o jsonpath={{.status.phase}}"));
        assert_eq!(phase, "Pending", "{name}");
    }
    let zero = claim("zero", "0", &["ReadWriteMany"]).to_string();
    let file = up.folder().join("zero.json");
    std::fs::write(&file, zero).expect("written");
    let output = up.kubectl_args(&["apply", "-f", file.to_str().expect("a path")]);
    assert!(text(&output.stderr).contains("must be greater than zero"), "{output:?}");
}

#[test]
fn volume_in_memory_outlives_its_pods_and_ends_with_its_claim_and_the_server() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&[]);
    apply(&up, &claim("kept", "1Mi", &["ReadWriteOncePod"]));
    apply(&up, &claim("gone", "1Mi", &["ReadWriteMany"]));
    apply(&up, &sleeping("user", "kept", false));
    ready(&up, &["user"]);
    assert_eq!(run(&up, "user", "echo text > /m/file"), (true, String::new()));
    let mode = |mode: &str| format!(r#"{{"spec":{{"operatingMode":"{mode}"}}}}"#);
    let patch = |up: &Up, patch: &str| {
        up.ok_args(&["patch", "sandbox", "user", "--type=merge", "-p", patch]);
    };
    patch(&up, &mode("Suspended"));
    up.eventually("get pods -o name", str::is_empty);
    patch(&up, &mode("Running"));
    ready(&up, &["user"]);
    assert_eq!(run(&up, "user", "cat /m/file"), (true, "text\n".to_owned()));

    let larger = r#"{"spec":{"resources":{"requests":{"storage":"3Mi"}}}}"#;
    up.ok_args(&["patch", "pvc", "kept", "--type=merge", "-p", larger]);
    up.ok("wait --for=jsonpath={.status.capacity.storage}=3Mi pvc/kept --timeout=60s");
    let (done, found) = run(&up, "user", "head -c 2M /dev/zero > /m/large && df -k /m | tail -1");
    assert!(done && found.contains(" 3072 "), "{found}");
    let smaller = larger.replace("3Mi", "1Mi");
    let output = up.kubectl_args(&["patch", "pvc", "kept", "--type=merge", "-p", &smaller]);
    assert!(text(&output.stderr).contains("can not be less than status.capacity"), "{output:?}");

    let archive = up.folder().join("archive.tar");
    let file = archive.to_str().expect("a path");
    let measured = succeeded("du", &on_disk(&up, &["du", "kept"]).output().expect("hutch"));
    assert!(measured.lines().nth(1).is_some_and(|row| row.contains("2101248")), "{measured}");
    succeeded("export", &on_disk(&up, &["export", "kept", file]).output().expect("hutch"));
    refused(&on_disk(&up, &["import", "gone", file]).output().expect("hutch"), 1, &["has room"]);

    assert_eq!(mounts(&up).len(), 3, "the top and two claims");
    up.ok("delete pvc gone");
    until("the volume of the deleted claim is unmounted", || mounts(&up).len() == 2);
    up.kill();
    up.restart();
    ready(&up, &["user"]);
    let (done, found) = run(&up, "user", "ls /m; df -k /m | tail -1");
    assert!(done && found.contains(" 3072 ") && !found.contains("file"), "{found}");
    assert_eq!(mounts(&up).len(), 2, "{:?}", mounts(&up));
    up.eventually("get events", |events| events.contains("MemoryLost"));
    succeeded("import", &on_disk(&up, &["import", "kept", file]).output().expect("hutch"));
    assert_eq!(run(&up, "user", "cat /m/file"), (true, "text\n".to_owned()));
    up.ok("delete pvc kept --wait=false");
    up.ok("delete sandbox user");
    until("the volume is unmounted after its last Pod", || mounts(&up).len() == 1);
    apply(&up, &claim("left", "1Mi", &["ReadWriteMany"]));
    up.ok("wait --for=jsonpath={.status.phase}=Bound pvc/left --timeout=60s");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(mounts(&up), Vec::<String>::new());
}

/// Regression: the node bound the new claim to the volume of the one before it, for good.
#[test]
fn claim_that_replaces_another_one_of_its_name_gets_its_own_volume() {
    hutch_testkit::require!(root, kubectl, sandbox_client);
    let up = Up::start(&[]);
    let script = "import sys
from kubernetes import client, config
config.load_kube_config(sys.argv[1])
api = client.CoreV1Api()
for name, storage in [('disk', 'hutch-local'), ('memory', 'hutch-memory')]:
    spec = {'storageClassName': storage, 'accessModes': ['ReadWriteOnce'], 'resources': {'requests': {'storage': '1Mi'}}}
    for number in range(10):
        if number: api.delete_namespaced_persistent_volume_claim(name, 'default')
        api.create_namespaced_persistent_volume_claim('default', {'metadata': {'name': name}, 'spec': spec})";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(up.kubeconfig());
    python.env("PYTHONPATH", hutch_testkit::python_package("1.0.8"));
    succeeded("python3", &python.output().expect("python3"));
    for name in ["disk", "memory"] {
        up.ok(&format!("wait --for=jsonpath={{.status.phase}}=Bound pvc/{name} --timeout=60s"));
        let path = "jsonpath={.metadata.uid} {.spec.volumeName}";
        let found = up.ok_args(&["get", "pvc", name, "-o", path]);
        let (uid, volume) = found.split_once(' ').expect("two words");
        assert_eq!(volume, format!("pvc-{uid}"), "{name}");
    }
}
