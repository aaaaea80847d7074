//! The termination message of a container: a file of the node that the container writes, mounted at
//! `terminationMessagePath`.
//!
//! The container has the file alone, so it can neither move it nor put a link in its place.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hutch_image::PathSegment;
use rustix::fs::OFlags;

use super::Screened;
use crate::folders::{make_folder, remove_limited};

/// Usual path inside.
pub(crate) const USUAL_PATH: &str = "/dev/termination-log";
/// The file, in the folder of its container.
pub(crate) const FILE: PathSegment = PathSegment::fixed("message");
/// Maximum bytes of a message.
const MESSAGE_BYTES: usize = 4096;
/// Maximum bytes that are read from the end of the file. More than a message, so that a secret at its beginning is found.
const READ_BYTES: u64 = 16 << 10;
/// Maximum bytes of the file where the file system has quotas, unless the least limit there is larger.
const FOLDER_BYTES: u64 = 64 << 10;

/// Makes an empty file, which every user inside may write, in place of that of an earlier container. Blocks.
pub(super) fn prepare(folder: &Path) -> io::Result<()> {
    remove_limited(folder)?;
    make_folder(folder, 0o700, Some(FOLDER_BYTES))?;
    let file = File::options().write(true).create_new(true).open(FILE.below(folder))?;
    file.set_permissions(Permissions::from_mode(0o666))
}

/// Returns the end of the file, as the log of the container would show it; `None` if it is empty. Blocks.
pub(super) fn read(folder: &Path, screened: &Screened) -> Option<String> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(FILE.below(folder)).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes).ok()?;
    let bytes = screened.text(&bytes);
    let text = String::from_utf8_lossy(&bytes);
    let start = text.ceil_char_boundary(text.len().saturating_sub(MESSAGE_BYTES));
    Some(text[start..].to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::sync::Arc;

    use hutch_screen::Origin;

    use super::*;

    fn message(folder: &Path) -> Option<String> {
        let origin = Origin { pod: "default/p".into(), part: "c".into() };
        read(folder, &Screened::new(Arc::default(), origin))
    }

    #[test]
    fn message_is_the_end_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("c");
        prepare(&folder).unwrap();
        assert_eq!(message(&folder), None);
        assert_eq!(folder.join("message").metadata().unwrap().permissions().mode() & 0o777, 0o666);
        std::fs::write(folder.join("message"), format!("{}end", "x".repeat(100_000))).unwrap();
        let read = message(&folder).unwrap();
        assert_eq!((read.len(), read.ends_with("xend")), (4096, true));
        std::fs::write(folder.join("message"), [&[0xff; 20_000][..], b"end"].concat()).unwrap();
        let read = message(&folder).unwrap();
        assert!(read.len() <= 4096 && read.ends_with("\u{fffd}end"), "{}", read.len());
        prepare(&folder).unwrap();
        assert_eq!(message(&folder), None, "of an earlier container nothing is left");
    }

    #[test]
    fn link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, secret) = (dir.path().join("c"), dir.path().join("secret"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, folder.join("message")).unwrap();
        assert_eq!(message(&folder), None);
    }
}
