//! Where files are in their file systems, whatever bind mount their paths go through.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mounts of this machine.
#[derive(Debug, Default)]
pub(super) struct Mounted(Vec<Entry>);

/// One mount.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The file system.
    device: String,
    /// Path in the file system of what is mounted.
    root: PathBuf,
    /// Path at which it is mounted.
    at: PathBuf,
}

/// Place of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    device: String,
    path: PathBuf,
}

impl Mounted {
    /// Reads the mounts. If the kernel does not list them, paths have no place.
    pub(super) fn read() -> Mounted {
        Mounted::parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(text: &[u8]) -> Mounted {
        let entry = |line: &[u8]| {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            let device = String::from_utf8(words.next()?.to_vec()).ok()?;
            Some(Entry { device, root: unescaped(words.next()?), at: unescaped(words.next()?) })
        };
        Mounted(text.split(|byte| *byte == b'\n').filter_map(entry).collect())
    }

    /// Returns the place of an absolute path without links.
    pub(super) fn place(&self, path: &Path) -> Option<Place> {
        let over = |entry: &Entry| path.strip_prefix(&entry.at).map(Path::to_owned).ok();
        // The last one of the longest covers the others.
        let found = self.0.iter().filter_map(|entry| Some((entry, over(entry)?)));
        let (entry, rest) = found.max_by_key(|(entry, _)| entry.at.components().count())?;
        Some(Place { device: entry.device.clone(), path: entry.root.join(rest) })
    }
}

impl Place {
    /// Returns the path relative to a folder in which it is, or which it is.
    pub(super) fn within(&self, folder: &Place) -> Option<&Path> {
        (self.device == folder.device).then(|| self.path.strip_prefix(&folder.path).ok()).flatten()
    }
}

/// Returns a path of the list, in which a backslash and three octal digits are one byte.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|three| std::str::from_utf8(three).ok());
        match digits.and_then(|three| u8::from_str_radix(three, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        30 21 8:1 /home/u /alias rw - ext4 /dev/sda1 rw\n\
        31 21 8:2 / /home/u/my\\040disk rw - ext4 /dev/sda2 rw\n\
        32 21 8:2 /sub /sub rw - ext4 /dev/sda2 rw\n\
        33 21 8:3 / /sub rw - ext4 /dev/sda3 rw\n";

    #[test]
    fn file_has_one_place_by_all_its_paths() {
        let mounted = Mounted::parse(MOUNTS);
        let place = |path: &str| mounted.place(Path::new(path)).unwrap();
        assert_eq!(place("/alias/p/.env"), place("/home/u/p/.env"));
        assert_eq!(place("/alias/p/.env").within(&place("/home/u")), Some(Path::new("p/.env")));
        assert_eq!(place("/alias").within(&place("/alias")), Some(Path::new("")));
        assert_eq!(place("/home/u/my disk/x").within(&place("/home/u")), None, "another file system");
        assert_eq!(place("/sub/x"), Place { device: "8:3".into(), path: "/x".into() }, "the later mount");
        assert_eq!(place("/aliases"), Place { device: "8:1".into(), path: "/aliases".into() });
        assert_eq!(Mounted::default().place(Path::new("/a")), None);
        assert!(Mounted::read().place(Path::new("/proc/self")).is_some());
    }

    #[test]
    fn escapes_are_bytes() {
        for (text, path) in [("/a\\040b", "/a b"), ("/a\\134", "/a\\"), ("/a\\04", "/a\\04"), ("\\", "\\")] {
            assert_eq!(unescaped(text.as_bytes()), Path::new(path));
        }
    }
}
