//! Output kept in memory, bounded for each stream and in total.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::AsyncRead;

use super::follow::Ended;

/// Maximum bytes kept of each output stream of a command; the rest is read, counted and discarded. A response
/// holds both streams in memory, and the programs of a sandbox share a few hundred megabytes.
pub const OUTPUT_LIMIT: usize = 4 << 20;

/// Maximum bytes kept of all output. Beyond it, output is discarded as beyond [`OUTPUT_LIMIT`]: one command
/// must not exhaust the memory of the program that serves all clients.
pub const TOTAL_LIMIT: usize = 64 << 20;

const READ_SIZE: usize = 16 << 10;

/// Output of one stream of a command.
#[derive(Debug, Default)]
pub struct Captured {
    /// The first bytes, [`OUTPUT_LIMIT`] at most.
    pub kept: Vec<u8>,
    /// Number of bytes discarded after them.
    pub dropped: u64,
    held: Held,
}

#[cfg(test)]
impl Captured {
    pub(crate) fn cut(kept: &[u8], dropped: u64) -> Captured {
        Captured { kept: kept.to_vec(), dropped, held: Held::default() }
    }
}

/// Share of [`TOTAL_LIMIT`], released on drop.
#[derive(Debug, Default)]
pub(super) struct Held {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    pub(super) fn none(of: &Arc<AtomicUsize>) -> Held {
        Held { of: of.clone(), bytes: 0 }
    }

    /// Returns true if there was room.
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
        // Nothing is kept after the first discarded byte: the kept bytes are the start of the output.
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
    async fn total_output_is_bounded_and_released() {
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
    async fn each_stream_is_bounded() {
        let long = vec![3; OUTPUT_LIMIT + 5];
        let (_ending, ended) = Ending::pair();
        let captured = capture(Some(&long[..]), &Arc::default(), &ended).await.unwrap();
        assert_eq!((captured.kept.len(), captured.dropped), (OUTPUT_LIMIT, 5));
    }
}
