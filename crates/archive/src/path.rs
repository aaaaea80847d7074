//! Paths of entries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Maximum length of a path, in bytes: below the kernel's 4096, for the folder before it.
const PATH_LIMIT: usize = 4000;

/// Treatment of a path that begins with `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsolutePaths {
    /// Refused.
    Refused,
    /// Taken as relative to the folder, as `tar` does.
    Relative,
}

/// Reason why a path was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It contains `..`.
    #[error("its path leads upwards")]
    Upwards,
    /// It begins with `/`.
    #[error("its path is absolute")]
    Absolute,
    /// It is longer than 4000 bytes.
    #[error("its path is too long")]
    TooLong,
    /// It contains a NUL byte.
    #[error("its path contains a NUL byte")]
    Nul,
}

/// Returns the path without `.` and empty components. The path of the folder itself is empty.
///
/// # Errors
/// [`PathError`].
pub fn relative(path: &[u8], absolute: AbsolutePaths) -> Result<PathBuf, PathError> {
    if path.contains(&0) {
        return Err(PathError::Nul);
    }
    let mut clean = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            #[expect(clippy::disallowed_methods, reason = "one normal component at a time")]
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::RootDir if absolute == AbsolutePaths::Relative => {}
            Component::RootDir | Component::Prefix(_) => return Err(PathError::Absolute),
            Component::ParentDir => return Err(PathError::Upwards),
        }
    }
    match clean.as_os_str().len() > PATH_LIMIT {
        true => Err(PathError::TooLong),
        false => Ok(clean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_or_refused() {
        let long = "n/".repeat(2001);
        for (path, expected) in [
            ("a", Ok("a")),
            ("./a//b/.", Ok("a/b")),
            ("", Ok("")),
            ("./", Ok("")),
            ("...", Ok("...")),
            ("..", Err(PathError::Upwards)),
            ("a/../b", Err(PathError::Upwards)),
            ("a/..", Err(PathError::Upwards)),
            ("/a", Err(PathError::Absolute)),
            ("a\0b", Err(PathError::Nul)),
            (&long[..4000], Ok(&long[..3999])),
            (&long, Err(PathError::TooLong)),
        ] {
            let clean = relative(path.as_bytes(), AbsolutePaths::Refused);
            assert_eq!(clean, expected.map(PathBuf::from), "{path:?}");
        }
        assert_eq!(relative(b"//a/b", AbsolutePaths::Relative), Ok("a/b".into()));
        assert_eq!(relative(b"/../a", AbsolutePaths::Relative), Err(PathError::Upwards));
    }

    proptest::proptest! {
        #[test]
        fn no_clean_path_leads_out(path in proptest::collection::vec(proptest::sample::select(&b"a./\0"[..]), 0..20)) {
            for absolute in [AbsolutePaths::Refused, AbsolutePaths::Relative] {
                let Ok(clean) = relative(&path, absolute) else { continue };
                proptest::prop_assert!(clean.components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
