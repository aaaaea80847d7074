//! `deploy/Containerfile` and what is made of it in `deploy/sandboxd`, built by buildah, and what they hold run: alone, and as
//! sandboxes of `hutch up`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hutch_router::PodKey;
use serde_json::{Value, json};

use crate::deploy::manifests::{folder, read};
use crate::harness::{HUTCH, Up};

/// Where the build script puts sandboxd, below the folder of the target.
const SANDBOXD: &str = "programs/x86_64-unknown-linux-gnu/program/hutch-sandboxd";
const KEY: &str = "0123456789abcdef0123456789abcdef";

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// buildah with all it keeps below a folder, and the image of `deploy/Containerfile` under the name `localhost/hutch`.
struct Images(tempfile::TempDir);

impl Images {
    fn new() -> Images {
        let images = Images(tempfile::tempdir().expect("tempdir"));
        let target = images.folder().join("target/x86_64-unknown-linux-gnu");
        let built = Path::new(env!("OUT_DIR")).ancestors().find(|folder| folder.join(SANDBOXD).exists());
        for (from, to) in [
            (PathBuf::from(HUTCH), target.join("release/hutch")),
            (built.expect("sandboxd was built").join(SANDBOXD), target.join(SANDBOXD)),
        ] {
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("folder");
            std::fs::copy(from, to).expect("the program");
        }
        images.build("localhost/hutch", &folder().join("Containerfile"), &[]);
        images
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.folder().join("store"));
        command.arg("--runroot").arg(self.folder().join("state")).args(words).current_dir(self.folder());
        command
    }

    fn buildah(&self, words: &[&str]) -> String {
        String::from_utf8(succeeded(&mut self.command(words)).stdout).expect("text").trim().to_owned()
    }

    fn build(&self, name: &str, recipe: &Path, more: &[&str]) {
        let recipe = recipe.to_str().expect("a path");
        let words = ["build", "--pull=never", "--isolation", "chroot", "--tag", name, "--file", recipe];
        self.buildah(&[&words[..], more, &["."]].concat());
    }

    /// The same on top of the image itself, which is the only one that is there.
    fn layered(&self) {
        let bases = ["--build-arg=HUTCH=localhost/hutch", "--build-arg=BASE=localhost/hutch"];
        self.build("localhost/layered", &folder().join("sandboxd/Containerfile"), &bases);
    }

    /// The root file system.
    fn mounted(&self, name: &str) -> String {
        let container = self.buildah(&["from", "--pull=never", name]);
        self.buildah(&["mount", &container])
    }

    /// The image as a Pod of this machine names it.
    fn reference(&self, name: &str) -> String {
        let layout = self.folder().join(format!("{name}.layout"));
        let place = format!("oci:{}", layout.display());
        // Compressing the program takes twenty seconds; other tests have compressed layers.
        self.buildah(&["push", "--disable-compression", &format!("localhost/{name}"), &place]);
        place
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        // A failed test has printed the reason.
        let _ = self.command(&["umount", "--all"]).output();
    }
}

#[test]
fn image_has_only_the_programs_and_is_not_root() {
    hutch_testkit::require!(root, user_namespaces, buildah);
    let images = Images::new();
    let show = ["inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}}", "localhost/hutch"];
    assert_eq!(images.buildah(&show), "65532:65532");
    let root = images.mounted("localhost/hutch");
    let files = std::fs::read_dir(&root).expect("root").map(|file| file.expect("file").file_name());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files, ["hutch", "hutch-sandboxd"]);
    for (program, name) in [("/hutch", "hutch"), ("/hutch-sandboxd", "hutch-sandboxd")] {
        let output =
            succeeded(Command::new(HUTCH).args(["run", "--rootfs", &root, "--", program, "--version"]));
        let version = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), version);
    }
}

#[test]
fn sandboxd_in_a_layer_wraps_the_command_of_the_container() {
    hutch_testkit::require!(root, user_namespaces, buildah);
    let images = Images::new();
    images.layered();
    let show =
        ["inspect", "--type", "image", "--format", "{{.OCIv1.Config.Entrypoint}}", "localhost/layered"];
    let shown = images.buildah(&show);
    let entry = shown.trim_matches(['[', ']']).split(' ');
    let root = images.mounted("localhost/layered");
    let mut hutch = Command::new(HUTCH);
    hutch.args(["run", "--rootfs", &root, "--env", "SANDBOX_BASE_DIR=/tmp/base", "--"]).args(entry);
    let output = succeeded(hutch.args(["/hutch", "--version"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), concat!("hutch ", env!("CARGO_PKG_VERSION"), "\n"));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("serving /tmp/base http=8888 rest=8080 grpc=9090"), "{printed}");
}

/// Status and body of a request through the router of `hutch up`.
fn ask(up: &Up, sandbox: &str, request: &str, body: &str) -> (u16, String) {
    let address = up.router();
    let mut stream = TcpStream::connect(address).expect("connected");
    let headers =
        format!("host: r\r\nconnection: close\r\nx-sandbox-id: {sandbox}\r\ncontent-type: application/json");
    let head = format!("{request} HTTP/1.1\r\n{headers}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned())
}

fn apply(up: &Up, name: &str, object: &Value) {
    let file = up.folder().join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
}

/// Template and pool of `deploy/sandboxd`, with images of this machine, and a claim; the Sandbox that it has.
fn claimed(up: &Up, file: &str, hutch: &str) -> String {
    for mut object in read(&folder().join("sandboxd").join(file)) {
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        if let Some(spec) = object.pointer_mut("/spec/podTemplate/spec") {
            spec["initContainers"][0]["image"] = hutch.into();
            spec["containers"][0]["image"] = "hutch/host".into();
        }
        apply(up, &kind, &object);
    }
    let name = file.replace("template", "claim").replace(".yaml", "");
    let pool = file.replace("template", "sandboxd").replace(".yaml", "");
    apply(
        up,
        &name,
        &json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name}, "spec": {"warmPoolRef": {"name": pool}}}),
    );
    up.ok(&format!("wait --for=condition=Ready sandboxclaim/{name} --timeout=90s"));
    up.ok(&format!("get sandboxclaim {name} -o jsonpath={{.status.sandbox.name}}"))
}

fn pod_of(up: &Up, sandbox: &str) -> String {
    let object: Value =
        serde_json::from_str(&up.ok(&format!("get sandbox {sandbox} -o json"))).expect("JSON");
    object["metadata"]["annotations"]["agents.x-k8s.io/pod-name"].as_str().expect("its Pod").to_owned()
}

#[test]
fn init_container_or_layer_adds_sandboxd_on_one_machine() {
    hutch_testkit::require!(root, user_namespaces, buildah, kubectl, python);
    let images = Images::new();
    images.layered();
    let (hutch, layered) = (images.reference("hutch"), images.reference("layered"));
    let folder = images.folder().to_str().expect("a path");
    let router = ["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"];
    let up = Up::start(&[&router[..], &["--image-dir", folder]].concat());

    let sandbox = claimed(&up, "template.yaml", &hutch);
    let run = |command: &str| ask(&up, &sandbox, "POST /execute", &json!({ "command": command }).to_string());
    let (status, printed) = run("echo hello");
    assert!(status == 200 && printed.contains(r#""stdout":"hello\n""#), "{status} {printed}");
    let pod = pod_of(&up, &sandbox);
    let running = up.ok_args(&[
        "exec",
        &pod,
        "-c",
        "main",
        "--",
        "sh",
        "-c",
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
    ]);
    assert!(running.contains("/sandboxd/hutch-sandboxd -- sleep infinity "), "{running}");
    assert_eq!(
        running.matches("sleep infinity ").count(),
        2,
        "the container's command runs behind it: {running}"
    );

    let key = up.folder().join("key");
    std::fs::write(&key, KEY).expect("written");
    up.ok(&format!("create secret generic sandboxd-key --from-file=key={}", key.display()));
    let guarded = claimed(&up, "template-with-token.yaml", &hutch);
    assert_eq!(ask(&up, &guarded, "GET /", "").0, 200, "the liveness probe needs no token");
    assert_eq!(ask(&up, &guarded, "GET /list/", "").0, 401);
    let pod = pod_of(&up, &guarded);
    let uid = up.ok(&format!("get pod {pod} -o jsonpath={{.metadata.uid}}"));
    let token = up.ok(&format!("exec {pod} -c main -- cat /sandboxd/token"));
    assert_eq!(token, PodKey::new(KEY.as_bytes()).expect("a key").token(&uid));
    let shown = "import urllib.request as r; q = r.Request('http://127.0.0.1:8888/list/', headers={'authorization': \
        'Bearer ' + open('/sandboxd/token').read()}); print(r.urlopen(q).status)";
    assert_eq!(up.ok_args(&["exec", &pod, "-c", "main", "--", "python3", "-c", shown]), "200\n");
    assert!(
        !up.kubectl(&format!("exec {pod} -c main -- cat /key/key")).status.success(),
        "the key is not for the code"
    );

    let container = |env: Value| {
        json!({"name": "main", "image": layered, "args": ["/hutch-sandboxd", "--pause"], "env": env,
            "readinessProbe": {"httpGet": {"path": "/v1/health", "port": 8080}, "periodSeconds": 1},
            "volumeMounts": [{"name": "w", "mountPath": "/workspace"}]})
    };
    for (name, env, status) in [
        ("layered", json!([]), 200),
        ("layered-with-token", json!([{"name": "SANDBOXD_TOKEN", "value": "0123456789abcdef"}]), 401),
    ] {
        apply(
            &up,
            name,
            &json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
                "spec": {"podTemplate": {"spec": {"containers": [container(env)], "volumes": [{"name": "w", "emptyDir": {}}]}}}}),
        );
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=90s"));
        assert_eq!(ask(&up, name, "GET /", "").0, 200, "{name}");
        let (answered, printed) = ask(&up, name, "POST /execute", r#"{"command":"/hutch --version"}"#);
        assert_eq!(answered, status, "{name}: {printed}");
    }
}
