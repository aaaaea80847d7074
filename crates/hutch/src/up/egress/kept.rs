//! Names of sandboxes on disk: an address means the same name after a suspend, and after a restart of the server.
//!
//! Files of a sandbox may hold addresses that its programs have resolved. A file for each sandbox has its names in the order of
//! their addresses, one in each line. Files are not synchronized: after a loss of power, the last names may be missing.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hutch_policy::HostName;

use super::MOST_NAMES;

/// Folder in the data folder.
pub(super) const FOLDER: &str = "names";
/// Maximum bytes of the name of a sandbox.
const NAME_BYTES: usize = 200;
/// Beginning of the name of an unfinished file. No name of a sandbox begins so.
const UNFINISHED: &str = ".new-";

/// The files.
pub(super) struct Kept {
    folder: PathBuf,
}

impl Kept {
    pub(super) fn open(folder: PathBuf) -> io::Result<Kept> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        for name in names_of(&folder)?.iter().filter(|name| name.starts_with(UNFINISHED)) {
            // It was to take the place of a file when the server was killed.
            std::fs::remove_file(folder.join(name))?;
        }
        Ok(Kept { folder })
    }

    /// Returns the sandboxes that have a file.
    pub(super) fn sandboxes(&self) -> io::Result<Vec<String>> {
        let mut found = names_of(&self.folder)?;
        found.retain(|name| self.file(name).is_ok());
        Ok(found)
    }

    /// Returns the names of a sandbox, in the order of their addresses.
    pub(super) fn names(&self, sandbox: &str) -> Vec<HostName> {
        let text = self.file(sandbox).and_then(|file| match std::fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => read,
        });
        let text = text.unwrap_or_else(|error| {
            tracing::error!(sandbox, %error, "names cannot be read; they may get other addresses");
            String::new()
        });
        // The last line of a file that was not written whole has no end.
        let lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n')?.parse().ok());
        lines.take(MOST_NAMES).collect()
    }

    /// Writes the last of all names of a sandbox, or all if the file lacks others. Returns true if the file has them all.
    pub(super) fn keep(&self, sandbox: &str, names: &[HostName], lacks: bool) -> bool {
        let written = match names.last() {
            Some(name) if !lacks => self.add(sandbox, name),
            _ => self.replace(sandbox, names),
        };
        written.inspect_err(|error| tracing::error!(sandbox, %error, "names cannot be written")).is_ok()
    }

    fn add(&self, sandbox: &str, name: &HostName) -> io::Result<()> {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(self.file(sandbox)?)?;
        file.write_all(format!("{name}\n").as_bytes())
    }

    fn replace(&self, sandbox: &str, names: &[HostName]) -> io::Result<()> {
        let (file, new) = (self.file(sandbox)?, self.folder.join(format!("{UNFINISHED}{sandbox}")));
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&new)?.write_all(text.as_bytes())?;
        std::fs::rename(new, file)
    }

    /// Removes the names of a sandbox, if it has some.
    pub(super) fn forget(&self, sandbox: &str) {
        let removed = self.file(sandbox).and_then(std::fs::remove_file);
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(sandbox, %error, "names cannot be removed");
        }
    }

    fn file(&self, sandbox: &str) -> io::Result<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        match !sandbox.is_empty()
            && sandbox.len() <= NAME_BYTES
            && !sandbox.starts_with('.')
            && sandbox.bytes().all(plain)
        {
            true => Ok(self.folder.join(sandbox)),
            false => Err(io::Error::new(ErrorKind::InvalidInput, "the name of a sandbox is invalid")),
        }
    }
}

/// Returns the names in a folder that are text.
fn names_of(folder: &Path) -> io::Result<Vec<String>> {
    let names = folder.read_dir()?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> (tempfile::TempDir, Kept) {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::open(folder.path().join(FOLDER)).unwrap();
        (folder, kept)
    }

    fn names(texts: &[&str]) -> Vec<HostName> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn names_are_kept_for_each_sandbox_until_it_is_forgotten() {
        let (_folder, kept) = kept();
        let all = names(&["b.example", "a.example", "c.example"]);
        for count in 1..=all.len() {
            assert!(kept.keep("default.1", &all[..count], false));
        }
        assert!(kept.keep("default.2", &all[..1], false));
        assert_eq!(kept.names("default.1"), all);
        kept.forget("default.1");
        assert!(kept.names("default.1").is_empty());
        assert_eq!(kept.names("default.2"), all[..1]);
        kept.forget("default.1");
    }

    /// They stayed as long as the data folder.
    #[test]
    fn unfinished_files_are_removed_and_others_are_found_at_the_start() {
        let (folder, kept) = kept();
        for sandbox in ["default.1", "default.2"] {
            assert!(kept.keep(sandbox, &names(&["a.example"]), true));
        }
        let folder = folder.path().join(FOLDER);
        std::fs::write(folder.join(".new-default.1"), "b.exam").unwrap();
        let kept = Kept::open(folder.clone()).unwrap();
        let mut found = kept.sandboxes().unwrap();
        found.sort_unstable();
        assert_eq!(found, ["default.1", "default.2"]);
        assert!(!folder.join(".new-default.1").exists());
        assert_eq!(kept.names("default.1"), names(&["a.example"]));
    }

    #[test]
    fn file_that_lacks_names_is_written_again() {
        let (folder, kept) = kept();
        let all = names(&["a.example", "b.example", "c.example"]);
        let file = folder.path().join(FOLDER).join("default.1");
        // The disk was full.
        std::fs::write(&file, "a.example\nb.exam").unwrap();
        assert_eq!(kept.names("default.1"), all[..1]);
        assert!(kept.keep("default.1", &all, true));
        assert_eq!(kept.names("default.1"), all);
    }

    #[test]
    fn names_after_an_invalid_one_have_no_address() {
        let (folder, kept) = kept();
        std::fs::write(folder.path().join(FOLDER).join("default.1"), "a.example\nb example\nc.example\n")
            .unwrap();
        assert_eq!(kept.names("default.1"), names(&["a.example"]));
    }

    #[test]
    fn number_of_names_is_bounded() {
        let (folder, kept) = kept();
        let text: String = (0..=MOST_NAMES).map(|number| format!("n{number}.example\n")).collect();
        std::fs::write(folder.path().join(FOLDER).join("default.1"), text).unwrap();
        assert_eq!(kept.names("default.1").len(), MOST_NAMES);
    }

    #[test]
    fn name_of_a_sandbox_leads_to_no_other_file() {
        let (folder, kept) = kept();
        std::fs::write(folder.path().join("other"), "a.example\n").unwrap();
        for sandbox in ["../other", "..", "", ".new-a", "a/b", "a\0", &"a".repeat(201)] {
            assert!(kept.names(sandbox).is_empty(), "{sandbox:?}");
            assert!(!kept.keep(sandbox, &names(&["b.example"]), false), "{sandbox:?}");
            assert!(!kept.keep(sandbox, &names(&["b.example"]), true), "{sandbox:?}");
            kept.forget(sandbox);
        }
        assert_eq!(std::fs::read_to_string(folder.path().join("other")).unwrap(), "a.example\n");
        assert_eq!(folder.path().join(FOLDER).read_dir().unwrap().count(), 0);
    }
}
