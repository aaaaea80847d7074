//! Version and features of gVisor's program, `runsc`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::Access;
use serde::Serialize;

/// Names that `runsc flags` may list.
const PLATFORMS: [&str; 3] = ["systrap", "kvm", "ptrace"];
const NETWORKS: [&str; 3] = ["sandbox", "host", "none"];
/// Flags that Hutch gives and that older releases lack.
const FLAGS: [&str; 3] = ["overlay2", "directfs", "ignore-cgroups"];
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
    /// Returns the first `runsc` on a path with its features.
    pub(super) fn find(path: &OsStr) -> Option<Runsc> {
        let executable = |file: &PathBuf| file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok();
        std::env::split_paths(path).map(|folder| folder.join("runsc")).find(executable).map(Runsc::probe)
    }

    /// Starts the program to learn its version and features. Blocks.
    pub fn probe(path: PathBuf) -> Runsc {
        let version = output(&path, "--version").map(|text| {
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("runsc version ").unwrap_or(line).trim().to_owned()
        });
        let flags = version.as_ref().and_then(|_| output(&path, "flags")).unwrap_or_default();
        let commands = version.as_ref().and_then(|_| output(&path, "help")).unwrap_or_default();
        let listed = |flag: &str, names: &[&'static str]| {
            let words: Vec<&str> = help_of(&flags, flag).unwrap_or_default().split(is_separator).collect();
            names.iter().copied().filter(|name| words.contains(name)).collect()
        };
        let mut runsc = Runsc {
            version,
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
        let path = self.path.display();
        let Some(version) = &self.version else { return Some(format!("{path} does not run")) };
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

/// Returns the output of the program if it succeeds.
fn output(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    let both = [output.stdout, output.stderr].concat();
    output.status.success().then(|| String::from_utf8_lossy(&both).into_owned())
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
        assert!(Runsc::find(folder.path().as_os_str()).is_none());
        std::fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
        assert!(Runsc::find(folder.path().as_os_str()).is_none(), "not executable");
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let broken = Runsc::find(folder.path().as_os_str()).unwrap();
        assert_eq!(broken.version, None);
        assert!(broken.problem.unwrap().ends_with("does not run"));
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
