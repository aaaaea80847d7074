//! Rules for files inside a jail, as data.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Folders of the kernel, in which nothing is closed.
pub(crate) const OF_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Access to a file, or to a folder and everything in it. The lesser one is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FileAccess {
    /// It appears empty and cannot be written.
    Hidden,
    /// It cannot be written.
    Read,
    /// It is as without a rule.
    Write,
}

/// Rule for a file inside, or for a folder and everything in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRule {
    /// Absolute path inside.
    pub path: PathBuf,
    /// Access.
    pub access: FileAccess,
    /// Name of the rule in errors.
    pub name: String,
}

/// Rules for files inside. The most specific path counts, and links open nothing: see [`combine`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRules {
    /// Rules, with different paths.
    pub rules: Vec<FileRule>,
    /// Targets of mounts whose files other jails may change while this one runs, or earlier jails may have changed.
    pub shared: Vec<PathBuf>,
}

impl FileRules {
    /// Returns true if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the first path that is not absolute and plain, or that lies in a folder of the kernel.
    pub(crate) fn mistake(&self) -> Option<&Path> {
        let wrong = |path: &&Path| !is_plain(path) || OF_KERNEL.iter().any(|own| path.starts_with(own));
        let shared = self.shared.iter().map(PathBuf::as_path).find(|path| !is_plain(path));
        self.rules.iter().map(|rule| rule.path.as_path()).find(wrong).or(shared)
    }
}

fn is_plain(path: &Path) -> bool {
    let normal = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute()
        && path != Path::new("/")
        && path.components().all(normal)
        && !has_nul(path.as_os_str())
}

fn has_nul(text: &OsStr) -> bool {
    text.as_encoded_bytes().contains(&0)
}

/// Access at paths, by one list of rules.
pub(crate) type Level = Vec<(PathBuf, FileAccess)>;

/// Combines levels. Within a level the most specific path counts, and the strictest level counts. Returns the paths at which
/// the access differs from that of the folder in which they are, folders first.
pub(crate) fn combine(levels: &[Level]) -> Level {
    let at = |level: &Level, path: &Path| {
        let covering = level.iter().filter(|(rule, _)| path.starts_with(rule));
        let nearest = covering.max_by_key(|(rule, _)| rule.components().count());
        nearest.map_or(FileAccess::Write, |(_, access)| *access)
    };
    let mut found: BTreeMap<PathBuf, FileAccess> = BTreeMap::new();
    let paths: std::collections::BTreeSet<&Path> =
        levels.iter().flatten().map(|(path, _)| path.as_path()).collect();
    for path in paths {
        let strictest = levels.iter().map(|level| at(level, path)).min().unwrap_or(FileAccess::Write);
        let outer = path.ancestors().skip(1).find_map(|folder| found.get(folder)).copied();
        if outer.unwrap_or(FileAccess::Write) != strictest {
            found.insert(path.to_owned(), strictest);
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(text: &str) -> Level {
        let rule = |word: &str| {
            let (path, access) = word.split_once('=').unwrap();
            let access = match access {
                "hidden" => FileAccess::Hidden,
                "read" => FileAccess::Read,
                _ => FileAccess::Write,
            };
            (path.into(), access)
        };
        text.split_whitespace().map(rule).collect()
    }

    #[test]
    fn level_of_a_link_only_closes() {
        let combined = |levels: &[&str]| {
            let levels: Vec<Level> = levels.iter().map(|text| level(text)).collect();
            let shown = combine(&levels).into_iter();
            shown.map(|(path, access)| format!("{} {access:?}", path.display())).collect::<Vec<_>>()
        };
        assert_eq!(combined(&["/w=read /w/out=write"]), ["/w Read", "/w/out Write"]);
        assert_eq!(combined(&["/w=read /w/out=write", "/w=hidden"]), ["/w Hidden"]);
        assert_eq!(combined(&["/w=hidden", "/w/x=read", "/w/x/y=write"]), ["/w Hidden"]);
        assert_eq!(
            combined(&["/w=hidden /w/x=read", "/w/x/y=hidden"]),
            ["/w Hidden", "/w/x Read", "/w/x/y Hidden"]
        );
    }

    #[test]
    fn path_that_cannot_be_closed_is_a_mistake() {
        let rules = |path: &str| FileRules {
            rules: vec![FileRule { path: path.into(), access: FileAccess::Read, name: String::new() }],
            shared: Vec::new(),
        };
        assert_eq!(rules("/a/b").mistake(), None);
        for path in ["", "/", "a", "/a/../b", "/a\0", "/proc", "/sys/fs", "/dev/shm"] {
            assert!(rules(path).mistake().is_some(), "{path}");
        }
    }
}
