//! Folder of `--ca-dir`: the certificate authority of `hutch egress`, which its clients trust.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use hutch_egress::AuthorityKeys;
use serde::{Deserialize, Serialize};

/// File with the certificate, for clients.
const CERTIFICATE: &str = "ca.pem";
/// File with the certificate and the key.
const KEY: &str = "ca.key.json";
/// Days for which a new authority is valid, and days before its end at which another one takes its place.
const DAYS: i64 = 365;
const LAST_DAYS: u64 = 30;
/// Maximum bytes of the file with the key.
const KEY_BYTES: u64 = 64 << 10;

/// An authority and where its certificate is.
pub(crate) struct Kept {
    pub(crate) keys: AuthorityKeys,
    pub(crate) certificate: PathBuf,
}

/// Content of the file with the key.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Seconds since 1970 at which it was made.
    made: u64,
    keys: AuthorityKeys,
}

/// Returns the authority of the folder, a new one if the folder has no authority or it soon ends.
pub(crate) fn open(folder: &Path) -> anyhow::Result<Kept> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let folder = folder.canonicalize()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let lasts = (DAYS as u64 - LAST_DAYS) * 24 * 3600;
    let stored = match read(&folder.join(KEY))? {
        Some(stored) if now < stored.made.saturating_add(lasts) => stored,
        _ => create(&folder, now)?,
    };
    let certificate = folder.join(CERTIFICATE);
    // Written again: it must be that of the key.
    replace(&folder, CERTIFICATE, stored.keys.certificate.as_bytes(), 0o644)?;
    Ok(Kept { keys: stored.keys, certificate })
}

fn read(file: &Path) -> anyhow::Result<Option<Stored>> {
    let named = || file.display().to_string();
    let opened: std::io::Result<File> =
        OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(file);
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    let metadata = opened.metadata().with_context(named)?;
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    ensure!(
        owner == own,
        "{}: it belongs to the user {owner}, who knows the key; it must belong to {own}",
        named()
    );
    let mode = metadata.mode() & 0o777;
    ensure!(mode & 0o077 == 0, "{}: mode {mode:o} shows the key to other users; it must be 600", named());
    let mut text = Vec::new();
    opened.take(KEY_BYTES).read_to_end(&mut text).with_context(named)?;
    // The error of the parser could quote the key.
    let stored = serde_json::from_slice(&text).ok();
    let stored =
        stored.with_context(|| format!("{}: not an authority; remove it, and a new one is made", named()))?;
    Ok(Some(stored))
}

fn create(folder: &Path, made: u64) -> anyhow::Result<Stored> {
    let stored = Stored { made, keys: AuthorityKeys::create_for("Hutch egress", DAYS)? };
    replace(folder, KEY, &serde_json::to_vec(&stored)?, 0o600)?;
    Ok(stored)
}

/// Writes a file as a whole.
fn replace(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name)).with_context(|| name.to_owned())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_kept_with_a_key_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let first = open(&folder).unwrap();
        assert_eq!(open(&folder).unwrap().keys, first.keys);
        let key = folder.canonicalize().unwrap().join(KEY);
        assert_eq!(std::fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        let certificate = std::fs::read_to_string(&first.certificate).unwrap();
        assert!(certificate.contains("BEGIN CERTIFICATE") && !certificate.contains("PRIVATE"));
        let old: Stored = serde_json::from_slice(&std::fs::read(&key).unwrap()).unwrap();
        std::fs::write(&key, serde_json::to_vec(&Stored { made: 1, ..old }).unwrap()).unwrap();
        assert_ne!(open(&folder).unwrap().keys, first.keys, "it has ended");
        std::fs::write(&key, "PRIVATE").unwrap();
        let error = open(&folder).err().unwrap();
        assert!(format!("{error:#}").contains(KEY) && !format!("{error:#}").contains("PRIVATE"));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(open(&folder).err().unwrap().to_string().contains("mode 640"));
    }
}
