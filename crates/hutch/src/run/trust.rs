//! The certificates of a command whose requests are read: the authority of its sandbox, made for this run, and the file that
//! programs inside trust.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use hutch_egress::AuthorityKeys;
use hutch_image::Resolved;
use hutch_jail::{CheckedFolder, Mount, MountSource};
use hutch_node::trust::{environment, targets};
use tempfile::NamedTempFile;

use crate::egress::Outside;
use crate::mount::MountArgument;

/// Folder in memory, in which every user may create files.
const MEMORY: &str = "/dev/shm";
/// Beginning of the names of files there. The process id and a dot follow.
const PREFIX: &str = "hutch-run-";

/// Authority and certificates of one run. The file is removed when this is dropped.
pub(super) struct Trust {
    pub(super) authority: AuthorityKeys,
    file: NamedTempFile,
    /// Paths inside over which the file is mounted.
    targets: Vec<PathBuf>,
}

impl Trust {
    /// Makes the authority, and the file for an image, which also has `further` certificates. Mounts of the user hide what lies
    /// below them.
    pub(super) fn create(
        outside: &Outside,
        further: &[u8],
        image: &Resolved,
        mounts: &[MountArgument],
    ) -> anyhow::Result<Trust> {
        let authority = AuthorityKeys::create("Hutch sandbox")?;
        let public = outside.bundle().context("the machine's certificates")?;
        sweep();
        let prefix = format!("{PREFIX}{}.", std::process::id());
        let mut named = tempfile::Builder::new();
        named.prefix(&prefix).suffix(".pem");
        let file = named.tempfile_in(MEMORY).or_else(|_| named.tempfile());
        let mut file = file.context("a file for the certificates")?;
        let parts = [&public[..], authority.certificate.as_bytes(), further];
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        // Code inside may have another user id.
        let mode = PermissionsExt::from_mode(0o444);
        let written = written.and_then(|()| file.as_file().set_permissions(mode));
        written.with_context(|| format!("{}", file.path().display()))?;
        let taken = mounts.iter().map(|mount| mount.target.as_deref().unwrap_or(&mount.source));
        let targets = targets(image, &taken.collect::<Vec<&Path>>());
        Ok(Trust { authority, file, targets })
    }

    /// Returns the mounts of the file.
    pub(super) fn mounts(&self) -> anyhow::Result<Vec<Mount>> {
        let path = self.file.path().canonicalize().context("the file with the certificates")?;
        let (folder, name) = path.parent().zip(path.file_name()).context("the file with the certificates")?;
        let folder = CheckedFolder::look(folder).with_context(|| folder.display().to_string())?;
        let mount = |target: &PathBuf| Mount {
            source: MountSource::Beneath { folder: folder.clone(), path: name.into() },
            target: target.clone(),
            read_only: true,
        };
        Ok(self.targets.iter().map(mount).collect())
    }

    /// Returns the environment of an image with the variables that name the file.
    pub(super) fn environment(&self, image: &[(String, String)]) -> Vec<(String, String)> {
        environment(image, &self.targets)
    }
}

/// Removes the files of own runs that were killed.
fn sweep() {
    let caller = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split_once('.'));
        let pid = pid.and_then(|(pid, _)| pid.parse::<u32>().ok());
        let has_ended = pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        if has_ended && entry.metadata().is_ok_and(|found| found.uid() == caller) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each run that was killed left its file in memory.
    #[test]
    fn files_of_runs_that_have_ended_are_removed() {
        let name = |pid: u32| Path::new(MEMORY).join(format!("{PREFIX}{pid}.test.pem"));
        let (gone, alive) = (name(4_000_000_000), name(std::process::id()));
        for file in [&gone, &alive] {
            std::fs::write(file, "").unwrap();
        }
        sweep();
        assert!(!gone.exists() && alive.exists());
        std::fs::remove_file(alive).unwrap();
    }
}
