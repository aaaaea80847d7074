//! Death of `hutch image` before each of its calls to the kernel that change something. The process that unpacks layers dies
//! in its turn, because the calls of all processes are counted.

use std::collections::{BTreeMap, BTreeSet};

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::killed::rounds;

/// Calls that change something, wait for a lock, or start a process.
const CALLS: [&str; 24] = [
    "openat",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "linkat",
    "unlink",
    "unlinkat",
    "mknodat",
    "write",
    "ftruncate",
    "fsync",
    "syncfs",
    "fchmod",
    "chmod",
    "fchown",
    "fchownat",
    "lchown",
    "utimensat",
    "flock",
    "clone3",
    "execve",
    "exit_group",
];

/// Commands on one data folder.
struct Store {
    home: Home,
    data: PathBuf,
    kubeconfig: Option<PathBuf>,
}

/// Digest of the manifest of each name.
type Names = BTreeMap<String, String>;

impl Store {
    fn new(home: Home, data: PathBuf) -> Store {
        Store { home, data, kubeconfig: None }
    }

    fn arguments(&self, words: &[&str]) -> Vec<String> {
        let data = self.data.display().to_string();
        let words = [&["image"], words, &["--data-dir", &data]].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    fn run(&self, mut command: Command) -> Output {
        command.env("HOME", self.home.0.path()).env_remove("DOCKER_CONFIG").stdin(Stdio::null());
        command.envs(self.kubeconfig.as_ref().map(|path| ("KUBECONFIG", path)));
        command.output().expect("it starts")
    }

    fn image(&self, words: &[&str]) -> Output {
        let mut hutch = Command::new(HUTCH);
        hutch.args(self.arguments(words));
        self.run(hutch)
    }

    /// Runs a command whose calls are traced, with further options of `strace`.
    fn traced(&self, options: &[String], words: &[&str]) -> Output {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "signal=none"]).args(options).arg(HUTCH).args(self.arguments(words));
        self.run(strace)
    }

    /// Returns the calls of a command, each with the numbers of its occurrences in one thread, some of them in CI.
    fn steps(&self, words: &[&str], one_of: usize) -> Vec<(String, usize)> {
        let file = self.home.0.path().join("trace");
        let options =
            ["-e".into(), format!("trace={}", CALLS.join(",")), "-o".into(), file.display().to_string()];
        succeeded(words[0], &self.traced(&options, words));
        let trace = std::fs::read_to_string(file).expect("a trace");
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for line in trace.lines() {
            let call = line
                .split_once(' ')
                .and_then(|(thread, rest)| Some((thread, rest.trim().split_once('(')?.0)));
            *counts.entry(call.unwrap_or_default()).or_default() += 1;
        }
        let most = |call: &str| {
            counts
                .iter()
                .filter(|((_, other), _)| *other == call)
                .map(|(_, count)| *count)
                .max()
                .unwrap_or_default()
        };
        let all = CALLS.iter().flat_map(|call| (1..=most(call)).map(|number| ((*call).to_owned(), number)));
        let all: Vec<_> = all.collect();
        assert!(all.len() > 2 * one_of, "{all:?}");
        all.into_iter().step_by(rounds(one_of, 1)).collect()
    }

    /// Kills the process that makes a call for so many times. Returns `false` if the command has ended before.
    fn kill_at(&self, (call, number): &(String, usize), words: &[&str]) -> bool {
        let inject = format!("inject={call}:signal=KILL:when={number}");
        let options =
            ["-e".into(), format!("trace={call}"), "-e".into(), inject, "-o".into(), "/dev/null".into()];
        !self.traced(&options, words).status.success()
    }

    /// Returns the names that lead to whole images.
    #[track_caller]
    fn names(&self, when: &str) -> Names {
        let list = succeeded("list", &self.image(&["list", "--json"]));
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let mut names = Names::new();
        for image in list.as_array().expect("a list") {
            assert_eq!(image["problem"], Value::Null, "{when}");
            for name in image["names"].as_array().expect("names") {
                let name = name.as_str().expect("a name");
                // Each blob is read, and its digest is checked.
                let exported = self.image(&["export", name, "/dev/null"]);
                assert!(exported.status.success(), "{when}: {}", text(&exported.stderr));
                names.insert(name.to_owned(), image["manifest"].as_str().expect("a digest").to_owned());
            }
        }
        names
    }

    /// Everything in the folders of images: paths, and the sizes of files of layers. The built-in image of this machine is not
    /// in it: a server makes it when it needs it first.
    fn content(&self) -> BTreeSet<(PathBuf, Option<u64>)> {
        let mut found = BTreeSet::new();
        let mut pending = vec![self.data.join("images"), self.data.join("pulled")];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with("host-v") {
                    continue;
                }
                let (path, data) = (entry.path(), entry.metadata().expect("an entry"));
                let is_of_layer =
                    path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("layer-"));
                let size = (data.is_file() && is_of_layer).then_some(data.len());
                if data.is_dir() {
                    pending.push(path.clone());
                }
                found.insert((path.strip_prefix(&self.data).expect("below").to_owned(), size));
            }
        }
        found
    }

    /// Prunes until only this is there: a process that unpacked ends a moment after the one that it worked for.
    #[track_caller]
    fn prune_to(&self, allowed: &BTreeSet<(PathBuf, Option<u64>)>, when: &str) {
        let mut more = Vec::new();
        for _ in 0..50 {
            succeeded("prune", &self.image(&["prune"]));
            more = self.content().difference(allowed).cloned().collect();
            if more.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{when}: what a killed process left is not collected: {more:?}");
    }

    /// Kills a command at its steps, each time from the state of now, which it then has again.
    fn killed_at_each_step(&self, words: &[&str], one_of: usize) {
        let base = self.home.0.path().join("base");
        succeeded("prune", &self.image(&["prune"]));
        let (before, content_before) = (self.names("before"), self.content());
        copy(&self.data, &base);
        let steps = self.steps(words, one_of);
        succeeded("prune", &self.image(&["prune"]));
        let (after, content_after) = (self.names("after"), self.content());
        assert_ne!(before, after);
        let either: BTreeSet<_> = content_before.union(&content_after).cloned().collect();
        let mut killed = 0;
        for (index, step) in steps.iter().enumerate() {
            copy(&base, &self.data);
            let is_killed = self.kill_at(step, words);
            killed += usize::from(is_killed);
            let when = format!("{} killed at {step:?}", words[0]);
            let names = self.names(&when);
            // Nothing that was acknowledged is lost, and nothing half-made has a name.
            assert!(names == after || (is_killed && names == before), "{when}: {names:?}");
            let layers = self
                .content()
                .into_iter()
                .filter(|(path, _)| path.display().to_string().contains("images/layer-"));
            let halves: Vec<_> = layers.filter(|found| !either.contains(found)).collect();
            assert!(halves.is_empty(), "{when}: {halves:?}");
            if index % 2 == 0 {
                self.prune_to(&either, &when);
            }
            let again = self.image(words);
            assert!(again.status.success(), "{when}, again: {}", text(&again.stderr));
            self.prune_to(&content_after, &when);
            assert_eq!((self.names(&when), self.content()), (after.clone(), content_after.clone()), "{when}");
        }
        // The threads of a pull divide its calls differently each time.
        assert!(killed * 2 > steps.len(), "{killed} of {} were killed", steps.len());
    }
}

/// Kills a command that removes images at its steps. `import` brings back the images of now.
fn removal_killed_at_each_step(store: &Store, words: &[&str], one_of: usize, imports: &[&[&str]]) {
    let base = store.home.0.path().join("base");
    succeeded("prune", &store.image(&["prune"]));
    let (before, content_before) = (store.names("before"), store.content());
    copy(&store.data, &base);
    let steps = store.steps(words, one_of);
    let (after, content_after) = (store.names("after"), store.content());
    assert!(after.len() < before.len() && content_after.is_subset(&content_before), "{content_after:?}");
    let mut killed = 0;
    for (index, step) in steps.iter().enumerate() {
        copy(&base, &store.data);
        let is_killed = store.kill_at(step, words);
        killed += usize::from(is_killed);
        let when = format!("{words:?} killed at {step:?}");
        // What has a name is whole, and no other name is lost.
        let names = store.names(&when);
        assert!(names.iter().all(|(name, digest)| before.get(name) == Some(digest)), "{when}: {names:?}");
        assert!(after.iter().all(|(name, digest)| names.get(name) == Some(digest)), "{when}: {names:?}");
        assert!(is_killed || names == after, "{when}: {names:?}");
        assert_eq!(halves(&store.content(), &content_before), BTreeSet::new(), "{when}");
        if index % 2 == 0 {
            store.prune_to(&content_before, &when);
        }
        let again = store.image(words);
        let is_gone = text(&again.stderr).contains("no image");
        assert!(again.status.success() || is_gone, "{when}, again: {}", text(&again.stderr));
        store.prune_to(&content_after, &when);
        assert_eq!((store.names(&when), store.content()), (after.clone(), content_after.clone()), "{when}");
        if index % 4 == 0 {
            imports.iter().for_each(|import| drop(succeeded("import", &store.image(import))));
            assert_eq!(store.names(&when), before, "{when}");
            store.prune_to(&content_before, &when);
        }
    }
    assert!(killed * 2 > steps.len(), "{killed} of {} were killed", steps.len());
}

/// Returns the unpacked layers of which only a part is there.
fn halves(
    now: &BTreeSet<(PathBuf, Option<u64>)>,
    whole: &BTreeSet<(PathBuf, Option<u64>)>,
) -> BTreeSet<PathBuf> {
    let layer = |(path, _): &(PathBuf, Option<u64>)| {
        let layer: PathBuf = path.iter().take(2).collect();
        layer.display().to_string().contains("/layer-").then_some(layer)
    };
    let present: BTreeSet<_> = now.iter().filter_map(layer).collect();
    let is_missing = |entry: &&(PathBuf, Option<u64>)| !now.contains(*entry);
    whole.iter().filter(is_missing).filter_map(layer).filter(|layer| present.contains(layer)).collect()
}

/// Makes a folder a copy of another.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    succeeded("cp", &Command::new("cp").arg("-a").args([from, to]).output().expect("cp"));
}

/// An archive of `docker save` of an image with two names, which it gets at once; its second layer has the text.
fn archive_with(folder: &Path, content: &str) -> String {
    let tar = |files: &[(&str, &[u8])]| super::tar(files, 0o640, (5, 6));
    let layers =
        [tar(&[("base", &[1; 5000])]), tar(&[("d/e/text", content.as_bytes()), ("large", &[2; 100_000])])];
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let digests: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
    let config = json!({"architecture": architecture, "os": "linux", "config": {"Cmd": ["/app"]},
        "rootfs": {"type": "layers", "diff_ids": digests}});
    let list = json!([{"Config": "config.json", "Layers": ["1.tar", "2.tar"],
        "RepoTags": ["org/app:v1", "org/app:latest"]}]);
    let (config, list) = (config.to_string(), list.to_string());
    let files = [
        ("1.tar", &*layers[0]),
        ("2.tar", &*layers[1]),
        ("config.json", config.as_bytes()),
        ("manifest.json", list.as_bytes()),
    ];
    let path = folder.join(format!("{content}.tar"));
    std::fs::write(&path, tar(&files)).expect("written");
    path.display().to_string()
}

#[test]
fn import_and_unpacker_that_are_killed_at_any_step_lose_no_image_and_leave_nothing() {
    hutch_testkit::require!(root, user_namespaces, strace);
    let home = Home::new();
    let data = home.0.path().join("data");
    let (one, two) = (archive_with(home.0.path(), "one"), archive_with(home.0.path(), "two"));
    let store = Store::new(home, data);
    // The name of another image, and an earlier image of the same name.
    succeeded("import", &store.image(&["import", &one, "kept:v1"]));
    succeeded("import", &store.image(&["import", &one]));
    store.killed_at_each_step(&["import", &two], 7);
}

#[test]
fn removal_that_is_killed_at_any_step_leaves_a_store_that_works() {
    hutch_testkit::require!(root, user_namespaces, strace);
    let home = Home::new();
    let data = home.0.path().join("data");
    let (one, two) = (archive_with(home.0.path(), "one"), archive_with(home.0.path(), "two"));
    let store = Store::new(home, data);
    let imports: [&[&str]; 2] = [&["import", &one, "kept:v1"], &["import", &two]];
    for words in [&["remove", "org/app:v1", "org/app:latest"][..], &["prune", "--all"]] {
        imports.iter().for_each(|import| drop(succeeded("import", &store.image(import))));
        removal_killed_at_each_step(&store, words, 5, &imports);
    }
}

#[test]
fn pull_that_is_killed_at_any_step_loses_no_image_and_leaves_nothing() {
    hutch_testkit::require!(root, user_namespaces, strace, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let data = home.0.path().join("data");
    let kept = archive_with(home.0.path(), "kept");
    let store = Store::new(home, data);
    succeeded("import", &store.image(&["import", &kept]));
    store.killed_at_each_step(&["pull", &registry.name(), "--image-config", &registry.trusting()], 23);
}

#[test]
fn commit_that_is_killed_at_any_step_loses_no_image_and_leaves_nothing() {
    hutch_testkit::require!(root, user_namespaces, strace, kubectl);
    let home = Home::new();
    let data = home.0.path().join("data");
    let mut store = Store::new(home, data.clone());
    let saved = imported::save(store.home.0.path()).display().to_string();
    succeeded("import", &store.image(&["import", &saved]));
    let up = Up::start_on(&data, &[]);
    store.kubeconfig = Some(up.kubeconfig());
    let mut sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "s"},
        "spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 0}}}});
    // The folder of the volume is a change.
    sandbox["spec"]["podTemplate"]["spec"]["containers"] = json!([{"name": "c", "image": "hutch.local/org/app:v1",
        "volumeMounts": [{"name": "v", "mountPath": "/changed"}]}]);
    sandbox["spec"]["podTemplate"]["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    apply(&up, "default", &sandbox);
    up.ok("wait --for=condition=Ready sandbox/s --timeout=120s");
    let top = || {
        let entries = std::fs::read_dir(&data).expect("the data folder").flatten();
        entries.map(|entry| entry.file_name()).collect::<BTreeSet<_>>()
    };
    let (before, content, folders) = (store.names("before"), store.content(), top());
    let words = ["commit", "s", "app:v2"];
    let name = "hutch.local/app:v2";
    for step in store.steps(&words, 41) {
        succeeded("remove", &store.image(&["remove", name]));
        store.prune_to(&content, "removed");
        let is_killed = store.kill_at(&step, &words);
        let when = format!("commit killed at {step:?}");
        let mut names = store.names(&when);
        assert!(names.remove(name).is_some() || is_killed, "{when}: {names:?}");
        assert_eq!(names, before, "{when}");
        let again = store.image(&words);
        assert!(again.status.success(), "{when}, again: {}", text(&again.stderr));
        assert_eq!(top(), folders, "{when}");
    }
    succeeded("remove", &store.image(&["remove", name]));
    store.prune_to(&content, "removed");
}

/// Process of a server that pulls images.
fn puller(up: &Up) -> Option<Pid> {
    std::fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = format!("\nPPid:\t{}\n", up.pid());
        let is_puller = status.starts_with("Name:\thutch-pull\n") && status.contains(&parent);
        is_puller.then(|| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))?
    })
}

#[test]
fn pod_gets_its_image_although_the_process_that_pulls_is_killed() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let registry = Registry::start();
    let (name, config) = (registry.name(), registry.trusting());
    let up = Up::start(&["--pull-from", &registry.host, "--image-config", &config]);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={} --docker-username={USER} --docker-password={PASSWORD}",
        registry.host
    ));
    let first = puller(&up).expect("a process that pulls");
    let pulled = up.data().join("pulled-for-pods");
    let blobs = |folder: &str| std::fs::read_dir(pulled.join(folder)).into_iter().flatten().flatten().count();
    apply(&up, "default", &pod("pod", &name, &json!({"imagePullSecrets": [{"name": "login"}]})));
    until("a blob arrives", || blobs("partial") + blobs("blobs/sha256") > 0);
    kill_process(first, Signal::KILL).expect("killed");
    up.ok("wait --for=condition=Ready pod/pod --timeout=120s");
    until("another process pulls", || puller(&up).is_some_and(|pid| pid != first));
    let data = up.data().display().to_string();
    let prune = Command::new(HUTCH).args(["image", "prune", "--data-dir", &data]).output();
    succeeded("prune", &prune.expect("hutch"));
    assert_eq!((blobs("partial"), blobs("blobs/sha256")), (0, 3));
}
