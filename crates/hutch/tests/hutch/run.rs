//! `hutch run`, black box: what goes in, what comes out, what is left behind.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hutch_testkit::wait::until;
use serde_json::Value;

use crate::harness::{HUTCH, refused, text};

/// Long enough for anything that happens at all on a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

fn run(options: &[&str], command: &[&str]) -> Output {
    hutch(options, command).output().expect("hutch starts")
}

fn hutch(options: &[&str], command: &[&str]) -> Command {
    let mut hutch = Command::new(HUTCH);
    hutch.arg("run").args(options).arg("--").args(command).stdin(Stdio::null());
    hutch
}

fn shell(options: &[&str], script: &str) -> Output {
    run(options, &["sh", "-c", script])
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// How many processes of the machine have exactly this command line.
fn processes(command: &str) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let is = |line: Vec<u8>| text(&line).trim_end_matches('\0').replace('\0', " ") == command;
    processes.flatten().filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(is)).count()
}

/// The cgroups of the machine whose name holds this text.
pub(crate) fn cgroups(marker: &str) -> Vec<String> {
    let found =
        Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", &format!("*{marker}*")]).output();
    text(&found.expect("find").stdout).lines().map(str::to_owned).collect()
}

fn wait(mut child: Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if started.elapsed() > WAIT_LIMIT {
            let _ = child.kill();
            panic!("still running after {WAIT_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The command as user 65534, with a home folder of its own.
fn as_ordinary_user(home: &Path, options: &[&str], command: &[&str]) -> Output {
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    // The binary may lie where that user cannot reach it.
    let binary = home.join("hutch");
    hutch_testkit::copy_program(HUTCH, &binary);
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary)
        .arg("run")
        .args(options)
        .arg("--")
        .args(command)
        .env("HOME", home)
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .expect("setpriv")
}

#[test]
fn streams_are_binary_safe() {
    hutch_testkit::require!(user_namespaces);
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut child =
        hutch(&[], &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch starts");
    let mut stdin = child.stdin.take().expect("stdin");
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let mut received = Vec::new();
    child.stdout.take().expect("stdout").read_to_end(&mut received).expect("read");
    writer.join().expect("writer").expect("write");
    assert!(received == bytes, "{} bytes came back of {}", received.len(), bytes.len());
    assert_eq!(wait(child).code(), Some(0));
}

#[test]
fn output_is_not_delayed() {
    hutch_testkit::require!(user_namespaces);
    let mut child = hutch(&[], &["sh", "-c", "printf now; read x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("hutch starts");
    let mut first = [0; 3];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("while it still runs");
    assert_eq!(&first, b"now");
    drop(child.stdin.take());
    wait(child);
}

#[test]
fn standard_error_is_separate() {
    hutch_testkit::require!(user_namespaces);
    let output = shell(&[], "echo out; echo err >&2");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), "err\n".into()));
}

#[test]
fn exit_statuses() {
    hutch_testkit::require!(user_namespaces);
    let cases: [(&[&str], i32); 6] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 41"], 41),
        (&["no-such-command"], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -15 $$"], 143),
    ];
    for (command, expected) in cases {
        let output = run(&[], command);
        assert_eq!(output.status.code(), Some(expected), "{command:?}: {}", text(&output.stderr));
    }
}

#[test]
fn command_that_cannot_start_in_gvisor_has_the_status_of_a_shell() {
    hutch_testkit::require!(root, runsc);
    let cases: [(&[&str], i32); 4] = [
        (&["no-such-command"], 127),
        (&["/no/such"], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "exit 128"], 128),
    ];
    for (command, expected) in cases {
        let output = run(&["--isolation", "gvisor"], command);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{command:?}: {stderr}");
        assert_eq!(
            stderr.contains(&format!("hutch: cannot run {}", command[0])),
            expected != 128,
            "{stderr}"
        );
    }
}

#[test]
fn missing_interpreter_of_a_script_is_not_taken_for_the_script() {
    hutch_testkit::require!(user_namespaces);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    hutch_testkit::write_program("#!/no/such\n", &path);
    let output = run(&["--workspace", &folder.path().display().to_string()], &["./s"]);
    refused(&output, 127, &["its interpreter"]);
}

#[test]
fn missing_command_is_named() {
    hutch_testkit::require!(user_namespaces);
    refused(&run(&[], &["no-such-command"]), 127, &["no-such-command"]);
}

#[test]
fn timeout_is_124_and_kills_a_command_that_ignores_sigterm() {
    hutch_testkit::require!(user_namespaces);
    let output = shell(&["--timeout", "300ms"], "trap '' TERM; sleep 1000 & wait; sleep 1000");
    refused(&output, 124, &["300ms"]);
}

#[test]
fn timeout_of_290_years_is_accepted_and_a_longer_one_is_refused() {
    hutch_testkit::require!(user_namespaces);
    let output = run(&["--timeout", "2540400h"], &["true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = run(&["--timeout", "5000000000000000h"], &["true"]);
    refused(&output, 125, &["--timeout", "duration"]);
}

#[test]
fn out_of_memory_is_reported() {
    hutch_testkit::require!(root, python);
    let output = run(&["--memory", "48Mi"], &["python3", "-c", "x = bytearray(300 << 20); print(len(x))"]);
    refused(&output, 137, &["memory"]);
}

#[test]
fn memory_of_one_byte_is_refused() {
    hutch_testkit::require!(root);
    refused(&run(&["--memory", "1"], &["true"]), 125, &["memory"]);
}

#[test]
fn limit_of_processes_is_enforced() {
    hutch_testkit::require!(root);
    let script = "i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done; echo all";
    let output = shell(&["--pids", "8", "--timeout", "20s"], script);
    assert!(!text(&output.stdout).contains("all"), "{output:?}");
}

#[test]
fn only_the_workspace_is_writable_and_files_keep_their_owner() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().expect("tempdir");
    let workspace = folder.path().join("w");
    std::fs::create_dir(&workspace).expect("mkdir");
    std::fs::write(workspace.join("there"), "before").expect("write");
    std::os::unix::fs::chown(&workspace, Some(1234), Some(1234)).expect("chown");
    let option = workspace.display().to_string();
    let script = "pwd; cat there; stat -c %u .; id -u; echo after > made; for d in / /usr /etc /usr/bin; do \
                  touch $d/x 2>/dev/null && echo wrote $d; done; true";
    let output = shell(&["--workspace", &option], script);
    assert_eq!(text(&output.stdout), format!("{option}\nbefore1234\n1234\n"), "{}", text(&output.stderr));
    let made = std::fs::metadata(workspace.join("made")).expect("made");
    assert_eq!(made.uid(), 1234, "the command runs as the owner of the workspace");
}

#[test]
fn process_is_not_uid_0_on_the_host() {
    hutch_testkit::require!(root);
    let marker = "314159.2653";
    let mut child = hutch(&[], &["sleep", marker]).spawn().expect("hutch starts");
    let uid = || {
        std::fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            (line == format!("sleep\0{marker}\0").as_bytes()).then(|| entry.metadata().ok())?.map(|m| m.uid())
        })
    };
    until("the sleep runs", || uid().is_some());
    let uid = uid().expect("found");
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(uid >= 65536, "uid {uid} outside");
}

#[test]
fn workspace_can_be_read_only() {
    hutch_testkit::require!(user_namespaces);
    let folder = tempfile::tempdir().expect("tempdir");
    let option = folder.path().display().to_string();
    let output =
        shell(&["--workspace", &option, "--read-only"], "touch x 2>/dev/null && echo wrote; echo end");
    assert_eq!(text(&output.stdout), "end\n");
    assert!(!folder.path().join("x").exists());
}

#[test]
fn workspace_without_a_folder_is_empty_and_removed() {
    hutch_testkit::require!(user_namespaces);
    let output = shell(&[], "pwd; ls -A; echo x > file; cat file");
    assert_eq!(text(&output.stdout), "/workspace\nx\n", "{}", text(&output.stderr));
}

#[test]
fn setuid_file_cannot_be_left_in_the_workspace() {
    hutch_testkit::require!(root);
    let folder = tempfile::tempdir().expect("tempdir");
    let option = folder.path().display().to_string();
    shell(
        &["--workspace", &option],
        "cp /usr/bin/true x; chmod 4755 x; chmod u+s,g+s x; install -m 6755 x y",
    );
    for entry in std::fs::read_dir(folder.path()).expect("dir").flatten() {
        assert_eq!(entry.metadata().expect("stat").mode() & 0o6000, 0, "{:?}", entry.file_name());
    }
}

#[test]
fn only_the_named_environment_goes_in() {
    hutch_testkit::require!(user_namespaces);
    let output = hutch(&["--env", "GREETING=hello world"], &["env"])
        .env("A_SECRET", "do-not-show")
        .output()
        .expect("hutch starts");
    let inside = text(&output.stdout);
    assert!(inside.contains("GREETING=hello world\n"), "{inside}");
    assert!(!inside.contains("do-not-show"), "{inside}");
    assert!(inside.contains("PATH=/"), "{inside}");
}

#[test]
fn no_network_but_its_own_loopback() {
    hutch_testkit::require!(python);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    let script = format!(
        "import socket\ntry:\n socket.create_connection(('127.0.0.1', {port}), 60); print('out')\nexcept OSError as error: \
         print(type(error).__name__)\nprint(sorted(n for _, n in socket.if_nameindex()))"
    );
    let output = run(&[], &["python3", "-c", &script]);
    assert_eq!(text(&output.stdout), "ConnectionRefusedError\n['lo']\n", "{}", text(&output.stderr));
}

#[test]
fn sigterm_and_sigint_reach_the_command() {
    hutch_testkit::require!(user_namespaces);
    for (signal, name) in [(rustix::process::Signal::TERM, "TERM"), (rustix::process::Signal::INT, "INT")] {
        let script =
            format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        // A signal that the caller ignores stays ignored inside; a shell ignores SIGINT for tests in the background.
        let mut child = Command::new("env")
            .args(["--default-signal=INT,TERM", HUTCH, "run", "--", "bash", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("hutch starts");
        let mut stdout = child.stdout.take().expect("stdout");
        let mut ready = [0; 6];
        stdout.read_exact(&mut ready).expect("ready");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("kill");
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("the rest");
        assert_eq!(rest, format!("got {name}\n"));
        assert_eq!(wait(child).code(), Some(7));
    }
}

#[test]
fn sigkill_of_hutch_leaves_nothing() {
    hutch_testkit::require!(root);
    let marker = "271828.1828";
    let options = ["--memory", "256Mi", "--pids", "64"];
    let mut child =
        hutch(&options, &["sh", "-c", &format!("sleep {marker} & sleep {marker}")]).spawn().expect("starts");
    until("it runs", || processes(&format!("sleep {marker}")) >= 2);
    let own = format!("run-{}-", child.id());
    assert!(!cgroups(&own).is_empty(), "the limits made a cgroup");
    child.kill().expect("kill -9");
    assert_eq!(child.wait().expect("wait").signal(), Some(9));
    until("its processes are gone", || processes(&format!("sleep {marker}")) == 0);
    until("its cgroup is gone", || cgroups(&own).is_empty());
}

#[test]
fn no_process_inside_outlives_the_run() {
    hutch_testkit::require!(root, user_namespaces);
    let folder = tempfile::tempdir().expect("folder");
    let workspace = ["--workspace", folder.path().to_str().expect("path")];
    let options: [&[&str]; 4] = [&[], &workspace, &["--pids", "100"], &["--json"]];
    for (number, options) in options.into_iter().enumerate() {
        let asleep = format!("sleep 1{number}{}", std::process::id());
        let script = format!("trap '' TERM HUP; setsid {asleep} & {asleep} & sleep 0.1");
        let mut command = hutch(options, &["sh", "-c", &script]);
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(status.expect("hutch run").success(), "{options:?}");
        assert_eq!(processes(&asleep), 0, "{options:?}");
    }
}

#[test]
fn ordinary_user_can_run_jails() {
    hutch_testkit::require!(root, user_namespaces);
    let home = tempfile::tempdir().expect("tempdir");
    let workspace = home.path().join("w");
    std::fs::create_dir(&workspace).expect("mkdir");
    std::os::unix::fs::chown(&workspace, Some(65534), Some(65534)).expect("chown");
    let option = workspace.display().to_string();
    let output =
        as_ordinary_user(home.path(), &["--workspace", &option], &["sh", "-c", "id -u; echo x > made; ls"]);
    assert_eq!(text(&output.stdout), "0\nmade\n", "{}", text(&output.stderr));
    assert_eq!(std::fs::metadata(workspace.join("made")).expect("made").uid(), 65534);
}

#[test]
fn home_that_cannot_be_written_is_named_in_one_line() {
    hutch_testkit::require!(root, user_namespaces);
    let home = tempfile::tempdir().expect("tempdir");
    let binary = home.path().join("hutch");
    hutch_testkit::copy_program(HUTCH, &binary);
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary)
        .args(["run", "--", "true"]);
    command.env("HOME", home.path()).env_remove("XDG_CACHE_HOME").env_remove("XDG_RUNTIME_DIR");
    let output = command.current_dir("/").stdin(Stdio::null()).output().expect("setpriv");
    let folder = home.path().display().to_string();
    refused(&output, 125, &[&folder, "set XDG_CACHE_HOME to a folder that you can write"]);
    assert_eq!(text(&output.stderr).matches("Permission denied").count(), 1, "{}", text(&output.stderr));
}

#[test]
fn limit_that_cannot_be_enforced_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let home = tempfile::tempdir().expect("tempdir");
    for limit in [["--memory", "64Mi"], ["--pids", "10"], ["--cpus", "0.5"]] {
        let output = as_ordinary_user(home.path(), &limit, &["echo", "ran"]);
        refused(&output, 125, &[limit[0].trim_start_matches("--").trim_end_matches('s')]);
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn json_has_the_result() {
    hutch_testkit::require!(user_namespaces);
    let told = json(&shell(&["--json"], "printf out; printf err >&2; exit 3"));
    assert_eq!(told["status"]["code"], 3, "{told}");
    assert_eq!(told["stdout"]["text"], "out", "{told}");
    assert_eq!(told["stderr"]["text"], "err", "{told}");
    assert_eq!(told["reason"], "exited", "{told}");
    assert!(told["wallMillis"].as_f64().is_some_and(|t| t > 0.0), "{told}");
    assert!(told["cpuMillis"].as_f64().is_some(), "{told}");
    assert!(told["peakMemoryBytes"].as_u64().is_some_and(|m| m > 0), "{told}");
    assert_eq!(told["isolation"]["handler"], "hutch", "{told}");
}

#[test]
fn json_marks_truncated_and_binary_output() {
    hutch_testkit::require!(user_namespaces);
    let told = json(&shell(&["--json"], "printf '\\377\\000'; head -c 30000000 /dev/zero >&2"));
    assert_eq!(told["stdout"]["base64"], "/wA=", "{}", told["stdout"]);
    assert_eq!(told["stderr"]["truncated"], true, "{}", told["stderr"]["truncated"]);
    assert_eq!(told["stderr"]["bytes"], 30_000_000);
}

#[test]
fn command_at_a_terminal_has_a_terminal() {
    hutch_testkit::require!(python);
    // Python's pty module plays the terminal: it starts hutch on one of 40 rows and 100 columns, then resizes it.
    let script = r#"
import fcntl, os, pty, signal, struct, sys, termios, time
def size(fd, rows, cols): fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
pid, fd = pty.fork()
if pid == 0:
    size(0, 40, 100)
    os.execv(sys.argv[1], [sys.argv[1], "run", "--", "bash", "-c",
        "trap 'stty size; exit 5' WINCH; test -t 0 && test -t 1 && echo tty; stty size; while :; do sleep 0.05; done"])
seen = b""
resized = False
while True:
    try: data = os.read(fd, 4096)
    except OSError: break
    if not data: break
    seen += data
    if b"40 100" in seen and not resized:
        resized = True
        size(fd, 20, 60)
print(seen.decode().replace("\r\n", "|"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let output = Command::new("python3").args(["-c", script, HUTCH]).output().expect("python");
    assert_eq!(text(&output.stdout), "tty|40 100|20 60| 5\n", "{}", text(&output.stderr));
}

#[test]
fn bad_input_is_one_line_and_125() {
    let cases: [(&[&str], &str); 13] = [
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--memory", "-1"], "`-1` is not a size"),
        (&["--cpus", "-1"], "`-1`"),
        (&["--pids", "x"], "a whole number from 2"),
        (&["--timeout", "0"], "above zero"),
        (&["--memory", "lots"], "--memory"),
        (&["--timeout", "soon"], "--timeout"),
        (&["--env", "novalue"], "--env"),
        (&["--workspace", "/no/such/folder"], "/no/such/folder"),
        (&["--workspace", "/etc/passwd"], "/etc/passwd"),
        (&["--image", "docker.io/library/python:3.12"], "docker.io/library/python:3.12"),
        (&["--rootfs", "/no/such/rootfs"], "/no/such/rootfs"),
        (&["--image", "oci:/no/such/layout"], "/no/such/layout"),
    ];
    for (options, named) in cases {
        refused(&run(options, &["true"]), 125, &[named]);
    }
}
