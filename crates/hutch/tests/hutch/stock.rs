//! Services as Debian packages them, with the entrypoints that their images usually have: they start as root, give their
//! folders to a user of their own, and become that user.

mod committed;
mod mirror;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{Up, succeeded, text};
use crate::policies::{SERVER, applied, enforced, policy};
use mirror::Mirror;

const POSTGRES: &str = r#"#!/bin/sh
set -e
PATH=$PATH:/usr/lib/postgresql/15/bin
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chmod 700 "$PGDATA"
    find "$PGDATA" /var/run/postgresql \! -user postgres -exec chown postgres '{}' +
    chmod 775 /var/run/postgresql
    exec gosu postgres "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username=postgres --auth=trust
    echo "host all all all trust" >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
fi
exec "$@"
"#;

const REDIS: &str = r#"#!/bin/sh
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
    find . \! -user redis -exec chown redis '{}' +
    exec setpriv --reuid=redis --regid=redis --clear-groups "$0" "$@"
fi
exec "$@"
"#;

/// Ends with status 42 on its stop signal.
const TRAP: &str = "trap 'exit 42' USR1; touch /tmp/trapped; while :; do sleep 0.1; done";

/// A folder of images that share the layer of Debian.
struct Images {
    folder: tempfile::TempDir,
    debian: Value,
}

impl Images {
    fn new() -> Images {
        let folder = tempfile::tempdir().expect("tempdir");
        let sum = Command::new("sha256sum").arg(hutch_testkit::stock()).output().expect("sha256sum");
        let digest = succeeded("sha256sum", &sum)[..64].to_owned();
        let size = fs::metadata(hutch_testkit::stock()).expect("the archive").len();
        let kind = "application/vnd.oci.image.layer.v1.tar";
        let debian = json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size});
        let images = Images { folder, debian };
        let entrypoint = |script: Option<&str>, fields: Value| (script.map(str::to_owned), fields);
        for (name, (script, config)) in [
            ("debian", entrypoint(None, json!({"Cmd": ["sh"]}))),
            ("named", entrypoint(None, json!({"Cmd": ["sleep", "1000000"], "User": "www-data"}))),
            ("stopped", entrypoint(None, json!({"Cmd": ["sh", "-c", TRAP], "StopSignal": "SIGUSR1"}))),
            ("nginx", entrypoint(None, json!({"Cmd": ["nginx", "-g", "daemon off;"]}))),
            ("redis", entrypoint(Some(REDIS), json!({"Cmd": ["redis-server"], "WorkingDir": "/data"}))),
            (
                "postgres",
                entrypoint(
                    Some(POSTGRES),
                    json!({"Cmd": ["postgres"], "Env": ["PGDATA=/var/lib/postgresql/data"]}),
                ),
            ),
        ] {
            images.image(name, script.as_deref(), config);
        }
        images
    }

    fn path(&self) -> PathBuf {
        self.folder.path().into()
    }

    fn image(&self, name: &str, script: Option<&str>, mut config: Value) {
        let folder = self.folder.path().join(name);
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("folder");
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        let digest = self.debian["digest"].as_str().expect("a digest");
        let blob = blobs.join(&digest[7..]);
        // A file system of its own has a copy.
        if fs::hard_link(hutch_testkit::stock(), &blob).is_err() {
            fs::copy(hutch_testkit::stock(), &blob).expect("copied");
        }
        let (mut layers, mut diffs) = (vec![self.debian.clone()], vec![digest.to_owned()]);
        if let Some(script) = script {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o755);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(script.len() as u64);
            archive
                .append_data(&mut header, "usr/local/bin/docker-entrypoint.sh", script.as_bytes())
                .expect("a layer in memory");
            let layer = archive.into_inner().expect("a layer in memory");
            let layer = store(&blobs, "application/vnd.oci.image.layer.v1.tar", &layer);
            diffs.push(layer["digest"].as_str().expect("a digest").to_owned());
            layers.push(layer);
            config["Entrypoint"] = json!(["docker-entrypoint.sh"]);
        }
        let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
        let whole = json!({"architecture": architecture, "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diffs}});
        let config = store(&blobs, "application/vnd.oci.image.config.v1+json", whole.to_string().as_bytes());
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
        let manifest = store(&blobs, kind, manifest.to_string().as_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        fs::write(folder.join("index.json"), index.to_string()).expect("write");
    }

    fn up(&self) -> Up {
        let hosts = format!("127.0.0.1 localhost\n{SERVER} debian.example\n");
        Up::start_outside(&hosts, &[], &["--image-dir", &self.path().display().to_string()])
    }
}

/// Stores a blob under its digest; its descriptor.
fn store(blobs: &Path, kind: &str, bytes: &[u8]) -> Value {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(blobs.join(&digest), bytes).expect("write");
    json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()})
}

/// A Pod with one container `c` of an image, and these fields in the container and the spec.
fn pod(name: &str, image: &str, class: Option<&str>, container: Value, spec: Value) -> Value {
    let mut whole = json!({"name": "c", "image": format!("oci:{image}")});
    whole.as_object_mut().expect("fields").extend(container.as_object().expect("fields").clone());
    let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 2, "containers": [whole]}});
    object["spec"].as_object_mut().expect("fields").extend(spec.as_object().expect("fields").clone());
    object
}

fn ready(up: &Up, pod: &Value) {
    applied(up, pod);
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let waited = up.kubectl(&format!("wait --for=condition=Ready pod/{name} --timeout=90s"));
    if !waited.status.success() {
        let shown =
            ["logs", "logs --previous", "describe pod"].map(|what| up.kubectl(&format!("{what} {name}")));
        panic!("pod {name} is not ready: {}", shown.map(|output| text(&output.stdout)).join("\n"));
    }
}

/// Output of a shell inside.
fn shell(up: &Up, pod: &str, script: &str) -> String {
    up.ok_args(&["exec", pod, "--", "sh", "-ec", script])
}

/// Names of the users whose processes run a program.
fn users(up: &Up, pod: &str, program: &str) -> Vec<String> {
    let script = format!(
        "for folder in /proc/[0-9]*; do\n\
         read -r name < $folder/comm && [ \"$name\" = {program} ] && stat -c %U $folder; done; true"
    );
    let mut users: Vec<String> = shell(up, pod, &script).lines().map(str::to_owned).collect();
    users.sort();
    users.dedup();
    users
}

fn exec(words: &[&str]) -> Value {
    json!({"exec": {"command": words}, "periodSeconds": 1})
}

/// PostgreSQL on a claim, whose next Pod has other ids on the machine.
fn postgres(up: &Up, class: Option<&str>) {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    applied(up, &claim);
    let container = json!({
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/postgresql/data", "subPath": "pg"}],
        "readinessProbe": exec(&["pg_isready", "-h", "127.0.0.1"]),
    });
    let spec = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
    let made = pod("postgres", "postgres", class, container, spec);
    ready(up, &made);
    let psql = |sql: &str| {
        up.ok_args(&["exec", "postgres", "--", "psql", "-h", "127.0.0.1", "-U", "postgres", "-Atc", sql])
    };
    psql("create table kept (id int); insert into kept values (7)");
    assert_eq!(users(up, "postgres", "postgres"), ["postgres"]);
    up.ok("delete pod postgres --timeout=60s");
    ready(up, &made);
    assert_eq!(psql("select id from kept").trim(), "7");
    let owner = "stat -c '%U %a' /var/lib/postgresql/data";
    assert_eq!(shell(up, "postgres", owner).trim(), "postgres 700");
    up.ok("delete pod postgres --timeout=60s");
    up.ok("delete pvc data --timeout=60s");
    // What it wrote as other users is removed with it.
    let left = || fs::read_dir(up.data().join("volumes/default")).map_or(0, Iterator::count);
    hutch_testkit::wait::until("the folder of the claim is gone", || left() == 0);
}

/// PostgreSQL in a Sandbox, which another one reaches by the name of its Service, where a policy opens that.
fn postgres_of_another(up: &Up, class: Option<&str>) {
    let sandbox = |name: &str, container: Value| {
        let mut whole = json!({"name": "c", "image": "oci:postgres"});
        whole.as_object_mut().expect("fields").extend(container.as_object().expect("fields").clone());
        let object = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "labels": {"role": name}},
            "spec": {"service": true, "podTemplate": {"metadata": {"labels": {"name": name}}, "spec": {
                "runtimeClassName": class, "terminationGracePeriodSeconds": 0, "containers": [whole]}}}});
        applied(up, &object);
    };
    sandbox("db", json!({"readinessProbe": exec(&["pg_isready", "-h", "127.0.0.1"])}));
    for name in ["app", "other"] {
        sandbox(name, json!({"command": ["sleep", "1000000"]}));
    }
    for name in ["db", "app", "other"] {
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
    }
    let answer = |from: &str| {
        let script = "PGCONNECT_TIMEOUT=20 psql -h db.default.svc -U postgres -Atc 'select 40 + 2'";
        text(&up.kubectl_args(&["exec", from, "--", "sh", "-c", script]).stdout).trim().to_owned()
    };
    assert_eq!(answer("app"), "", "without a policy");
    let rules = json!([{"name": "db", "sandboxes": [{"selector": {"matchLabels": {"role": "db"}}}], "ports": [5432]}]);
    applied(up, &policy("SandboxPolicy", "db", &json!({"sandboxes": ["app"]}), &rules));
    hutch_testkit::wait::until("the policy opens the database", || answer("app") == "42");
    assert_eq!(answer("other"), "", "for another sandbox");
    up.ok("delete sandboxpolicy db");
    hutch_testkit::wait::until("nothing is open without it", || answer("app").is_empty());
    up.ok("delete sandbox db app other --timeout=60s");
}

fn redis(up: &Up, class: Option<&str>) {
    let container = json!({
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": exec(&["redis-cli", "ping"]),
    });
    ready(
        up,
        &pod("redis", "redis", class, container, json!({"volumes": [{"name": "data", "emptyDir": {}}]})),
    );
    assert_eq!(shell(up, "redis", "redis-cli set k v && redis-cli save && redis-cli get k"), "OK\nOK\nv\n");
    assert_eq!(shell(up, "redis", "stat -c %U /data /data/dump.rdb"), "redis\nredis\n");
    assert_eq!(users(up, "redis", "redis-server"), ["redis"]);
    up.ok("delete pod redis --timeout=60s");
}

/// On port 80, with files of its workers that only they may write.
fn nginx(up: &Up, class: Option<&str>) {
    let probe = json!({"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 1});
    ready(up, &pod("nginx", "nginx", class, json!({"readinessProbe": probe}), json!({})));
    assert_eq!(users(up, "nginx", "nginx"), ["root", "www-data"]);
    // Its log belongs to another user, and root reads it.
    assert!(shell(up, "nginx", "cat /var/log/nginx/access.log").contains("GET / "));
    up.ok("delete pod nginx --timeout=60s");
}

/// A package with an account, a file of that account and a set-user-id program, from a mirror that a policy allows.
fn apt(up: &Up, class: Option<&str>, mirror: &Mirror) {
    let rule = json!({"name": "debian", "hosts": ["debian.example"], "ports": [mirror.port],
        "plaintext": true, "private": [SERVER]});
    applied(up, &policy("ClusterSandboxPolicy", "debian", &json!({}), &json!([rule])));
    applied(
        up,
        &json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "builder"},
        "spec": {"podTemplate": {"spec": {"runtimeClassName": class, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "c", "image": "oci:debian", "command": ["sleep", "1000000"]}]}}}}),
    );
    up.ok("wait --for=condition=Ready sandbox/builder --timeout=180s");
    enforced(up, "builder", "Enforced");
    let install = format!(
        "echo 'deb [trusted=yes] http://debian.example:{} stable main' > /etc/apt/sources.list\n\
         apt-get update 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y greeting 2>&1",
        mirror.port
    );
    let printed = shell(up, "builder", &install);
    assert!(printed.contains("Setting up greeting"), "{printed}");
    assert!(!printed.contains("unsandboxed"), "{printed}");
    assert_eq!(shell(up, "builder", "greeting; stat -c '%U %a' /var/lib/greeting"), "hello\ngreeting 750\n");
    let set_id = "stat -c %a /usr/bin/greeting-id\n\
        setpriv --reuid=greeting --regid=nogroup --clear-groups /usr/bin/greeting-id -un";
    assert_eq!(shell(up, "builder", set_id), "4755\ngreeting\n", "the bit has no effect");
    up.ok("delete sandbox builder --timeout=60s");
}

/// A program that ends on the stop signal of its image.
fn stopped(up: &Up, class: Option<&str>) {
    let trapped = json!({"readinessProbe": exec(&["test", "-e", "/tmp/trapped"])});
    let mut held = pod("stopped", "stopped", class, trapped, json!({"terminationGracePeriodSeconds": 30}));
    // So that its status stays.
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    ready(up, &held);
    up.ok("delete pod stopped --wait=false");
    let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(up.eventually(&format!("get pod stopped -o {code}"), |code| !code.is_empty()), "42");
    up.ok_args(&["patch", "pod", "stopped", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
}

fn all_services(class: Option<&str>) {
    let (images, mirror) = (Images::new(), Mirror::start());
    let up = images.up();
    postgres(&up, class);
    postgres_of_another(&up, class);
    redis(&up, class);
    nginx(&up, class);
    stopped(&up, class);
    apt(&up, class, &mirror);
}

#[test]
fn stock_services_start_with_their_usual_entrypoints() {
    hutch_testkit::require!(root, kubectl, stock);
    all_services(None);
}

#[test]
fn stock_services_start_in_gvisor() {
    hutch_testkit::require!(root, kubectl, stock, runsc);
    all_services(Some("gvisor"));
}

/// Status of a container that waits.
fn waiting(up: &Up, name: &str) -> String {
    let path = "jsonpath={.status.containerStatuses[0].state.waiting.message}";
    up.eventually(&format!("get pod {name} -o {path}"), |message| !message.is_empty())
}

#[test]
fn security_context_is_read_as_by_a_kubelet() {
    hutch_testkit::require!(root, kubectl, stock);
    let images = Images::new();
    let up = images.up();
    applied(
        &up,
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "value"}}),
    );
    applied(
        &up,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"key": "text"}}),
    );
    let sleep = json!(["sleep", "1000000"]);
    let names = ["secret", "map", "both"];
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let volumes = json!([
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "map", "configMap": {"name": "m", "defaultMode": 0o400}},
        {"name": "both", "projected": {"defaultMode": 0o400, "sources": [{"secret": {"name": "s"}}]}},
    ]);
    let user = json!({"runAsUser": 33, "runAsNonRoot": true, "fsGroup": 2000, "supplementalGroups": [3000],
        "seccompProfile": {"type": "RuntimeDefault"}});
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = json!({"command": sleep, "volumeMounts": mounts, "securityContext": restricted});
    ready(
        &up,
        &pod("group", "debian", None, container, json!({"volumes": volumes, "securityContext": user})),
    );
    assert_eq!(shell(&up, "group", "cat /secret/key /map/key /both/key"), "valuetextvalue");
    assert_eq!(shell(&up, "group", "stat -L -c '%g %a' /secret/key /map/key"), "2000 440\n2000 440\n");
    assert_eq!(
        shell(&up, "group", "id").trim(),
        "uid=33(www-data) gid=33(www-data) groups=33(www-data),2000,3000"
    );

    // Root without capabilities, with some, and in an image with a name for its user.
    let with =
        |capabilities: Value| json!({"command": sleep, "securityContext": {"capabilities": capabilities}});
    ready(&up, &pod("dropped", "debian", None, with(json!({"drop": ["ALL"]})), json!({})));
    let chown = "touch /tmp/a; chown 33 /tmp/a 2>&1 || true; grep CapEff /proc/self/status";
    let printed = shell(&up, "dropped", chown);
    assert!(printed.contains("not permitted") && printed.contains("0000000000000000"), "{printed}");
    ready(&up, &pod("added", "debian", None, with(json!({"drop": ["ALL"], "add": ["CHOWN"]})), json!({})));
    assert_eq!(shell(&up, "added", chown), "CapEff:\t0000000000000001\n");
    ready(&up, &pod("named", "named", None, json!({}), json!({})));
    assert_eq!(
        shell(&up, "named", "id -un; grep CapBnd /proc/self/status"),
        "www-data\nCapBnd:\t0000000000000000\n"
    );

    let non_root = json!({"securityContext": {"runAsNonRoot": true}});
    applied(&up, &pod("unknown", "named", None, json!({}), non_root.clone()));
    assert!(waiting(&up, "unknown").contains("non-numeric user (www-data)"));
    applied(&up, &pod("root", "debian", None, json!({"command": sleep}), non_root));
    assert!(waiting(&up, "root").contains("image will run as root"));
    applied(&up, &pod("more", "debian", None, with(json!({"add": ["NET_ADMIN"]})), json!({})));
    assert!(waiting(&up, "more").contains("(NET_ADMIN)"));
    let log = text(&up.kubectl("get events").stdout);
    assert!(log.contains("NET_ADMIN"), "{log}");
}
