//! Output kept in memory, up to a bound for each and a bound for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::AsyncRead;

use super::follow::Ended;

/// Bytes kept of each of a command's two output streams; what comes after is read, counted and dropped.
/// An answer holds both in memory, and the programs of a sandbox share a few hundred megabytes.
pub const OUTPUT_LIMIT: usize = 4 << 20;

/// Bytes kept of all output together. When they are used up, what comes is dropped as if [`OUTPUT_LIMIT`]
/// was reached: one greedy command must not be the end of the program that serves all.
pub const TOTAL_LIMIT: usize = 64 << 20;

const READ_SIZE: usize = 16 << 10;

/// What one output stream of a command carried.
#[derive(Debug, Default)]
pub struct Captured {
    /// The first bytes, [`OUTPUT_LIMIT`] at most.
    pub kept: Vec<u8>,
    /// How many bytes came after them.
    pub dropped: u64,
    held: Held,
}

#[cfg(test)]
impl Captured {
    pub(crate) fn cut(kept: &[u8], dropped: u64) -> Captured {
        Captured { kept: kept.to_vec(), dropped, held: Held::default() }
    }
}

/// A part of [`TOTAL_LIMIT`], given back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Held {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    pub(super) fn none(of: &Arc<AtomicUsize>) -> Held {
        Held { of: of.clone(), bytes: 0 }
    }

    /// Whether there was room.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.of.fetch_add(bytes, Ordering::Relaxed) + bytes <= TOTAL_LIMIT;
        if grown {
            self.bytes += bytes;
        } else {
            self.of.fetch_sub(bytes, Ordering::Relaxed);
        }
        grown
    }

    pub(super) fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.of.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(super) async fn capture(
    stream: Option<impl AsyncRead + Unpin>,
    held: &Arc<AtomicUsize>,
    ended: &Ended,
) -> std::io::Result<Captured> {
    let mut captured = Captured { held: Held::none(held), ..Captured::default() };
    let Some(mut stream) = stream else { return Ok(captured) };
    let mut read = BytesMut::with_capacity(READ_SIZE);
    loop {
        read.clear();
        let count = ended.read(&mut stream, &mut read, READ_SIZE).await?;
        if count == 0 {
            return Ok(captured);
        }
        // Nothing is kept again after something was dropped: what is kept is the start of it all.
        let room = if captured.dropped == 0 { count.min(OUTPUT_LIMIT - captured.kept.len()) } else { 0 };
        let keep = if captured.held.grow(room) { room } else { 0 };
        captured.kept.extend_from_slice(&read[..keep]);
        captured.dropped += (count - keep) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::follow::Ending;
    use super::*;

    #[tokio::test]
    async fn all_output_together_is_bounded_and_given_back() {
        let held = Arc::new(AtomicUsize::new(TOTAL_LIMIT - 100_000));
        let (_ending, ended) = Ending::pair();
        let first = capture(Some(&[1; 90_000][..]), &held, &ended).await.unwrap();
        let second = capture(Some(&[2; 90_000][..]), &held, &ended).await.unwrap();
        assert_eq!((first.kept.len(), first.dropped), (90_000, 0));
        assert!(second.kept.len() <= 10_000 && second.kept.len() as u64 + second.dropped == 90_000);
        drop((first, second));
        assert_eq!(held.load(Ordering::Relaxed), TOTAL_LIMIT - 100_000);
    }

    #[tokio::test]
    async fn one_stream_is_bounded() {
        let long = vec![3; OUTPUT_LIMIT + 5];
        let (_ending, ended) = Ending::pair();
        let captured = capture(Some(&long[..]), &Arc::default(), &ended).await.unwrap();
        assert_eq!((captured.kept.len(), captured.dropped), (OUTPUT_LIMIT, 5));
    }
}
