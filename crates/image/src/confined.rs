//! Unpacks layers in a process that can change nothing but the folder of the layer.
//!
//! That process has no privileges, so it cannot set owners. It reports them, and the caller, if it is root, sets them
//! afterwards. A report is untrusted: it names entries of the folder, and nothing outside of it is changed.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::beneath::Folder;
use crate::unpack::{Digests, Owners, Packing, unpack};

/// Maximum bytes of a path or a message in a report.
const MAX_TEXT: usize = 64 << 10;
/// Maximum characters of the message of an error.
const MAX_MESSAGE: usize = 300;

const OWNER: u8 = b'o';
const DIGESTS: u8 = b'd';
const FAILED: u8 = b'f';

/// Starts confined processes.
pub trait Unpacker: Debug + Send + Sync {
    /// Runs [`unpack_and_report`] in a process that can write only below `target`, and waits for its end. Gives it the
    /// folder first, if it has an id of its own, and returns that id.
    ///
    /// # Errors
    /// When the process cannot be started.
    fn run(&self, target: &Path, packing: &str, blob: File, report: File) -> io::Result<Option<u32>>;
}

/// Unpacks a layer into the working directory. To be called in a confined process with the arguments of
/// [`Unpacker::run`].
///
/// # Errors
/// When the report cannot be written. That a layer cannot be unpacked is in the report.
pub fn unpack_and_report(packing: &str, blob: File, report: File) -> io::Result<()> {
    let report = std::cell::RefCell::new(BufWriter::new(report));
    let owners = Owners::Report(Box::new(|path, (uid, gid)| {
        let mut report = report.borrow_mut();
        report.write_all(&[OWNER])?;
        report.write_all(&uid.to_le_bytes())?;
        report.write_all(&gid.to_le_bytes())?;
        write_text(&mut *report, path.as_os_str().as_bytes())
    }));
    let outcome = match Packing::parse(packing) {
        Some(packing) => unpack(blob, packing, Path::new("."), owners),
        None => Err(Error::Confined { reason: format!("unknown packing {packing:?}") }),
    };
    let mut report = report.borrow_mut();
    match outcome {
        Ok(digests) => {
            report.write_all(&[DIGESTS])?;
            write_text(&mut *report, digests.blob.as_bytes())?;
            write_text(&mut *report, digests.archive.as_bytes())?;
        }
        Err(error) => {
            report.write_all(&[FAILED])?;
            write_text(&mut *report, error.to_string().as_bytes())?;
        }
    }
    report.flush()
}

/// Unpacks a layer by a confined process, and sets the owners that it reports.
pub(crate) fn unpack_confined(
    unpacker: &dyn Unpacker,
    blob: File,
    packing: Packing,
    target: &Path,
) -> Result<Digests, Error> {
    let failed = || Error::file("unpack a layer into", target);
    let mut report = tempfile::tempfile().map_err(failed())?;
    let writer = report.try_clone().map_err(failed())?;
    let id = unpacker.run(target, packing.name(), blob, writer).map_err(failed())?;
    report.rewind().map_err(failed())?;
    let owners = id.map(|id| Folder::open(target).map(|root| Setter::new(root, id))).transpose();
    let owners = owners.map_err(Error::file("open", target))?;
    read_report(BufReader::new(report), owners)
}

/// Reads a report to its end.
fn read_report(mut report: impl Read, mut owners: Option<Setter>) -> Result<Digests, Error> {
    let confined = |reason: String| Error::Confined { reason };
    let ended = |_: io::Error| confined("its process ended before its work was done".into());
    loop {
        let mut kind = [0];
        report.read_exact(&mut kind).map_err(ended)?;
        match kind[0] {
            OWNER => {
                let uid = read_number(&mut report).map_err(ended)?;
                let gid = read_number(&mut report).map_err(ended)?;
                let path = read_text(&mut report).map_err(ended)?;
                let path = Path::new(std::ffi::OsStr::from_bytes(&path));
                if let Some(owners) = &mut owners {
                    owners.set(path, (uid, gid)).map_err(Error::file("set the owner of", path))?;
                }
            }
            DIGESTS => {
                let mut text = || read_text(&mut report).map(|text| String::from_utf8_lossy(&text).into());
                let (blob, archive) = (text().map_err(ended)?, text().map_err(ended)?);
                if let Some(owners) = owners {
                    owners.finish().map_err(Error::file("set the owner of", "the layer"))?;
                }
                return Ok(Digests { blob, archive });
            }
            FAILED => {
                let text = read_text(&mut report).map_err(ended)?;
                let text = String::from_utf8_lossy(&text);
                return Err(confined(text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()));
            }
            _ => return Err(confined("its process reported nonsense".into())),
        }
    }
}

/// Reads a report about a folder, whatever it is.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_report_of(report: &[u8], target: &Path) {
    let owners = Folder::open(target).ok().map(|root| Setter::new(root, rustix::process::getuid().as_raw()));
    let _ = read_report(report, owners);
}

fn write_text(mut to: impl Write, text: &[u8]) -> io::Result<()> {
    let length = u32::try_from(text.len().min(MAX_TEXT)).unwrap_or(0);
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&text[..length as usize])
}

fn read_number(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_text(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = read_number(from)? as usize;
    if length > MAX_TEXT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    from.read_exact(&mut text)?;
    Ok(text)
}

/// Sets owners of entries that a process without privileges has made.
struct Setter {
    root: Folder,
    /// User of that process, whose folders go to root unless an entry of the archive gives them to another user.
    id: u32,
    /// Folder of the last entry.
    parent: Option<(PathBuf, Folder)>,
}

impl Setter {
    fn new(root: Folder, id: u32) -> Setter {
        Setter { root, id, parent: None }
    }

    fn set(&mut self, path: &Path, owner: (u32, u32)) -> Result<(), rustix::io::Errno> {
        let Some(name) = path.file_name() else {
            return self.root.set_owner(owner);
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_ref().is_none_or(|(known, _)| known != parent) {
            for folder in parent.ancestors() {
                self.take(&self.root.folder(folder)?)?;
            }
            self.parent = Some((parent.to_owned(), self.root.folder(parent)?));
        }
        let Some((_, folder)) = &self.parent else { return Ok(()) };
        match folder.set_link_owner(Path::new(name), Some(owner)) {
            // A later entry has replaced it.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Gives a folder to root that still belongs to the process.
    fn take(&self, folder: &Folder) -> Result<(), rustix::io::Errno> {
        if folder.owner()? == self.id { folder.set_owner((0, 0)) } else { Ok(()) }
    }

    fn finish(self) -> Result<(), rustix::io::Errno> {
        self.take(&self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(parts: &[&[u8]]) -> Result<Digests, Error> {
        read_report(&*parts.concat(), None)
    }

    #[test]
    fn report_that_is_cut_or_wrong_is_an_error() {
        for text in ["", "x", "d\x02\0\0\0ab", "o\0\0\0\0\0\0"] {
            let error = report(&[text.as_bytes()]).unwrap_err();
            assert!(matches!(error, Error::Confined { .. }), "{error}");
        }
        let long = u32::MAX.to_le_bytes();
        assert!(report(&[b"f", &long]).is_err(), "no memory for a length that was made up");
    }

    #[test]
    fn message_of_a_report_is_shown_without_control_characters() {
        let text = b"bad\n\x1b[1mlayer";
        let error = report(&[b"f", &(text.len() as u32).to_le_bytes(), text]).unwrap_err().to_string();
        assert!(error.contains("bad[1mlayer"), "{error}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
    fn owners_of_a_report_change_nothing_outside() {
        hutch_testkit::require!(root);
        use std::os::unix::fs::{MetadataExt, symlink};
        let machine = tempfile::tempdir().unwrap();
        let layer = tempfile::tempdir_in(&machine).unwrap();
        let outside = machine.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "").unwrap();
        symlink(&outside, layer.path().join("link")).unwrap();
        std::os::unix::fs::lchown(layer.path(), Some(7), Some(7)).unwrap();
        std::fs::create_dir(layer.path().join("folder")).unwrap();
        std::os::unix::fs::lchown(layer.path().join("folder"), Some(7), Some(7)).unwrap();
        std::fs::write(layer.path().join("folder/file"), "").unwrap();
        let mut setter = Setter::new(Folder::open(layer.path()).unwrap(), 7);
        let own = (5, 6);
        setter.set(Path::new("folder/file"), own).unwrap();
        setter.set(Path::new("link"), own).unwrap();
        assert!(setter.set(Path::new("link/file"), own).is_err());
        assert!(setter.set(Path::new("../outside/file"), own).is_err());
        let absolute = outside.join("file");
        assert!(setter.set(&absolute, own).is_err());
        setter.finish().unwrap();
        let uid = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
        assert_eq!(uid(&layer.path().join("folder/file")), 5);
        assert_eq!(uid(&layer.path().join("link")), 5);
        assert_eq!(uid(&layer.path().join("folder")), 0);
        assert_eq!(uid(layer.path()), 0);
        assert_eq!((uid(&outside), uid(&outside.join("file"))), (0, 0));
    }
}
