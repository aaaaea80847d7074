//! Files of the host under `/usr`: nothing inside owns them, and locks, leases and watches do not reach them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Up, binary, text};
use crate::ordinary::{Caller, Place, apply};

/// A folder below `/usr` with files of root, removed at the end.
struct Planted(PathBuf);

impl Planted {
    fn new(name: &str) -> Planted {
        let folder = PathBuf::from(format!("/usr/local/share/hutch-test-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("folder");
        fs::write(folder.join("public"), "public\n").expect("write");
        fs::write(folder.join("secret"), "LEAKED\n").expect("write");
        fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600)).expect("mode");
        Planted(folder)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Attacks on the planted files; prints one word for each that does not work.
const SCRIPT: &str = r"
import fcntl, os, socket, sys
folder = sys.argv[1]
def tried(name, attack):
    try:
        attack()
        print(name, 'WORKED')
    except OSError as error:
        print(name, error.strerror)
public = os.open(folder + '/public', os.O_RDONLY)
tried('lease', lambda: fcntl.fcntl(public, 1024, fcntl.F_WRLCK))
tried('read-lease', lambda: fcntl.fcntl(public, 1024, fcntl.F_RDLCK))
tried('notify', lambda: fcntl.fcntl(os.open(folder, os.O_RDONLY), 1026, 1))
tried('secret', lambda: open(folder + '/secret').read())
tried('socket', lambda: socket.socket(socket.AF_UNIX).connect(folder + '/socket'))
owner = os.stat(folder + '/public').st_uid
print('owner', 'WORKED' if owner == os.getuid() else 'another')
fcntl.flock(public, fcntl.LOCK_EX)
print('locked', flush=True)
sys.stdin.readline()
";

/// Runs the attacks and, while the lock is held inside, takes it outside.
fn attack(mut command: Command, planted: &Planted) -> String {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut printed = String::new();
    for line in BufReader::new(child.stdout.take().expect("stdout")).lines() {
        let line = line.expect("line");
        let over = line == "locked";
        printed += &format!("{line}\n");
        if over {
            break;
        }
    }
    let lock = fs::File::open(planted.0.join("public")).expect("open");
    printed += if lock.try_lock().is_ok() { "flock stays inside\n" } else { "flock WORKED\n" };
    child.stdin.take().expect("stdin").write_all(b"\n").expect("write");
    child.wait().expect("wait");
    printed
}

#[test]
fn files_of_the_host_are_not_owned_or_locked_from_inside() {
    hutch_testkit::require!(root, user_namespaces, python);
    let planted = Planted::new("run");
    let _socket = std::os::unix::net::UnixListener::bind(planted.0.join("socket")).expect("bind");
    fs::set_permissions(planted.0.join("socket"), fs::Permissions::from_mode(0o777)).expect("mode");
    let place = Place::new();
    fs::write(place.path().join("script"), SCRIPT).expect("write");
    for caller in [Caller::Root, Caller::Ordinary] {
        let command =
            place.program(caller, &["run", "--", "python3", "-c", SCRIPT, &planted.0.display().to_string()]);
        let printed = attack(command, &planted);
        assert!(!printed.contains("WORKED") && printed.contains("stays inside"), "{caller:?}: {printed}");
    }
}

#[test]
fn files_of_the_host_are_not_owned_or_locked_from_a_pod() {
    hutch_testkit::require!(root, kubectl, python);
    let planted = Planted::new("pod");
    let up = Up::start(&[]);
    apply(
        &up,
        &serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "hutch/python-runtime"}]}}),
    );
    up.ok("wait --for=condition=Ready pod/p --timeout=60s");
    let folder = planted.0.display().to_string();
    let command = up.kubectl_command(&["exec", "-i", "p", "--", "python3", "-c", SCRIPT, &folder]);
    let printed = attack(command, &planted);
    assert!(!printed.contains("WORKED") && printed.contains("stays inside"), "{printed}");
}

#[test]
fn core_size_set_inside_has_no_effect_and_reports_success() {
    hutch_testkit::require!(root, user_namespaces, python);
    let script = "import resource as r; before = r.getrlimit(r.RLIMIT_CORE); r.setrlimit(r.RLIMIT_CORE, (0, 0)); \
                  print(before == r.getrlimit(r.RLIMIT_CORE), before)";
    let place = Place::new();
    for caller in [Caller::Root, Caller::Ordinary] {
        let mut command = place.program(caller, &["run", "--", "python3", "-c", script]);
        let output = command.output().expect("hutch run");
        assert_eq!(text(&output.stdout), "True (1, 1)\n", "{caller:?}: {output:?}");
    }
}

#[test]
fn whole_machine_as_rootfs_or_workspace_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    for path in ["/", "/proc/self/root", "/usr/..", "/mnt"] {
        for option in ["--rootfs", "--workspace"] {
            // The other name of the root is there for this one command only.
            let script = "mount --bind / /mnt && exec \"$0\" run \"$1\" \"$2\" -- cat /etc/shadow";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, binary(), option, path]);
            let output = command.output().expect("unshare");
            let printed = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{option} {path}: {output:?}");
            let link = path == "/proc/self/root" && printed.contains("symbolic link");
            assert!(link || option != "--rootfs" || printed.contains("--image hutch/host"), "{printed}");
        }
    }
}
