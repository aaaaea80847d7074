//! Programs of others outside a sandbox: servers of tests, and clients that run without a jail as a control.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hutch_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{succeeded, text};

/// User that runs servers. The machine need not have it.
pub(crate) const USER: u32 = 1000;

/// A program that ends with this.
pub(crate) struct Peer {
    child: Child,
    log: PathBuf,
}

impl Peer {
    /// Starts a program, with its output in this file.
    pub(crate) fn start(mut command: Command, log: &Path) -> Peer {
        let file = std::fs::File::create(log).expect("a log");
        let error = file.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(error).spawn().expect("a program");
        Peer { child, log: log.to_owned() }
    }

    /// Process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns what it printed.
    pub(crate) fn printed(&self) -> String {
        text(&std::fs::read(&self.log).unwrap_or_default())
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub(crate) fn printed_until(&mut self, part: &str) {
        until(part, || {
            let printed = self.printed();
            let ended = self.child.try_wait().expect("wait");
            assert!(ended.is_none() || printed.contains(part), "{ended:?} without {part:?}: {printed}");
            printed.contains(part)
        });
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Servers with processes of their own end these first.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        for _ in 0..500 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command in a mount namespace, in which these files stand at these paths.
pub(crate) fn with_files(files: &[(&Path, &str)], uid: Option<u32>) -> Command {
    let script = "while [ \"$1\" != -- ]; do mount --bind \"$1\" \"$2\"; shift 2; done; shift; exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "bash", "-euc", script, "bash"]);
    for (file, path) in files {
        unshare.arg(file).arg(path);
    }
    unshare.arg("--");
    if let Some(uid) = uid {
        unshare.arg("setpriv").arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
        unshare.arg("--clear-groups");
    }
    unshare
}

/// Makes a folder that [`USER`] owns.
pub(crate) fn folder(path: &Path) {
    std::fs::create_dir_all(path).expect("a folder");
    std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("chown");
}

/// Copies the programs of tunnels into this folder, where every user can run them. Returns the `env` command that does.
///
/// Inside a jail they need the folder at the same path.
pub(crate) fn tunnel_programs(into: &Path) -> Vec<String> {
    std::fs::create_dir_all(into).expect("a folder");
    for name in hutch_testkit::TUNNELS {
        let program = hutch_testkit::tool(name).expect("a program").canonicalize().expect("a path");
        hutch_testkit::copy_program(&program, into.join(name));
        // Unpacked beside the programs; without them, they are those of the machine.
        let libraries = program.parent().and_then(Path::parent).expect("a folder").join("lib");
        let script = "[ \"$1\" = /usr/lib ] || find \"$1\" -name '*.so*' -exec cp -L {} \"$2\" \\;";
        let mut find = Command::new("bash");
        find.args(["-euc", script, "bash"]).arg(&libraries).arg(into);
        succeeded("find", &find.output().expect("bash"));
    }
    let path = into.display();
    [
        "env".to_owned(),
        format!("LD_LIBRARY_PATH={path}"),
        format!("PATH={path}:/usr/sbin:/usr/bin:/sbin:/bin"),
    ]
    .to_vec()
}

/// Options of a client of [`sshd`].
pub(crate) const SSH_OPTIONS: &str =
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes -o BatchMode=yes";

/// A server of SSH for the user `user`, at these ports of an address. Returns the command and the key of the user.
///
/// The programs of [`tunnel_programs`] are in `tools` of the folder, and the key too.
pub(crate) fn sshd(site: &Path, address: &str, ports: &[u16]) -> (Command, String) {
    let (home, tools) = (site.join("ssh"), site.join("tools"));
    folder(&home);
    for (path, readable) in [(home.join("host"), 0o600), (tools.join("key"), 0o644)] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path);
        succeeded("ssh-keygen", &keygen.output().expect("ssh-keygen"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(readable);
        std::fs::set_permissions(&path, mode).expect("chmod");
        std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("chown");
    }
    let ports: String = ports.iter().map(|port| format!("Port {port}\n")).collect();
    let settings = format!(
        "ListenAddress {address}\n{ports}HostKey {}\nPidFile none\nUsePAM no\nStrictModes no\nAuthorizedKeysFile {}\n",
        home.join("host").display(),
        tools.join("key.pub").display()
    );
    std::fs::write(site.join("sshd.conf"), settings).expect("written");
    // For a user that is not root, sshd needs no account of its own.
    let mut command = with_files(&[(&passwd(site), "/etc/passwd")], Some(USER));
    command.arg("env").arg(format!("LD_LIBRARY_PATH={}", tools.display())).arg(tools.join("sshd"));
    command.args(["-D", "-e", "-f"]).arg(site.join("sshd.conf"));
    (command, tools.join("key").display().to_string())
}

/// Writes a list of users with [`USER`], and returns its path.
pub(crate) fn passwd(site: &Path) -> PathBuf {
    let users = format!("root:x:0:0::/:/bin/sh\nuser:x:{USER}:{USER}::{}:/bin/sh\n", site.display());
    let path = site.join("passwd");
    std::fs::write(&path, users).expect("written");
    path
}

/// Returns a port of this address that no program has.
pub(crate) fn free_port(address: &str) -> u16 {
    let listener = std::net::TcpListener::bind((address, 0)).expect("bind");
    listener.local_addr().expect("an address").port()
}

/// Makes a certificate of these names that is its own authority, in `cert.pem` and `key.pem`.
pub(crate) fn certificate(folder: &Path, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let mut openssl = Command::new("openssl");
    openssl.args(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test".split(' '),
    );
    openssl.args(["-addext", &format!("subjectAltName={}", names.join(","))]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(folder);
    succeeded("openssl", &openssl.output().expect("openssl"));
    for file in ["key.pem", "cert.pem"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(folder.join(file), mode).expect("chmod");
    }
}
