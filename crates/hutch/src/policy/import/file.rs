//! Files that describe a sandbox.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{anyhow, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum bytes of a file that describes a sandbox.
const FILE_BYTES: u64 = 64 << 10;

/// Returns an error without the lines of the file that it quotes.
pub(crate) fn in_one_line(error: serde_saphyr::Error) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    // An option of the library.
    let line = line.split(", set DuplicateKeyPolicy").next().unwrap_or_default();
    let remedy = match line.contains("alias references unknown anchor") {
        true => "; a text that begins with `*` needs quotes, such as \"*.example.com\"",
        false => "",
    };
    anyhow!("{line}{remedy}")
}

/// Returns the object of a document. An error names the field.
pub(crate) fn object<T: DeserializeOwned>(document: Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(document).map_err(|error| match error.path().to_string() {
        path if path == "." => anyhow!("{}", error.inner()),
        path => anyhow!("{path}: {}", error.inner()),
    })
}

/// Reads a file that describes a sandbox.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= FILE_BYTES, "larger than {FILE_BYTES} bytes");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_above_64_kib_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), " ".repeat(64 << 10)).expect("written");
        assert_eq!(read_file(file.path()).expect("read").len(), 64 << 10);
        std::fs::write(file.path(), " ".repeat((64 << 10) + 1)).expect("written");
        assert_eq!(read_file(file.path()).unwrap_err().to_string(), "larger than 65536 bytes");
    }
}
