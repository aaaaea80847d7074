//! Images from the registry of Debian, over TLS and with a password: pulled by a user, and for Pods.

mod again;
mod built;
mod imported;
mod killed;
mod proxied;
mod signed;

use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hutch_testkit::registry::{PASSWORD, USER};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{HUTCH, Up, WAIT_LIMIT, binary, link_program, succeeded, text};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Attribute of a file that has the capability CAP_NET_RAW.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An archive of files with these permission bits, and this user and group.
fn tar(files: &[(&str, &[u8])], mode: u32, (user, group): (u64, u64)) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_uid(user);
        header.set_gid(group);
        archive.append_data(&mut header, name, *content).expect("added");
    }
    archive.into_inner().expect("an archive")
}

/// A running registry with the image `org/app:v1`.
struct Registry(hutch_testkit::registry::Registry);

impl Deref for Registry {
    type Target = hutch_testkit::registry::Registry;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Registry {
    fn start() -> Registry {
        let registry = Registry(hutch_testkit::registry::Registry::start());
        registry.push();
        registry
    }

    fn name(&self) -> String {
        format!("{}/org/app:v1", self.host)
    }

    /// Uploads a blob, and returns its descriptor.
    fn push_blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let digest = format!("sha256:{}", hex(bytes));
        self.put_blob("org/app", &digest, bytes);
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }

    /// Uploads the image: sandboxd, and a file of another user.
    fn push(&self) {
        let install = Command::new(HUTCH).args(["sandboxd", "install"]).arg(self.folder()).output();
        succeeded("install", &install.expect("hutch"));
        let program = std::fs::read(self.path("hutch-sandboxd")).expect("the program");
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content, mode, owner) in
            [("hutch-sandboxd", &program[..], 0o755, 0), ("srv/data/file", b"text", 0o640, 5)]
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            header.set_mtime(1000);
            let attributes =
                [("SCHILY.xattr.user.kept", &b"value"[..]), ("SCHILY.xattr.security.capability", &NET_RAW)];
            archive.append_pax_extensions(attributes).expect("added");
            archive.append_data(&mut header, name, content).expect("added");
        }
        let archive = archive.into_inner().expect("an archive");
        let diff_id = format!("sha256:{}", hex(&archive));
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&archive).expect("packed");
        let packed = packed.finish().expect("packed");
        let layer = self.push_blob("application/vnd.oci.image.layer.v1.tar+gzip", &packed);
        let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Cmd": ["/hutch-sandboxd", "--pause"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config =
            self.push_blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
        self.push_manifest("v1", &manifest);
    }

    fn push_manifest(&self, tag: &str, manifest: &Value) {
        self.put(MANIFEST, manifest.to_string().as_bytes(), &format!("/v2/org/app/manifests/{tag}"));
    }

    /// A file `images.yaml` that trusts the registry.
    fn trusting(&self) -> String {
        let path = self.path("images.yaml");
        std::fs::write(&path, format!("caFiles: ['{}']\n", self.path("ca.pem").display())).expect("written");
        path.display().to_string()
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A home whose images lie in a folder of its own, and variables.
struct Home(tempfile::TempDir, Vec<(&'static str, String)>);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().expect("tempdir"), Vec::new());
        for folder in [".docker", "lib"] {
            std::fs::create_dir(home.0.path().join(folder)).expect("made");
        }
        home
    }

    fn lib(&self) -> PathBuf {
        self.0.path().join("lib")
    }

    fn log_in(&self, host: &str, password: &str) {
        let login = json!({"auths": {host: {"username": USER, "password": password}}});
        std::fs::write(self.0.path().join(".docker/config.json"), login.to_string()).expect("written");
    }

    /// Runs hutch as root, for whom the data folder of the machine is the one of this home.
    fn hutch(&self, words: &[&str]) -> Output {
        let mut unshare = Command::new("unshare");
        let script = "mkdir -p /var/lib/hutch && mount --bind \"$1\" /var/lib/hutch && shift && exec \"$@\"";
        unshare.args(["--mount", "bash", "-c", script, "bash"]).arg(self.lib()).arg(binary());
        unshare.args(words).env("HOME", self.0.path()).env_remove("DOCKER_CONFIG");
        unshare.envs(self.1.iter().map(|(name, value)| (name, value)));
        unshare.stdin(Stdio::null()).output().expect("unshare")
    }

    /// Sets a variable for [`Home::hutch`].
    fn set(&mut self, name: &'static str, value: &str) {
        self.1.push((name, value.to_owned()));
    }

    /// Runs hutch as an ordinary user, whose cache is in this home.
    fn hutch_as_user(&self, registry: &Registry, words: &[&str]) -> Output {
        let path = |name: &str| self.0.path().join(name);
        std::fs::set_permissions(registry.folder(), PermissionsExt::from_mode(0o755)).expect("chmod");
        std::fs::set_permissions(self.0.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        std::fs::create_dir_all(path("cache")).expect("made");
        give(&path("cache"));
        give(&path(".docker"));
        // Where an ordinary user can read it.
        if !path("hutch").exists() {
            link_program(path("hutch"));
        }
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(path("hutch")).args(words);
        setpriv.env("HOME", self.0.path()).env("XDG_CACHE_HOME", path("cache")).env_remove("DOCKER_CONFIG");
        setpriv.current_dir("/").stdin(Stdio::null()).output().expect("setpriv")
    }
}

/// Gives a folder and what is in it to another user.
fn give(folder: &Path) {
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder, mode).expect("chmod");
    succeeded("chown", &Command::new("chown").args(["-R", "1000:1000"]).arg(folder).output().expect("chown"));
}

/// Checks that a command failed with status 1 and one line.
#[track_caller]
fn failed(output: &Output, part: &str) {
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(part) && printed.trim().lines().count() == 1, "{printed}");
}

/// Names of the extended attributes of a file, each with a NUL.
fn attributes(file: &Path) -> String {
    let mut names = [0; 1024];
    let length = rustix::fs::listxattr(file, &mut names[..]).expect("attributes");
    text(&names[..length])
}

/// Returns the folders of unpacked layers.
fn layers(images: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(images).expect("the folder of images");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.display().to_string().contains("/layer-")).collect()
}

#[test]
fn pulled_image_runs_by_its_name() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    let (name, config) = (registry.name(), registry.trusting());
    let pull = |name: &str| home.hutch(&["image", "pull", name, "--image-config", &config, "--json"]);

    let command = ["run", "--image", &name, "--", "/hutch-sandboxd", "--version"];
    let before = home.hutch(&command);
    assert!(text(&before.stderr).contains("hutch image pull"), "{}", text(&before.stderr));
    failed(&pull(&name), "does not allow pulling");
    home.log_in(&registry.host, "wrong");
    failed(&pull(&name), "none of the credentials");
    home.log_in(&registry.host, PASSWORD);
    failed(&pull(&format!("{}/org/app:none", registry.host)), "has no manifest none of org/app");
    failed(&pull("UPPER"), "lower case");
    failed(&pull("hutch/host"), "built in");
    failed(&home.hutch(&["image", "pull", &name]), "certificate");

    let printed = succeeded("pull", &pull(&name));
    let result: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((&result["name"], &result["layers"]), (&json!(name), &json!(1)), "{printed}");
    let ran = succeeded("run", &home.hutch(&command));
    assert_eq!(ran, format!("hutch-sandboxd {}\n", env!("CARGO_PKG_VERSION")));
    let as_user = |words: &[&str]| succeeded(words[0], &home.hutch_as_user(&registry, words));
    as_user(&["image", "pull", &name, "--image-config", &config]);
    assert_eq!(as_user(&command), ran, "an ordinary user has images of their own");
    let [layer] = &layers(&home.0.path().join("cache/hutch/images"))[..] else { panic!("one layer") };
    let of_user = layer.join("srv/data/file").metadata().expect("the file");
    assert_eq!((of_user.uid(), of_user.permissions().mode() & 0o7777), (1000, 0o640));
    assert_eq!(attributes(&layer.join("srv/data/file")), "user.kept\0");

    let [layer] = &layers(&home.lib().join("images"))[..] else { panic!("one layer") };
    let owned = |path: &str| {
        let found = layer.join(path).metadata().expect("an entry");
        (found.uid(), found.gid(), found.permissions().mode() & 0o7777)
    };
    assert_eq!(owned("srv/data/file"), (5, 5, 0o640));
    assert_eq!(attributes(&layer.join("srv/data/file")), "user.kept\0");
    assert_eq!(owned("srv/data"), (0, 0, 0o755), "a folder without an entry of its own");
    assert_eq!(owned("hutch-sandboxd"), (0, 0, 0o755));
    assert_eq!(owned(""), (0, 0, 0o755));
}

fn pod(name: &str, image: &str, more: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": image}], "terminationGracePeriodSeconds": 0}});
    for (key, value) in more.as_object().expect("an object") {
        match key.as_str() {
            "imagePullPolicy" => pod["spec"]["containers"][0][key] = value.clone(),
            _ => pod["spec"][key] = value.clone(),
        }
    }
    pod
}

fn apply(up: &Up, namespace: &str, pod: &Value) {
    let file = up.folder().join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("written");
    up.ok(&format!("apply -n {namespace} -f {}", file.display()));
}

/// Waits for an event of a Pod with this reason, and returns its messages.
fn event(up: &Up, namespace: &str, pod: &str, reason: &str) -> String {
    let fields = format!("involvedObject.name={pod},reason={reason}");
    let words =
        format!("get events -n {namespace} --field-selector {fields} -o jsonpath={{.items[*].message}}");
    up.eventually(&words, |messages| !messages.is_empty())
}

/// Waits until the container of a Pod waits for this reason.
fn waits(up: &Up, namespace: &str, pod: &str, reason: &str) {
    let path = "{.status.containerStatuses[0].state.waiting.reason}";
    up.eventually(&format!("get pod -n {namespace} {pod} -o jsonpath={path}"), |found| found == reason);
}

#[test]
fn pod_with_its_secret_runs_a_pulled_image_and_others_do_not() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let registry = Registry::start();
    let (name, config) = (registry.name(), registry.trusting());
    let prefix = format!("{}/org", registry.host);
    let up = Up::start(&["--pull-from", &prefix, "--image-config", &config]);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={} --docker-username={USER} --docker-password={PASSWORD}",
        registry.host
    ));
    let with_secret = json!({"imagePullSecrets": [{"name": "login"}]});
    apply(&up, "default", &pod("first", &name, &with_secret));
    up.ok("wait --for=condition=Ready pod/first --timeout=120s");
    assert_eq!(event(&up, "default", "first", "Pulling"), format!("Pulling image {name:?}"));
    let pulled = event(&up, "default", "first", "Pulled");
    assert!(pulled.starts_with("Successfully pulled image") && pulled.contains("Image size: "), "{pulled}");
    let [layer] = &layers(&up.data().join("images"))[..] else { panic!("one layer") };
    assert_eq!(layer.join("srv/data/file").metadata().expect("the file").uid(), 5);

    // Those of the ServiceAccount count for a Pod without any.
    let patch = r#"{"imagePullSecrets":[{"name":"login"}]}"#;
    up.ok("create serviceaccount puller");
    up.ok_args(&["patch", "serviceaccount", "puller", "--type=merge", "-p", patch]);
    apply(&up, "default", &pod("account", &name, &json!({"serviceAccountName": "puller"})));
    up.ok("wait --for=condition=Ready pod/account --timeout=120s");

    // The same credentials need no request; others, and none, do.
    apply(&up, "default", &pod("second", &name, &with_secret));
    up.ok("wait --for=condition=Ready pod/second --timeout=120s");
    assert!(event(&up, "default", "second", "Pulled").contains("already present"));
    up.ok("create namespace other");
    for (pod_name, more) in [("none", json!({})), ("missing", with_secret.clone())] {
        apply(&up, "other", &pod(pod_name, &name, &more));
        waits(&up, "other", pod_name, "ErrImagePull");
        let messages = event(&up, "other", pod_name, "Failed");
        assert!(messages.contains("does not allow pulling"), "{messages}");
    }
    event(&up, "other", "missing", "FailedToRetrieveImagePullSecret");
    apply(&up, "other", &pod("never", &name, &json!({"imagePullPolicy": "Never"})));
    waits(&up, "other", "never", "ErrImageNeverPull");
    waits(&up, "other", "none", "ImagePullBackOff");
    assert!(event(&up, "other", "none", "BackOff").contains("Back-off pulling image"));

    let elsewhere = format!("{}/elsewhere/app:v1", registry.host);
    apply(&up, "default", &pod("elsewhere", &elsewhere, &with_secret));
    let messages = event(&up, "default", "elsewhere", "Failed");
    assert!(messages.contains(&format!("allowed are images of {prefix}")), "{messages}");
}

#[test]
fn pod_that_waits_for_a_silent_registry_can_be_deleted() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let registry = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = registry.local_addr().expect("an address").to_string();
    let folder = tempfile::tempdir().expect("tempdir");
    let config = folder.path().join("images.yaml");
    std::fs::write(&config, format!("allow: ['{host}']\nplainHttp: ['{host}']\n")).expect("written");
    let up = Up::start(&["--image-config", &config.display().to_string()]);
    apply(&up, "default", &pod("pod", &format!("{host}/app:v1"), &json!({})));
    event(&up, "default", "pod", "Pulling");
    let (_held, _) = registry.accept().expect("a connection");
    // The registry is silent for longer than this.
    up.ok("delete pod/pod --timeout=30s");

    let published = "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0";
    apply(&up, "default", &pod("published", published, &json!({})));
    let text = event(&up, "default", "published", "Pulled");
    assert!(text.contains("is answered by the built-in image hutch/python-runtime"), "{text}");
}

#[test]
fn server_without_pull_from_sends_nothing_and_names_the_flag() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("set");
    let host = listener.local_addr().expect("an address").to_string();
    let up = Up::start(&[]);
    apply(&up, "default", &pod("pod", &format!("{host}/org/app:v1"), &json!({})));
    waits(&up, "default", "pod", "ErrImagePull");
    let messages = event(&up, "default", "pod", "Failed");
    assert!(messages.contains(&format!("hutch up --pull-from {host} allows it")), "{messages}");
    let error = listener.accept().expect_err("nothing connects");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    apply(&up, "default", &pod("invalid", "UPPER:v1", &json!({})));
    waits(&up, "default", "invalid", "InvalidImageName");
    assert!(event(&up, "default", "invalid", "InspectFailed").contains("lower case"));
}

#[test]
fn image_of_the_administrator_is_for_all_pods() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let (registry, home) = (Registry::start(), Home::new());
    let mut login = Command::new(HUTCH);
    login.args(["image", "login", &registry.host, "--username", USER, "--password-stdin", "--json"]);
    login.env("HOME", home.0.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut login = login.spawn().expect("hutch");
    writeln!(login.stdin.take().expect("piped"), "{PASSWORD}").expect("written");
    let printed = succeeded("login", &login.wait_with_output().expect("ended"));
    let file = home.0.path().join(".docker/config.json").display().to_string();
    let stored: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(stored, json!({"registry": registry.host, "file": file}));
    let (name, config) = (registry.name(), registry.trusting());
    let data = home.0.path().join("data");
    let mut pull = Command::new(HUTCH);
    pull.args(["image", "pull", &name, "--image-config", &config, "--data-dir"]).arg(&data);
    succeeded("pull", &pull.env("HOME", home.0.path()).output().expect("hutch"));
    let up = Up::start_on(&data, &[]);
    apply(&up, "default", &pod("pod", &name, &json!({"imagePullPolicy": "Never"})));
    up.ok("wait --for=condition=Ready pod/pod --timeout=120s");
    assert!(event(&up, "default", "pod", "Pulled").contains("already present"));
}

#[test]
fn image_in_use_is_not_removed_and_an_unused_one_leaves_nothing() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let (name, config) = (registry.name(), registry.trusting());
    for words in [&["pull", &name, "--image-config", &config][..], &["list", "--json"]] {
        succeeded("image", &home.hutch_as_user(&registry, &[&["image"], words].concat()));
    }
    let as_user = |words: &[&str]| home.hutch_as_user(&registry, words);
    succeeded("run", &as_user(&["run", "--image", &name, "--", "/hutch-sandboxd", "--version"]));
    let list = || -> Value {
        serde_json::from_str(&succeeded("list", &as_user(&["image", "list", "--json"]))).expect("JSON")
    };
    let listed = list();
    assert_eq!((&listed[0]["names"], &listed[0]["inUseBy"]), (&json!([name]), &json!([])), "{listed}");
    let table = succeeded("list", &as_user(&["image", "list"]));
    assert!(table.starts_with("IMAGE") && table.contains("/org/app") && table.contains("v1"), "{table}");
    let inspected: Value =
        serde_json::from_str(&succeeded("inspect", &as_user(&["image", "inspect", &name]))).expect("JSON");
    assert_eq!(inspected[0]["config"]["cmd"], json!(["/hutch-sandboxd", "--pause"]));
    assert!(
        inspected[0]["layers"][0]["unpackedSize"].as_u64() > inspected[0]["size"].as_u64(),
        "{inspected}"
    );

    let mut running = Command::new("setpriv");
    running.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(home.0.path().join("hutch"));
    running.args(["run", "--image", &name, "--", "/hutch-sandboxd", "--pause"]);
    running.env("HOME", home.0.path()).env("XDG_CACHE_HOME", home.0.path().join("cache")).current_dir("/");
    let mut running = running.stdin(Stdio::null()).spawn().expect("hutch run");
    let started = Instant::now();
    while list()[0]["inUseBy"] != json!([running.id()]) {
        assert!(started.elapsed() < WAIT_LIMIT, "{}", list());
        std::thread::sleep(Duration::from_millis(50));
    }
    failed(&as_user(&["image", "remove", &name]), &format!("in use by process {}", running.id()));
    let kept = as_user(&["image", "prune", "--all"]);
    assert!(text(&kept.stderr).contains("in use by"), "{}", text(&kept.stderr));
    assert_eq!(list()[0]["names"], json!([name]));
    running.kill().expect("killed");
    running.wait().expect("ended");

    succeeded("remove", &as_user(&["image", "remove", &name]));
    assert_eq!(list(), json!([]));
    failed(&as_user(&["image", "remove", &name]), "no image");
    let cache = home.0.path().join("cache/hutch");
    assert!(layers(&cache.join("images")).is_empty());
    assert_eq!(std::fs::read_dir(cache.join("pulled/blobs/sha256")).expect("blobs").count(), 0);
    succeeded("pull", &as_user(&["image", "pull", &name, "--image-config", &config]));
    succeeded("run", &as_user(&["run", "--image", &name, "--", "/hutch-sandboxd", "--version"]));
}

#[test]
fn full_disk_has_unused_images_of_pods_removed_and_no_used_one() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let registry = Registry::start();
    let (name, config) = (registry.name(), registry.trusting());
    // Every disk is fuller than this.
    let marks =
        ["--image-gc-high-threshold=1", "--image-gc-low-threshold=0", "--minimum-image-ttl-duration=0s"];
    let options = ["--pull-from", &registry.host, "--image-config", &config];
    let mut up = Up::start(&options);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={} --docker-username={USER} --docker-password={PASSWORD}",
        registry.host
    ));
    apply(&up, "default", &pod("pod", &name, &json!({"imagePullSecrets": [{"name": "login"}]})));
    up.ok("wait --for=condition=Ready pod/pod --timeout=120s");
    let hutch = |words: &[&str]| {
        let mut hutch = Command::new(HUTCH);
        hutch.arg("image").args(words).arg("--data-dir").arg(up.data()).output().expect("hutch")
    };
    let listed: Value = serde_json::from_str(&succeeded("list", &hutch(&["list", "--json"]))).expect("JSON");
    assert_eq!((&listed[0]["inUseBy"], &listed[0]["forPods"]), (&json!([up.pid()]), &json!(true)));
    let digest = listed[0]["manifest"].as_str().expect("a digest").to_owned();
    failed(&hutch(&["remove", &digest]), "in use by process");
    up.ok("delete pod/pod");
    up.kill();
    up.restart_with(&marks);
    let fields = "involvedObject.kind=Node,reason=ImageRemoved";
    let words = format!("get events --field-selector {fields} -o jsonpath={{.items[*].message}}");
    let message = up.eventually(&words, |messages| !messages.is_empty());
    assert!(message.contains("/org/app@sha256:"), "{message}");
    assert!(layers(&up.data().join("images")).is_empty());
    let words = words.replace("ImageRemoved", "FreeDiskSpaceFailed");
    up.eventually(&words, |messages| messages.contains("Failed to garbage collect"));
    apply(&up, "default", &pod("again", &name, &json!({"imagePullSecrets": [{"name": "login"}]})));
    up.ok("wait --for=condition=Ready pod/again --timeout=120s");
}

/// Lists the images of a folder with one image of that name, whose blobs are absent.
fn list_of(name: &str, arguments: &[&str], output: Stdio) -> Output {
    let folder = tempfile::tempdir().expect("tempdir");
    let pulled = folder.path().join("pulled");
    std::fs::create_dir(&pulled).expect("made");
    let index = json!({"schemaVersion": 2, "manifests": [{"mediaType": MANIFEST, "size": 1,
        "digest": format!("sha256:{}", "a".repeat(64)),
        "annotations": {"org.opencontainers.image.ref.name": name}}]});
    std::fs::write(pulled.join("index.json"), index.to_string()).expect("written");
    let mut list = Command::new(HUTCH);
    list.args(["image", "list", "--data-dir"]).arg(folder.path()).args(arguments);
    list.stdout(output).stderr(Stdio::piped()).spawn().expect("hutch").wait_with_output().expect("ended")
}

#[test]
fn list_of_names_has_no_control_characters() {
    for arguments in [&["--quiet"][..], &["--json"], &[]] {
        let listed = text(&list_of("a\u{1b}[2Jb", arguments, Stdio::piped()).stdout).to_owned();
        assert!(listed.contains("[2Jb") && !listed.contains('\u{1b}'), "{listed:?}");
    }
}

#[test]
fn list_whose_reader_has_ended_does_not_fail() {
    for arguments in [&["--quiet"][..], &["--json"], &[]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = list_of("app", arguments, writer.into());
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}
