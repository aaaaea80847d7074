//! Names that become one component of a path.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum length of a component, in bytes: the kernel's `NAME_MAX`.
const MAX_SEGMENT_BYTES: usize = 255;
/// Maximum length of a DNS-1123 label.
const MAX_LABEL_BYTES: usize = 63;

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes.
///
/// Only a check makes one, so a path that is built of segments never leaves its parent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSegment(Cow<'static, str>);

impl PathSegment {
    /// A name of this program's own.
    ///
    /// # Panics
    /// When it is no segment; in a constant, that is an error of the compiler.
    pub const fn fixed(name: &'static str) -> PathSegment {
        assert!(is_segment(name.as_bytes()), "not one component of a path");
        PathSegment(Cow::Borrowed(name))
    }

    /// Accepts any single component; `None` for everything else.
    pub fn new(name: impl Into<String>) -> Option<PathSegment> {
        let name = name.into();
        is_segment(name.as_bytes()).then_some(PathSegment(Cow::Owned(name)))
    }

    /// Accepts a DNS-1123 label, as Kubernetes demands for names of namespaces, containers and volumes; `None` for
    /// everything else.
    pub fn label(name: &str) -> Option<PathSegment> {
        is_label(name.as_bytes()).then(|| PathSegment(Cow::Owned(name.to_owned())))
    }

    /// The path of this name below a folder.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that joins: the type keeps the result below"
    )]
    pub fn below(&self, folder: &Path) -> PathBuf {
        folder.join(self.as_str())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PathSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const fn is_segment(name: &[u8]) -> bool {
    if matches!(name, b"" | b"." | b"..") || name.len() > MAX_SEGMENT_BYTES {
        return false;
    }
    let mut at = 0;
    while at < name.len() {
        if name[at] == b'/' || name[at] == 0 {
            return false;
        }
        at += 1;
    }
    true
}

fn is_label(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let edges = name.first().is_some_and(plain) && name.last().is_some_and(plain);
    edges && name.len() <= MAX_LABEL_BYTES && name.iter().all(|byte| plain(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_no_segments() {
        let long = "x".repeat(MAX_SEGMENT_BYTES + 1);
        for name in ["", ".", "..", "/", "/etc", "a/b", "../a", "a\0b", &long] {
            assert_eq!(PathSegment::new(name), None, "{name:?}");
            assert_eq!(PathSegment::label(name), None, "{name:?}");
        }
        for name in ["a", "...", ".a", "a b", "hosts", &long[1..]] {
            let segment = PathSegment::new(name).unwrap();
            assert_eq!(segment.below(Path::new("/top")).parent(), Some(Path::new("/top")), "{name:?}");
        }
    }

    #[test]
    fn labels_are_those_of_kubernetes() {
        for name in ["A", "a_b", "-a", "a-", "a.b", "\u{e4}", &"x".repeat(64)] {
            assert_eq!(PathSegment::label(name), None, "{name:?}");
        }
        for name in ["a", "0", "a-b", "volumes", &"x".repeat(63)] {
            assert_eq!(PathSegment::label(name).unwrap().as_str(), name);
        }
    }
}
