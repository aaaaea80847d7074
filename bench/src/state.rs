//! Measures suspends with memory and resumes, compared with `runsc checkpoint` and `runsc restore` by hand; forks; how long a
//! snapshot of files pauses a Sandbox; and Sandboxes that begin with their imports.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hutch_testkit::Need;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use serde_json::{Value, json};

use crate::claims::NAMESPACE;
use crate::server::Server;
use crate::stats::{Samples, millis};
use crate::wake::is;

const ROUNDS: usize = 10;
const FORKS: usize = 10;
/// Sandboxes whose memory is on disk.
const SUSPENDED: usize = 500;
/// Sandboxes before them, which are not counted: with them, the server makes what it makes once.
const FIRST: usize = 5;
const WAIT_LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(2);
/// Port of the server by hand, which shares the network of the machine.
const PORT: u16 = 18_889;
/// Holds random bytes, in MiB of its first argument, and answers on the port of its second one.
const SERVER: &str = r#"
import http.server, os, sys
data = os.urandom(int(sys.argv[1]) << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *args): pass
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
Server(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
"#;

/// Import before that server, which takes long.
const IMPORTS: &str = "import pandas";
/// Folder of the packages in the Sandboxes that import them.
const PACKAGES: &str = "/packages";

struct Bench {
    runtime: tokio::runtime::Runtime,
    client: kube::Client,
    router: SocketAddr,
    server: Server,
}

/// Measures and prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    let bench = Bench::start(&[])?;
    bench.suspends()?;
    bench.forks()?;
    bench.snapshots()
}

/// Measures what Sandboxes cost while their memory is on disk, and prints the table.
pub(crate) fn suspended() -> anyhow::Result<()> {
    let bench = Bench::start(&[])?;
    let one = |number: usize| -> anyhow::Result<()> {
        let name = format!("many-{number}");
        let annotations = json!({"hutch.dev/suspend-keeps": "memory"});
        let command = ["sleep", "100000"].map(str::to_owned);
        bench.create(&bench.sandboxes(), sandbox(&name, "gvisor", &command, annotations))?;
        bench.until(&bench.sandboxes(), &name, "Ready")?;
        bench.set_mode(&name, "Suspended")?;
        bench.until(&bench.sandboxes(), &name, "Suspended")?;
        Ok(())
    };
    (0..FIRST).try_for_each(one)?;
    let before = Held::of(&bench)?;
    (FIRST..FIRST + SUSPENDED).try_for_each(one)?;
    let after = Held::of(&bench)?;
    println!("\n### {SUSPENDED} Sandboxes with their memory on disk\n");
    println!("| | before | with them | each |\n|---|---|---|---|");
    for ((name, before), (_, after)) in before.rows().into_iter().zip(after.rows()) {
        let each = (after as f64 - before as f64) / SUSPENDED as f64;
        println!("| {name} | {before} | {after} | {each:.2} |");
    }
    Ok(())
}

/// Measures Sandboxes that begin with pandas imported, beside those that import it, and prints the table.
pub(crate) fn imported() -> anyhow::Result<()> {
    let packages = packages()?;
    let folder = text(packages.path());
    let bench = Bench::start(&["--host-path", &folder])?;
    let new = |name: &str, annotations: Value| {
        bench.create(&bench.sandboxes(), importing(name, &folder, annotations))
    };
    let first = |name: &str, annotations: Value| -> anyhow::Result<Duration> {
        let started = Instant::now();
        new(name, annotations)?;
        bench.answers(name)?;
        let took = started.elapsed();
        bench.runtime.block_on(bench.sandboxes().delete(name, &DeleteParams::default()))?;
        Ok(took)
    };
    new("source", json!({}))?;
    bench.answers("source")?;
    let snapshots = bench.api("hutch.dev", "v1alpha1", "SandboxSnapshot");
    bench.create(
        &snapshots,
        json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": "imported"},
            "spec": {"source": {"sandbox": "source"}, "content": "Full"}}),
    )?;
    bench.until(&snapshots, "imported", "Ready")?;
    let (mut cold, mut warm) = <(Samples, Samples)>::default();
    for round in 0..ROUNDS {
        cold.add(first(&format!("cold-{round}"), json!({}))?);
        let restored = json!({"hutch.dev/restore-from": "imported", "hutch.dev/shares-generators": "true"});
        warm.add(first(&format!("warm-{round}"), restored)?);
    }
    println!("\n### A Sandbox in gVisor with pandas imported, from its creation to the first answer\n");
    println!("| | p50 ms | p99 ms | n | of a cold start |\n|---|---|---|---|---|");
    for (name, samples) in [("cold: imports pandas", &cold), ("from a snapshot", &warm)] {
        let ratio = samples.p50().as_secs_f64() / cold.p50().as_secs_f64();
        let (p50, p99) = (millis(samples.p50()), millis(samples.p99()));
        println!("| {name} | {p50} | {p99} | {} | {ratio:.2} |", samples.len());
    }
    Ok(())
}

/// Installs pandas for the Python of the machine's image, from the index that pip is configured with.
fn packages() -> anyhow::Result<tempfile::TempDir> {
    let python = Command::new("/usr/bin/python3")
        .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        .output()
        .context("/usr/bin/python3")?;
    let version = String::from_utf8(python.stdout)?;
    let folder = tempfile::tempdir()?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
    pip.args(["--python-version", version.trim(), "--target", &text(folder.path()), "pandas"]);
    ensure!(pip.status().context("python3")?.success(), "pip cannot install pandas");
    Ok(folder)
}

/// A Sandbox whose server imports the packages of a folder of the machine first.
fn importing(name: &str, folder: &str, annotations: Value) -> Value {
    let script = format!("{IMPORTS}\n{SERVER}");
    let command = ["python3", "-c", &script, "0", "8888"].map(str::to_owned);
    let mut sandbox = sandbox(name, "gvisor", &command, annotations);
    let pod = &mut sandbox["spec"]["podTemplate"]["spec"];
    pod["volumes"] = json!([{"name": "packages", "hostPath": {"path": folder}}]);
    let container = &mut pod["containers"][0];
    container["env"] = json!([{"name": "PYTHONPATH", "value": PACKAGES}]);
    container["volumeMounts"] = json!([{"name": "packages", "mountPath": PACKAGES, "readOnly": true}]);
    sandbox
}

/// Resources of the machine and of the server.
struct Held {
    resident: u64,
    processes: usize,
    mounts: usize,
    objects: usize,
}

impl Held {
    /// Waits until the last Pod is gone.
    fn of(bench: &Bench) -> anyhow::Result<Held> {
        let pods: Api<Pod> = Api::namespaced(bench.client.clone(), NAMESPACE);
        let list = ListParams::default();
        let started = Instant::now();
        while !bench.runtime.block_on(pods.list(&list))?.items.is_empty() {
            ensure!(started.elapsed() < WAIT_LIMIT, "a Pod of a suspended Sandbox stays");
            std::thread::sleep(PAUSE);
        }
        let mut objects = 0;
        for api in [bench.sandboxes(), bench.api("hutch.dev", "v1alpha1", "SandboxSnapshot")] {
            let list = bench.runtime.block_on(api.list(&list))?;
            objects += list
                .items
                .iter()
                .map(|one| serde_json::to_vec(one).map_or(0, |json| json.len()))
                .sum::<usize>();
        }
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let names =
            std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(Held {
            resident: bench.server.resident_kib(),
            processes: names.filter(|name| is_process(name)).count(),
            mounts: std::fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
            objects: objects / 1024,
        })
    }

    fn rows(&self) -> [(&'static str, u64); 4] {
        [
            ("resident memory of the server, KiB", self.resident),
            ("their objects as JSON, KiB", self.objects as u64),
            ("processes of the machine", self.processes as u64),
            ("mounts of the machine", self.mounts as u64),
        ]
    }
}

impl Bench {
    fn start(flags: &[&str]) -> anyhow::Result<Bench> {
        if let Some(reason) = Need::Runsc.missing() {
            bail!("{reason}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let router = ["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"];
        let server = Server::start_with(&[&router[..], flags].concat())?;
        let router = server.printed("router").context("hutch up printed no address of its router")?;
        let router = router.strip_prefix("http://").context("an address")?.parse()?;
        let client = runtime.block_on(server.client())?;
        Ok(Bench { runtime, client, router, server })
    }

    fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), NAMESPACE, &kind)
    }

    fn sandboxes(&self) -> Api<DynamicObject> {
        self.api("agents.x-k8s.io", "v1beta1", "Sandbox")
    }

    fn create(&self, api: &Api<DynamicObject>, object: Value) -> anyhow::Result<()> {
        let object = serde_json::from_value(object)?;
        self.runtime.block_on(api.create(&PostParams::default(), &object))?;
        Ok(())
    }

    /// Waits for a condition and returns the object.
    fn until(&self, api: &Api<DynamicObject>, name: &str, kind: &str) -> anyhow::Result<DynamicObject> {
        let started = Instant::now();
        loop {
            let object = self.runtime.block_on(api.get(name))?;
            if is(&object.data, kind) {
                return Ok(object);
            }
            ensure!(started.elapsed() < WAIT_LIMIT, "{name} is not {kind}: {:#}", object.data["status"]);
            std::thread::sleep(PAUSE);
        }
    }

    fn set_mode(&self, name: &str, mode: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"operatingMode": mode}}));
        self.runtime.block_on(self.sandboxes().patch(name, &PatchParams::default(), &patch))?;
        Ok(())
    }

    /// Waits until a Sandbox answers by way of the router.
    fn answers(&self, name: &str) -> anyhow::Result<()> {
        let head =
            format!("x-sandbox-id: {name}\r\nx-sandbox-namespace: {NAMESPACE}\r\nx-sandbox-port: 8888\r\n");
        answered(self.router, &head)
    }

    fn suspends(&self) -> anyhow::Result<()> {
        let annotations = json!({"hutch.dev/suspend-keeps": "memory"});
        self.create(&self.sandboxes(), sandbox("m", "gvisor", &server(200, 8888), annotations))?;
        self.until(&self.sandboxes(), "m", "Ready")?;
        let hand = ByHand::start(200)?;
        let (mut suspend, mut resume, mut checkpoint, mut restore) =
            <(Samples, Samples, Samples, Samples)>::default();
        for round in 0..ROUNDS {
            let started = Instant::now();
            self.set_mode("m", "Suspended")?;
            self.until(&self.sandboxes(), "m", "Suspended")?;
            suspend.add(started.elapsed());
            let started = Instant::now();
            self.set_mode("m", "Running")?;
            self.answers("m")?;
            resume.add(started.elapsed());
            self.until(&self.sandboxes(), "m", "Ready")?;
            let (saved, restored) = hand.round(round)?;
            checkpoint.add(saved);
            restore.add(restored);
        }
        println!("\n### Suspend with memory and resume to the first answer, Python with 200 MB in gVisor\n");
        println!("| | p50 ms | p99 ms | n | of runsc by hand |\n|---|---|---|---|---|");
        for (name, samples, peer) in [
            ("suspend, until the condition is True", &suspend, &checkpoint),
            ("runsc checkpoint, by hand", &checkpoint, &checkpoint),
            ("resume, until the first answer", &resume, &restore),
            ("runsc restore, by hand, until the first answer", &restore, &restore),
        ] {
            let ratio = samples.p50().as_secs_f64() / peer.p50().as_secs_f64();
            let (p50, p99) = (millis(samples.p50()), millis(samples.p99()));
            println!("| {name} | {p50} | {p99} | {} | {ratio:.2} |", samples.len());
        }
        Ok(())
    }

    fn forks(&self) -> anyhow::Result<()> {
        let annotations = json!({"hutch.dev/shares-generators": "true"});
        self.create(&self.sandboxes(), sandbox("f", "gvisor", &server(20, 8888), annotations))?;
        self.until(&self.sandboxes(), "f", "Ready")?;
        let started = Instant::now();
        let forks = self.api("hutch.dev", "v1alpha1", "SandboxFork");
        self.create(
            &forks,
            json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxFork", "metadata": {"name": "f"},
                "spec": {"source": {"sandbox": "f"}, "replicas": FORKS, "content": "Full"}}),
        )?;
        for number in 0..FORKS {
            self.answers(&format!("f-{number}"))?;
        }
        let took = started.elapsed().as_secs_f64();
        println!("\n{FORKS} forks of a Sandbox with 20 MB in gVisor, until all have answered: {took:.2} s");
        Ok(())
    }

    fn snapshots(&self) -> anyhow::Result<()> {
        let script = "mkdir /opt/files; for i in $(seq 200); do head -c 40000 /dev/urandom > /opt/files/$i; done; exec sleep infinity";
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        self.create(&self.sandboxes(), sandbox("n", "hutch", &command, json!({"hutch.dev/idle-after": ""})))?;
        self.until(&self.sandboxes(), "n", "Ready")?;
        std::thread::sleep(Duration::from_secs(5));
        let snapshots = self.api("hutch.dev", "v1alpha1", "SandboxSnapshot");
        let mut paused = Samples::default();
        for round in 0..ROUNDS {
            let name = format!("n-{round}");
            self.create(
                &snapshots,
                json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": name},
                    "spec": {"source": {"sandbox": "n"}, "content": "Filesystem"}}),
            )?;
            let taken = self.until(&snapshots, &name, "Ready")?;
            let millis = taken.data["status"]["pausedMillis"].as_u64().context("the time of the pause")?;
            paused.add(Duration::from_millis(millis));
        }
        println!(
            "\nA snapshot of 200 files, 8 MB, of a running native Sandbox pauses it for {} ms (p50; most {} ms)",
            millis(paused.p50()),
            millis(paused.percentile(1.0))
        );
        Ok(())
    }
}

fn server(mebibytes: u32, port: u16) -> Vec<String> {
    ["python3", "-c", SERVER, &mebibytes.to_string(), &port.to_string()].map(str::to_owned).to_vec()
}

fn sandbox(name: &str, class: &str, command: &[String], annotations: Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"podTemplate": {"spec": {
            "runtimeClassName": class, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "hutch/host", "command": command}],
        }}},
    })
}

/// Repeats a request until it is answered with 200.
fn answered(address: SocketAddr, head: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let mut answer = String::new();
        let asked = TcpStream::connect(address).and_then(|mut stream| {
            let request = format!("GET / HTTP/1.1\r\nhost: bench\r\n{head}connection: close\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        if asked.is_ok() && answer.split(' ').nth(1) == Some("200") {
            return Ok(());
        }
        ensure!(started.elapsed() < WAIT_LIMIT, "no answer: {asked:?} {answer}");
        std::thread::sleep(PAUSE);
    }
}

/// The same server in `runsc` alone, with the flags of Hutch.
struct ByHand {
    folder: tempfile::TempDir,
}

impl ByHand {
    fn start(mebibytes: u32) -> anyhow::Result<ByHand> {
        let hand = ByHand { folder: tempfile::tempdir()? };
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mount = |at: &str, kind: &str| json!({"destination": at, "type": kind, "source": kind});
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"args": server(mebibytes, PORT), "env": [path], "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "root": {"path": "/", "readonly": true},
            "hostname": "hand",
            "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/tmp", "tmpfs")],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]},
        });
        std::fs::create_dir(hand.path("bundle"))?;
        std::fs::write(hand.path("bundle").join("config.json"), config.to_string())?;
        hand.runsc(&["run", "--detach", "--bundle", &text(&hand.path("bundle")), "hand-0"])?;
        hand.answers()?;
        Ok(hand)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn answers(&self) -> anyhow::Result<()> {
        answered(SocketAddr::from(([127, 0, 0, 1], PORT)), "")
    }

    /// Returns the times of a checkpoint, and of a restore until the first answer.
    fn round(&self, round: usize) -> anyhow::Result<(Duration, Duration)> {
        let image = self.path(&format!("image-{round}"));
        std::fs::create_dir(&image)?;
        let (old, new) = (format!("hand-{round}"), format!("hand-{}", round + 1));
        let started = Instant::now();
        self.runsc(&["checkpoint", "--image-path", &text(&image), &old])?;
        let saved = started.elapsed();
        self.runsc(&["delete", "--force", &old])?;
        let started = Instant::now();
        let bundle = text(&self.path("bundle"));
        self.runsc(&["restore", "--detach", "--bundle", &bundle, "--image-path", &text(&image), &new])?;
        self.answers()?;
        let restored = started.elapsed();
        std::fs::remove_dir_all(&image)?;
        Ok((saved, restored))
    }

    fn runsc(&self, words: &[&str]) -> anyhow::Result<()> {
        let state = text(&self.path("state"));
        let fixed = [
            "--network=host",
            "--ignore-cgroups",
            "--platform=systrap",
            "--overlay2=none",
            "--directfs=false",
        ];
        let mut command = Command::new("runsc");
        command.args(["--root", &state]).args(fixed).args(words);
        let log = std::fs::File::create(self.path("log"))?;
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).status()?;
        let said = || std::fs::read_to_string(self.path("log")).unwrap_or_default();
        ensure!(status.success(), "runsc {words:?}: {}", said());
        Ok(())
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        for round in 0..=ROUNDS {
            // Those that have ended are gone already.
            let _ = self.runsc(&["delete", "--force", &format!("hand-{round}")]);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
