//! Every attack, by every way into a sandbox.
//!
//! The attacks are those of `hutch_jail::attack`, all of them in each way; what a way has to answer differently stands in
//! [`cell`] with its reason. The controls are the jail's own: `crates/jail/tests/jail/controls.rs` runs the same list
//! where nothing protects, and there each attack must find something else.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use hutch_jail::Capabilities;
use hutch_jail::attack::{ALL_CAPABILITIES, Attack, Kept, Planted, all};
use serde_json::{Value, json};

use crate::harness::{HUTCH, Up, succeeded};
use crate::layouts::{self, Entry};
use crate::names::pod;
use crate::ordinary::{Caller, Place};

/// A way into a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Run(Caller, Root, Folder),
    /// With a proxy that allows one name.
    RunWithNetwork(Caller, Root),
    RunInGvisor(Folder),
    RunInGvisorWithNetwork,
    Pod(In),
    PodInGvisor(In),
    /// A Sandbox that was suspended with its memory and resumed.
    RestoredInGvisor(In),
}

impl Way {
    fn in_gvisor(self) -> bool {
        matches!(
            self,
            Way::RunInGvisor(_)
                | Way::RunInGvisorWithNetwork
                | Way::PodInGvisor(_)
                | Way::RestoredInGvisor(_)
        )
    }
}

/// Root of `hutch run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Host,
    Rootfs,
    Image,
}

/// Workspace of `hutch run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folder {
    None,
    Workspace,
    ReadOnlyWorkspace,
}

/// Where in a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    /// The main process, on a root under an overlay.
    Overlay,
    /// The main process, on a root that is read-only.
    ReadOnlyRoot,
    /// The main process of an image in the OCI layout, with its capabilities.
    Image,
    /// The same without.
    ImageWithoutCapabilities,
    /// The main process, on folders of the host, with all capabilities that can be added.
    HostWithCapabilities,
    /// The main process, with a volume.
    Volume(Volume),
    InitContainer,
    /// A process that `kubectl exec` starts.
    Exec,
    /// The same in a container with capabilities.
    ExecWithCapabilities,
}

impl In {
    fn has_capabilities(self) -> bool {
        matches!(self, In::Image | In::HostWithCapabilities | In::ExecWithCapabilities)
    }

    fn is_image(self) -> bool {
        matches!(self, In::Image | In::ImageWithoutCapabilities)
    }

    fn is_exec(self) -> bool {
        matches!(self, In::Exec | In::ExecWithCapabilities)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Volume {
    EmptyDir,
    Memory,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    Claim,
}

/// All ways. A variant that is missing in a list here leaves its `match` below incomplete.
fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for caller in [Caller::Root, Caller::Ordinary] {
        for root in [Root::Host, Root::Rootfs, Root::Image] {
            for folder in [Folder::None, Folder::Workspace, Folder::ReadOnlyWorkspace] {
                ways.push(Way::Run(caller, root, folder));
            }
            ways.push(Way::RunWithNetwork(caller, root));
        }
    }
    ways.extend([Folder::None, Folder::Workspace, Folder::ReadOnlyWorkspace].map(Way::RunInGvisor));
    ways.push(Way::RunInGvisorWithNetwork);
    for place in places() {
        ways.extend([Way::Pod(place), Way::PodInGvisor(place)]);
    }
    ways.extend([In::Overlay, In::Exec, In::ExecWithCapabilities].map(Way::RestoredInGvisor));
    ways
}

fn places() -> Vec<In> {
    let mut places = vec![
        In::Overlay,
        In::ReadOnlyRoot,
        In::Image,
        In::ImageWithoutCapabilities,
        In::HostWithCapabilities,
        In::InitContainer,
        In::Exec,
        In::ExecWithCapabilities,
    ];
    let volumes = [
        Volume::EmptyDir,
        Volume::Memory,
        Volume::ConfigMap,
        Volume::Secret,
        Volume::DownwardApi,
        Volume::Projected,
        Volume::Claim,
    ];
    places.extend(volumes.map(In::Volume));
    places
}

/// Permitted results of an attack by a way.
enum Cell {
    /// One of these; a comment has the reason.
    Other(&'static [&'static str]),
    /// As listed.
    AsListed,
    /// Not tried, for this reason.
    Skipped(&'static str),
}

const OK: &[&str] = &["ok"];

fn cell(way: Way, attack: &Attack) -> Cell {
    match (attack.name, way) {
        _ if way.in_gvisor() && attack.kept == Kept::Natively => Cell::Skipped("gVisor's own kernel answers"),
        // Of the sandbox alone: memory, or a folder of the Pod's that goes with it.
        ("the root folder", Way::Pod(place) | Way::PodInGvisor(place) | Way::RestoredInGvisor(place))
            if place != In::ReadOnlyRoot =>
        {
            Cell::Other(OK)
        }
        // Without a folder of the host to leave it in, such a file is useless: `no_new_privs` is set.
        (
            "set-id bits" | "openat2",
            Way::Pod(_) | Way::Run(_, _, Folder::None | Folder::ReadOnlyWorkspace) | Way::RunWithNetwork(..),
        ) => Cell::Skipped("no folder of the host can be written"),
        (
            "programs of the host",
            Way::Run(_, Root::Rootfs | Root::Image, _) | Way::RunWithNetwork(_, Root::Rootfs | Root::Image),
        ) => Cell::Other(&["ENOENT"]),
        ("programs of the host", Way::Pod(place) | Way::PodInGvisor(place)) if place.is_image() => {
            Cell::Other(&["ENOENT"])
        }
        // Those that a kubelet gives, less what reaches beyond the ids of the Pod.
        ("no capabilities", Way::Pod(place) | Way::PodInGvisor(place) | Way::RestoredInGvisor(place))
            if place.has_capabilities() =>
        {
            Cell::Other(ALL_CAPABILITIES)
        }
        // The main process runs a program of the sandbox's own view.
        (
            "programs of other processes",
            Way::PodInGvisor(In::Exec | In::ExecWithCapabilities)
            | Way::RestoredInGvisor(In::Exec | In::ExecWithCapabilities),
        ) => Cell::Other(&["1: ETXTBSY", "none"]),
        _ => Cell::AsListed,
    }
}

/// Files of the host for all ways.
struct Bench {
    place: Place,
    attacks: Vec<Attack>,
    _planted: Planted,
}

impl Bench {
    fn new() -> Bench {
        let place = Place::new();
        let folder = place.folder_of(Caller::Root, "planted");
        let planted = Planted::new(&folder).expect("planted");
        let bench = Bench { place, attacks: all(&planted), _planted: planted };
        let bytes = fs::read(program()).expect("the program");
        let entries = [("hutch-attack", Entry::Program(&bytes)), ("tmp", Entry::Folder)];
        layouts::image(&bench.path("images").join("attack"), &json!({}), &entries);
        for caller in [Caller::Root, Caller::Ordinary] {
            let rootfs = bench.place.folder_of(caller, &format!("rootfs-{caller:?}"));
            let workspace = bench.place.folder_of(caller, &format!("workspace-{caller:?}"));
            for folder in [rootfs, workspace] {
                hutch_testkit::copy_program(program(), folder.join("hutch-attack"));
            }
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn attempts(&self) -> Vec<String> {
        self.attacks.iter().map(|attack| attack.attempt.clone()).collect()
    }

    /// Returns the output of the attacks by this way.
    fn run(&self, way: Way, up: Option<&Up>) -> String {
        match way {
            Way::Run(caller, root, folder) => self.hutch_run(caller, root, folder, &[]),
            Way::RunWithNetwork(caller, root) => {
                self.hutch_run(caller, root, Folder::None, &["--allow", "a.example"])
            }
            Way::RunInGvisor(folder) => {
                self.hutch_run(Caller::Root, Root::Host, folder, &["--isolation", "gvisor"])
            }
            Way::RunInGvisorWithNetwork => {
                let options = ["--isolation", "gvisor", "--allow", "a.example"];
                self.hutch_run(Caller::Root, Root::Host, Folder::None, &options)
            }
            Way::Pod(place) => self.pod(up.expect("a server"), place, None),
            Way::PodInGvisor(place) => self.pod(up.expect("a server"), place, Some("gvisor")),
            Way::RestoredInGvisor(place) => self.restored(up.expect("a server"), place),
        }
    }

    fn hutch_run(&self, caller: Caller, root: Root, folder: Folder, options: &[&str]) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        let mut words: Vec<String> = ["run"].iter().chain(options).map(ToString::to_string).collect();
        match root {
            Root::Host => {}
            Root::Rootfs => words.extend(["--rootfs".to_owned(), path(&format!("rootfs-{caller:?}"))]),
            Root::Image => words.extend(["--image".to_owned(), format!("oci:{}/attack", path("images"))]),
        }
        if folder != Folder::None {
            words.extend(["--workspace".to_owned(), path(&format!("workspace-{caller:?}"))]);
        }
        if folder == Folder::ReadOnlyWorkspace {
            words.push("--read-only".to_owned());
        }
        words.push("--".to_owned());
        match (root, folder) {
            (Root::Rootfs | Root::Image, _) => words.push("/hutch-attack".to_owned()),
            (Root::Host, Folder::None) => {
                let script =
                    "cat > /tmp/hutch-attack; chmod 755 /tmp/hutch-attack; exec /tmp/hutch-attack \"$@\"";
                words.extend(["sh", "-c", script, "sh"].map(str::to_owned));
            }
            (Root::Host, _) => words.push("/workspace/hutch-attack".to_owned()),
        }
        words.extend(self.attempts());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.place.program(caller, &words);
        command.stdin(fs::File::open(program()).expect("the program"));
        succeeded("hutch run", &command.output().expect("hutch run"))
    }

    fn pod(&self, up: &Up, place: In, class: Option<&str>) -> String {
        let name = format!("{place:?}-{}", class.unwrap_or("native")).to_lowercase().replace(['(', ')'], "-");
        let mut spec = self.spec(place);
        if let Some(class) = class {
            spec["runtimeClassName"] = class.into();
        }
        create(up, &pod(&name, spec));
        if place.is_exec() {
            up.ok(&format!("wait --for=condition=Ready pod/{name} --timeout=90s"));
            return self.exec(up, &name);
        }
        up.eventually(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| {
            ["Succeeded", "Failed"].contains(&phase)
        });
        let container = if place == In::InitContainer { "init" } else { "c" };
        up.ok(&format!("logs {name} -c {container}"))
    }

    /// Returns the output of the attacks by a further process of a Pod.
    fn exec(&self, up: &Up, name: &str) -> String {
        let mut words = vec!["exec", name, "--", "/tmp/hutch-attack"];
        let attempts = self.attempts();
        words.extend(attempts.iter().map(String::as_str));
        up.ok_args(&["exec", name, "--", "sh", "-c", UNPACK]);
        up.ok_args(&words)
    }

    /// Returns the output of the attacks after a suspend with memory: the main process waits for a file before it begins with
    /// them.
    fn restored(&self, up: &Up, place: In) -> String {
        let name = format!("restored-{place:?}").to_lowercase();
        let mut spec = self.spec(place);
        spec["runtimeClassName"] = "gvisor".into();
        if !place.is_exec() {
            let script = spec["containers"][0]["command"][2].as_str().expect("a script").to_owned();
            let waiting = format!("until test -e /tmp/go; do sleep 0.1; done; {script}");
            spec["containers"][0]["command"][2] = waiting.into();
        }
        create(
            up,
            &json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                "metadata": {"name": name, "annotations": {"hutch.dev/suspend-keeps": "memory"}},
                "spec": {"podTemplate": {"spec": spec}}}),
        );
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=90s"));
        for (mode, condition) in [("Suspended", "Suspended"), ("Running", "Ready")] {
            let patch = json!({"spec": {"operatingMode": mode}}).to_string();
            up.ok_args(&["patch", "sandbox", &name, "--type=merge", "-p", &patch]);
            up.ok(&format!("wait --for=condition={condition} sandbox/{name} --timeout=90s"));
        }
        // The control: without it, the processes would be new ones.
        up.ok(&format!("wait --for=condition=PodRestored pod/{name} --timeout=90s"));
        if place.is_exec() {
            return self.exec(up, &name);
        }
        up.ok_args(&["exec", &name, "--", "touch", "/tmp/go"]);
        up.eventually(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| {
            ["Succeeded", "Failed"].contains(&phase)
        });
        up.ok(&format!("logs {name} -c c"))
    }

    /// The program comes in a ConfigMap, compressed, and is unpacked into memory.
    fn spec(&self, place: In) -> Value {
        let mut command = vec!["sh".to_owned(), "-c".to_owned()];
        command.push(format!("{UNPACK} && exec /tmp/hutch-attack \"$@\""));
        command.push("sh".to_owned());
        command.extend(self.attempts());
        let mounts = json!([{"name": "given", "mountPath": "/given"}, {"name": "tmp", "mountPath": "/tmp"}]);
        let mut container =
            json!({"name": "c", "image": "hutch/host", "command": command, "volumeMounts": mounts});
        let mut volumes = vec![
            json!({"name": "given", "configMap": {"name": "given"}}),
            json!({"name": "tmp", "emptyDir": {"medium": "Memory"}}),
        ];
        let mut init = Vec::new();
        match place {
            In::Overlay => {}
            In::ReadOnlyRoot => container["securityContext"] = json!({"readOnlyRootFilesystem": true}),
            In::Image | In::ImageWithoutCapabilities => {
                container["image"] = format!("oci:{}/attack", self.path("images").display()).into();
                command.splice(..4, ["/hutch-attack".to_owned()]);
                container["command"] = json!(command);
            }
            In::HostWithCapabilities => {}
            In::Volume(volume) => {
                volumes.push(source(volume));
                let mount = json!({"name": "volume", "mountPath": "/volume"});
                container["volumeMounts"].as_array_mut().expect("mounts").push(mount);
            }
            In::InitContainer => {
                container["name"] = "init".into();
                init.push(container);
                container = json!({"name": "c", "image": "hutch/host", "command": ["true"]});
            }
            In::Exec | In::ExecWithCapabilities => container["command"] = json!(["sleep", "1000000"]),
        }
        if place == In::ImageWithoutCapabilities {
            container["securityContext"] = json!({"capabilities": {"drop": ["ALL"]}});
        } else if place.has_capabilities() {
            let names: Vec<&str> = Capabilities::ALL.names().collect();
            container["securityContext"] = json!({"capabilities": {"add": names}});
        }
        json!({"restartPolicy": "Never", "initContainers": init, "containers": [container], "volumes": volumes})
    }
}

const UNPACK: &str = "gunzip -c /given/program > /tmp/hutch-attack && chmod 755 /tmp/hutch-attack";

/// The program that tries attacks, of this build.
pub(crate) fn program() -> PathBuf {
    let folder = Path::new(HUTCH).ancestors().nth(2).expect("target/TRIPLE/PROFILE/hutch");
    let triple = folder.file_name().expect("a triple");
    folder.join("programs").join(triple).join("program/hutch-attack")
}

fn source(volume: Volume) -> Value {
    let item = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
    match volume {
        Volume::EmptyDir => json!({"name": "volume", "emptyDir": {}}),
        Volume::Memory => json!({"name": "volume", "emptyDir": {"medium": "Memory"}}),
        Volume::ConfigMap => json!({"name": "volume", "configMap": {"name": "small"}}),
        Volume::Secret => json!({"name": "volume", "secret": {"secretName": "small"}}),
        Volume::DownwardApi => json!({"name": "volume", "downwardAPI": {"items": item}}),
        Volume::Projected => {
            json!({"name": "volume", "projected": {"sources": [{"configMap": {"name": "small"}}]}})
        }
        Volume::Claim => json!({"name": "volume", "persistentVolumeClaim": {"claimName": "claim"}}),
    }
}

#[track_caller]
pub(crate) fn create(up: &Up, object: &Value) {
    let file = tempfile::NamedTempFile::new().expect("file");
    fs::write(file.path(), object.to_string()).expect("write");
    up.ok_args(&["create", "-f", &file.path().display().to_string()]);
}

/// The objects that the Pods name.
fn prepare(up: &Up) {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&fs::read(program()).expect("the program")).expect("memory");
    let packed = base64::engine::general_purpose::STANDARD.encode(packed.finish().expect("memory"));
    let map = |name: &str, field: &str, data: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        object[field] = data;
        object
    };
    create(up, &map("given", "binaryData", json!({"program": packed})));
    create(up, &map("small", "data", json!({"key": "value"})));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "small"}, "stringData": {"key": "value"}});
    create(up, &secret);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    create(up, &claim);
}

/// Counts of cells.
#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: std::collections::BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Tally {
    fn skip(&mut self, what: String, cells: usize) {
        *self.skipped.entry(what).or_default() += cells;
    }

    fn check(&mut self, way: Way, attacks: &[Attack], printed: &str) {
        let mut lines = printed.lines();
        for attack in attacks {
            let found = lines.next().and_then(|line| line.split_once('\t'));
            let Some((_, found)) = found.filter(|(attempt, _)| *attempt == attack.attempt) else {
                self.failures.push(format!("{way:?}: {}: no answer in {printed:?}", attack.name));
                return;
            };
            let held = match cell(way, attack) {
                Cell::Skipped(reason) => {
                    self.skip(format!("{}: {reason}", attack.name), 1);
                    continue;
                }
                Cell::Other(finds) => finds.contains(&found),
                Cell::AsListed => attack.held(found),
            };
            if held {
                self.passed += 1;
            } else {
                self.failures.push(format!("{way:?}: {}: {found:?}, not {:?}", attack.name, attack.finds));
            }
        }
    }

    fn finish(&self) {
        let skipped: usize = self.skipped.values().sum();
        let mut printed = format!("\ncells of attacks and ways: {} passed, {skipped} skipped\n", self.passed);
        for (what, count) in &self.skipped {
            printed.push_str(&format!("  cells skipped: {count} of {what}\n"));
        }
        hutch_testkit::say(&printed);
        assert!(
            self.failures.is_empty(),
            "{} cells failed:\n{}",
            self.failures.len(),
            self.failures.join("\n")
        );
    }
}

#[test]
fn no_attack_works_by_any_way() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let bench = Bench::new();
    let up = Up::start(&["--image-dir", &bench.path("images").display().to_string()]);
    prepare(&up);
    let gvisor = hutch_testkit::Need::Runsc.missing();
    let mut tally = Tally::default();
    for way in ways() {
        if let Some(reason) = gvisor.filter(|_| way.in_gvisor()) {
            tally.skip(format!("{way:?}: {reason}"), bench.attacks.len());
            continue;
        }
        tally.check(way, &bench.attacks, &bench.run(way, Some(&up)));
    }
    tally.finish();
}
