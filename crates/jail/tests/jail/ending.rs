//! Nothing is left behind.

use std::path::Path;

use hutch_jail::Limits;
use hutch_testkit::wait::until;

use crate::harness::{Bench, Caller};

/// Processes of the machine with `mark` among their arguments.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes())
    })
    .collect()
}

/// The first process with `mark` among its arguments, once there is one.
pub(crate) fn wait_for(mark: &str) -> u32 {
    until("start", || !marked(mark).is_empty());
    marked(mark)[0]
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

/// Groups of jails in all hierarchies.
pub(crate) fn groups_of(prefix: &str) -> Vec<std::path::PathBuf> {
    fn search(folder: &Path, depth: usize, prefix: &str, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            } else if depth > 0 {
                search(&entry.path(), depth - 1, prefix, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), 6, prefix, &mut found);
    found
}

/// How many processes run in a process namespace. One that has ended and waits to be reaped (by process 1 of the
/// machine) runs no more.
pub(crate) fn running_in(namespace: &Path) -> usize {
    let runs = |process: &Path| {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    };
    let inside = |path: &Path| std::fs::read_link(path.join("ns/pid")).is_ok_and(|link| link == namespace);
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| inside(path) && runs(path)).count()
}

pub(crate) fn words_of_shell(mark: &str) -> Vec<String> {
    // A process that ignores signals and one that left its group, besides the command itself.
    let script = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & wait; : \"$0\"";
    ["/bin/sh", "-c", script, mark].map(str::to_owned).to_vec()
}

fn killed_launcher_leaves_nothing(caller: Caller, limits: Limits) {
    let mut bench = Bench::new(caller);
    bench.spec.limits = limits;
    let mark = format!("hutch-mark-{}-{caller:?}-{}", std::process::id(), limits.pids.unwrap_or(0));
    let mut launcher = bench.start(&words_of_shell(&mark));
    let groups = format!("run-{}-", launcher.id());
    let inside = wait_for(&mark);
    let root = std::fs::read_link(format!("/proc/{inside}/ns/pid")).unwrap();
    let in_namespace = || running_in(&root);
    until("children", || in_namespace() >= 4);
    assert_eq!(limits == Limits::default(), groups_of(&groups).is_empty(), "{groups}");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    until("processes", || in_namespace() == 0);
    until("cgroups", || groups_of(&groups).is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*bench.folder.path().to_string_lossy()), "{mounts}");
}

#[test]
fn a_launcher_that_is_killed_leaves_nothing() {
    hutch_testkit::require!(root, user_namespaces);
    killed_launcher_leaves_nothing(Caller::Root, Limits::default());
    killed_launcher_leaves_nothing(Caller::Ordinary, Limits::default());
}

#[test]
fn a_launcher_that_is_killed_leaves_no_cgroup() {
    hutch_testkit::require!(root);
    let limits = Limits { cpu_millis: Some(1000), memory_bytes: Some(256 << 20), pids: Some(50) };
    killed_launcher_leaves_nothing(Caller::Root, limits);
}

#[test]
fn a_command_that_ends_takes_its_children_along() {
    hutch_testkit::require!(root);
    let bench = Bench::new(Caller::Root);
    let mark = format!("hutch-mark-{}-end", std::process::id());
    let script = format!("setsid sh -c 'sleep 1000; : {mark}' {mark} & sleep 0.2; exit 3");
    let report = bench.launch(&["/bin/sh".to_owned(), "-c".to_owned(), script]);
    assert_eq!(report.ended.as_deref(), Some("Exited(3)"), "{report:?}");
    assert_eq!(marked(&mark), [] as [u32; 0]);
}
