//! Makes jails for tests: the machine's own `/usr` under a fresh root, the probe at `/probe`.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hutch_jail::attack::Attack;
use hutch_jail::{
    Capabilities, Ids, Jail, Limits, Mount, MountSource, Network, NetworkPlan, Process, Profile, Root, Spec,
    Upper, User, Warden,
};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;

/// The program that launches and attacks.
pub(crate) const PROBE: &str = env!("CARGO_BIN_EXE_hutch-jail-probe");
/// The warden.
pub(crate) const WARDEN: &str = env!("CARGO_BIN_EXE_hutch-warden");
/// First id outside of the jails here.
pub(crate) const BASE: u32 = 0x2000_0000;
/// Uid of the ordinary user; root changes to it.
pub(crate) fn ordinary() -> u32 {
    let own = rustix::process::geteuid();
    if own.is_root() { 65534 } else { own.as_raw() }
}

/// The launching user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The user that runs the tests: root.
    Root,
    /// An ordinary user.
    Ordinary,
}

/// A root for jails, and a description to change before a launch.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) caller: Caller,
    pub(crate) spec: Spec,
    /// A file that the launcher holds open.
    pub(crate) leak: Option<String>,
    /// The controlling terminal of the launcher.
    pub(crate) terminal: Option<PathBuf>,
}

/// Result of a launch.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) error: Option<String>,
    pub(crate) ended: Option<String>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) landlock: bool,
    pub(crate) keyring: i64,
}

impl Report {
    /// Finding of the attempt: its line, or its exit status when it printed none.
    pub(crate) fn found(&self) -> String {
        if let Some(error) = &self.error {
            return format!("not launched: {error}");
        }
        match self.stdout.trim() {
            "" => format!("{} {}", self.ended.as_deref().unwrap_or(""), self.stderr.trim()).trim().to_owned(),
            line => line.to_owned(),
        }
    }
}

impl Bench {
    pub(crate) fn new(caller: Caller) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = folder.path().join("root");
        for name in ["usr", "proc", "dev", "tmp", "etc", "work", "sys"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("probe"), "").unwrap();
        let work = folder.path().join("work");
        fs::create_dir(&work).unwrap();
        let owner = match caller {
            Caller::Root => None,
            Caller::Ordinary => Some(ordinary()),
        };
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&work, owner, owner).unwrap();
        }
        let bind = |source: &Path, target: &str, read_only| Mount {
            source: MountSource::Bind(source.to_owned()),
            target: target.into(),
            read_only,
        };
        let host = MountSource::Host { folder: "/usr".into(), file: None };
        let mut mounts = vec![
            Mount { source: host, target: "/usr".into(), read_only: true },
            bind(Path::new(PROBE), "/probe", true),
            bind(&work, "/work", false),
        ];
        for name in ["bin", "sbin", "lib", "lib64"] {
            let outside = Path::new("/").join(name);
            match fs::read_link(&outside) {
                Ok(target) => symlink(target, root.join(name)).unwrap(),
                Err(_) if outside.is_dir() => {
                    fs::create_dir(root.join(name)).unwrap();
                    mounts.push(bind(&outside, &format!("/{name}"), true));
                }
                Err(_) => {}
            }
        }
        mounts.push(Mount {
            source: MountSource::Tmpfs { bytes: 16 << 20, mode: 0o1777 },
            target: "/tmp".into(),
            read_only: false,
        });
        let spec = Spec {
            id: "probe".into(),
            hostname: "inside".into(),
            profile: Profile::Native,
            root: Root { layers: vec![root], upper: Upper::ReadOnly },
            mounts,
            ids: match caller {
                Caller::Root => Ids::Range { base: BASE },
                Caller::Ordinary => Ids::Caller,
            },
            network: Network::New(NetworkPlan::closed(vec!["10.89.7.7".parse().unwrap()])),
            capabilities: Capabilities::NONE,
            limits: Limits::default(),
            deny_set_id_bits: true,
            links: vec![],
            files: hutch_jail::FileRules::default(),
            runtime_root: None,
            freezable: false,
        };
        Bench { folder, caller, spec, leak: None, terminal: None }
    }

    /// Without what `Profile::Native` protects.
    pub(crate) fn unprotected() -> Bench {
        let mut bench = Bench::new(Caller::Root);
        bench.spec.profile = Profile::Runtime;
        bench.spec.mounts = Vec::new();
        bench.spec.deny_set_id_bits = false;
        bench
    }

    pub(crate) fn work(&self) -> std::path::PathBuf {
        self.folder.path().join("work")
    }

    /// The attempt of a row of the table; paths in it are the jail's.
    pub(crate) fn attempt(&self, words: &[String]) -> Report {
        let mut argv = vec![self.probe(), "attempt".to_owned()];
        argv.extend(words.iter().cloned());
        self.launch(&argv)
    }

    /// All these attacks in one jail; what each found.
    pub(crate) fn attempts(&self, attacks: &[Attack]) -> Vec<String> {
        let mut argv = vec![self.probe(), "attempts".to_owned()];
        argv.extend(attacks.iter().map(|attack| attack.attempt.clone()));
        let report = self.launch(&argv);
        let lines: Vec<&str> = report.stdout.lines().collect();
        assert_eq!(lines.len(), attacks.len(), "{report:?}");
        let answer = |(line, attack): (&&str, &Attack)| {
            let (attempt, found) = line.split_once('\t').unwrap_or_default();
            assert_eq!(attempt, attack.attempt);
            found.to_owned()
        };
        lines.iter().zip(attacks).map(answer).collect()
    }

    /// A folder for what is planted on the host.
    pub(crate) fn planted(&self) -> PathBuf {
        let folder = self.folder.path().join("planted");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Where the probe is, for a process of the jail.
    fn probe(&self) -> String {
        if self.spec.profile == Profile::Native { "/probe".to_owned() } else { PROBE.to_owned() }
    }

    pub(crate) fn launch(&self, argv: &[String]) -> Report {
        self.launch_as(argv, 0)
    }

    /// Launches a process of this user and group.
    pub(crate) fn launch_as(&self, argv: &[String], id: u32) -> Report {
        let mut command = Command::new(PROBE);
        command.arg("launch");
        let process = Process { user: User { uid: id, gid: id, groups: Vec::new() }, ..process(argv) };
        let output = self.feed(command, &self.spec, &process).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?} ({:?})", output.status))
    }

    /// Launches the jail through a warden, in a namespace of the plan of its network.
    pub(crate) fn in_warden(&self, warden: &Warden) -> Result<Jail, hutch_jail::Error> {
        let plan = match &self.spec.network {
            Network::New(plan) => plan.clone(),
            Network::Join => NetworkPlan::default(),
        };
        let network = warden.network(&plan)?;
        warden.launch(&Spec { network: Network::Join, ..self.spec.clone() }, network.namespace.as_fd())
    }

    /// Starts the launcher and does not wait for it.
    pub(crate) fn start(&self, argv: &[String]) -> Child {
        let mut command = Command::new(PROBE);
        command.arg("launch");
        self.feed(command, &self.spec, &process(argv))
    }

    /// Starts a process that makes a jail through a warden and holds it until it is killed itself.
    pub(crate) fn hold(&self, argv: &[String]) -> Child {
        let mut command = Command::new(PROBE);
        command.arg("hold").arg(WARDEN).arg(self.folder.path().join("state"));
        let spec = Spec { network: Network::Join, ..self.spec.clone() };
        self.feed(command, &spec, &process(argv))
    }

    fn feed(&self, mut command: Command, spec: &Spec, process: &Process) -> Child {
        let job = json!({ "spec": spec, "process": process, "timeout_ms": 60_000, "leak": self.leak });
        if let Some(terminal) = &self.terminal {
            control_by(&mut command, terminal);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        if self.caller == Caller::Ordinary && rustix::process::geteuid().is_root() {
            command.uid(ordinary()).gid(ordinary());
        }
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
        child
    }
}

/// A process of a jail.
pub(crate) fn process(argv: &[String]) -> Process {
    Process {
        argv: argv.to_vec(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: "/".into(),
        terminal: false,
        user: User::default(),
    }
}

/// The attempt with no jail at all, by a process that holds a folder.
pub(crate) fn outside(words: &[String]) -> String {
    let folder = fs::File::open("/").unwrap();
    let output = Command::new(PROBE).arg("attempt").args(words).stdin(folder).output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if line.is_empty() { format!("{:?}", output.status) } else { line }
}

/// Makes a terminal the controlling one of a command.
pub(crate) fn control_by(command: &mut Command, terminal: &Path) {
    let terminal = fs::File::options().read(true).write(true).open(terminal).unwrap();
    // SAFETY: two system calls, with a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 || libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Words of an attempt.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
