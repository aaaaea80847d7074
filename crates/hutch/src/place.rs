//! Where files are in their file systems, whatever bind mount their paths go through.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the mounts of this machine when this program first needed them.
pub(crate) fn mounted() -> &'static Mounted {
    static MOUNTED: OnceLock<Mounted> = OnceLock::new();
    MOUNTED.get_or_init(Mounted::read)
}

/// The mounts of this machine.
#[derive(Debug, Default)]
pub(crate) struct Mounted(Vec<Entry>);

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
struct Place {
    device: String,
    path: PathBuf,
}

impl Mounted {
    /// Reads the mounts. If the kernel does not list them, paths have no place.
    pub(crate) fn read() -> Mounted {
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
    fn place(&self, path: &Path) -> Option<Place> {
        let over = |entry: &Entry| path.strip_prefix(&entry.at).map(Path::to_owned).ok();
        // The last one of the longest covers the others.
        let found = self.0.iter().filter_map(|entry| Some((entry, over(entry)?)));
        let (entry, rest) = found.max_by_key(|(entry, _)| entry.at.components().count())?;
        Some(Place { device: entry.device.clone(), path: entry.root.join(rest) })
    }

    /// Returns the paths in a folder at which a file, or a part of it, shows: by its name, and by bind mounts; also by mounts
    /// below the folder if these are shown.
    pub(crate) fn within(&self, file: &Path, folder: &Path, shows_mounts: bool) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = file.strip_prefix(folder).map(Path::to_owned).into_iter().collect();
        let Some(place) = self.place(file) else { return found };
        let of_folder = self.place(folder);
        found.extend(of_folder.and_then(|of_folder| place.within(&of_folder).map(Path::to_owned)));
        let below = self.0.iter().filter(|entry| shows_mounts && entry.at != folder);
        found.extend(below.filter_map(|entry| {
            let at = entry.at.strip_prefix(folder).ok()?;
            let shown = Place { device: entry.device.clone(), path: entry.root.clone() };
            match place.within(&shown) {
                Some(rest) => Some(below_folder(at, rest)),
                None => shown.within(&place).map(|_| at.to_owned()),
            }
        }));
        let mut known = HashSet::new();
        found.retain(|path| known.insert(path.clone()));
        found
    }

    /// Returns all paths of a file, of which this one has no links: by bind mounts. Some may be covered by other mounts.
    pub(crate) fn names(&self, path: &Path) -> Vec<PathBuf> {
        let Some(place) = self.place(path) else { return vec![path.to_owned()] };
        let mut found = vec![path.to_owned()];
        found.extend(self.0.iter().filter_map(|entry| {
            let shown = Place { device: entry.device.clone(), path: entry.root.clone() };
            Some(below_folder(&entry.at, place.within(&shown)?))
        }));
        let mut known = HashSet::new();
        found.retain(|path| known.insert(path.clone()));
        found
    }

    /// Returns true if something is mounted below a folder.
    pub(crate) fn has_below(&self, folder: &Path) -> bool {
        self.0.iter().any(|entry| entry.at != folder && entry.at.starts_with(folder))
    }

    /// Returns true if a file is in a folder, or is it, by its name or by a bind mount.
    pub(crate) fn is_within(&self, file: &Path, folder: &Path) -> bool {
        !self.within(file, folder, false).is_empty()
    }
}

/// Joins paths; joining nothing would add a slash.
pub(crate) fn below_folder(folder: &Path, rest: &Path) -> PathBuf {
    if rest == Path::new("") { folder.to_owned() } else { folder.join(rest) }
}

impl Place {
    /// Returns the path relative to a folder in which it is, or which it is.
    fn within(&self, folder: &Place) -> Option<&Path> {
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
        let names = |path: &str| mounted.names(Path::new(path));
        for path in ["/alias/p/.env", "/home/u/p/.env"] {
            let mut found = names(path);
            found.sort();
            assert_eq!(found, ["/alias/p/.env", "/home/u/p/.env"].map(PathBuf::from));
        }
        assert_eq!(names("/etc/passwd"), [PathBuf::from("/etc/passwd")]);
        assert_eq!(Mounted::default().names(Path::new("/a")), [PathBuf::from("/a")]);
    }

    #[test]
    fn file_shows_by_its_name_and_by_every_mount() {
        let mounted = Mounted::parse(MOUNTS);
        let within = |file: &str, folder: &str, mounts| -> Vec<String> {
            let found = mounted.within(Path::new(file), Path::new(folder), mounts).into_iter();
            found.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(within("/home/u/p/key", "/home/u/p", true), ["key"]);
        assert_eq!(within("/alias/p/key", "/home/u/p", false), ["key"]);
        assert_eq!(within("/home/u/my disk/x", "/home/u", false), ["my disk/x"]);
        // The file system of `/sub` is shown below the home, but for what another one covers.
        assert_eq!(within("/home/u/my disk/sub/x", "/", true), ["home/u/my disk/sub/x", "sub/x"]);
        assert_eq!(within("/home/u/p", "/", true), ["home/u/p", "alias/p"]);
        assert_eq!(within("/home", "/alias", true), [""; 0]);
        assert_eq!(within("/home", "/", true), ["home", "alias"], "a part of it");
        assert!(mounted.is_within(Path::new("/alias/p"), Path::new("/home")));
        assert!(!mounted.is_within(Path::new("/home"), Path::new("/alias")));
    }

    #[test]
    fn escapes_are_bytes() {
        for (text, path) in [("/a\\040b", "/a b"), ("/a\\134", "/a\\"), ("/a\\04", "/a\\04"), ("\\", "\\")] {
            assert_eq!(unescaped(text.as_bytes()), Path::new(path));
        }
    }
}
