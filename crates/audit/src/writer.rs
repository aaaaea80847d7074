//! The one thread that writes a log.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::disk::{Disk, Operation};
use crate::event::{Event, LogEvent};
use crate::folder::{Durable, HEAD, Segment, segments};
use crate::head::{SigningKey, replace};
use crate::line::{Hash, append};
use crate::options::Options;
use crate::queue::{Item, Queue};
use crate::recover::Tail;
use crate::retention::{Aged, plan};
use crate::view::View;
use crate::{Error, Reader, cursor};

/// Bytes that are written at once.
const PORTION: usize = 1 << 20;
/// Pause after the disk has failed, and the longest one.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Interval of retention.
const RETENTION_INTERVAL: Duration = Duration::from_secs(600);

/// End of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chain {
    seq: u64,
    hash: Hash,
}

/// The segment that is written.
struct Current {
    file: File,
    /// End of the last complete line.
    length: u64,
    /// Bytes may follow it.
    dirty: bool,
    /// Time of its first record.
    since: Option<SystemTime>,
}

impl Current {
    /// Returns the time until a segment that ends after `span` is due to end; `None` for one without records.
    fn left(&self, span: Duration) -> Option<Duration> {
        // A clock that was set back ends it later.
        let age = self.since?.elapsed().unwrap_or_default();
        Some(span.saturating_sub(age))
    }
}

pub(crate) struct Writer {
    folder: PathBuf,
    options: Options,
    queue: Arc<Queue>,
    disk: Disk,
    key: SigningKey,
    durable: Durable,
    current: Option<Current>,
    chain: Chain,
    /// Records that are not written yet. They are kept while the disk fails.
    pending: VecDeque<Item>,
    /// Last record that a head has signed, and the time of it.
    signed: u64,
    signed_at: Instant,
    /// Number of the last head, and the content of its file, as long as that is not written.
    head: Option<(u64, String)>,
    kept_at: Option<Instant>,
    retry: Option<(Instant, Duration)>,
    // Held until the end.
    _lock: OwnedFd,
}

/// Parts of a writer.
pub(crate) struct Parts {
    pub(crate) folder: PathBuf,
    pub(crate) options: Options,
    pub(crate) queue: Arc<Queue>,
    pub(crate) disk: Disk,
    pub(crate) key: SigningKey,
    pub(crate) durable: Durable,
    pub(crate) lock: OwnedFd,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also after a panic: no caller may wait for a writer that has ended.
        self.queue.abandon();
    }
}

impl Writer {
    /// Continues a log, and writes what was found at its end. An error if that fails.
    pub(crate) fn open(parts: Parts, tail: &Tail) -> Result<Writer, Error> {
        let Parts { folder, options, queue, disk, key, durable, lock } = parts;
        let mut writer = Writer {
            folder,
            options,
            queue,
            disk,
            key,
            durable,
            current: None,
            chain: Chain { seq: tail.seq, hash: tail.hash },
            pending: VecDeque::new(),
            signed: 0,
            signed_at: Instant::now(),
            head: None,
            kept_at: None,
            retry: None,
            _lock: lock,
        };
        for found in &tail.found {
            writer.note(&found.event());
        }
        writer.note(&LogEvent::Opened);
        writer.resume(tail).map_err(Error::file(&writer.folder))?;
        match writer.commit().and_then(|()| writer.sign()) {
            // A server must start on a full disk, or its clients could not make room. The records wait.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                writer.refuse(&error);
                Ok(writer)
            }
            Err(error) => Err(Error::file(&writer.folder)(error)),
            Ok(()) => Ok(writer),
        }
    }

    fn resume(&mut self, tail: &Tail) -> io::Result<()> {
        if let Some((segment, length)) = &tail.segment {
            let file = self.disk.open(&segment.path)?;
            let dirty = file.metadata()?.len() > *length;
            let first = Reader::new(&self.folder, segment.first).read().map_err(Error::into_io)?;
            let time = first.map(|entry| Duration::from_millis(View::parse(entry.event()).time()));
            let since = time.map(|time| UNIX_EPOCH.checked_add(time).unwrap_or(UNIX_EPOCH));
            self.current = Some(Current { file, length: *length, dirty, since });
        }
        Ok(())
    }

    /// Writes until the queue is closed.
    pub(crate) fn run(mut self) {
        loop {
            let taken = self.queue.take(self.wake(), self.options.group, self.retry.is_some());
            self.pending.extend(taken.items);
            if taken.lost > 0 {
                self.note(&LogEvent::Lost { records: taken.lost });
            }
            if taken.closed {
                self.note(&LogEvent::Closed);
            }
            let written = self.commit().and_then(|()| self.keep_up(taken.closed));
            if self.disk.is_killed() {
                return;
            }
            match written {
                Ok(()) if taken.closed => return,
                Ok(()) => self.retry = None,
                Err(error) => {
                    self.refuse(&error);
                    if taken.closed {
                        tracing::error!(%error, lost = self.pending.len(), "audit log closed with records that could not be written");
                        return;
                    }
                }
            }
        }
    }

    /// Returns the time of the next work without records.
    fn wake(&self) -> Option<Instant> {
        let head = (self.signed < self.chain.seq).then(|| self.signed_at + self.options.head_interval);
        let now = Instant::now();
        // As often as retention, since the clock of the machine can be set.
        let keep = self.kept_at.map_or(now, |at| at + RETENTION_INTERVAL);
        let left = self.current.as_ref().and_then(|current| current.left(self.options.span));
        let retry = self.retry.map(|(at, _)| at);
        match retry {
            Some(retry) => Some(retry),
            None => [head, left.map(|left| now + left), Some(keep)].into_iter().flatten().min(),
        }
    }

    /// Signs, ends a segment and deletes what is due.
    fn keep_up(&mut self, closes: bool) -> io::Result<()> {
        let due = self.signed_at.elapsed() >= self.options.head_interval;
        if self.signed < self.chain.seq && (due || closes) {
            self.sign()?;
        }
        let left = self.current.as_ref().and_then(|current| current.left(self.options.span));
        if left == Some(Duration::ZERO) {
            self.next_segment()?;
        }
        if self.kept_at.is_none_or(|at| at.elapsed() >= RETENTION_INTERVAL) {
            self.kept_at = Some(Instant::now());
            self.keep_bounds()?;
        }
        Ok(())
    }

    /// Refuses the records for which a caller waits. The others stay.
    fn refuse(&mut self, error: &io::Error) {
        let pause = self.retry.map_or(RETRY, |(_, pause)| (pause * 2).min(RETRY_MAX));
        if self.retry.is_none() {
            tracing::error!(%error, folder = %self.folder.display(), "audit log cannot be written");
        }
        self.retry = Some((Instant::now() + pause, pause));
        let mut freed = 0;
        for item in std::mem::take(&mut self.pending) {
            let bytes = item.bytes();
            match item.answer {
                Some(answer) => {
                    freed += bytes;
                    // A caller that has ended needs no answer.
                    let _ = answer.send(Err(Error::Disk(error.to_string())));
                }
                None => self.pending.push_back(item),
            }
        }
        self.queue.release(freed);
    }

    /// Adds a record of the log itself.
    fn note(&mut self, what: &LogEvent<'_>) {
        let record = Event::log(SystemTime::now(), what).record();
        self.pending.push_back(Item::of_writer(record));
    }

    /// Writes everything that waits.
    fn commit(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let (bytes, count, chain) = self.portion();
            if count == 0 {
                self.next_segment()?;
                continue;
            }
            self.append(&bytes, chain)?;
            let mut freed = 0;
            for item in self.pending.drain(..count) {
                freed += item.bytes();
                if let Some(answer) = item.answer {
                    let _ = answer.send(Ok(()));
                }
            }
            self.queue.release(freed);
        }
        Ok(())
    }

    /// Returns the lines that are written next, and the end of the chain after them: none if the segment has no room.
    fn portion(&self) -> (Vec<u8>, usize, Chain) {
        let (mut bytes, mut count, mut chain) = (Vec::new(), 0, self.chain);
        let Some(current) = &self.current else { return (bytes, count, chain) };
        for item in &self.pending {
            let start = bytes.len();
            let hash = append(&mut bytes, chain.seq + 1, &chain.hash, item.record.as_bytes());
            let is_first = current.length == 0 && count == 0;
            if !is_first && current.length + bytes.len() as u64 > self.options.segment {
                bytes.truncate(start);
                break;
            }
            (chain, count) = (Chain { seq: chain.seq + 1, hash }, count + 1);
            if bytes.len() >= PORTION {
                break;
            }
        }
        (bytes, count, chain)
    }

    /// Appends lines and waits for the disk. Nothing is appended on an error.
    fn append(&mut self, bytes: &[u8], chain: Chain) -> io::Result<()> {
        let Some(current) = &mut self.current else { return Err(io::ErrorKind::NotFound.into()) };
        let end = current.length + bytes.len() as u64;
        let written = self.disk.write(&current.file, bytes, current.length).and_then(|()| {
            // An incomplete line is cut only after the record that reports it has taken its place.
            if current.dirty {
                self.disk.cut(&current.file, end)?;
            }
            self.disk.sync(&current.file)
        });
        if let Err(error) = written {
            // Readers should not meet lines that were refused. The next write starts at the same place in any case.
            if !current.dirty {
                let _ = self.disk.cut(&current.file, current.length);
            }
            current.dirty = true;
            return Err(error);
        }
        current.since.get_or_insert_with(SystemTime::now);
        (current.length, current.dirty, self.chain) = (end, false, chain);
        self.durable.publish(chain.seq);
        Ok(())
    }

    /// Signs the end of the chain: in a record, and in the file `head` for that record too.
    fn sign(&mut self) -> io::Result<()> {
        if self.current.is_none() {
            return Ok(());
        }
        // A record whose file could not be written is not repeated: it would fill what is left of the disk.
        let waiting = self.head.take().filter(|(seq, _)| *seq == self.chain.seq);
        let (seq, line) = waiting.map_or_else(|| self.append_head(), Ok)?;
        let (_, line) = self.head.insert((seq, line));
        self.disk.reach(Operation::Head)?;
        replace(&self.folder, HEAD, line.as_bytes()).map_err(Error::into_io)?;
        self.head = None;
        (self.signed, self.signed_at) = (seq, Instant::now());
        Ok(())
    }

    /// Appends a record that signs the one before it. Returns its number, and what signs it.
    fn append_head(&mut self) -> io::Result<(u64, String)> {
        let now = SystemTime::now();
        let time = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        let head = self.key.sign(self.chain.seq, self.chain.hash, time);
        let what = LogEvent::Head { statement: &head.text, signature: &head.signature };
        let record = Event::log(now, &what).record();
        let mut line = Vec::new();
        let seq = self.chain.seq + 1;
        let hash = append(&mut line, seq, &self.chain.hash, record.as_bytes());
        self.append(&line, Chain { seq, hash })?;
        Ok((seq, self.key.sign(seq, hash, time).line()))
    }

    /// Ends a segment with a head and starts the next one.
    fn next_segment(&mut self) -> io::Result<()> {
        if self.current.is_some() && self.signed < self.chain.seq {
            self.sign()?;
        }
        let segment = Segment::new(&self.folder, self.chain.seq + 1);
        let file = self.disk.open(&segment.path)?;
        let rotated = self.current.replace(Current { file, length: 0, dirty: false, since: None }).is_some();
        if rotated {
            // After this commit.
            self.kept_at = None;
        }
        Ok(())
    }

    /// Deletes segments by the bounds of retention, after a record that says so.
    fn keep_bounds(&mut self) -> io::Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let all = segments(&self.folder).map_err(Error::into_io)?;
        let mut aged = Vec::new();
        for (segment, next) in all.iter().zip(all.iter().skip(1)) {
            let metadata = fs::metadata(&segment.path)?;
            let age = metadata.modified()?.elapsed().unwrap_or_default();
            aged.push(Aged { first: segment.first, last: next.first - 1, bytes: metadata.len(), age });
        }
        let exporters = cursor::all(&self.folder).map_err(Error::into_io)?;
        let plan = plan(&self.options.retention, &aged, current.length, &exporters);
        if !plan.waits.is_empty() {
            tracing::warn!(exporters = ?plan.waits, "audit log beyond its bounds; it waits for exporters");
        }
        let Some(why) = plan.why else { return Ok(()) };
        let (first, last) = (aged[0].first, aged[plan.segments - 1].last);
        self.note(&LogEvent::Removed { first, last, why, unsent: &plan.unsent });
        self.commit()?;
        for segment in &all[..plan.segments] {
            self.disk.reach(Operation::Delete)?;
            fs::remove_file(&segment.path)?;
        }
        if !plan.unsent.is_empty() {
            tracing::error!(first, last, unsent = ?plan.unsent, "audit records deleted before they were exported");
        }
        Ok(())
    }
}
