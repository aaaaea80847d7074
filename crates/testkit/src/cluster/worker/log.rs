use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream;
use hutch_kubelet::{ByteReader, LogRequest};
use jiff::{SignedDuration, Timestamp};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::watch;
use tokio_util::io::StreamReader;

/// Bytes of a container's log that are kept; the oldest lines go first.
const KEPT_BYTES: usize = 16 << 20;
/// Longest line; a longer one becomes several.
const LINE_BYTES: u64 = 16 << 10;

/// Output of a container.
#[derive(Default)]
pub(super) struct Log {
    lines: Mutex<Lines>,
    /// Counts the lines; it closes when there will be no more.
    count: watch::Sender<u64>,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<(Timestamp, Vec<u8>)>,
    bytes: usize,
    /// Lines before the first that is kept.
    gone: u64,
    ended: bool,
}

impl Log {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of the container's outputs to its end.
    pub(super) async fn take(self: Arc<Log>, output: impl AsyncRead + Unpin) {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match (&mut output).take(LINE_BYTES).read_until(b'\n', &mut line).await {
                Ok(1..) => self.add(line),
                Ok(0) | Err(_) => return,
            }
        }
    }

    fn add(&self, line: Vec<u8>) {
        let mut lines = self.lines();
        lines.bytes += line.len();
        lines.kept.push_back((Timestamp::now(), line));
        while lines.bytes > KEPT_BYTES {
            let Some((_, oldest)) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.len();
            lines.gone += 1;
        }
        drop(lines);
        self.count.send_modify(|count| *count += 1);
    }

    /// Nothing will be added.
    pub(super) fn end(&self) {
        self.lines().ended = true;
        self.count.send_modify(|_| {});
    }

    /// Returns the wanted part; `now` is the time of the request.
    pub(super) fn read(self: &Arc<Log>, wanted: &LogRequest, now: Timestamp) -> ByteReader {
        let first = self.lines().first(wanted, now);
        let (follow, timestamps) = (wanted.follow, wanted.timestamps);
        let state = (self.clone(), self.count.subscribe(), first);
        let pieces = stream::unfold(state, move |(log, mut count, mut next)| async move {
            loop {
                count.mark_unchanged();
                let (piece, ended) = log.lines().from(&mut next, timestamps);
                if !piece.is_empty() {
                    return Some((std::io::Result::Ok(bytes::Bytes::from(piece)), (log, count, next)));
                }
                if ended || !follow || count.changed().await.is_err() {
                    return None;
                }
            }
        });
        let reader = StreamReader::new(Box::pin(pieces));
        Box::pin(reader.take(wanted.limit_bytes.unwrap_or(u64::MAX)))
    }
}

impl Lines {
    fn first(&self, wanted: &LogRequest, now: Timestamp) -> u64 {
        let count = self.kept.len() as u64;
        let tail = count - wanted.tail_lines.unwrap_or(count).min(count);
        let since = wanted.since_seconds.and_then(|seconds| {
            let age = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
            now.checked_sub(age).ok()
        });
        let young = since.map_or(0, |since| self.kept.partition_point(|(time, _)| *time < since));
        self.gone + tail.max(young as u64)
    }

    /// The lines from `next` on, and whether there will be none after them.
    fn from(&self, next: &mut u64, timestamps: bool) -> (Vec<u8>, bool) {
        let skipped = usize::try_from(next.saturating_sub(self.gone)).unwrap_or(usize::MAX);
        let mut piece = Vec::new();
        for (time, line) in self.kept.iter().skip(skipped) {
            if timestamps {
                piece.extend_from_slice(format!("{time:.9} ").as_bytes());
            }
            piece.extend_from_slice(line);
        }
        *next = self.gone + self.kept.len() as u64;
        (piece, self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(log: &Arc<Log>, wanted: LogRequest, now: Timestamp) -> String {
        let mut text = String::new();
        log.read(&wanted, now).read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn a_log_is_read_in_part_as_a_whole_and_as_it_grows() {
        let log = Arc::new(Log::default());
        log.clone().take(&b"one\ntwo\nthree"[..]).await;
        let now = Timestamp::now();
        let all = LogRequest::default();
        assert_eq!(read(&log, all.clone(), now).await, "one\ntwo\nthree");
        assert_eq!(read(&log, LogRequest { tail_lines: Some(2), ..all.clone() }, now).await, "two\nthree");
        assert_eq!(read(&log, LogRequest { tail_lines: Some(0), ..all.clone() }, now).await, "");
        assert_eq!(read(&log, LogRequest { limit_bytes: Some(5), ..all.clone() }, now).await, "one\nt");
        let old = LogRequest { since_seconds: Some(60), ..all.clone() };
        assert_eq!(read(&log, old.clone(), now).await, "one\ntwo\nthree");
        let later = now + SignedDuration::from_secs(120);
        assert_eq!(read(&log, old, later).await, "");
        let stamped = read(&log, LogRequest { timestamps: true, ..all.clone() }, now).await;
        assert!(stamped.lines().next().is_some_and(|line| line.ends_with("Z one")), "{stamped}");

        let following = read(&log, LogRequest { follow: true, tail_lines: Some(0), ..all }, now);
        let writing = async {
            tokio::task::yield_now().await;
            log.clone().take(&b"four\n"[..]).await;
            log.end();
        };
        assert_eq!(tokio::join!(following, writing).0, "four\n");
    }
}
