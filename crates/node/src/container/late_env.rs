//! Variables for the runtime inside a container that runs: in a file that it reads at each start of a process.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use hutch_image::{PathSegment, remove_tree};
use hutch_jail::User;

/// Where the runtime looks, inside.
pub(crate) const FOLDER: &str = "/.hutch/env";
/// The file: `NAME=VALUE`, each ended by a NUL byte. The runtime has the same name for it.
const FILE: PathSegment = PathSegment::fixed("variables");
/// The file while it is written.
const FRESH: PathSegment = PathSegment::fixed("fresh");

/// Makes the folder, empty: a container that starts has every variable from the beginning.
pub(crate) fn prepare(folder: &Path) -> io::Result<()> {
    remove_tree(folder)?;
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Puts the file in place of an older one. Only the container's user can read it.
pub(crate) fn write(folder: &Path, variables: &[&(String, String)], user: &User) -> io::Result<()> {
    let mut text = String::new();
    for (name, value) in variables {
        text.extend([name, "=", value, "\0"]);
    }
    let fresh = FRESH.below(folder);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o400).open(&fresh)?;
    // The mount gives ids inside the numbers that they have on disk.
    std::os::unix::fs::fchown(&file, Some(user.uid), Some(user.gid))?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(fresh, FILE.below(folder))
}
