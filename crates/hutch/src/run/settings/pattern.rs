//! Patterns of paths in srt's settings: `*` and `?` within a name, `[abc]`, and `**` for any number of folders.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};

use rustix::io::Errno;

use crate::run::is_missing;

/// Maximum matches of a pattern, and maximum entries that are compared with it.
const MATCHES: usize = 1024;
const ENTRIES: usize = 1_000_000;

/// A pattern of absolute paths.
pub(super) struct Pattern {
    parts: Vec<Vec<u8>>,
    /// Path before the first part with a wildcard.
    start: PathBuf,
}

/// Returns true for a path with a wildcard.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', ']'])
}

impl Pattern {
    /// Parses an absolute path with wildcards.
    pub(super) fn new(path: &Path) -> Pattern {
        let parts: Vec<Vec<u8>> = path.iter().skip(1).map(|part| part.as_bytes().to_vec()).collect();
        let is_plain = |part: &&OsStr| part.to_str().is_some_and(|part| !is_pattern(part));
        Pattern { parts, start: path.iter().take_while(is_plain).collect() }
    }

    /// Returns the paths that match now, in these folders and above them. What is in a match is not listed, nor what is
    /// behind a link.
    pub(super) fn expand(&self, folders: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
        ensure!(self.start.parent().is_some(), "a pattern needs a folder to begin at");
        let mut found = Vec::new();
        let mut left = ENTRIES;
        for folder in folders {
            let top = match (self.start.starts_with(folder), folder.starts_with(&self.start)) {
                (true, _) => &self.start,
                (false, true) => folder,
                (false, false) => continue,
            };
            match top.ancestors().find(|path| self.matches(path)) {
                Some(path) => found.push(path.to_owned()),
                None => self.walk(top, &mut found, &mut left)?,
            }
        }
        Ok(found)
    }

    fn walk(&self, top: &Path, found: &mut Vec<PathBuf>, left: &mut usize) -> anyhow::Result<()> {
        let mut folders = vec![top.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if is_missing(&error) => continue,
                // Nothing is known of what is in it.
                Err(_) => {
                    found.push(folder);
                    continue;
                }
            };
            for entry in entries.flatten() {
                let Some(rest) = left.checked_sub(1) else { bail!("more than {ENTRIES} files to compare") };
                *left = rest;
                let path = entry.path();
                if !self.matches(&path) {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        folders.push(path);
                    }
                } else if !path.metadata().is_err_and(|error| leads_nowhere(&error)) {
                    found.push(path);
                    ensure!(
                        found.len() <= MATCHES,
                        "more than {MATCHES} matches; name the folders that hold them"
                    );
                }
            }
        }
        Ok(())
    }

    fn matches(&self, path: &Path) -> bool {
        let names: Vec<&[u8]> = path.iter().skip(1).map(OsStrExt::as_bytes).collect();
        // Row by row: `reached[n]` says that the names so far match the first n parts.
        let mut reached = vec![false; self.parts.len() + 1];
        reached[0] = true;
        self.skip_folders(&mut reached);
        for name in names {
            let mut next = vec![false; reached.len()];
            for (number, part) in self.parts.iter().enumerate().filter(|(number, _)| reached[*number]) {
                match part.as_slice() {
                    b"**" => next[number] = true,
                    part => next[number + 1] |= is_match(part, name),
                }
            }
            self.skip_folders(&mut next);
            reached = next;
        }
        reached[self.parts.len()]
    }

    /// `**` stands for no folder too.
    fn skip_folders(&self, reached: &mut [bool]) {
        for (number, _) in self.parts.iter().enumerate().filter(|(_, part)| part.as_slice() == b"**") {
            reached[number + 1] |= reached[number];
        }
    }
}

/// Returns true for the error of a link that leads to nothing, or in a circle.
fn leads_nowhere(error: &std::io::Error) -> bool {
    is_missing(error) || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Returns true if a name matches a part of a pattern.
fn is_match(part: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while here < name.len() {
        let step = match part.get(at) {
            Some(b'*') => {
                star = Some((at, here));
                at += 1;
                continue;
            }
            Some(b'?') => Some(at + 1),
            Some(b'[') => one_of(&part[at..], name[here]).map(|length| at + length),
            Some(byte) => (*byte == name[here]).then_some(at + 1),
            None => None,
        };
        match (step, &mut star) {
            (Some(next), _) => (at, here) = (next, here + 1),
            // The star takes one more byte.
            (None, Some((place, taken))) => {
                *taken += 1;
                (at, here) = (*place + 1, *taken);
            }
            (None, None) => return false,
        }
    }
    part[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of a class such as `[a-z]` at the start of `part`, if the byte is in it. Without an end, `[` stands for
/// itself.
fn one_of(part: &[u8], byte: u8) -> Option<usize> {
    let Some(end) = part.iter().skip(2).position(|other| *other == b']').map(|place| place + 2) else {
        return (byte == b'[').then_some(1);
    };
    let (negated, class) = match &part[1..end] {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        class => (false, class),
    };
    let mut is_in = false;
    let mut rest = class;
    while let [first, tail @ ..] = rest {
        rest = match tail {
            [b'-', last, tail @ ..] => {
                is_in |= (first..=last).contains(&&byte);
                tail
            }
            _ => {
                is_in |= *first == byte;
                tail
            }
        };
    }
    (is_in != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        let matches = |pattern: &str, path: &str| Pattern::new(Path::new(pattern)).matches(Path::new(path));
        for (pattern, yes, no) in [
            (
                "/w/**/.env",
                &["/w/.env", "/w/a/.env", "/w/a/b/.env"][..],
                &["/w/.env/x", "/x/.env", "/w/a.env"][..],
            ),
            ("/w/*.pem", &["/w/a.pem", "/w/.pem"], &["/w/a/b.pem", "/w/a.pem.x"]),
            ("/w/**", &["/w", "/w/a", "/w/a/b"], &["/x"]),
            ("/w/a?c", &["/w/abc"], &["/w/ac", "/w/abbc"]),
            ("/w/[a-c]x", &["/w/ax", "/w/cx"], &["/w/dx", "/w/x"]),
            ("/w/[!a-c]x", &["/w/dx"], &["/w/ax"]),
            ("/w/[x", &["/w/[x"], &["/w/x"]),
            ("/w/*a*b*", &["/w/ab", "/w/xaybz", "/w/aab"], &["/w/ba"]),
            ("/*/**/k/*", &["/w/k/a", "/w/b/c/k/a"], &["/k/a"]),
        ] {
            assert!(yes.iter().all(|path| matches(pattern, path)), "{pattern} {yes:?}");
            assert!(!no.iter().any(|path| matches(pattern, path)), "{pattern} {no:?}");
        }
        let slow = format!("/{}x", "*a".repeat(40));
        assert!(!matches(&slow, &format!("/{}", "a".repeat(200))));
    }

    #[test]
    fn matches_are_found_in_the_folders_only() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for file in ["w/.env", "w/a/.env", "w/a/.envs/.env", "o/.env"] {
            std::fs::create_dir_all(top.join(file).parent().unwrap()).unwrap();
            std::fs::write(top.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", top.join("w/a/b")).unwrap();
        let found = |pattern: &str| {
            let expanded = Pattern::new(&top.join(pattern)).expand(&[top.join("w")])?;
            let names = expanded.iter().map(|path| path.strip_prefix(top).unwrap().display().to_string());
            let mut names: Vec<String> = names.collect();
            names.sort();
            anyhow::Ok(names)
        };
        assert_eq!(found("w/**/.env*").unwrap(), ["w/.env", "w/a/.env", "w/a/.envs"]);
        assert_eq!(found("**/.env").unwrap(), ["w/.env", "w/a/.env", "w/a/.envs/.env"], "from above");
        assert_eq!(
            found("w/a/*").unwrap(),
            ["w/a/.env", "w/a/.envs"],
            "a link that leads nowhere is not there"
        );
        assert_eq!(found("w*").unwrap(), ["w"]);
        assert_eq!(found("o/*").unwrap(), [""; 0], "not shown");
        assert!(Pattern::new(Path::new("/*/x")).expand(&[top.join("w")]).is_err());
    }
}
