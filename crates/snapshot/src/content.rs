//! Keyed digests of the content of files.
//!
//! The digest depends on length and bytes and not on where the file system has holes: pages of zeros are left out. So a sparse
//! file of any length costs what its data cost. Regions of 1 MiB are authenticated one by one, by several threads, with GMAC
//! (AES-256-GCM without plaintext), which is some five times as fast as SHA-256.
//!
//! GMAC is safe only while a key authenticates one message with each nonce. The key is therefore of a random salt, which is new
//! whenever a part of an image is made, and the nonce has the numbers of file and region. A check makes codes with the same
//! nonces, and only compares them: they are in a SHA-256 digest, and leave the process in no other form.

use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::error::Unspecified;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::Cause;

/// Bytes that are left out if all of them are 0.
const PAGE: usize = 4 << 10;
/// Bytes with a code of their own; a multiple of 8 [`PAGE`]s.
const REGION: usize = 1 << 20;
/// Bytes that say which pages of a region are not zeros.
const PAGES: usize = REGION / PAGE / 8;
/// Bytes of a code.
const TAG: usize = 16;
/// Length from which on several threads share the work, and maximum of these.
const SHARED: u64 = 8 << 20;
const MAX_THREADS: usize = 4;
/// Start of what is digested.
const DOMAIN: &[u8] = b"hutch/snapshot-content/v1.";

/// Bytes of a digest.
pub(crate) type Digest = [u8; 32];

/// Random bytes, new for each part of an image.
pub(crate) type Salt = [u8; 32];

/// Key of the content of one part of an image.
pub(crate) struct ContentKey(LessSafeKey);

impl ContentKey {
    /// Makes the key of 32 bytes, which are used for nothing else.
    pub(crate) fn new(bytes: &[u8]) -> Result<ContentKey, Unspecified> {
        UnboundKey::new(&AES_256_GCM, bytes).map(|key| ContentKey(LessSafeKey::new(key)))
    }

    fn tag(&self, file: u32, region: u64, message: &[u8]) -> Result<[u8; TAG], Cause> {
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&file.to_le_bytes());
        nonce[4..].copy_from_slice(&region.to_le_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let made = self.0.seal_in_place_separate_tag(nonce, Aad::from(message), &mut []);
        let made = made.map_err(|_| Cause::Refused("its bytes cannot be authenticated"))?;
        let mut tag = [0; TAG];
        tag.copy_from_slice(made.as_ref());
        Ok(tag)
    }
}

/// Content of a file.
pub(crate) struct Content {
    pub(crate) digest: Digest,
    /// Bytes that are not in pages of zeros.
    pub(crate) bytes: u64,
}

/// Code of a region that has data.
struct Region {
    number: u64,
    tag: [u8; TAG],
    bytes: u64,
}

/// Reads a regular file of this length. Fails if it is shorter. The number is the file's own within what the key is for.
pub(crate) fn content(
    key: &ContentKey,
    number: u32,
    file: BorrowedFd<'_>,
    length: u64,
) -> Result<Content, Cause> {
    let next = Mutex::new(0);
    let work = || regions(key, number, file, length, &next);
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
        context.update(&region.tag);
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
fn regions(
    key: &ContentKey,
    number: u32,
    file: BorrowedFd<'_>,
    length: u64,
    next: &Mutex<u64>,
) -> Result<Vec<Region>, Cause> {
    // A small file needs no more.
    let most = usize::try_from(length).unwrap_or(REGION).min(REGION).next_multiple_of(PAGE);
    let mut buffer = vec![0; most + PAGES];
    let mut found = Vec::new();
    while let Some(start) = next_region(file, length, next)? {
        let wanted = usize::try_from(length - start).unwrap_or(REGION).min(REGION);
        read(file, &mut buffer[..wanted], start)?;
        let end = wanted.next_multiple_of(PAGE);
        buffer[wanted..end].fill(0);
        let kept = pack(&mut buffer, end);
        if kept > 0 {
            let region = start / REGION as u64;
            let tag = key.tag(number, region, &buffer[..kept + PAGES])?;
            found.push(Region { number: region, tag, bytes: kept.min(wanted) as u64 });
        }
    }
    Ok(found)
}

/// Moves the pages that are not zeros to the start of a region, which ends here, and puts a bit for each page behind
/// them. Returns the bytes of these pages.
fn pack(buffer: &mut [u8], end: usize) -> usize {
    let mut pages = [0_u8; PAGES];
    let mut kept = 0;
    for start in (0..end).step_by(PAGE) {
        if buffer[start..start + PAGE] == [0; PAGE] {
            continue;
        }
        if kept < start {
            buffer.copy_within(start..start + PAGE, kept);
        }
        kept += PAGE;
        let page = start / PAGE;
        pages[page / 8] |= 1 << (page % 8);
    }
    buffer[kept..kept + PAGES].copy_from_slice(&pages);
    kept
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn of(file: &std::fs::File) -> Content {
        content(&key(7), 1, file.as_fd(), file.metadata().unwrap().len()).unwrap()
    }

    fn key(byte: u8) -> ContentKey {
        ContentKey::new(&[byte; 32]).unwrap()
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
    fn digest_depends_on_the_key_and_the_number_of_the_file() {
        let file = file(b"abc");
        let found = [(7, 1), (7, 2), (8, 1)]
            .map(|(byte, number)| content(&key(byte), number, file.as_fd(), 3).unwrap().digest);
        assert_ne!(found[0], found[1]);
        assert_ne!(found[0], found[2]);
        assert_eq!(found[0], of(&file).digest);
    }

    #[test]
    fn a_page_that_moves_within_its_region_changes_the_digest() {
        let mut seen = Vec::new();
        for page in [0, 1, 7, 8, 255, 256] {
            let moved = tempfile::tempfile().unwrap();
            moved.set_len(2 << 20).unwrap();
            rustix::io::pwrite(&moved, &[1; PAGE], (page * PAGE) as u64).unwrap();
            assert_eq!(of(&moved).bytes, PAGE as u64);
            assert!(!seen.contains(&of(&moved).digest), "page {page}");
            seen.push(of(&moved).digest);
        }
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
        let alone = regions(&key(7), 1, file.as_fd(), bytes.len() as u64, &next).unwrap();
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
        assert!(content(&key(7), 1, file(b"abc").as_fd(), 4).is_err());
    }
}
