use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;

/// Writes a file that only its owner can read (mode 0600), all or nothing. The folder must be there.
///
/// # Errors
/// [`Error::File`].
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |cause: std::io::Error| Error::File { path: path.into(), cause };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    // What a crash left. Made anew and not opened, so that mode and owner are ours and no link is followed.
    match std::fs::remove_file(&fresh) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&fresh, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn the_file_is_the_owners_whatever_lay_there_before() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (file, elsewhere) = (folder.path().join("tls.key"), folder.path().join("elsewhere"));
        std::fs::write(&elsewhere, "kept").expect("written");
        symlink(&elsewhere, folder.path().join("tls.key.new")).expect("a link");
        std::fs::write(&file, "old").expect("written");
        write_private(&file, "new").expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "new");
        assert_eq!(std::fs::symlink_metadata(&file).expect("stat").mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "kept");
    }
}
