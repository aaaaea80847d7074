//! Output of a detached process: the newest bytes up to a limit, each with its offset in the whole output.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Exit;
use super::capture::Held;
use super::follow::{Event, Source};

/// Maximum bytes kept of the output of one detached process, overhead included.
pub const RING_LIMIT: usize = 1 << 20;

/// Maximum bytes of a piece. The oldest piece is discarded as a whole.
const PIECE_SIZE: usize = 16 << 10;
/// Overhead of a piece, so that many tiny ones count too.
const PIECE_COST: usize = 64;

#[derive(Debug)]
struct Piece {
    source: Source,
    content: Vec<u8>,
}

#[derive(Debug)]
struct Kept {
    pieces: VecDeque<Piece>,
    /// Offset of the first kept byte.
    start: u64,
    /// Offset after the last byte.
    end: u64,
    cost: usize,
    held: Held,
    exit: Option<Exit>,
}

/// Kept output.
#[derive(Debug)]
pub(super) struct Ring {
    kept: Mutex<Kept>,
    news: Notify,
}

impl Ring {
    /// `held` counts the memory that all rings and captures share.
    pub(super) fn new(held: &Arc<AtomicUsize>) -> Ring {
        let kept =
            Kept { pieces: VecDeque::new(), start: 0, end: 0, cost: 0, held: Held::none(held), exit: None };
        Ring { kept: Mutex::new(kept), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, source: Source, content: &[u8]) {
        self.lock().push(source, content);
        self.news.notify_waiters();
    }

    pub(super) fn end(&self, exit: Exit) {
        self.lock().exit = Some(exit);
        self.news.notify_waiters();
    }

    /// Returns the offsets of the first kept byte and after the last one.
    pub(super) fn offsets(&self) -> (u64, u64) {
        let kept = self.lock();
        (kept.start, kept.end)
    }

    /// Waits for output at `offset` and returns it.
    pub(super) async fn next(&self, offset: u64) -> Event {
        loop {
            let news = self.news.notified();
            if let Some(event) = self.lock().at(offset) {
                return event;
            }
            news.await;
        }
    }
}

impl Kept {
    fn push(&mut self, source: Source, mut content: &[u8]) {
        while !content.is_empty() {
            let joined = self
                .pieces
                .back_mut()
                .filter(|last| last.source == source && last.content.len() < PIECE_SIZE);
            let room = joined.map_or(PIECE_SIZE, |last| PIECE_SIZE - last.content.len()).min(content.len());
            let (now, later) = content.split_at(room);
            self.append(source, now);
            content = later;
        }
    }

    /// Appends at most [`PIECE_SIZE`] bytes.
    fn append(&mut self, source: Source, content: &[u8]) {
        let most = content.len() + PIECE_COST;
        self.end += content.len() as u64;
        while self.cost + most > RING_LIMIT && self.drop_oldest() {}
        while !self.held.grow(most) {
            // The shared memory is used up: this ring discards its own oldest bytes, or the new ones if it
            // has no others.
            if !self.drop_oldest() {
                self.start = self.end;
                return;
            }
        }
        let joined =
            |last: &&mut Piece| last.source == source && last.content.len() + content.len() <= PIECE_SIZE;
        match self.pieces.back_mut().filter(joined) {
            Some(last) => {
                last.content.extend_from_slice(content);
                self.cost += content.len();
                self.held.shrink(PIECE_COST);
            }
            None => {
                self.cost += most;
                self.pieces.push_back(Piece { source, content: content.to_vec() });
            }
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.pieces.pop_front() else { return false };
        let cost = oldest.content.len() + PIECE_COST;
        self.start += oldest.content.len() as u64;
        self.cost -= cost;
        self.held.shrink(cost);
        true
    }

    fn at(&self, offset: u64) -> Option<Event> {
        if offset < self.start {
            return Some(Event::Dropped(self.start - offset));
        }
        let mut begin = self.start;
        for piece in &self.pieces {
            let end = begin + piece.content.len() as u64;
            if offset < end {
                let skipped = usize::try_from(offset - begin).unwrap_or(0);
                return Some(Event::Output(piece.source, Bytes::copy_from_slice(&piece.content[skipped..])));
            }
            begin = end;
        }
        self.exit.map(Event::Exit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    use super::super::capture::TOTAL_LIMIT;
    use super::*;

    /// Returns everything from an offset on, and the number of discarded bytes.
    async fn read(ring: &Ring, mut offset: u64) -> (Vec<u8>, u64) {
        let (mut all, mut dropped) = (Vec::new(), 0);
        loop {
            match ring.next(offset).await {
                Event::Output(_, content) => {
                    offset += content.len() as u64;
                    all.extend_from_slice(&content);
                }
                Event::Dropped(bytes) => {
                    offset += bytes;
                    dropped += bytes;
                }
                Event::Exit(_) => return (all, dropped),
            }
        }
    }

    #[tokio::test]
    async fn the_newest_output_is_kept_and_losses_are_counted() {
        let held = Arc::default();
        let ring = Ring::new(&held);
        let written: Vec<u8> = (0..3 * RING_LIMIT).map(|number| (number % 251) as u8).collect();
        for (number, part) in written.chunks(10_007).enumerate() {
            ring.push(if number % 3 == 0 { Source::Stderr } else { Source::Stdout }, part);
        }
        ring.end(Exit::Code(0));
        let (start, end) = ring.offsets();
        assert!(end == written.len() as u64 && end - start > RING_LIMIT as u64 / 2, "{start} {end}");
        assert!(held.load(Ordering::Relaxed) <= RING_LIMIT);
        assert_eq!(read(&ring, 0).await, (written[start as usize..].to_vec(), start));
        assert_eq!(read(&ring, end - 5).await, (written[written.len() - 5..].to_vec(), 0));
        drop(ring);
        assert_eq!(held.load(Ordering::Relaxed), 0, "all of it is given back");
    }

    #[tokio::test]
    async fn tiny_pieces_are_bounded_without_shared_memory() {
        let held = Arc::default();
        let ring = Ring::new(&held);
        for number in 0..200_000 {
            ring.push(if number % 2 == 0 { Source::Stderr } else { Source::Stdout }, b"x");
        }
        assert!(ring.lock().pieces.len() * PIECE_COST <= RING_LIMIT);
        let full = Arc::new(AtomicUsize::new(TOTAL_LIMIT));
        let starved = Ring::new(&full);
        starved.push(Source::Stdout, &[7; 50_000]);
        starved.end(Exit::Signal(9));
        assert_eq!(read(&starved, 0).await, (Vec::new(), 50_000));
        assert_eq!(full.load(Ordering::Relaxed), TOTAL_LIMIT);
    }

    proptest! {
        #[test]
        fn offsets_add_up(sizes in prop::collection::vec((0usize..40_000, any::<bool>()), 0..80), from in 0u64..900_000) {
            let held = Arc::default();
            let ring = Ring::new(&held);
            let mut written = Vec::new();
            for (size, error) in sizes {
                let part: Vec<u8> = (0..size).map(|number| (written.len() + number) as u8).collect();
                ring.push(if error { Source::Stderr } else { Source::Stdout }, &part);
                written.extend(part);
            }
            ring.end(Exit::Code(1));
            let from = from.min(written.len() as u64);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (all, dropped) = runtime.block_on(read(&ring, from));
            prop_assert_eq!(from + dropped + all.len() as u64, written.len() as u64);
            prop_assert_eq!(&all[..], &written[(from + dropped) as usize..]);
            drop(ring);
            prop_assert_eq!(held.load(Ordering::Relaxed), 0);
        }
    }
}
