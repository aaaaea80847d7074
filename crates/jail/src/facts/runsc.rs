//! Version and features of gVisor's program, `runsc`.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;

/// Names that `runsc flags` may list.
const PLATFORMS: [&str; 3] = ["systrap", "kvm", "ptrace"];
const NETWORKS: [&str; 3] = ["sandbox", "host", "none"];
/// Flags that Hutch gives and that older releases lack.
const FLAGS: [&str; 3] = ["overlay2", "directfs", "ignore-cgroups"];
/// Maximum time that it may take to learn the features.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum output of one start, in bytes. A program that writes more waits until it is killed.
const OUTPUT_BYTES: usize = 1 << 20;
/// Releases that have what Hutch needs.
const NEEDED: &str = "a release from 2024 or later is needed";

/// gVisor's program, `runsc`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Runsc {
    /// Path of the program.
    pub path: PathBuf,
    /// First line of its version output, if it runs.
    pub version: Option<String>,
    /// Platforms that it has.
    pub platforms: Vec<&'static str>,
    /// Network modes that it has.
    pub networks: Vec<&'static str>,
    /// `true` if it can store the state of a container.
    pub checkpoint: bool,
    /// Reason why Hutch cannot use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Runsc {
    /// Returns the path of the first program `runsc` on the search path of this process.
    pub fn find() -> Option<PathBuf> {
        find_in(&std::env::var_os("PATH")?)
    }

    /// Starts the program to learn its version and features. Blocks, for ten seconds at most.
    pub fn probe(path: PathBuf) -> Runsc {
        Runsc::probe_within(path, TIMEOUT)
    }

    fn probe_within(path: PathBuf, time: Duration) -> Runsc {
        let until = Instant::now() + time;
        let output = |argument: &str| {
            output(&path, argument, until).map_err(|error| format!("{} {argument}: {error}", path.display()))
        };
        let outputs = output("--version").and_then(|version| Ok((version, output("flags")?)));
        let (version, flags) = match outputs {
            Ok(outputs) => outputs,
            Err(problem) => {
                let (platforms, networks) = (Vec::new(), Vec::new());
                let problem = Some(problem);
                return Runsc { version: None, platforms, networks, checkpoint: false, problem, path };
            }
        };
        let version = version.lines().next().unwrap_or_default();
        let version = version.strip_prefix("runsc version ").unwrap_or(version).trim();
        let commands = output("help").unwrap_or_default();
        let listed = |flag: &str, names: &[&'static str]| {
            let words: Vec<&str> = help_of(&flags, flag).unwrap_or_default().split(is_separator).collect();
            names.iter().copied().filter(|name| words.contains(name)).collect()
        };
        let mut runsc = Runsc {
            version: Some(version.to_owned()),
            platforms: listed("platform", &PLATFORMS),
            networks: listed("network", &NETWORKS),
            checkpoint: commands.lines().any(|line| line.split_whitespace().next() == Some("checkpoint")),
            problem: None,
            path,
        };
        runsc.problem = runsc.find_problem(&flags);
        runsc
    }

    fn find_problem(&self, flags: &str) -> Option<String> {
        let (path, version) = (self.path.display(), self.version.as_deref().unwrap_or_default());
        let platform = (!self.platforms.contains(&"systrap")).then_some("platform systrap");
        let network = (!self.networks.contains(&"host")).then_some("network host");
        let mut missing: Vec<String> = platform.into_iter().chain(network).map(str::to_owned).collect();
        let lacking = FLAGS.iter().filter(|flag| help_of(flags, flag).is_none());
        missing.extend(lacking.map(|flag| format!("flag --{flag}")));
        (!missing.is_empty())
            .then(|| format!("{path} ({version}) is too old: it has no {}; {NEEDED}", missing.join(", no ")))
    }
}

fn is_separator(c: char) -> bool {
    !c.is_ascii_alphanumeric()
}

/// Returns the first program `runsc` on a search path. Relative folders do not count: they depend on the working directory, in
/// which code of a jail may have written.
fn find_in(path: &OsStr) -> Option<PathBuf> {
    let executable = |file: &PathBuf| file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok();
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join("runsc")).find(executable)
}

/// Returns the output of the program if it succeeds. It is killed at that time.
fn output(program: &Path, argument: &str, until: Instant) -> io::Result<String> {
    let ((out, out_end), (err, err_end)) = (io::pipe()?, io::pipe()?);
    for pipe in [&out, &err] {
        // The output has to fit in, because it is read at the end. If this is refused, the size is 64 KiB.
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, OUTPUT_BYTES);
        // A process that the program left behind may have the other end.
        rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK)?;
    }
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(out_end).stderr(err_end).process_group(0);
    let mut child = command.spawn()?;
    drop(command);
    let status = wait(&mut child, until)?;
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    let mut both = Vec::new();
    for pipe in [out, err] {
        match pipe.take(OUTPUT_BYTES as u64).read_to_end(&mut both) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
    Ok(String::from_utf8_lossy(&both).into_owned())
}

/// Waits until a process has ended, and kills it with its process group at that time.
fn wait(child: &mut Child, until: Instant) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty()).and_then(|process| {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| rustix::io::Errno::INVAL)?;
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return ready.map(|ready| ready > 0),
            }
        }
    });
    if matches!(ended, Ok(true)) {
        return child.wait();
    }
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    child.wait()?;
    ended?;
    Err(io::Error::new(io::ErrorKind::TimedOut, "does not end, and was killed"))
}

/// Returns the description of a flag in the output of `runsc flags`.
fn help_of<'a>(flags: &'a str, flag: &str) -> Option<&'a str> {
    let mut lines = flags.lines();
    let name = |line: &str| line.trim().strip_prefix('-')?.split(' ').next().map(str::to_owned);
    lines.find(|line| name(line).as_deref() == Some(flag))?;
    Some(lines.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a program that answers as `runsc` with these flags.
    fn program(folder: &Path, flags: &str) -> PathBuf {
        let path = folder.join("runsc");
        let text = format!(
            "#!/bin/sh\ncase $1 in\n--version) echo runsc version release-1; echo spec: 1;;\n\
             flags) cat <<'EOF'\n{flags}\nEOF\n;;\nhelp) printf '\\tcheckpoint  stores\\n';;\n*) exit 1;;\nesac\n"
        );
        std::fs::write(&path, text).unwrap();
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_runsc_that_does_not_run_has_no_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runsc");
        assert!(find_in(folder.path().as_os_str()).is_none());
        std::fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
        assert!(find_in(folder.path().as_os_str()).is_none(), "not executable");
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let broken = Runsc::probe(find_in(folder.path().as_os_str()).unwrap());
        assert_eq!(broken.version, None);
        assert!(broken.problem.unwrap().ends_with("/runsc --version: exit status: 1"));
    }

    #[test]
    fn a_runsc_that_does_not_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runsc");
        std::fs::write(&path, "#!/bin/sh\nexec sleep 1000000\n").unwrap();
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        // It returns after the process was reaped.
        let problem = Runsc::probe_within(path, Duration::from_millis(50)).problem.unwrap();
        assert!(problem.ends_with("/runsc --version: does not end, and was killed"), "{problem}");
    }

    #[test]
    fn output_of_a_process_that_stays_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runsc");
        std::fs::write(&path, "#!/bin/sh\necho x\nsleep 1000 &\necho $! >&2\n").unwrap();
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let text = output(&path, "flags", Instant::now() + TIMEOUT).unwrap();
        let (first, pid) = text.trim().split_once('\n').unwrap();
        assert_eq!(first, "x");
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn runsc_of_2022_is_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let flags = "  -ignore-cgroups\n\tdon't configure cgroups.\n  -network value\n\
                     \tspecifies which network to use: sandbox (default), host, none.\n\
                     \x20 -platform string\n\tspecifies which platform to use: ptrace (default), kvm. (default \"ptrace\")";
        let runsc = Runsc::probe(program(folder.path(), flags));
        assert_eq!(runsc.platforms, ["kvm", "ptrace"]);
        let problem = runsc.problem.unwrap();
        assert!(
            problem.contains("(release-1) is too old: it has no platform systrap, no flag --overlay2"),
            "{problem}"
        );
        assert!(problem.ends_with("a release from 2024 or later is needed"), "{problem}");
    }

    #[test]
    fn runsc_with_all_that_is_needed_has_no_problem() {
        let folder = tempfile::tempdir().unwrap();
        let flags = "  -directfs\n\tx\n  -ignore-cgroups\n\tx\n  -overlay2 value\n\tx\n  -network value\n\
                     \twhich network to use: sandbox (default), host, none. Using it\n\
                     \x20 -platform string\n\twhich platform to use: systrap (default), ptrace, kvm. (default \"systrap\")";
        let runsc = Runsc::probe(program(folder.path(), flags));
        assert_eq!(runsc.problem, None);
        assert_eq!((runsc.version.as_deref(), runsc.checkpoint), (Some("release-1"), true));
        assert_eq!(runsc.networks, NETWORKS);
        assert_eq!(runsc.platforms, PLATFORMS);
    }
}
