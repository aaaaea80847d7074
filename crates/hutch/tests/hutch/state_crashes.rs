//! Death of `hutch up` and of its processes while the memory of gVisor Sandboxes is written and restored.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Up, running};
use crate::kept::{
    ROUTER, answer, apply, counted, images, images_have_objects, lives, object, outcome, ready, resume, run,
    set, snapshot, snapshot_object, snapshots, start, suspend, suspended,
};
use crate::killed::rounds;

/// A state on the way to a suspend or from it, which shows from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// runsc writes the memory.
    Checkpoint,
    /// The image is being made.
    Partial,
    /// The image is complete, and its object may not say so yet.
    Complete,
    /// The Pod has ended.
    Suspended,
    /// The volume of the next Pod is written.
    Volume,
    /// runsc restores the memory.
    Restore,
    /// The processes run, and the Pod is not Ready.
    Running,
}

const SUSPENDS: [Step; 4] = [Step::Checkpoint, Step::Partial, Step::Complete, Step::Suspended];
const RESUMES: [Step; 3] = [Step::Volume, Step::Restore, Step::Running];

/// Returns true if a folder below this one, at most so deep, has an entry of this name.
fn has(folder: &Path, name: &str, depth: usize) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.file_name() == name || (depth > 0 && is_folder && has(&entry.path(), name, depth - 1))
    })
}

/// Complete images.
pub(crate) fn complete(up: &Up) -> Vec<PathBuf> {
    let mut all = images(up);
    all.retain(|path| path.extension().is_none());
    all
}

impl Step {
    pub(crate) fn is_reached(self, up: &Up) -> bool {
        let pods = up.data().join("pods");
        match self {
            Step::Checkpoint => has(&pods, "checkpoint", 4),
            Step::Partial => images(up).iter().any(|path| path.extension().is_some()),
            Step::Complete => !complete(up).is_empty(),
            Step::Suspended => !has(&pods, "last", 6) && !complete(up).is_empty(),
            Step::Volume => has(&pods, "last", 6),
            Step::Restore => running(&format!("restore --bundle {}", up.data().display())),
            Step::Running => {
                up.ok("get pod s -o jsonpath={.status.phase} --ignore-not-found").trim() == "Running"
            }
        }
    }
}

/// Changes the operating mode of the Sandbox `s` without waiting for it.
fn change(up: &Up, mode: &str) -> Child {
    let patch = json!({"spec": {"operatingMode": mode}}).to_string();
    let mut kubectl = up.kubectl_command(&["patch", "sandbox", "s", "--type=merge", "-p", &patch]);
    // The server may die before it answers.
    kubectl.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl")
}

/// Kills the server when it has reached the step, and starts it again.
fn kill_at(up: &mut Up, mode: &str, reached: impl Fn(&Up) -> bool) -> Vec<PathBuf> {
    let mut kubectl = change(up, mode);
    until("the step is reached", || reached(up));
    up.kill();
    let found = complete(up);
    // Its request may have been lost.
    let _ = kubectl.wait();
    up.restart();
    assert!(images(up).iter().all(|path| path.extension().is_none()), "half-made images stay");
    found
}

/// The Sandbox `s`, which is Ready some seconds after its processes run.
fn slow() -> Value {
    let mut object = counted("s");
    let probe = &mut object["spec"]["podTemplate"]["spec"]["containers"][0]["readinessProbe"];
    probe["initialDelaySeconds"] = 2.into();
    object
}

/// UID of the Pod of the Sandbox `s`; empty without one.
pub(crate) fn pod(up: &Up) -> String {
    up.ok("get pod s -o jsonpath={.metadata.uid} --ignore-not-found").trim().to_owned()
}

/// Processes, mounts and cgroups of a Pod.
fn traces(uid: &str) -> Vec<String> {
    let find = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &format!("*{uid}*")])
        .output()
        .expect("find");
    let mut all: Vec<String> = String::from_utf8_lossy(&find.stdout).lines().map(str::to_owned).collect();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    all.extend(mounts.lines().filter(|line| line.contains(uid)).map(str::to_owned));
    all.extend(running(uid).then(|| format!("a process of {uid}")));
    all
}

#[track_caller]
pub(crate) fn is_gone(uid: &str) {
    until("everything of the Pod is gone", || traces(uid).is_empty());
}

/// The state of the Sandbox `s` that the tests expect.
struct Expected {
    /// The next answer.
    next: u32,
    /// Lives of its program.
    lives: usize,
}

impl Expected {
    #[track_caller]
    fn check(&mut self, up: &Up, when: &str) {
        assert_eq!(answer(up, "s"), self.next.to_string(), "{when}");
        assert_eq!(lives(up, "s"), self.lives, "{when}");
        self.next += 1;
        // The open file, and the volume, which holds what was written last.
        let log: String = (0..self.next).map(|number| number.to_string()).collect();
        let read = up.ok("exec s -- cat /tmp/log /scratch/last");
        assert_eq!(read, format!("{log}{}", self.next - 1), "{when}");
        until("the memory is used up", || snapshots(up).is_empty() && images(up).is_empty());
    }

    fn began_anew(&mut self) {
        (self.next, self.lives) = (0, self.lives + 1);
    }
}

/// Suspends, and dies at a moment.
fn die_in_suspend(up: &mut Up, expected: &mut Expected, when: &str, reached: impl Fn(&Up) -> bool) {
    let saved = pod(up);
    let found = kill_at(up, "Suspended", reached);
    set(up, "s", "Suspended");
    suspended(up, "s");
    if found.is_empty() {
        // Nothing was acknowledged: it has begun anew, and that is suspended.
        expected.began_anew();
    }
    if !found.is_empty() {
        assert_eq!(lives(up, "s"), expected.lives, "{when}");
    }
    until("images are those of objects", || images_have_objects(up));
    assert_eq!(complete(up).len(), 1, "{when}");
    is_gone(&saved);
}

/// Resumes, and dies at a moment at which the Pod was not Ready.
fn die_in_resume(up: &mut Up, expected: &mut Expected, when: &str, reached: impl Fn(&Up) -> bool) {
    kill_at(up, "Running", reached);
    let conditions = up.ok("get pod s -o jsonpath={.status.conditions} --ignore-not-found");
    resume(up, "s");
    // A program that was restored answers at once.
    if lives(up, "s") > expected.lives {
        assert!(conditions.contains("PodRestored"), "{when}: it was not Ready, and began without its memory");
        expected.began_anew();
    }
    expected.check(up, when);
}

#[test]
fn killed_server_loses_no_memory_that_was_acknowledged_and_leaves_nothing_half_made() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &slow());
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    for round in 0..rounds(1, 20) {
        // In CI, the steps at which most is at stake.
        let few = |steps: &[Step], chosen: &[Step]| match rounds(1, 2) {
            1 => chosen.to_vec(),
            _ => steps.to_vec(),
        };
        for step in few(&SUSPENDS, &[Step::Partial, Step::Complete]) {
            let when = format!("round {round}, {step:?}");
            die_in_suspend(&mut up, &mut expected, &when, |up| step.is_reached(up));
            resume(&up, "s");
            expected.check(&up, &when);
        }
        for step in few(&RESUMES, &[Step::Volume, Step::Running]) {
            suspend(&up, "s");
            let when = format!("round {round}, {step:?}");
            die_in_resume(&mut up, &mut expected, &when, |up| step.is_reached(up));
        }
    }
}

#[test]
fn server_that_is_killed_at_any_moment_loses_no_memory_that_was_acknowledged() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &slow());
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    for seed in 0..rounds(1, 100) {
        let moment = |salt: u64| std::time::Duration::from_millis((seed as u64 * 7919 + salt) % 4000);
        let when = format!("seed {seed}");
        let wait = moment(1700);
        die_in_suspend(&mut up, &mut expected, &when, |_| {
            std::thread::sleep(wait);
            true
        });
        let wait = moment(900);
        die_in_resume(&mut up, &mut expected, &when, |_| {
            std::thread::sleep(wait);
            true
        });
    }
}

/// Makes a snapshot after which the Pod of the Sandbox `s` stays paused until it is deleted, or the snapshot is.
fn stop(up: &Up) {
    apply(
        up,
        &json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": "stopped"},
            "spec": {"source": {"sandbox": "s"}, "content": "Full", "afterwards": "Stop"}}),
    );
    up.ok("wait --for=condition=Ready sandboxsnapshot/stopped --timeout=120s");
}

#[test]
fn snapshot_that_a_kill_interrupts_fails_unless_its_image_is_complete() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &counted("s"));
    assert_eq!(answer(&up, "s"), "0");
    let mut has_failed = false;
    for step in [Step::Checkpoint, Step::Partial, Step::Complete] {
        let name = format!("{step:?}").to_lowercase();
        apply(&up, &snapshot_object(&name, "s", "Full"));
        until("the step is reached", || step.is_reached(&up));
        up.kill();
        let found = complete(&up);
        up.restart();
        let said = outcome(&up, &name);
        // The processes of the request have ended with the server.
        match found.is_empty() {
            true => {
                assert!(said.starts_with("Failed:") && said.contains("was started anew"), "{step:?}: {said}")
            }
            false => assert!(said.starts_with("Completed:"), "{step:?}: {said}"),
        }
        has_failed |= found.is_empty();
        ready(&up, "s");
        up.ok(&format!("delete sandboxsnapshot {name}"));
        until("its image goes", || images(&up).is_empty());
    }
    assert!(has_failed, "no snapshot was interrupted");
    // One that is requested now has the processes of now.
    snapshot(&up, "later", "s", "Full");
}

/// Begins to suspend the Sandbox `s`, until a step is seen. A step may be over before it is seen; then it is suspended again.
fn suspend_up_to(up: &Up, step: Step, expected: &mut Expected) -> Child {
    for _ in 0..20 {
        let mut kubectl = change(up, "Suspended");
        let begun = Instant::now();
        while complete(up).is_empty() {
            if step.is_reached(up) {
                return kubectl;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "it is not suspended");
        }
        assert!(kubectl.wait().expect("kubectl").success());
        suspended(up, "s");
        resume(up, "s");
        expected.check(up, "the step was not seen");
    }
    panic!("{step:?} is never seen");
}

#[test]
fn pod_that_is_deleted_at_once_while_its_memory_is_written_keeps_it_or_says_that_it_is_lost() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &counted("s"));
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    for step in [Step::Checkpoint, Step::Partial] {
        let mut kubectl = suspend_up_to(&up, step, &mut expected);
        up.ok("delete pod s --grace-period=0 --force --ignore-not-found");
        assert!(kubectl.wait().expect("kubectl").success());
        suspended(&up, "s");
        let reason = "jsonpath={.status.conditions[?(@.type==\"Suspended\")].reason}";
        let reason = up.ok(&format!("get sandbox s -o {reason}"));
        resume(&up, "s");
        if reason.trim() != "PodTerminated" {
            assert_eq!(reason.trim(), "MemoryNotKept");
            up.eventually("get events -o json", |events| events.contains("It will begin anew"));
            expected.began_anew();
        }
        expected.check(&up, &format!("{step:?}, {reason}"));
    }
}

/// Kills the processes of a Pod whose command line has this word.
fn kill_processes(uid: &str, word: &str) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(uid)
            && line.contains(word)
            && let Some(id) = Pid::from_raw(id)
        {
            killed += usize::from(kill_process(id, Signal::KILL).is_ok());
        }
    }
    killed
}

#[test]
fn pod_whose_memory_was_saved_has_no_second_life() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &counted("s"));
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    stop(&up);
    // Its processes die while they are paused: no others take their place.
    assert!(kill_processes(&pod(&up), "restore") + kill_processes(&pod(&up), "run --bundle") > 0);
    up.eventually("get pod s -o jsonpath={.status.containerStatuses[0].state}", |state| {
        state.contains("terminated")
    });
    assert_eq!(lives(&up, "s"), 1);
    // Not in a further life of the server either.
    up.kill();
    up.restart();
    up.eventually("get events -o json", |events| events.contains("the memory of its processes is on disk"));
    assert_eq!(lives(&up, "s"), 1);
    // Without the snapshot it begins anew.
    up.ok("delete sandboxsnapshot stopped");
    until("it runs again", || lives(&up, "s") == 2);
    ready(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    // A Pod that is paused runs on when its snapshot is deleted.
    stop(&up);
    up.ok("delete sandboxsnapshot stopped");
    assert_eq!(answer(&up, "s"), "1");
    assert_eq!(lives(&up, "s"), 2);
}

#[test]
fn snapshot_that_is_deleted_while_it_is_taken_leaves_the_sandbox_running() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &object("s"));
    assert_eq!(answer(&up, "s"), "0");
    let object = json!({"apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": "t"},
        "spec": {"source": {"sandbox": "s"}, "content": "Full", "afterwards": "Stop"}});
    for number in 1..=3_u32 {
        apply(&up, &object);
        up.ok("delete sandboxsnapshot t");
        assert_eq!(answer(&up, "s"), number.to_string());
        until("its image goes", || images(&up).is_empty());
    }
}

#[test]
fn processes_of_a_suspend_that_are_killed_fail_it_and_the_sandbox_runs_on() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    run(&up, &counted("s"));
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    for round in 0..rounds(1, 20) {
        let is_killed = (0..10).any(|number| {
            let uid = pod(&up);
            let mut kubectl = change(&up, "Suspended");
            let killed = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                kill_processes(&uid, "checkpoint --leave-running") > 0
            });
            assert!(kubectl.wait().expect("kubectl").success());
            if !killed {
                // It was over between two looks.
                suspended(&up, "s");
                resume(&up, "s");
                expected.check(&up, &format!("round {round}, try {number}"));
            }
            killed
        });
        assert!(is_killed, "runsc never writes the memory");
        up.eventually(&format!("get sandbox s -o {}", crate::kept::READY_MESSAGE), |said| {
            said.contains("its memory cannot be kept")
        });
        set(&up, "s", "Running");
        ready(&up, "s");
        expected.check(&up, &format!("round {round}"));
    }
}

/// Process ids of the helpers of the server, with their names.
fn helpers(up: &Up) -> Vec<(String, Pid)> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let found = entries.into_iter().filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let is_child = status.contains(&format!("\nPPid:\t{}\n", up.pid()));
        let name = status.lines().next()?.strip_prefix("Name:\t")?.to_owned();
        Some((name, Pid::from_raw(id)?)).filter(|_| is_child)
    });
    found.collect()
}

#[test]
fn suspended_memory_outlives_each_helper_process() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    run(&up, &slow());
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    let mut names: Vec<String> = helpers(&up).into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        suspend(&up, "s");
        let mut kubectl = change(&up, "Running");
        until("it is being restored", || Step::Restore.is_reached(&up));
        for (_, id) in helpers(&up).into_iter().filter(|(own, _)| *own == name) {
            let _ = kill_process(id, Signal::KILL);
        }
        let _ = kubectl.wait();
        // Without some of them the server ends.
        if !up.kubectl("get --raw /readyz").status.success() {
            up.kill();
            up.restart();
        }
        resume(&up, "s");
        expected.check(&up, &name);
    }
}

/// Resources of a server and its Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Usage {
    processes: usize,
    mounts: usize,
    own_mounts: usize,
    files: usize,
    descriptors: usize,
}

fn usage(up: &Up) -> Usage {
    let data = up.data().display().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&data)
    });
    let mounts = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).expect("mounts");
        text.lines().filter(|line| line.contains(&data)).count()
    };
    let files = ["pods", "snapshots", "jails", "volumes"].map(|folder| {
        let found = Command::new("find").arg(up.data().join(folder)).output().expect("find");
        found.stdout.iter().filter(|&&byte| byte == b'\n').count()
    });
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", up.pid())).expect("descriptors").count();
    Usage {
        processes: processes.count(),
        mounts: mounts("self"),
        own_mounts: mounts(&up.pid().to_string()),
        files: files.iter().sum(),
        descriptors,
    }
}

#[test]
fn rounds_of_suspend_and_resume_leave_nothing_behind() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = Up::start(&ROUTER);
    run(&up, &counted("s"));
    let mut expected = Expected { next: 0, lives: 1 };
    expected.check(&up, "at first");
    let mut first: Option<Usage> = None;
    let mut pods = Vec::new();
    for round in 0..rounds(50, 1000) {
        pods.push(pod(&up));
        suspend(&up, "s");
        resume(&up, "s");
        expected.check(&up, &format!("round {round}"));
        if round == 1 {
            first = Some(usage(&up));
        }
    }
    let first = first.expect("two rounds");
    let mut last = usage(&up);
    until(&format!("as after the first rounds: {first:?}"), || {
        last = usage(&up);
        let Usage { processes, mounts, own_mounts, files, descriptors } = last;
        processes <= first.processes
            && mounts <= first.mounts
            && own_mounts <= first.own_mounts
            && files <= first.files
            && descriptors <= first.descriptors
    });
    for uid in pods.iter().rev().take(50) {
        is_gone(uid);
    }
    hutch_testkit::say(&format!("{} rounds of suspend and resume: {last:?}\n", pods.len()));
}
