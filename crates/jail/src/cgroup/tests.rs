use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use super::*;

const ALL: Limits = Limits { cpu_millis: Some(1500), memory_bytes: Some(64 << 20), pids: Some(20) };

/// A tree of files as a version 2 hierarchy shows them.
fn unified(controllers: &str) -> (tempfile::TempDir, Layout) {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("my cgroup");
    let own = mount.join("user.slice");
    fs::create_dir_all(&own).unwrap();
    for group in [&mount, &own] {
        fs::write(group.join("cgroup.controllers"), controllers).unwrap();
        fs::write(group.join("cgroup.subtree_control"), "").unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
    }
    let escaped = mount.display().to_string().replace(' ', "\\040");
    let mountinfo = format!("41 31 0:38 / {escaped} rw,relatime shared:5 - cgroup2 cgroup2 rw,nsdelegate\n");
    let layout = Layout::read(&mountinfo, "0::/user.slice\n");
    assert_eq!(layout.unified.as_ref().unwrap().own, own);
    (folder, layout)
}

fn only_group(layout: &Layout) -> PathBuf {
    let found = end::leftovers(layout, "");
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Moves a process into the groups.
fn add(group: &Group, pid: u32) {
    for folder in group.folders() {
        write(&folder.join("cgroup.procs"), &pid.to_string()).unwrap();
    }
}

#[test]
fn version_2_gets_all_limits_in_one_group() {
    let (_folder, layout) = unified("cpuset cpu io memory pids\n");
    let group = Group::create_in(&layout, "j-1", &ALL).unwrap();
    let path = only_group(&layout);
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    assert!(path.ends_with("hutch/j-1"));
    assert_eq!(read("cpu.max"), "150000 100000");
    assert_eq!(read("memory.max"), (64 << 20).to_string());
    assert_eq!(read("pids.max"), "20");
    let parent = path.parent().unwrap().parent().unwrap();
    for folder in [parent, path.parent().unwrap()] {
        let handed_on = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap();
        assert_eq!(handed_on, "+cpu +memory +pids");
    }
    add(&group, 77);
    assert_eq!(read("cgroup.procs"), "77");
    assert!(group.unified().unwrap().is_some());
    for (name, text) in [
        ("cpu.stat", "usage_usec 1234\nuser_usec 1000\n"),
        ("memory.current", "4096\n"),
        ("memory.stat", "anon 1024\nfile 3000\nshmem 1000\nfile_mapped 7\n"),
        ("memory.peak", "8192\n"),
        ("memory.events", "low 0\noom 2\noom_kill 3\noom_group_kill 0\n"),
        ("pids.current", "5\n"),
    ] {
        fs::write(path.join(name), text).unwrap();
    }
    let expected = Usage {
        cpu_micros: 1234,
        memory_bytes: 4096,
        memory_cache_bytes: 2000,
        memory_peak_bytes: 8192,
        oom_kills: 3,
        processes: 5,
    };
    assert_eq!(group.usage().unwrap(), expected);
}

#[test]
fn version_2_writes_only_configured_limits() {
    let (_folder, layout) = unified("cpu memory pids\n");
    Group::create_in(&layout, "j-1", &Limits { pids: Some(9), ..Limits::default() }).unwrap();
    let path = only_group(&layout);
    assert_eq!(fs::read_to_string(path.join("pids.max")).unwrap(), "9");
    assert!(!path.join("memory.max").exists() && !path.join("cpu.max").exists());
}

#[test]
fn version_2_turns_swap_off_where_there_is_swap() {
    let (_folder, layout) = unified("memory\n");
    // A leftover of the same name that has a file cannot be removed, as one with processes cannot.
    let limits = Limits { memory_bytes: Some(LEAST_MEMORY), ..Limits::default() };
    let group = layout.unified.as_ref().unwrap().mount.join("swap");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("memory.swap.max"), "max").unwrap();
    v2::limit(&group, &limits).unwrap();
    assert_eq!(fs::read_to_string(group.join("memory.swap.max")).unwrap(), "0");
}

#[test]
fn a_controller_that_is_not_there_is_refused_by_name() {
    let (_folder, layout) = unified("hugetlb\n");
    let error = Group::create_in(&layout, "j-1", &ALL).unwrap_err();
    let Error::LimitRefused { limit, reason } = error else { panic!("{error}") };
    assert_eq!(limit, "cpu");
    assert!(reason.contains("controller cpu") && reason.contains("mount"), "{reason}");
    assert_eq!(end::leftovers(&layout, ""), [] as [PathBuf; 0]);
    let error = Group::create_in(&Layout::default(), "j-1", &ALL).unwrap_err();
    assert!(error.to_string().contains("no cgroup hierarchy is mounted"), "{error}");
}

#[test]
fn limits_that_make_no_sense_are_refused_by_name() {
    let (_folder, layout) = unified("cpu memory pids\n");
    let none = Limits::default();
    for (limits, name) in [
        (Limits { memory_bytes: Some(1), ..none }, "memory"),
        (Limits { memory_bytes: Some(LEAST_MEMORY - 1), ..none }, "memory"),
        (Limits { cpu_millis: Some(0), ..none }, "cpu"),
        (Limits { cpu_millis: Some(u64::MAX), ..none }, "cpu"),
        (Limits { pids: Some(1), ..none }, "pids"),
    ] {
        let error = Group::create_in(&layout, "j-1", &limits).unwrap_err();
        assert!(matches!(&error, Error::LimitRefused { limit, .. } if limit == name), "{error}");
    }
    assert_eq!(end::leftovers(&layout, ""), [] as [PathBuf; 0]);
}

#[test]
fn an_id_cannot_leave_the_folder() {
    let (_folder, layout) = unified("pids\n");
    for id in ["", "..", "../x", "a/b", "A", "a b", &"x".repeat(64)] {
        let error = Group::create_in(&layout, id, &ALL).unwrap_err();
        assert!(matches!(error, Error::Spec(_)), "{id:?}: {error}");
    }
}

#[test]
fn without_limits_nothing_is_made() {
    let (_folder, layout) = unified("cpu memory pids\n");
    let group = Group::create_in(&layout, "j-1", &Limits::default()).unwrap();
    assert!(group.is_empty());
    assert_eq!(group.usage(), Err(Error::NoGroup));
    assert_eq!(end::leftovers(&layout, ""), [] as [PathBuf; 0]);
}

#[test]
fn both_versions_are_distinguished() {
    let mountinfo = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime master:2 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    let layout = Layout::read(mountinfo, "4:memory:/docker/abc/x\n2:cpu,cpuacct:/a/b\n0::/../c\n");
    let own = |controller| layout.legacy_of(controller).map(|h| h.own.display().to_string());
    assert_eq!(own(Controller::Cpu).unwrap(), "/sys/fs/cgroup/cpu,cpuacct/a/b");
    assert_eq!(own(Controller::CpuAccount).unwrap(), "/sys/fs/cgroup/cpu,cpuacct/a/b");
    assert_eq!(own(Controller::Memory).unwrap(), "/sys/fs/cgroup/memory/x");
    assert_eq!(own(Controller::Pids), None);
    // Outside of the namespace: the top is the nearest that can be named.
    assert_eq!(layout.unified.unwrap().own, PathBuf::from("/sys/fs/cgroup/unified"));
}

/// A version 1 hierarchy of two controllers mounted together.
#[test]
fn controllers_mounted_together_share_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().display();
    let mountinfo = format!("32 31 0:29 / {mount} rw - cgroup cgroup rw,cpu,cpuacct\n");
    let layout = Layout::read(&mountinfo, "2:cpu,cpuacct:/\n");
    let limits = Limits { cpu_millis: Some(250), ..Limits::default() };
    let group = Group::create_in(&layout, "j-2", &limits).unwrap();
    let path = only_group(&layout);
    assert_eq!(fs::read_to_string(path.join("cpu.cfs_quota_us")).unwrap(), "25000");
    fs::write(path.join("cpuacct.usage"), "5000000\n").unwrap();
    assert_eq!(group.usage().unwrap().cpu_micros, 5000);
}

fn sleeper() -> Child {
    Command::new("sleep").arg("100").spawn().unwrap()
}

fn test_id(name: &str) -> String {
    format!("test{}-{name}", std::process::id())
}

/// On the machine as it is, whichever version it has.
#[test]
fn limits_hold_on_this_machine_and_groups_go() {
    hutch_testkit::require!(root);
    let id = test_id("real");
    let group = Group::create(&id, &ALL).unwrap();
    let mut child = sleeper();
    add(&group, child.id());
    let usage = group.usage().unwrap();
    assert_eq!(usage.processes, 1);
    let layout = Layout::of_this_machine().unwrap();
    assert!(!end::leftovers(&layout, &id).is_empty());
    group.kill_and_remove().unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(end::leftovers(&layout, &id), [] as [PathBuf; 0]);
    // Once more is no error.
    group.kill_and_remove().unwrap();
}

#[test]
fn the_process_limit_holds() {
    hutch_testkit::require!(root);
    let group = Group::create(&test_id("pids"), &Limits { pids: Some(4), ..Limits::default() }).unwrap();
    let entry = group.entry().unwrap();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait");
    let unified = group.unified().unwrap().is_some();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut shell, move || {
            entry.enter().map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
        });
    }
    let mut child = shell.stderr(std::process::Stdio::null()).spawn().unwrap();
    if unified {
        add(&group, child.id());
    }
    let most = (0..20)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            group.usage().unwrap().processes
        })
        .max()
        .unwrap();
    group.kill_and_remove().unwrap();
    child.wait().unwrap();
    assert!((2..=4).contains(&most), "{most}");
}

/// Memory that the kernel keeps of a group while a cached page of a file is counted there: 80 KiB each, which it does not count as free.
#[test]
fn a_group_that_wrote_a_file_is_gone_with_its_end() {
    hutch_testkit::require!(root);
    const GROUPS: usize = 40;
    let known = || {
        let controllers = fs::read_to_string("/proc/cgroups").unwrap();
        let memory = controllers.lines().find(|line| line.starts_with("memory\t")).unwrap();
        memory.split('\t').nth(2).unwrap().parse::<usize>().unwrap()
    };
    // Beside the program, which is on a disk; the usual place may be memory itself.
    let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let before = known();
    let mut groups = Vec::new();
    for n in 0..GROUPS {
        let group = Group::create(&test_id(&format!("cache-{n}")), &ALL).unwrap();
        let script = "read -r line; mkdir \"$0\"; echo content > \"$0/file\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(folder.path().join(n.to_string()));
        let mut child = shell.stdin(std::process::Stdio::piped()).spawn().unwrap();
        add(&group, child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        groups.push(group);
    }
    // What is not written yet stays cached until it is.
    rustix::fs::syncfs(fs::File::open(folder.path()).unwrap()).unwrap();
    groups.iter().for_each(|group| group.kill_and_remove().unwrap());
    // The kernel takes its time. Other tests have groups too, a few.
    let mut after = known();
    for _ in 0..100 {
        if after >= before + GROUPS / 2 {
            std::thread::sleep(Duration::from_millis(100));
            after = known();
        }
    }
    assert!(after < before + GROUPS / 2, "{before} groups before, {after} after {GROUPS} that are gone");
}

#[test]
fn a_sweep_takes_what_has_the_prefix_and_nothing_else() {
    hutch_testkit::require!(root);
    let (mine, other) = (test_id("sweep"), test_id("other"));
    let limits = Limits { pids: Some(8), ..Limits::default() };
    let swept = Group::create(&format!("{mine}-1"), &limits).unwrap();
    let kept = Group::create(&other, &limits).unwrap();
    let mut child = sleeper();
    add(&swept, child.id());
    let layout = Layout::of_this_machine().unwrap();
    // Young, and in use.
    assert_eq!(sweep_empty(&mine, Duration::from_secs(60)).unwrap(), 0);
    let removed = sweep(&mine).unwrap();
    child.wait().unwrap();
    assert!(removed >= 1);
    assert_eq!(end::leftovers(&layout, &mine), [] as [PathBuf; 0]);
    assert!(!end::leftovers(&layout, &other).is_empty());
    assert!(sweep_empty(&other, Duration::ZERO).unwrap() >= 1);
    // The kernel can report a group as busy for a moment; the next sweep removes it.
    for _ in 0..50 {
        if end::leftovers(&layout, &other).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        sweep_empty(&other, Duration::ZERO).unwrap();
    }
    assert_eq!(end::leftovers(&layout, &other), [] as [PathBuf; 0]);
    kept.kill_and_remove().unwrap();
}

/// A real version 2 group, where one can be made: its processes end at one write.
#[test]
fn a_version_2_group_is_killed_at_once() {
    hutch_testkit::require!(root);
    let layout = Layout::of_this_machine().unwrap();
    let Some(hierarchy) = &layout.unified else {
        hutch_testkit::note_skip("a_version_2_group_is_killed_at_once", "needs cgroup version 2");
        return;
    };
    let path = make(&hierarchy.mount, &test_id("kill"), &|_| Ok(())).unwrap();
    let group = Group { unified: Some(path.clone()), legacy: Vec::new() };
    let mut children: Vec<Child> = (0..3).map(|_| sleeper()).collect();
    for child in &children {
        add(&group, child.id());
    }
    group.kill_and_remove().unwrap();
    assert!(!path.exists());
    for child in &mut children {
        assert!(!child.wait().unwrap().success());
    }
}

/// Measures attaching after a pause: `cargo test -p hutch-jail -- --ignored --nocapture attach_time`.
#[test]
#[ignore = "prints a measurement"]
fn attach_time() {
    let group = Group::create(&test_id("time"), &ALL).unwrap();
    let entry = group.entry().unwrap();
    let (mut by_others, mut by_itself) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(60));
        let mut child = sleeper();
        let start = std::time::Instant::now();
        add(&group, child.id());
        by_others.push(start.elapsed().as_micros());
        child.kill().unwrap();
        child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(60));
        // SAFETY: the child makes system calls only.
        unsafe {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                let start = std::time::Instant::now();
                let entered = entry.enter().is_ok();
                let took = if entered { start.elapsed().as_micros() } else { u128::MAX };
                libc::write(pipe[1], (&raw const took).cast(), 16);
                libc::_exit(0);
            }
            let mut took = 0u128;
            assert_eq!(libc::read(pipe[0], (&raw mut took).cast(), 16), 16);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            by_itself.push(took);
        }
    }
    group.kill_and_remove().unwrap();
    by_others.sort_unstable();
    by_itself.sort_unstable();
    println!("attached by another: p50 {} us; by itself: p50 {} us", by_others[10], by_itself[10]);
}

/// A child that runs until it is killed, in the groups.
fn busy(group: &Group) -> Child {
    let child = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    add(group, child.id());
    child
}

fn cpu_ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(11).unwrap().parse().unwrap()
}

/// Freezes what uses CPU time, and kills it while it is frozen.
fn freezes_thaws_and_dies(layout: &Layout, name: &str) {
    const LIMIT: Duration = Duration::from_secs(20);
    let id = test_id(name);
    let mut group = Group::create_in(layout, &id, &Limits::default()).unwrap();
    let freezer = group.make_freezable(layout, &id).unwrap();
    let mut child = busy(&group);
    for _ in 0..3 {
        freezer.freeze(LIMIT).unwrap();
        let before = cpu_ticks(&child);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(cpu_ticks(&child), before, "it is stopped");
        freezer.thaw(LIMIT).unwrap();
        let mut looks = 0;
        while cpu_ticks(&child) == before {
            std::thread::sleep(Duration::from_millis(10));
            looks += 1;
            assert!(looks < 3000, "it is not thawed");
        }
    }
    freezer.freeze(LIMIT).unwrap();
    group.kill_and_remove().unwrap();
    assert!(!child.wait().unwrap().success());
    freezer.thaw(LIMIT).unwrap();
    assert!(freezer.freeze(LIMIT).is_err(), "the group has gone");
}

#[test]
fn group_is_frozen_thawed_and_killed_while_frozen() {
    hutch_testkit::require!(root);
    let layout = Layout::of_this_machine().unwrap();
    if layout.unified.is_some() {
        freezes_thaws_and_dies(&layout, "freeze");
    }
    let legacy = Layout { unified: None, legacy: layout.legacy.clone() };
    if legacy.legacy_has(Controller::Freezer) {
        freezes_thaws_and_dies(&legacy, "freeze-v1");
    }
}
