//! The two static programs that this binary carries compressed, put where they can be executed.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::read::GzDecoder;

const WARDEN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-warden"));
const SANDBOXD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hutch-sandboxd"));

/// Where the programs lie.
pub(crate) struct Programs {
    /// Forks jails for the node.
    pub(crate) warden: PathBuf,
    /// Serves the runtime's contract inside a sandbox.
    pub(crate) sandboxd: PathBuf,
}

/// Writes both programs below `folder`, replacing what an earlier version left there.
pub(crate) fn install(folder: &Path) -> anyhow::Result<Programs> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(Programs { warden: write(folder, "warden", WARDEN)?, sandboxd: write(folder, "sandboxd", SANDBOXD)? })
}

/// Writes sandboxd alone, as `hutch-sandboxd`; the file.
pub(crate) fn install_sandboxd(folder: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write(folder, "hutch-sandboxd", SANDBOXD)
}

/// A new file under the final name each time: the old one may still be running, and a running program cannot be
/// written to.
fn write(folder: &Path, name: &str, packed: &[u8]) -> anyhow::Result<PathBuf> {
    let file = folder.join(name);
    let fresh = folder.join(format!(".{name}.new"));
    let put = || -> std::io::Result<()> {
        let mut out =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&fresh)?;
        std::io::copy(&mut GzDecoder::new(packed), &mut out)?;
        out.set_permissions(std::fs::Permissions::from_mode(0o755))?;
        drop(out);
        std::fs::rename(&fresh, &file)
    };
    put().with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}
