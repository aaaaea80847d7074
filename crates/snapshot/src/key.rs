//! The key of the machine, with which manifests are authenticated.

use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::path::Path;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hmac;
use hutch_image::PathSegment;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::content::{ContentKey, Salt};
use crate::name::KEY;
use crate::{Error, private};

/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// Name of the key while it is written; removed with what an earlier process left.
const UNFINISHED: PathSegment = PathSegment::fixed("key.partial");
/// Bytes of the name by which a manifest refers to its key.
const ID_BYTES: usize = 8;
/// Starts of what is signed, one for each use of the key.
const ID_DOMAIN: &[u8] = b"hutch/snapshot-key-id/v1";
const MANIFEST_DOMAIN: &[u8] = b"hutch/snapshot-manifest/v1.";
const CONTENT_DOMAIN: &[u8] = b"hutch/snapshot-content-key/v1.";

/// The key. `Debug` does not show it.
pub(crate) struct Key {
    key: hmac::Key,
    id: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Key {
    /// Reads the key of a private folder, or makes one, which is on the disk before it is used.
    pub(crate) fn open(folder: &Path) -> Result<Key, Error> {
        let path = KEY.below(folder);
        if let Err(error) = path.symlink_metadata() {
            if error.kind() != ErrorKind::NotFound {
                return Err(Error::folder("read", &path)(error));
            }
            make(folder, &path).map_err(Error::folder("make", &path))?;
        }
        let (_, found) = private::open_file(CWD, &path).map_err(Error::folder("open", &path))?;
        private::check(&path, &found)?;
        let opened = private::open_folder(CWD, folder).map_err(Error::folder("open", folder))?;
        let bytes =
            private::read(&opened, &KEY, KEY_BYTES as u64 + 1).map_err(Error::folder("read", &path))?;
        if bytes.len() != KEY_BYTES {
            let reason = format!(
                "a key has {KEY_BYTES} bytes, and this file has another length: restore it, or remove it together with all images"
            );
            return Err(Error::Unsafe { path, reason });
        }
        Ok(Key::new(&bytes))
    }

    pub(crate) fn new(bytes: &[u8]) -> Key {
        let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let id = hex(&hmac::sign(&key, ID_DOMAIN).as_ref()[..ID_BYTES]);
        Key { key, id }
    }

    /// Name of the key: 16 hexadecimal digits.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the authentication code of a manifest.
    pub(crate) fn sign(&self, manifest: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(MANIFEST_DOMAIN);
        context.update(manifest);
        hex(context.sign().as_ref())
    }

    /// Returns the key of the content of the part that has this salt.
    pub(crate) fn content(&self, salt: &Salt) -> Result<ContentKey, Unspecified> {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(CONTENT_DOMAIN);
        context.update(salt);
        ContentKey::new(context.sign().as_ref())
    }

    /// Returns `true` if this key has signed a manifest, in constant time.
    pub(crate) fn verify(&self, manifest: &[u8], code: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.sign(manifest).as_bytes(), code).is_ok()
    }
}

fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
    let opened = private::open_folder(CWD, folder)?;
    private::write(&opened, &UNFINISHED, &key)?.sync_all()?;
    let unfinished = UNFINISHED.below(folder);
    match rustix::fs::renameat_with(CWD, &unfinished, CWD, path, RenameFlags::NOREPLACE) {
        // Some file systems cannot; then no other process may use the folder, as always.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(&unfinished, path)?,
        renamed => renamed?,
    }
    private::sync(folder)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
