//! Input of gVisor's `runsc`: its command line and the OCI bundle of one container. Pods and `hutch run` share it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hutch_jail::{Capabilities, Limits, Mount, MountSource, User};
use serde_json::{Value, json};

/// Memory of runsc itself beside the container, for its sentry and gofer, in bytes.
const OVERHEAD_BYTES: u64 = 128 << 20;
/// Threads of the sentry, the gofer and the stubs.
const OVERHEAD_PIDS: u64 = 512;

/// Path, inode and time of a program.
type Version = Option<(PathBuf, u64, i64)>;

/// Result of a probe.
struct Probed {
    version: Version,
    /// `true` if the program ran, so that its features are known.
    runs: bool,
    problem: Option<String>,
    /// End of the probe.
    at: Instant,
}

/// The program.
#[derive(Debug, Clone)]
pub struct Runsc(PathBuf);

impl Runsc {
    /// Finds `runsc` on the search path of this process.
    pub fn find() -> Option<Runsc> {
        hutch_jail::facts::Runsc::find().map(Runsc)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns why Hutch cannot use it. The program is started until its features are known, and again after it was replaced.
    /// Blocks, for twice the time of a probe at most.
    pub fn problem(&self) -> Option<String> {
        static KNOWN: Mutex<Option<Probed>> = Mutex::new(None);
        let version =
            std::fs::metadata(&self.0).ok().map(|found| (self.0.clone(), found.ino(), found.mtime()));
        let begun = Instant::now();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure to start is only the result of those that waited meanwhile.
        let holds = |probed: &&Probed| {
            version.is_some() && probed.version == version && (probed.runs || probed.at >= begun)
        };
        if let Some(probed) = known.as_ref().filter(holds) {
            return probed.problem.clone();
        }
        let found = hutch_jail::facts::Runsc::probe(self.0.clone());
        let (runs, problem) = (found.version.is_some(), found.problem);
        *known = Some(Probed { version, runs, problem: problem.clone(), at: Instant::now() });
        problem
    }

    /// Finds `runsc`, if Hutch can use it. The error is the reason why not. Blocks.
    pub(crate) fn usable() -> Result<(), String> {
        let found = Runsc::find().ok_or("no program runsc is on the PATH of this machine")?;
        found.problem().map_or(Ok(()), Err)
    }

    /// Its command line: the network of "its host" is that of the jail around it, which holds nothing but `lo` (with a
    /// network stack of its own, no connection could be opened from inside the namespace), and the jail's cgroup is its
    /// bound.
    pub fn argv(&self, state: &Path, rest: &[&str]) -> Vec<String> {
        let state = state.display().to_string();
        let program = self.0.display().to_string();
        let fixed = [
            program.as_str(),
            "--root",
            &state,
            "--network=host",
            "--ignore-cgroups",
            "--platform=systrap",
            "--overlay2=none",
            // Else the sandbox renames and removes by itself, in whose mount namespace the mounts that protect parts of
            // a folder are not: see `makers`.
            "--directfs=false",
        ];
        fixed.iter().chain(rest).map(|text| (*text).to_owned()).collect()
    }

    /// The container's limits and what runsc needs beside.
    pub fn limits(container: Limits) -> Limits {
        Limits {
            cpu_millis: container.cpu_millis,
            memory_bytes: container.memory_bytes.map(|bytes| bytes.saturating_add(OVERHEAD_BYTES)),
            pids: container.pids.map(|count| count.saturating_add(OVERHEAD_PIDS)),
        }
    }
}

/// A container, as its bundle describes it.
#[derive(Debug, Clone)]
pub struct Bundle<'a> {
    /// Root file system, on the machine.
    pub rootfs: &'a Path,
    /// `true` if the root cannot be written.
    pub read_only: bool,
    /// Host name inside.
    pub hostname: &'a str,
    /// Program and arguments.
    pub argv: &'a [String],
    /// The whole environment.
    pub env: &'a [(String, String)],
    /// Working directory inside.
    pub cwd: &'a Path,
    /// User that it runs as.
    pub user: &'a User,
    /// Capabilities of user 0, in gVisor's kernel.
    pub capabilities: Capabilities,
    /// `true` if it has a terminal.
    pub terminal: bool,
    /// Further mounts.
    pub mounts: &'a [Mount],
    /// The folder in which the jail around runsc puts together what is mounted; see [`mounts_around`].
    pub assembly: &'a Path,
}

/// Program that makes a mount of a container.
enum Maker {
    /// runsc alone.
    Runsc,
    /// The jail around runsc makes it at this path, and the bundle lists it.
    Both(PathBuf),
    /// The jail makes it at this path, which lies in an earlier mount that the bundle lists.
    Jail(PathBuf),
}

/// Divides the making of mounts between runsc and the jail around it.
///
/// runsc looks paths up by name, as root, and makes mount points that are missing, while code of other containers may
/// write on the way to them. So the jail mounts every file and folder below `assembly`, where that code cannot reach,
/// with all that lies in it; and runsc is given that.
#[expect(clippy::disallowed_methods, reason = "the jail looks up what lies in a mount without leaving it")]
fn makers<'a>(mounts: &'a [Mount], assembly: &Path) -> Vec<(&'a Mount, Maker)> {
    let mut wholes: Vec<(&Path, PathBuf)> = Vec::new();
    let divide = mounts.iter().enumerate().map(|(number, mount)| {
        let above = wholes.iter().find_map(|(target, place)| {
            let rest = mount.target.strip_prefix(target).ok()?;
            // Over a file, a path that ends in a slash would not be found.
            Some(if rest == Path::new("") { place.clone() } else { place.join(rest) })
        });
        let maker = match (above, &mount.source) {
            (Some(place), _) => Maker::Jail(place),
            (None, MountSource::Tmpfs { .. }) => Maker::Runsc,
            (None, _) => {
                let place = assembly.join(number.to_string());
                wholes.push((&mount.target, place.clone()));
                Maker::Both(place)
            }
        };
        (mount, maker)
    });
    divide.collect()
}

/// Returns the mounts that runsc makes of what the jail has: the path inside, and the path in the jail.
pub(crate) fn shown(mounts: &[Mount], assembly: &Path) -> Vec<(PathBuf, PathBuf)> {
    let both = makers(mounts, assembly).into_iter().filter_map(|(mount, maker)| match maker {
        Maker::Both(place) => Some((mount.target.clone(), place)),
        Maker::Runsc | Maker::Jail(_) => None,
    });
    both.collect()
}

/// Returns the mounts of a container that the jail around runsc makes, in order.
pub fn mounts_around(mounts: &[Mount], assembly: &Path) -> Vec<Mount> {
    let around = makers(mounts, assembly).into_iter().filter_map(|(mount, maker)| {
        let target = match maker {
            Maker::Runsc => return None,
            Maker::Both(target) | Maker::Jail(target) => target,
        };
        let source = match &mount.source {
            // runsc keeps locks and watches from reaching the machine, so there is no need for an overlay.
            #[expect(clippy::disallowed_methods, reason = "a file that the image crate lists")]
            MountSource::Host { folder, file } => {
                MountSource::Bind(file.as_ref().map_or_else(|| folder.clone(), |file| folder.join(file)))
            }
            other => other.clone(),
        };
        Some(Mount { target, source, read_only: mount.read_only })
    });
    around.collect()
}

impl Bundle<'_> {
    /// The process alone, as `runsc exec --process` reads it.
    pub fn process(&self) -> Value {
        let env: Vec<String> = self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        // As in a native jail, other users have none.
        let granted = if self.user.uid == 0 { self.capabilities } else { Capabilities::NONE };
        let granted: Vec<String> = granted.names().map(|name| format!("CAP_{name}")).collect();
        let none: [&str; 0] = [];
        let mut user = json!({"uid": self.user.uid, "gid": self.user.gid});
        // runsc restores an empty list as a missing one, and takes them for different.
        if !self.user.groups.is_empty() {
            user["additionalGids"] = json!(self.user.groups);
        }
        json!({
            "terminal": self.terminal,
            "user": user,
            "args": self.argv,
            "env": env,
            "cwd": self.cwd,
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": granted, "effective": granted, "permitted": granted, "inheritable": none, "ambient": none,
            },
        })
    }

    /// The content of `config.json`. There is no network namespace in it: the jail's is used.
    pub fn config(&self) -> Value {
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
            json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts"}),
            json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
               "options": ["nosuid", "nodev", "mode=1777", "size=64m"]}),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        ];
        mounts.extend(mounts_of_runsc(self.mounts, self.assembly));
        json!({
            "ociVersion": "1.0.2",
            "process": self.process(),
            "root": {"path": self.rootfs, "readonly": self.read_only},
            "hostname": self.hostname,
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]},
        })
    }
}

/// Returns the mounts that the bundle lists.
fn mounts_of_runsc(mounts: &[Mount], assembly: &Path) -> Vec<Value> {
    let divided = makers(mounts, assembly);
    // The kernel keeps what is read-only in a whole from being written, so a whole is read-only if all of it is.
    let writable = |whole: &Path| {
        divided.iter().any(|(mount, maker)| match maker {
            Maker::Runsc => false,
            Maker::Both(place) | Maker::Jail(place) => place.starts_with(whole) && !mount.read_only,
        })
    };
    let access = |writable: bool| if writable { "rw" } else { "ro" }.to_owned();
    let told = divided.iter().filter_map(|(mount, maker)| {
        let (kind, source, options) = match (maker, &mount.source) {
            (Maker::Both(place), _) => {
                ("bind", place.as_path(), vec!["rbind".to_owned(), access(writable(place))])
            }
            (Maker::Runsc, MountSource::Tmpfs { bytes, mode }) => {
                let options =
                    vec![format!("size={bytes}"), format!("mode={mode:o}"), access(!mount.read_only)];
                ("tmpfs", Path::new("tmpfs"), options)
            }
            _ => return None,
        };
        Some(json!({"destination": mount.target, "type": kind, "source": source, "options": options}))
    });
    told.collect()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn runsc_that_could_not_be_started_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runsc");
        let text = "#!/bin/sh\ntest -e \"$0.ok\" || exit 7\necho \"starts\" >> \"$0.starts\"\necho runsc version 1\n";
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let runsc = Runsc(path.clone());
        assert!(runsc.problem().unwrap().ends_with("exit status: 7"));
        std::fs::write(folder.path().join("runsc.ok"), "").unwrap();
        let starts = || std::fs::read_to_string(folder.path().join("runsc.starts")).unwrap().len();
        let problem = runsc.problem().unwrap();
        assert!(problem.contains("is too old"), "{problem}");
        // Its features are known now.
        let before = starts();
        assert_eq!(runsc.problem(), Some(problem));
        assert_eq!(starts(), before);
    }
}
