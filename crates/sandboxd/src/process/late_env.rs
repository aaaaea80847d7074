//! Late env: variables that the sandbox receives while it runs, such as those of the claim that has just
//! adopted it.

use std::io;
use std::path::Path;

/// File of late env, mounted by the node: `NAME=VALUE`, each ended by a NUL byte. Absent without late env.
pub(super) const FILE: &str = "/.hutch/env/variables";

/// Reads all variables in order. Entries that are not `NAME=VALUE` in UTF-8 are skipped.
pub(super) fn read(file: &Path) -> io::Result<Vec<(String, String)>> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let texts = bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let pairs = texts.filter_map(|text| text.split_once('='));
    Ok(pairs
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_contain_newlines_and_equals_signs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("variables");
        assert_eq!(read(&file).unwrap(), []);
        assert_eq!(read(&file.join("below")).unwrap(), []);
        std::fs::write(&file, "A=1\0B=x=y\nz\0=none\0C=\0").unwrap();
        let expected = [("A", "1"), ("B", "x=y\nz"), ("C", "")];
        assert_eq!(read(&file).unwrap(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(read(folder.path()).is_err());
    }
}
