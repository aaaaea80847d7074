//! A blob that is being downloaded: a file under the name of its digest, which one process at a time extends.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use sha2::Digest as _;

use crate::layout::Layout;
use crate::manifest::Blob;
use crate::{Digest, Error};

/// Bytes that are written at once.
const CHUNK: usize = 256 << 10;
/// Pause between attempts to get a blob that is being downloaded already, and their number. Then it is downloaded again: the
/// other download may be slow on purpose.
const POLL: Duration = Duration::from_millis(100);
const POLLS: u32 = 50;
/// Part of the file system, and bytes, of which the smaller one stays free.
const RESERVE: (u64, u64) = (20, 1 << 30);

/// Returns an error if so many more bytes would leave too little of the disk free.
pub(crate) fn check_reserve(file: &File, path: &Path, bytes: usize) -> Result<(), Error> {
    let disk = rustix::fs::fstatvfs(file).map_err(Error::file("write", path))?;
    let reserve = (disk.f_blocks * disk.f_frsize / RESERVE.0).min(RESERVE.1);
    match (disk.f_bavail * disk.f_frsize).saturating_sub(bytes as u64) < reserve {
        true => Err(Error::file("write", path)(rustix::io::Errno::NOSPC)),
        false => Ok(()),
    }
}

/// An incomplete blob, locked.
pub(crate) struct Partial {
    layout: Layout,
    blob: Blob,
    path: PathBuf,
    file: File,
    hash: sha2::Sha256,
    written: u64,
    pending: Vec<u8>,
    /// `true` if it begins with bytes of an earlier process.
    inherited: bool,
}

impl Partial {
    /// Opens the file, and waits for another process that has it; `None` when the blob is whole.
    pub(crate) async fn open(layout: &Layout, blob: &Blob) -> Result<Option<Partial>, Error> {
        let mut path = layout.partial(&blob.digest);
        let mut polls = 0;
        loop {
            if layout.has(blob) {
                return Ok(None);
            }
            let options = File::options().create(true).truncate(false).read(true).write(true).open(&path);
            let file = options.map_err(Error::file("open", &path))?;
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                tokio::time::sleep(POLL).await;
                polls += 1;
                if polls == POLLS {
                    path.set_extension(format!("{:016x}", rand::random::<u64>()));
                }
                continue;
            }
            // The holder before may have given the file its final name, or removed it.
            let same = |m: std::fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == m.ino());
            if !std::fs::metadata(&path).is_ok_and(same) {
                continue;
            }
            let (layout, blob) = (layout.clone(), blob.clone());
            let partial = Partial {
                layout,
                blob,
                path,
                file,
                hash: sha2::Sha256::new(),
                written: 0,
                pending: Vec::new(),
                inherited: false,
            };
            return partial.blocking(Partial::take_over).await.map(|(partial, ())| Some(partial));
        }
    }

    /// Bytes that are there.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Appends bytes.
    pub(crate) async fn push(mut self, bytes: &[u8]) -> Result<Partial, Error> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() < CHUNK { Ok(self) } else { self.flush().await }
    }

    /// Writes what is pending.
    pub(crate) async fn flush(self) -> Result<Partial, Error> {
        self.blocking(Partial::write_pending).await.map(|(partial, ())| partial)
    }

    /// Starts from nothing again.
    pub(crate) async fn reset(self) -> Result<Partial, Error> {
        self.blocking(Partial::truncate).await.map(|(partial, ())| partial)
    }

    /// Returns `true` if it begins with bytes that were there before; after a reset it does not.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited
    }

    /// Keeps the blob if its digest is right. Otherwise nothing of it is kept, and the file is returned.
    pub(crate) async fn finish(self) -> Result<Option<Partial>, Error> {
        let (partial, whole) = self.blocking(Partial::check_and_keep).await?;
        Ok((!whole).then_some(partial))
    }

    /// Runs a step where it may block. If the caller is gone, the lock is kept until the step has ended.
    async fn blocking<T: Send + 'static>(
        mut self,
        step: impl FnOnce(&mut Partial) -> Result<T, Error> + Send + 'static,
    ) -> Result<(Partial, T), Error> {
        let path = self.path.clone();
        let task = tokio::task::spawn_blocking(move || step(&mut self).map(|value| (self, value)));
        task.await.map_err(Error::file("write", &path))?
    }

    /// Computes the digest of what is there.
    fn take_over(&mut self) -> Result<(), Error> {
        let path = self.path.clone();
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = self.file.read(&mut buffer).map_err(Error::file("read", &path))?;
            if count == 0 {
                break;
            }
            self.hash.update(&buffer[..count]);
            self.written += count as u64;
        }
        self.inherited = self.written > 0;
        if self.written > self.blob.size { self.truncate() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.pending);
        let path = self.path.clone();
        check_reserve(&self.file, &path, pending.len())?;
        self.file.write_all(&pending).map_err(Error::file("write", &path))?;
        self.hash.update(&pending);
        self.written += pending.len() as u64;
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), Error> {
        use std::io::Seek;
        let path = self.path.clone();
        let file = &mut self.file;
        file.set_len(0).and_then(|()| file.rewind()).map_err(Error::file("shorten", &path))?;
        self.hash = sha2::Sha256::new();
        self.written = 0;
        self.pending.clear();
        self.inherited = false;
        Ok(())
    }

    fn check_and_keep(&mut self) -> Result<bool, Error> {
        self.write_pending()?;
        if self.written != self.blob.size || Digest::finish(self.hash.clone()) != self.blob.digest {
            self.truncate()?;
            return Ok(false);
        }
        let (layout, path, digest) = (self.layout.clone(), self.path.clone(), self.blob.digest.clone());
        layout.keep(&self.file, &path, &digest)?;
        Ok(true)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Nothing continues a file with a name of its own. A whole blob has another name by now.
        if self.path.extension().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
