//! Facts about an image: what made it, and what must be the same where it is restored.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use hutch_api::state::{Content, SnapshotRuntime};
use hutch_jail::{MountSource, Upper};
use hutch_policy::HostName;
use hutch_snapshot::Image;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::blueprint::Blueprint;
use crate::oci::Runsc;

/// Facts about an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Facts {
    pub(crate) namespace: String,
    pub(crate) sandbox: String,
    pub(crate) sandbox_uid: String,
    /// Template from which the Sandbox was made.
    #[serde(default)]
    pub(crate) template: Option<String>,
    pub(crate) pod_uid: String,
    pub(crate) content: Content,
    /// `true` if the Pod may not run again.
    pub(crate) ends_pod: bool,
    /// `true` for the image of a suspend.
    pub(crate) suspend: bool,
    /// Number of the last restore before it.
    pub(crate) generation: u64,
    /// Handler that ran the Sandbox.
    #[serde(default)]
    pub(crate) handler: Option<String>,
    /// Program that wrote the memory, and the features of the CPU, if there is memory.
    pub(crate) machine: Option<Machine>,
    pub(crate) containers: BTreeMap<String, Container>,
    /// Volumes that belong to the Pod.
    pub(crate) volumes: Vec<String>,
    /// Volumes of claims, by the names of their templates.
    #[serde(default)]
    pub(crate) claims: Vec<String>,
    /// Names that have a synthetic address in its network, in the order of these, if there is memory.
    #[serde(default)]
    pub(crate) names: Vec<HostName>,
}

/// Surroundings of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) runtime: SnapshotRuntime,
    /// Command line of the runtime, but for its paths.
    pub(crate) flags: String,
    /// Digest of the features of the CPU.
    pub(crate) cpu: String,
}

/// One container of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    /// Identity of its image, as in the status of the Pod.
    pub(crate) image: String,
    /// Digest of what gVisor compares, and of the rest that a process may rely on.
    pub(crate) shape: String,
}

impl Facts {
    /// Reads the facts of an image.
    pub(crate) fn of(image: &Image) -> Result<Facts, String> {
        serde_json::from_value(image.facts().clone())
            .map_err(|error| format!("it was made by another version of Hutch: {error}"))
    }
}

impl Machine {
    /// Reads those of this machine. Blocks: it reads the whole program once.
    pub(crate) fn here() -> Result<Machine, String> {
        let runsc = Runsc::find().ok_or("runsc is no longer on the PATH")?;
        let failed = |error: std::io::Error| format!("{}: {error}", runsc.path().display());
        let runtime = runtime(runsc.path()).map_err(failed)?;
        let flags = runsc.argv(Path::new("/state"), &[]).split_off(1).join(" ");
        let cpu =
            std::fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
        let features = cpu.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
        Ok(Machine { runtime, flags, cpu: digest(features.unwrap_or_default().as_bytes()) })
    }

    /// Returns what differs on this machine.
    pub(crate) fn difference(&self, here: &Machine) -> Option<String> {
        let (then, now) = (&self.runtime, &here.runtime);
        let short = |digest: &str| digest.get(..12).unwrap_or(digest).to_owned();
        if then.digest != now.digest {
            let build = |one: &SnapshotRuntime| format!("{} (sha256 {}…)", one.version, short(&one.digest));
            return Some(format!(
                "it was made by runsc {}, and this machine has {}",
                build(then),
                build(now)
            ));
        }
        if self.flags != here.flags {
            return Some(format!("it was made with the flags {}, now they are {}", self.flags, here.flags));
        }
        (self.cpu != here.cpu).then(|| "it was made on a CPU with other features".to_owned())
    }
}

/// Identity of a program that was read.
type Read = (PathBuf, u64, i64, SnapshotRuntime);

/// Reads version and digest of a program, again only after it was replaced.
fn runtime(path: &Path) -> std::io::Result<SnapshotRuntime> {
    static KNOWN: Mutex<Option<Read>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut file = std::fs::File::open(path)?;
    let found = file.metadata()?;
    let identity = (path.to_owned(), found.ino(), found.mtime());
    if let Some((path, inode, time, runtime)) = &*known
        && (path, *inode, *time) == (&identity.0, identity.1, identity.2)
    {
        return Ok(runtime.clone());
    }
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    let version = hutch_jail::facts::Runsc::probe(path.to_owned()).version.unwrap_or_default();
    let runtime = SnapshotRuntime { name: "runsc".into(), version, digest: hex(&hasher.finalize()) };
    *known = Some((identity.0, identity.1, identity.2, runtime.clone()));
    Ok(runtime)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the digest of what must be the same of a container: environment, host name, limits, and the sources of mounts may
/// differ.
pub(crate) fn shape(blueprint: &Blueprint) -> String {
    let mounts = blueprint.mounts.iter().map(|mount| {
        let kind = match &mount.source {
            MountSource::Tmpfs { .. } => "tmpfs",
            _ => "bind",
        };
        json!([mount.target, mount.read_only, kind])
    });
    let user = &blueprint.user;
    let capabilities: Vec<_> = blueprint.capabilities.names().collect();
    let shape = json!({
        "argv": blueprint.argv,
        "cwd": blueprint.cwd,
        "user": format!("{user:?}"),
        "capabilities": capabilities,
        "terminal": blueprint.terminal,
        "readOnly": matches!(blueprint.root.upper, Upper::ReadOnly),
        "mounts": mounts.collect::<Vec<_>>(),
    });
    digest(shape.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_another_runtime_flags_or_processor_is_refused_by_name() {
        let runtime = |digest: &str| SnapshotRuntime {
            name: "runsc".into(),
            version: "release-1".into(),
            digest: digest.repeat(32),
        };
        let machine = |digest, flags: &str, cpu: &str| Machine {
            runtime: runtime(digest),
            flags: flags.into(),
            cpu: cpu.into(),
        };
        let here = machine("ab", "--platform=systrap", "avx2");
        assert_eq!(here.difference(&machine("ab", "--platform=systrap", "avx2")), None);
        for (other, expected) in [
            (machine("cd", "--platform=kvm", "avx"), "by runsc release-1 (sha256 cdcdcdcdcdcd…)"),
            (
                machine("ab", "--platform=kvm", "avx"),
                "with the flags --platform=kvm, now they are --platform=systrap",
            ),
            (machine("ab", "--platform=systrap", "avx"), "on a CPU with other features"),
        ] {
            let said = other.difference(&here).unwrap_or_default();
            assert!(said.contains(expected), "{said}");
        }
    }
}
