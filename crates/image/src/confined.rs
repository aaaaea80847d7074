//! Unpacks layers in a process that can change nothing but the folder of the layer.
//!
//! That process has no privileges, so it cannot set owners. It reports them, and the caller, if it is root, sets them
//! afterwards. A report is untrusted: it names entries of the folder, and nothing outside of it is changed.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Error;
use crate::beneath::Folder;
use crate::owners::Setter;
use crate::unpack::{Digests, MAX_ENTRIES, MAX_PATH_BYTES, Owners, Packing, copy_hashed, unpack};

/// Maximum bytes of a path or a message in a report.
const MAX_TEXT: usize = 64 << 10;
/// Maximum characters of the message of an error.
const MAX_MESSAGE: usize = 300;
/// Maximum bytes of a report: kind, owner, length and path of each entry, and texts at its end.
const MAX_REPORT_BYTES: u64 = MAX_PATH_BYTES + 13 * MAX_ENTRIES + 3 * MAX_TEXT as u64;
/// Maximum characters of a path in an error.
const MAX_SHOWN: usize = 200;

const OWNER: u8 = b'o';
const DIGESTS: u8 = b'd';
const FAILED: u8 = b'f';

/// Starts confined processes.
pub trait Unpacker: Debug + Send + Sync {
    /// Runs [`unpack_and_report`] in a process that can write only below `target`, and waits for its end. Gives it the
    /// folder first, if it has an id of its own, and returns that id. `blob`, through which `size` bytes come, and `report`
    /// are pipes, and no other process may keep them open.
    ///
    /// # Errors
    /// When the process cannot be started, or fails without a report. What it says then is untrusted.
    fn run(&self, target: &Path, packing: &str, blob: (File, u64), report: File) -> io::Result<Option<u32>>;
}

/// Unpacks a layer into the working directory. To be called in a confined process with the arguments of
/// [`Unpacker::run`].
///
/// # Errors
/// When the report cannot be written. That a layer cannot be unpacked is in the report.
pub fn unpack_and_report(packing: &str, blob: (File, u64), report: File) -> io::Result<()> {
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

/// Unpacks a layer by a confined process, and sets the owners that it reports. Returns the digest of the blob as it was
/// given to the process.
///
/// Both go through pipes: the process can neither change the blob after it was hashed nor write more of a report than is
/// read.
pub(crate) fn unpack_confined(
    unpacker: &dyn Unpacker,
    (blob, size): (File, u64),
    packing: Packing,
    target: &Path,
) -> Result<Digests, Error> {
    let failed = || Error::file("unpack a layer into", target);
    // On the disk of the layers, without a name: other folders for such files may be memory.
    let store = target.parent().unwrap_or(target);
    let mut report = tempfile::tempfile_in(store).map_err(Error::file("make a file in", store))?;
    let (blob_reader, blob_writer) = std::io::pipe().map_err(failed())?;
    let (report_reader, report_writer) = std::io::pipe().map_err(failed())?;
    let (fed, collected, ran) = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| copy_hashed(blob, blob_writer));
        let collector = scope.spawn(|| collect(report_reader, &report));
        let (blob, report) = (OwnedFd::from(blob_reader), OwnedFd::from(report_writer));
        let ran = unpacker.run(target, packing.name(), (blob.into(), size), report.into());
        (feeder.join(), collector.join(), ran)
    });
    let panicked = |_| io::Error::other("a thread of it panicked");
    let (fed, collected) = (fed.map_err(panicked).flatten(), collected.map_err(panicked).flatten());
    match fed {
        // The process has ended early. The reason follows.
        Err(ref error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => return Err(Error::file("read a layer for", target)(error)),
        Ok(_) => {}
    }
    collected.map_err(failed())?;
    let id = ran.map_err(failed())?;
    report.rewind().map_err(failed())?;
    let owners = id.map(|id| Folder::open(target).map(|root| Setter::new(root, id))).transpose();
    let owners = owners.map_err(Error::file("open", target))?;
    let reported = read_report(BufReader::new(report), owners)?;
    Ok(Digests { blob: fed.map_err(failed())?, ..reported })
}

/// Copies what a process reports, up to the maximum.
fn collect(from: impl Read, mut report: &File) -> io::Result<()> {
    // Closed then: a process that has more to report gets an error.
    match io::copy(&mut from.take(MAX_REPORT_BYTES + 1), &mut report)? {
        0..=MAX_REPORT_BYTES => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, "its process reported too much")),
    }
}

/// Reads a report to its end.
fn read_report(mut report: impl Read, mut owners: Option<Setter>) -> Result<Digests, Error> {
    let confined = |reason: String| Error::Confined { reason };
    let ended = |_: io::Error| confined("its process ended before its work was done".into());
    let (mut entries, mut path_bytes) = (0, 0);
    loop {
        let mut kind = [0];
        report.read_exact(&mut kind).map_err(ended)?;
        match kind[0] {
            OWNER => {
                let uid = read_number(&mut report).map_err(ended)?;
                let gid = read_number(&mut report).map_err(ended)?;
                let path = read_text(&mut report).map_err(ended)?;
                (entries, path_bytes) = (entries + 1, path_bytes + path.len() as u64);
                if entries > MAX_ENTRIES || path_bytes > MAX_PATH_BYTES || uid == u32::MAX || gid == u32::MAX
                {
                    return Err(confined("its process reported nonsense".into()));
                }
                let path = Path::new(std::ffi::OsStr::from_bytes(&path));
                if let Some(owners) = &mut owners {
                    owners.set(path, (uid, gid)).map_err(Error::file("set the owner of", shown(path)))?;
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
                return Err(confined(plain(&String::from_utf8_lossy(&text), MAX_MESSAGE)));
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

/// Returns the beginning of an untrusted text, without control characters.
fn plain(text: &str, characters: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(characters).collect()
}

/// Returns an untrusted path as it stands in an error.
fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy(), MAX_SHOWN)
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
    fn owner_that_means_unchanged_is_nonsense_in_a_report() {
        let (unchanged, good) = (u32::MAX.to_le_bytes(), 7_u32.to_le_bytes());
        for (uid, gid) in [(unchanged, good), (good, unchanged)] {
            let error = report(&[b"o", &uid, &gid, &1_u32.to_le_bytes(), b"a"]).unwrap_err().to_string();
            assert!(error.contains("nonsense"), "{error}");
        }
    }

    #[test]
    fn report_names_so_many_bytes_of_paths() {
        let path = [b'a'; MAX_TEXT];
        let head = [b"o".as_slice(), &[0; 8], &(MAX_TEXT as u32).to_le_bytes()].concat();
        /// Endless copies of a text.
        struct Copies(Vec<u8>, usize);
        impl Read for Copies {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = (&self.0[self.1..]).read(buffer)?;
                self.1 = (self.1 + count) % self.0.len();
                Ok(count)
            }
        }
        let endless = Copies([head.as_slice(), &path].concat(), 0);
        let error = read_report(endless, None).unwrap_err().to_string();
        assert!(error.contains("nonsense"), "{error}");
    }

    #[test]
    fn path_of_a_report_is_short_and_plain_in_an_error() {
        let long = shown(Path::new(&format!("a\x1b[1m\n{}", "b".repeat(5000))));
        assert_eq!((long.len(), long.contains(char::is_control)), (MAX_SHOWN, false));
    }

    /// Unpacks in a thread of this process, after it has changed the blob in its folder.
    #[derive(Debug)]
    struct Here {
        blob: std::path::PathBuf,
        more_report: u64,
    }

    impl Unpacker for Here {
        fn run(
            &self,
            target: &Path,
            packing: &str,
            blob: (File, u64),
            report: File,
        ) -> io::Result<Option<u32>> {
            let mut writer = report.try_clone()?;
            let packing = Packing::parse(packing).unwrap();
            let unpacked = unpack(blob, packing, target, Owners::Ignore);
            std::fs::write(&self.blob, "other")?;
            io::copy(&mut io::repeat(0).take(self.more_report), &mut writer)?;
            let digests = unpacked.unwrap();
            writer.write_all(&[DIGESTS])?;
            write_text(&mut writer, b"made up")?;
            write_text(&mut writer, digests.archive.as_bytes())?;
            Ok(None)
        }
    }

    fn unpack_here(more_report: u64) -> Result<Digests, Error> {
        let store = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir_in(&store).unwrap();
        let mut blob = tempfile::NamedTempFile::new().unwrap();
        // The end mark of an archive, longer than a pipe holds.
        blob.write_all(&[0; 1 << 20]).unwrap();
        let here = Here { blob: blob.path().into(), more_report };
        let file = File::open(blob.path()).unwrap();
        let digests = unpack_confined(&here, (file, 1 << 20), Packing::Plain, target.path());
        assert_eq!(std::fs::read_dir(&store).unwrap().count(), 1, "the report has no name");
        digests
    }

    #[test]
    fn digest_is_of_the_bytes_that_the_process_gets() {
        let digests = unpack_here(0).unwrap();
        assert_eq!(digests.blob, digests.archive);
    }

    #[test]
    fn report_that_is_too_long_is_not_kept() {
        let error = unpack_here(MAX_REPORT_BYTES).unwrap_err().to_string();
        assert!(error.contains("reported too much"), "{error}");
    }
}
