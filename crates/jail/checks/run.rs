//! `run`, called as `hutch run` calls it: by a program with one thread. The usual test harness has several, so this
//! is a plain program; each check is one line of output, as of a test.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use hutch_jail::{
    CheckedFolder, Ended, Error, Ids, Limits, Link, Mount, MountSource, Network, NetworkPlan, Outcome,
    Process, Profile, Root, RunOptions, Spec, Upper, User, run,
};
use hutch_testkit::require;

const BASE: u32 = 4_000_000;
const MIB: u64 = 1 << 20;

fn spec() -> Spec {
    let bind = |path: &str| bind(Path::new(path), path, true);
    let mut mounts: Vec<Mount> =
        ["/usr", "/bin", "/lib", "/lib64"].into_iter().filter(|p| Path::new(p).exists()).map(bind).collect();
    mounts.push(tmpfs("/tmp"));
    let root = rustix::process::geteuid().is_root();
    Spec {
        id: "check".into(),
        hostname: "jail".into(),
        profile: Profile::Native,
        root: Root { layers: vec![], upper: Upper::ReadOnly },
        mounts,
        ids: if root { Ids::Range { base: BASE } } else { Ids::Caller },
        network: Network::New(NetworkPlan::closed(Vec::new())),
        capabilities: hutch_jail::Capabilities::NONE,
        limits: Limits::default(),
        deny_set_id_bits: false,
        links: vec![],
        files: hutch_jail::FileRules::default(),
        runtime_root: None,
        freezable: false,
    }
}

fn tmpfs(target: &str) -> Mount {
    let source = MountSource::Tmpfs { bytes: 16 * MIB, mode: 0o1777 };
    Mount { source, target: target.into(), read_only: false }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount { source: MountSource::Bind(source.to_owned()), target: target.into(), read_only }
}

fn shell(script: &str) -> Process {
    Process {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        terminal: false,
        user: User::default(),
    }
}

fn options() -> RunOptions {
    RunOptions { capture: Some(1 << 20), ..RunOptions::default() }
}

fn outcome(spec: &Spec, script: &str) -> Outcome {
    run(spec, &shell(script), &options()).expect("the jail")
}

/// Standard output of a script that is expected to succeed.
fn output(spec: &Spec, script: &str) -> String {
    let outcome = outcome(spec, script);
    let text = |captured: Option<hutch_jail::Captured>| {
        String::from_utf8_lossy(&captured.expect("captured").bytes).into_owned()
    };
    assert_eq!(outcome.ended, Ended::Exited(0), "{script}: {}", text(outcome.stderr));
    text(outcome.stdout)
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("its rights");
    folder
}

fn exit_status_of_a_command_is_reported() {
    require!(user_namespaces);
    for (script, ended, status) in [
        ("exit 0", Ended::Exited(0), 0),
        ("exit 7", Ended::Exited(7), 7),
        ("kill -TERM $$", Ended::Signaled(15), 143),
        ("(sleep 100 &) ; exit 3", Ended::Exited(3), 3),
    ] {
        let outcome = outcome(&spec(), script);
        assert_eq!((outcome.ended, outcome.ended.status()), (ended, status), "{script}");
    }
}

fn output_is_kept_up_to_its_bound_byte_for_byte() {
    require!(user_namespaces);
    let options = RunOptions { capture: Some(4), ..RunOptions::default() };
    let outcome =
        run(&spec(), &shell(r"printf 'a\000\377bcd'; printf xy >&2; cat"), &options).expect("the jail");
    let stdout = outcome.stdout.expect("captured");
    assert_eq!((stdout.bytes.as_slice(), stdout.dropped), (&b"a\0\xffb"[..], 2));
    assert_eq!(outcome.stderr.expect("captured").bytes, b"xy");
}

fn command_over_its_timeout_is_terminated_then_killed() {
    require!(user_namespaces);
    let options = RunOptions {
        timeout: Some(Duration::from_millis(300)),
        grace: Duration::from_millis(300),
        capture: Some(1000),
    };
    let began = Instant::now();
    let asked =
        run(&spec(), &shell("trap 'echo asked; exit 5' TERM; while :; do sleep 0.01; done"), &options);
    let asked = asked.expect("the jail");
    assert_eq!(asked.ended, Ended::TimedOut);
    assert_eq!(asked.stdout.expect("captured").bytes, b"asked\n");
    let deaf = run(&spec(), &shell("trap '' TERM; while :; do sleep 100; done"), &options).expect("the jail");
    assert_eq!((deaf.ended, deaf.ended.status()), (Ended::TimedOut, 124));
    assert!(deaf.wall >= Duration::from_millis(600), "{:?}", deaf.wall);
    assert!(began.elapsed() < Duration::from_secs(20));
}

fn a_command_that_cannot_be_run_is_an_error_with_its_number() {
    require!(user_namespaces);
    for (program, expected) in [("no-such-program", libc::ENOENT), ("/usr/bin", libc::EACCES)] {
        let process = Process { argv: vec![program.into()], ..shell("") };
        match run(&spec(), &process, &options()) {
            Err(Error::NotStarted { program: named, errno, .. }) => {
                assert_eq!((named.as_str(), errno.0), (program, expected));
            }
            other => panic!("{program}: {other:?}"),
        }
    }
}

fn a_missing_source_is_an_error_that_names_it() {
    require!(user_namespaces);
    let mut spec = spec();
    spec.mounts.push(bind(Path::new("/no/such/folder"), "/x", true));
    let error = run(&spec, &shell("true"), &options()).expect_err("there is no such folder").to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
}

fn a_program_with_threads_is_refused() {
    let (end, line) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || line.recv());
    assert!(matches!(run(&spec(), &shell("true"), &options()), Err(Error::Threads)));
    drop(end);
    let _ = thread.join();
}

fn a_root_of_layers_shows_the_topmost_and_keeps_them_as_they_were() {
    require!(user_namespaces);
    let (top, bottom) = (folder(), folder());
    std::fs::write(top.path().join("both"), "top").expect("write");
    std::fs::write(bottom.path().join("both"), "bottom").expect("write");
    std::fs::write(bottom.path().join("one"), "bottom").expect("write");
    let layers = vec![top.path().to_owned(), bottom.path().to_owned()];
    let memory = Upper::Memory { bytes: 16 * MIB };
    let written = Spec { root: Root { layers: layers.clone(), upper: memory }, ..spec() };
    assert_eq!(
        output(&written, "cat /both /one; echo -n new > /both; rm /one; cat /both; ls /one || :"),
        "topbottomnew"
    );
    let read_only = Spec { root: Root { layers, upper: Upper::ReadOnly }, ..spec() };
    assert_eq!(
        output(&read_only, "cat /both /one; echo x > /both || echo refused; mkdir /x || echo refused"),
        "topbottomrefused\nrefused\n"
    );
    assert_eq!(std::fs::read_to_string(bottom.path().join("one")).expect("read"), "bottom");
    assert!(!top.path().join("usr").exists(), "mount points were made in a layer");
}

fn a_layer_with_all_mount_points_needs_no_writable_side() {
    require!(user_namespaces);
    let layer = folder();
    for name in ["proc", "dev", "usr", "bin", "lib", "lib64", "tmp"] {
        std::fs::create_dir(layer.path().join(name)).expect("folder");
    }
    let spec =
        Spec { root: Root { layers: vec![layer.path().to_owned()], upper: Upper::ReadOnly }, ..spec() };
    assert_eq!(
        output(&spec, "grep -c ' / overlay .*upperdir' /proc/mounts; touch /x || echo refused; touch /tmp/x"),
        "0\nrefused\n"
    );
}

fn writes_to_a_kept_root_come_back_and_belong_to_root_on_disk() {
    require!(root);
    let (layer, kept) = (folder(), folder());
    let upper = Upper::Dir(kept.path().join("sandbox"));
    let spec = Spec { root: Root { layers: vec![layer.path().to_owned()], upper }, ..spec() };
    output(&spec, "echo kept > /file");
    assert_eq!(output(&spec, "cat /file; stat -c %u:%g /file"), "kept\n0:0\n");
    let file = std::fs::metadata(kept.path().join("sandbox/upper/file")).expect("on disk");
    assert_eq!((file.uid(), file.gid()), (0, 0));
}

fn a_workspace_keeps_the_owners_of_its_files() {
    require!(root);
    let workspace = folder();
    std::fs::write(workspace.path().join("mine"), "x").expect("write");
    std::os::unix::fs::chown(workspace.path().join("mine"), Some(1234), Some(1234)).expect("chown");
    let mut spec = spec();
    spec.mounts.push(bind(workspace.path(), "/workspace", false));
    assert_eq!(
        output(&spec, "stat -c %u /workspace/mine; touch /workspace/new; stat -c %u /workspace/new"),
        "1234\n0\n"
    );
    assert_eq!(std::fs::metadata(workspace.path().join("new")).expect("on disk").uid(), 0);
}

fn locks_inside_do_not_reach_a_folder_of_the_host() {
    require!(user_namespaces);
    let lower = folder();
    let file = lower.path().join("file");
    std::fs::write(&file, "old").expect("write");
    let mut spec = spec();
    let whole = MountSource::Host { folder: lower.path().to_owned(), file: None };
    let single = MountSource::Host { folder: lower.path().to_owned(), file: Some("file".into()) };
    spec.mounts.push(Mount { source: whole, target: "/a/b".into(), read_only: true });
    spec.mounts.push(Mount { source: single, target: "/c/one".into(), read_only: true });
    let lock = std::fs::File::open(&file).expect("open");
    lock.lock().expect("lock");
    assert_eq!(
        output(
            &spec,
            "cat /a/b/file /c/one; for f in /a/b/file /c/one; do flock -n $f echo -n locked; done; \
             (echo new > /a/b/file) 2>/dev/null || echo -n refused; ls -A / | grep -c '^[hm][0-9]' || :"
        ),
        "oldoldlockedlockedrefused0\n"
    );
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "old");
}

fn copy_of_a_folder_is_written_and_the_folder_is_not() {
    require!(user_namespaces);
    let place = folder();
    let shown = place.path().join("shown");
    std::fs::create_dir_all(shown.join("below")).expect("a folder");
    std::fs::write(shown.join("file"), "old").expect("write");
    let mut spec = spec();
    let source = CheckedFolder::look(&shown).expect("a folder");
    let source = MountSource::Layered { folder: source, bytes: MIB };
    spec.mounts.push(Mount { source, target: "/a/copy".into(), read_only: false });
    assert_eq!(
        output(
            &spec,
            "cd /a/copy && cat file && echo -n new > file && cat file && rm -r below && touch x && ls -A; \
             head -c 2097152 /dev/zero > large 2>/dev/null || echo full"
        ),
        "oldnewfile\nx\nfull\n"
    );
    assert_eq!(std::fs::read_to_string(shown.join("file")).expect("read"), "old");
    assert_eq!(std::fs::read_dir(&shown).expect("list").count(), 2);
}

fn what_is_hidden_is_empty_and_not_made_where_it_is_missing() {
    require!(user_namespaces);
    let place = folder();
    let work = place.path().join("work");
    std::fs::create_dir_all(work.join("folder")).expect("a folder");
    for file in ["folder/key", "key"] {
        std::fs::write(work.join(file), "secret").expect("write");
    }
    let hidden = |target: &str, folder| Mount {
        source: MountSource::Hidden { folder },
        target: target.into(),
        read_only: true,
    };
    let mut spec = spec();
    spec.mounts.push(bind(&work, "/work", false));
    let shown = spec.clone();
    spec.mounts.extend([hidden("/work/folder", true), hidden("/work/key", false)]);
    let script = "cd /work; ls -A folder; cat key; mv key other; rm -rf folder; stat -c %a key folder; \
        touch folder/new 2>/dev/null || echo over";
    assert_eq!(output(&spec, &format!("({script}) 2>/dev/null")), "0\n555\nover\n");
    // A folder in the place of a file, and nothing.
    for target in ["/work/folder", "/work/missing"] {
        let mut spec = shown.clone();
        spec.mounts.push(hidden(target, false));
        assert!(run(&spec, &shell("true"), &options()).is_err(), "{target}");
    }
    assert!(!work.join("missing").exists());
    assert_eq!(std::fs::read_to_string(work.join("folder/key")).expect("read"), "secret");
}

fn link_hides_what_a_layer_has() {
    require!(user_namespaces);
    let layer = folder();
    for name in ["proc", "dev", "usr", "bin", "lib", "lib64", "tmp", "alias"] {
        std::fs::create_dir(layer.path().join(name)).expect("a folder");
    }
    std::fs::write(layer.path().join("alias/file"), "").expect("write");
    for layers in [vec![layer.path().to_owned()], Vec::new()] {
        let links = vec![Link { name: "alias".into(), target: "/usr".into() }];
        let spec = Spec { root: Root { layers, upper: Upper::ReadOnly }, links, ..spec() };
        let script =
            "readlink /alias; cd /alias && pwd -P; rm /alias 2>/dev/null; test -L /alias && echo kept";
        assert_eq!(output(&spec, script), "/usr\n/usr\nkept\n");
    }
}

fn a_stream_can_be_opened_anew_but_not_for_more_than_it_is() {
    require!(user_namespaces);
    assert_eq!(output(&spec(), "echo out > /dev/stdout; echo err > /dev/stderr"), "out\n");
    // A file of the runner's user as standard input, which only a runner of its own can be given.
    let folder = folder();
    let file = folder.path().join("input");
    std::fs::write(&file, "kept").expect("write");
    let program = std::env::current_exe().expect("own path");
    let input = std::fs::File::open(&file).expect("open");
    let status = Command::new(program).arg("write-to-input").stdin(input).status().expect("a runner");
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "kept");
}

fn memory_beyond_the_limit_is_named_as_the_cause() {
    require!(root);
    let spec = Spec { limits: Limits { memory_bytes: Some(32 * MIB), ..Limits::default() }, ..spec() };
    let outcome = outcome(&spec, "exec tail /dev/zero");
    assert_eq!((outcome.ended, outcome.ended.status()), (Ended::OutOfMemory, 137));
    assert!(outcome.memory_peak_bytes >= 16 * MIB, "{}", outcome.memory_peak_bytes);
    assert!(outcome.isolation.cgroup);
}

fn nothing_stays_mounted_or_running() {
    require!(user_namespaces);
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").expect("mounts").lines().count();
    let before = mounts();
    output(&spec(), "(sleep 4242 &); true");
    assert_eq!(mounts(), before);
    assert!(!running("4242"), "a process of the jail outlived it");
}

/// Returns `true` when a process runs whose arguments contain `text`.
fn running(text: &str) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    processes.flatten().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|argument| argument == text)
    })
}

fn groups() -> Vec<String> {
    let mut command = Command::new("find");
    let found =
        command.args(["/sys/fs/cgroup", "-path", "*/hutch/run-*", "-type", "d"]).output().expect("find");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

fn a_killed_runner_leaves_no_process_and_no_cgroup() {
    require!(root);
    let program = std::env::current_exe().expect("own path");
    let mut runner = Command::new(program).arg("be-killed").spawn().expect("a runner");
    let mine = format!("run-{}-", runner.id());
    let appeared =
        wait_for(Duration::from_secs(10), || running("53535") && groups().iter().any(|g| g.contains(&mine)));
    assert!(appeared, "the jail did not start");
    runner.kill().expect("kill");
    runner.wait().expect("wait");
    assert!(wait_for(Duration::from_millis(200), || !running("53535")), "the command outlived the runner");
    let gone = wait_for(Duration::from_secs(1), || !groups().iter().any(|group| group.contains(&mine)));
    assert!(gone, "left: {:?}", groups());
}

fn wait_for(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + timeout;
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn write_to_input() -> ! {
    let script = "echo changed > /proc/self/fd/0; grep -q kept";
    let outcome = run(&spec(), &shell(script), &RunOptions::default());
    std::process::exit(i32::from(!outcome.is_ok_and(|outcome| outcome.ended == Ended::Exited(0))))
}

fn be_killed() -> ! {
    let limits = Limits { memory_bytes: Some(64 * MIB), ..Limits::default() };
    let _ = run(&Spec { limits, ..spec() }, &shell("sleep 53535"), &options());
    std::process::exit(1)
}

macro_rules! checks {
    ($($name:ident),+ $(,)?) => { [$((stringify!($name), $name as fn())),+] };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "be-killed") {
        be_killed();
    }
    if arguments.first().is_some_and(|first| first == "write-to-input") {
        write_to_input();
    }
    let checks = checks![
        exit_status_of_a_command_is_reported,
        output_is_kept_up_to_its_bound_byte_for_byte,
        command_over_its_timeout_is_terminated_then_killed,
        a_command_that_cannot_be_run_is_an_error_with_its_number,
        a_missing_source_is_an_error_that_names_it,
        a_program_with_threads_is_refused,
        a_root_of_layers_shows_the_topmost_and_keeps_them_as_they_were,
        a_layer_with_all_mount_points_needs_no_writable_side,
        writes_to_a_kept_root_come_back_and_belong_to_root_on_disk,
        a_workspace_keeps_the_owners_of_its_files,
        locks_inside_do_not_reach_a_folder_of_the_host,
        copy_of_a_folder_is_written_and_the_folder_is_not,
        what_is_hidden_is_empty_and_not_made_where_it_is_missing,
        link_hides_what_a_layer_has,
        a_stream_can_be_opened_anew_but_not_for_more_than_it_is,
        memory_beyond_the_limit_is_named_as_the_cause,
        nothing_stays_mounted_or_running,
        a_killed_runner_leaves_no_process_and_no_cgroup,
    ];
    // As the usual harness: names to filter by, `--list`; other flags are of no use here.
    if arguments.iter().any(|argument| argument == "--list") {
        checks.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (mut passed, mut failed) = (0, 0);
    for (name, check) in checks.into_iter().filter(|(name, _)| wanted(name)) {
        let ok = std::panic::catch_unwind(check).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        if ok { passed += 1 } else { failed += 1 }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    ExitCode::from(u8::from(failed > 0))
}
