//! A `hutch up` for one test, kubectl for it, and checks of any run of the program.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The program.
pub(crate) const HUTCH: &str = env!("CARGO_BIN_EXE_hutch");

/// The program under test: `HUTCH_BINARY` from the environment, or the one of this build.
pub(crate) fn binary() -> &'static str {
    static BINARY: LazyLock<String> =
        LazyLock::new(|| std::env::var("HUTCH_BINARY").unwrap_or_else(|_| HUTCH.to_owned()));
    &BINARY
}
/// Puts the program where an ordinary user can execute it. All tests share one copy: each would be a quarter of a gigabyte.
pub(crate) fn link_program(to: impl AsRef<Path>) {
    /// The copy, and a process that removes its folder when this one ends.
    static COPY: LazyLock<(PathBuf, Child)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("tempdir").keep();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&folder, mode).expect("chmod");
        hutch_testkit::copy_program(binary(), folder.join("hutch"));
        let mut remover = Command::new("sh");
        remover
            .args(["-c", "read end; rm -r \"$0\""])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        (folder.join("hutch"), remover.stderr(Stdio::null()).spawn().expect("sh"))
    });
    std::fs::hard_link(&COPY.0, to).expect("a link");
}

/// Executes a program for which the kernel seems to have no nftables.
pub(crate) const WITHOUT_NFTABLES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/without_nftables.py");
/// Long enough for anything that happens at all on a busy machine.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// A running `hutch up`.
pub(crate) struct Up {
    child: Child,
    options: Vec<String>,
    /// Variables of its environment.
    variables: Vec<(String, PathBuf)>,
    folder: tempfile::TempDir,
    data: PathBuf,
    /// Output until `ready`.
    pub(crate) printed: Vec<String>,
}

/// Returns `hutch`, which finds the addresses of the hosts in a file of its folder, if there is one.
fn program(folder: &Path) -> Command {
    let hosts = folder.join("hosts");
    if !hosts.exists() {
        return Command::new(binary());
    }
    let mut unshare = Command::new("unshare");
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    unshare.args(["--mount", "bash", "-c", script, "bash"]).arg(&hosts).arg(binary());
    unshare
}

impl Up {
    /// Starts one in a folder of its own and waits for `ready`.
    pub(crate) fn start(options: &[&str]) -> Up {
        Up::begin(None, options, None)
    }

    /// Starts one with this data folder.
    pub(crate) fn start_on(data: &Path, options: &[&str]) -> Up {
        Up::begin(Some(data), options, None)
    }

    /// Starts one that sees only this folder as its `PATH`.
    pub(crate) fn start_with_path(options: &[&str], path: &Path) -> Up {
        Up::begin(None, options, Some(path))
    }

    /// Starts one that may have so many descriptors.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn start_limited(descriptors: u32) -> Up {
        let folder = tempfile::tempdir().expect("tempdir");
        let data = folder.path().join("data");
        let limit = format!("--nofile={descriptors}:{descriptors}");
        let mut limited = Command::new("prlimit");
        limited.args([&limit, binary()]);
        let (child, printed) = spawn(limited, folder.path(), &data, &[]);
        Up { child, options: Vec::new(), variables: Vec::new(), folder, data, printed }
    }

    /// Starts one that finds the addresses of these hosts, as lines of `/etc/hosts`.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn start_with_hosts(hosts: &str) -> Up {
        Up::start_outside(hosts, &[], &[])
    }

    /// Starts one that reads the memory of the machine in this file, in place of `/proc/meminfo`.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn start_with_meminfo(meminfo: &Path, options: &[&str]) -> Up {
        let folder = tempfile::tempdir().expect("tempdir");
        let (data, proc) = (folder.path().join("data"), folder.path().join("proc"));
        std::fs::create_dir(&proc).expect("a folder");
        // A user namespace can mount `proc` only where one is visible whole.
        let script =
            "mount -t proc proc \"$1\" && mount --bind \"$2\" /proc/meminfo && shift 2 && exec \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "bash", "-c", script, "bash"]).args([&proc, meminfo]).arg(binary());
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (child, printed) = spawn(unshare, folder.path(), &data, &options);
        Up { child, options, variables: Vec::new(), folder, data, printed }
    }

    /// As [`Up::start_with_hosts`], with these variables and options.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn start_outside(hosts: &str, variables: &[(&str, &Path)], options: &[&str]) -> Up {
        let folder = tempfile::tempdir().expect("tempdir");
        let (data, file) = (folder.path().join("data"), folder.path().join("hosts"));
        std::fs::write(&file, hosts).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&file, mode).expect("chmod");
        let mut hutch = program(folder.path());
        let variables: Vec<(String, PathBuf)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_path_buf())).collect();
        hutch.envs(variables.clone());
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (child, printed) = spawn(hutch, folder.path(), &data, &options);
        Up { child, options, variables, folder, data, printed }
    }

    fn begin(data: Option<&Path>, options: &[&str], path: Option<&Path>) -> Up {
        let folder = tempfile::tempdir().expect("tempdir");
        let data = data.map_or_else(|| folder.path().join("data"), Path::to_owned);
        let options: Vec<String> = options.iter().map(|&o| o.to_owned()).collect();
        let mut hutch = Command::new(binary());
        if let Some(path) = path {
            hutch.env("PATH", path);
        }
        let (child, printed) = spawn(hutch, folder.path(), &data, &options);
        Up { child, options, variables: Vec::new(), folder, data, printed }
    }

    /// Starts one for which the kernel seems to have no nftables.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn start_without_nftables() -> Up {
        let folder = tempfile::tempdir().expect("tempdir");
        let data = folder.path().join("data");
        let mut python = Command::new("python3");
        python.arg(WITHOUT_NFTABLES).arg(binary());
        let (child, printed) = spawn(python, folder.path(), &data, &[]);
        Up { child, options: Vec::new(), variables: Vec::new(), folder, data, printed }
    }

    /// Address of its router.
    pub(crate) fn router(&self) -> SocketAddr {
        let line = self.printed.iter().find_map(|line| line.strip_prefix("router"));
        let line = line.expect("where the router listens").trim();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split(' ').next());
        address.and_then(|address| address.parse().ok()).expect("an address")
    }

    /// The folder that holds everything of this one.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.data.clone()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Process id of the root process.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM; its exit status.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("SIGTERM");
        self.wait()
    }

    /// Waits until it has ended by itself; its exit status.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(started.elapsed() < WAIT_LIMIT, "hutch up does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts again on the same folder.
    pub(crate) fn restart(&mut self) {
        let mut hutch = program(self.folder.path());
        hutch.envs(self.variables.clone());
        (self.child, self.printed) = spawn(hutch, self.folder.path(), &self.data, &self.options);
    }

    /// Starts again on the same folder, with further options.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        let options: Vec<String> =
            self.options.iter().cloned().chain(options.iter().map(|&o| o.to_owned())).collect();
        let mut hutch = program(self.folder.path());
        hutch.envs(self.variables.clone());
        (self.child, self.printed) = spawn(hutch, self.folder.path(), &self.data, &options);
    }

    /// Starts again on the same folder, with this `PATH`.
    #[allow(dead_code, reason = "only one of the two test programs uses it")]
    pub(crate) fn restart_on_path(&mut self, path: &str) {
        let mut hutch = program(self.folder.path());
        hutch.envs(self.variables.clone()).env("PATH", path);
        (self.child, self.printed) = spawn(hutch, self.folder.path(), &self.data, &self.options);
    }

    /// kubectl with these words.
    pub(crate) fn kubectl(&self, words: &str) -> Output {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.kubectl_args(&words)
    }

    pub(crate) fn kubectl_args(&self, args: &[&str]) -> Output {
        self.kubectl_command(args).output().expect("kubectl")
    }

    pub(crate) fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.folder())
            .stdin(Stdio::null());
        kubectl
    }

    /// kubectl, which must succeed; what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &str) -> String {
        let output = self.kubectl(words);
        succeeded(words, &output)
    }

    #[track_caller]
    pub(crate) fn ok_args(&self, args: &[&str]) -> String {
        let output = self.kubectl_args(args);
        succeeded(&args.join(" "), &output)
    }

    /// Waits until kubectl prints something for which `holds`.
    #[track_caller]
    pub(crate) fn eventually(&self, words: &str, holds: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let check = Instant::now();
            let output = self.kubectl(words);
            let printed = text(&output.stdout);
            if output.status.success() && holds(&printed) {
                return printed;
            }
            assert!(
                started.elapsed() < WAIT_LIMIT,
                "kubectl {words}: still\n{printed}{}\n{}",
                text(&output.stderr),
                text(&self.kubectl("get pods,sandboxes,sandboxclaims,events -A").stdout)
            );
            std::thread::sleep(hutch_testkit::wait::pause(check));
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.stop();
        }
    }
}

/// Starts the program with `up` and waits for `ready`.
fn spawn(mut hutch: Command, folder: &Path, data: &Path, options: &[String]) -> (Child, Vec<String>) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("log");
    let mut child = hutch
        .arg("up")
        .arg("--data-dir")
        .arg(data)
        .arg("--kubeconfig")
        .arg(folder.join("kubeconfig"))
        // The disk of the machine may be as full as it is.
        .args(if options.iter().any(|option| option == "--snapshot-disk-high") {
            &[][..]
        } else {
            &["--snapshot-disk-high", "100"]
        })
        .args(if options.iter().any(|option| option == "--api-listen") {
            &[][..]
        } else {
            &["--api-listen", "127.0.0.1:0"]
        })
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("hutch starts");
    let mut printed = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("stdout")).lines() {
        printed.push(line.expect("a line"));
        if printed.last().is_some_and(|line| line == "ready") {
            return (child, printed);
        }
    }
    let _ = child.wait();
    let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    panic!("hutch up ended before it was ready: {printed:?}\n{log}");
}

/// Fixture files beside the tests.
pub(crate) fn fixture(name: &str) -> String {
    format!("{}/tests/hutch/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command of hutch for this server.
pub(crate) fn hutch(up: &Up, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).arg("--kubeconfig").arg(up.kubeconfig()).env_clear();
    command.output().expect("hutch")
}

#[track_caller]
pub(crate) fn succeeded(what: &str, output: &Output) -> String {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Returns true if a process of the machine has this text in its command line.
pub(crate) fn running(marker: &str) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    processes.flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| text(&line).replace('\0', " ").contains(marker))
    })
}

/// It must fail with this status and one line on standard error that has these texts.
#[track_caller]
pub(crate) fn refused(output: &Output, status: i32, named: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    for named in named {
        assert!(stderr.contains(named), "{named:?} is not in {stderr:?}");
    }
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr:?}");
}

/// Makes a home one of a user who has read what differs without root.
pub(crate) fn printed_before(home: &Path, user: u32) {
    let mut folder = home.to_owned();
    for name in [".local", "state", "hutch", "printed"] {
        folder.push(name);
        std::fs::create_dir(&folder).expect("made");
        std::os::unix::fs::chown(&folder, Some(user), Some(user)).expect("chown");
    }
    for name in ["without-root-ids", "without-root-mounts", "without-root-proxy", "settings-files"] {
        std::fs::write(folder.join(name), "").expect("written");
    }
}
