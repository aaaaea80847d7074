//! Paths of this machine, by name.

use std::path::{Component, Path, PathBuf};

/// Returns the absolute path of a path that was named, with `..` for the folder above by name: no link is followed.
pub(crate) fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    Ok(plain)
}
