//! Digests of the content of files.
//!
//! The digest depends on length and bytes and not on where the file system has holes: pages of zeros are left out. So a sparse
//! file of any length costs what its data cost. Regions of 1 MiB have digests of their own, made by several threads.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::Cause;

/// Bytes that are left out if all of them are 0.
const PAGE: usize = 4 << 10;
/// Bytes with a digest of their own; a multiple of [`PAGE`].
const REGION: usize = 1 << 20;
/// Length from which on several threads share the work, and maximum of these.
const SHARED: u64 = 8 << 20;
const MAX_THREADS: usize = 4;
/// Start of what is digested.
const DOMAIN: &[u8] = b"hutch/snapshot-content/v1.";

/// Bytes of a digest.
pub(crate) type Digest = [u8; 32];

/// Content of a file.
pub(crate) struct Content {
    pub(crate) digest: Digest,
    /// Bytes that are not in pages of zeros.
    pub(crate) bytes: u64,
}

/// Digest of a region that has data.
struct Region {
    number: u64,
    digest: Digest,
    bytes: u64,
}

/// Reads a regular file of this length. Fails if it is shorter.
pub(crate) fn content(file: BorrowedFd<'_>, length: u64) -> Result<Content, Cause> {
    let next = Mutex::new(0);
    let work = || regions(file, length, &next);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let mut regions = if length < SHARED || threads == 1 {
        work()?
    } else {
        std::thread::scope(|scope| {
            // Without a thread, the others do its work.
            let spawn = || std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).filter_map(|_| spawn()).collect();
            let mut regions = work();
            for other in others {
                let found = other.join().unwrap_or(Err(Cause::Refused("a thread has failed")));
                regions = regions.and_then(|mut all| {
                    all.extend(found?);
                    Ok(all)
                });
            }
            regions
        })?
    };
    regions.sort_unstable_by_key(|region| region.number);
    let mut context = Context::new(&SHA256);
    context.update(DOMAIN);
    context.update(&length.to_le_bytes());
    let mut bytes = 0;
    for region in &regions {
        context.update(&region.number.to_le_bytes());
        context.update(&region.digest);
        bytes += region.bytes;
    }
    Ok(Content { digest: finish(context), bytes })
}

/// The digest of what has been added.
pub(crate) fn finish(context: Context) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Takes regions with data, until no thread finds another one.
fn regions(file: BorrowedFd<'_>, length: u64, next: &Mutex<u64>) -> Result<Vec<Region>, Cause> {
    // A small file needs no more.
    let mut buffer = vec![0; usize::try_from(length).unwrap_or(REGION).next_multiple_of(PAGE).min(REGION)];
    let mut found = Vec::new();
    while let Some(start) = next_region(file, length, next)? {
        let wanted = usize::try_from(length - start).unwrap_or(REGION).min(REGION);
        read(file, &mut buffer[..wanted], start)?;
        let end = wanted.next_multiple_of(PAGE);
        buffer[wanted..end].fill(0);
        if let Some((digest, pages)) = digest_pages(&buffer[..end]) {
            let bytes = (pages * PAGE).min(wanted) as u64;
            found.push(Region { number: start / REGION as u64, digest, bytes });
        }
    }
    Ok(found)
}

/// Start of the next region that is not only a hole.
fn next_region(file: BorrowedFd<'_>, length: u64, next: &Mutex<u64>) -> Result<Option<u64>, Cause> {
    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
    if *next >= length {
        return Ok(None);
    }
    let data = match rustix::fs::seek(file, SeekFrom::Data(*next)) {
        Ok(data) => data,
        Err(Errno::NXIO) => length,
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::NOTSUP) => *next,
        Err(errno) => return Err(Cause::io("read")(errno)),
    };
    if data >= length {
        *next = length;
        return Ok(None);
    }
    let start = data - data % REGION as u64;
    *next = start.saturating_add(REGION as u64);
    Ok(Some(start))
}

/// Fills the buffer from this place of a file.
pub(crate) fn read(file: BorrowedFd<'_>, buffer: &mut [u8], start: u64) -> Result<(), Cause> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file, &mut buffer[done..], start + done as u64) {
            Ok(0) => return Err(Cause::CHANGED),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Cause::io("read")(errno)),
        }
    }
    Ok(())
}

/// Digest of the pages that are not zeros, with their places, and their number; nothing for a region of zeros.
fn digest_pages(region: &[u8]) -> Option<(Digest, usize)> {
    let zeros = [0; PAGE];
    let mut context = Context::new(&SHA256);
    let (mut pages, mut at) = (0, 0);
    let is_hole = |page: usize| region[page * PAGE..(page + 1) * PAGE] == zeros;
    let all = region.len() / PAGE;
    while at < all {
        if is_hole(at) {
            at += 1;
            continue;
        }
        let start = at;
        while at < all && !is_hole(at) {
            at += 1;
        }
        for number in [start, at] {
            context.update(&(number as u64).to_le_bytes());
        }
        context.update(&region[start * PAGE..at * PAGE]);
        pages += at - start;
    }
    (pages > 0).then(|| (finish(context), pages))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn of(file: &std::fs::File) -> Content {
        content(file.as_fd(), file.metadata().unwrap().len()).unwrap()
    }

    fn file(bytes: &[u8]) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        rustix::io::pwrite(&file, bytes, 0).unwrap();
        file
    }

    #[test]
    fn digest_depends_on_each_byte_its_place_and_the_length_but_not_on_holes() {
        let written = file(&vec![0; 3 * PAGE + 1]);
        let hole = tempfile::tempfile().unwrap();
        hole.set_len(3 * PAGE as u64 + 1).unwrap();
        assert_eq!(of(&written).digest, of(&hole).digest);
        assert_eq!(of(&written).bytes, 0);
        hole.set_len(3 * PAGE as u64 + 2).unwrap();
        assert_ne!(of(&written).digest, of(&hole).digest, "length");
        let mut seen = vec![of(&written).digest];
        for at in [0, 1, PAGE - 1, PAGE, 2 * PAGE, 3 * PAGE] {
            rustix::io::pwrite(&written, b"x", at as u64).unwrap();
            let digest = of(&written).digest;
            assert!(!seen.contains(&digest), "{at}");
            seen.push(digest);
        }
        assert_eq!(of(&file(b"abc")).bytes, 3);
        assert_eq!(of(&file(b"")).bytes, 0);
    }

    #[test]
    fn a_large_sparse_file_costs_only_its_data() {
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 40).unwrap();
        rustix::io::pwrite(&sparse, b"x", 1 << 39).unwrap();
        let first = of(&sparse);
        assert_eq!(first.bytes, PAGE as u64);
        rustix::io::pwrite(&sparse, b"y", 1 << 39).unwrap();
        assert_ne!(of(&sparse).digest, first.digest);
    }

    #[test]
    fn threads_find_the_same_digest_in_any_order() {
        let bytes: Vec<u8> = (0..SHARED + 12_345).map(|at| (at / 7 % 251) as u8).collect();
        let file = file(&bytes);
        let next = Mutex::new(0);
        let alone = regions(file.as_fd(), bytes.len() as u64, &next).unwrap();
        assert_eq!(alone.len(), 9);
        let first = of(&file);
        assert_eq!(first.bytes, bytes.len() as u64);
        for _ in 0..3 {
            assert_eq!(of(&file).digest, first.digest);
        }
        rustix::io::pwrite(&file, b"!", SHARED).unwrap();
        assert_ne!(of(&file).digest, first.digest);
    }

    #[test]
    fn a_file_that_is_shorter_than_its_length_is_refused() {
        assert!(content(file(b"abc").as_fd(), 4).is_err());
    }
}
