//! Exporters: each sends the records of a log to one receiver, at least once, in order.
//!
//! The log is the queue. A cursor is saved after the receiver has acknowledged a batch, so a restart repeats at most one
//! batch; with syslog, at most those of one connection. Each record carries its number, by which a receiver recognizes repeats.

mod destination;
mod file;
mod grpc;
mod http;
mod otlp;
mod syslog;
mod webhook;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

pub use self::destination::{Destination, ExportOptions};
use self::file::FileSender;
use self::grpc::Grpc;
use self::otlp::Otlp;
use self::syslog::Syslog;
use self::webhook::Webhook;
use crate::cursor::{Cursor, path};
use crate::{Entry, Error, Hash, Reader};

/// Maximum bytes of the lines of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum records of a batch.
const BATCH_RECORDS: usize = 2048;
/// Interval of checks for new records.
const POLL: Duration = Duration::from_millis(100);
/// First pause after a failure, and the longest one.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Maximum time for what is left in the log after an exporter was stopped.
const LAST: Duration = Duration::from_secs(5);
/// Longest pause that a receiver can request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Tries to send a single record that the receiver refuses, before it is skipped.
const REFUSED_TRIES: u32 = 5;

/// Failures in a row, and records in a row that are skipped, after which an exporter that does not follow gives up.
const FAILURES_MAX: u32 = 5;
const SKIPPED_MAX: u32 = 3;

/// Failure of a batch.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Cause, in words.
    pub(crate) cause: String,
    /// Pause that the receiver requests.
    pub(crate) retry_after: Option<Duration>,
    /// The receiver refuses what the batch contains.
    pub(crate) refused: bool,
    /// The receiver may take a smaller batch.
    pub(crate) is_large: bool,
}

impl Failure {
    /// Returns a failure that may pass.
    pub(crate) fn new(cause: impl std::fmt::Display) -> Failure {
        Failure { cause: cause.to_string(), retry_after: None, refused: false, is_large: false }
    }
}

/// Sender to one receiver.
enum Sender {
    File(FileSender),
    Syslog(Syslog),
    Otlp(Otlp),
    Grpc(Box<Grpc>),
    Webhook(Box<Webhook>),
}

impl Sender {
    fn new(destination: &Destination, options: &ExportOptions) -> Result<Sender, Error> {
        Ok(match destination {
            Destination::File(path) => Sender::File(FileSender::new(path)),
            Destination::Syslog { host, port, tls } => {
                Sender::Syslog(Syslog::new(host, *port, *tls, options)?)
            }
            Destination::Otlp(uri) => Sender::Otlp(Otlp::new(uri, options)?),
            Destination::OtlpGrpc { host, port, tls } => {
                Sender::Grpc(Box::new(Grpc::new(host, *port, *tls, options)?))
            }
            Destination::Webhook(uri) => Sender::Webhook(Box::new(Webhook::new(uri, options)?)),
        })
    }

    /// Sends a batch. Returns the number of records that the receiver rejects and that are not sent again.
    async fn send(&mut self, batch: &[Entry]) -> Result<u64, Failure> {
        match self {
            Sender::File(file) => file.send(batch).map(|()| 0),
            Sender::Syslog(syslog) => syslog.send(batch).await.map(|()| 0),
            Sender::Otlp(otlp) => otlp.send(batch).await,
            Sender::Grpc(grpc) => grpc.send(batch).await,
            Sender::Webhook(webhook) => webhook.send(batch).await.map(|()| 0),
        }
    }
}

/// Exporter of one log to one receiver.
pub struct Exporter {
    folder: PathBuf,
    name: String,
    cursor: Cursor,
    reader: Reader,
    /// Number of the last record that was read.
    read: u64,
    sender: Sender,
    batch: Vec<Entry>,
    /// Last record that was sent and is not acknowledged.
    sent: Option<(u64, Hash)>,
    /// Maximum records of the next batch.
    limit: usize,
    follow: bool,
    poll: Duration,
    backoff: Duration,
    /// Since the last batch that was sent.
    trouble: Trouble,
}

/// Failures in a row.
#[derive(Debug, Default)]
struct Trouble {
    /// Batches that could not be sent.
    failed: u32,
    /// Tries to send a single record that is refused.
    refused: u32,
    /// Records that were skipped.
    skipped: u32,
}

/// Outcome of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Sent,
    Idle,
    Failed(Duration),
}

impl Exporter {
    /// Returns an exporter that continues at its cursor. With `follow`, it sends only what is on the disk, and does not
    /// end.
    ///
    /// # Errors
    /// The cursor is not one of this log or of this destination, or the options do not fit the destination.
    pub fn new(
        folder: &Path,
        name: &str,
        destination: &Destination,
        options: &ExportOptions,
        follow: bool,
    ) -> Result<Exporter, Error> {
        let mut cursor = Cursor::read(folder, name)?;
        check(folder, name, &cursor)?;
        let receiver = destination.name();
        if cursor.seq > 0 && !cursor.receiver.is_empty() && cursor.receiver != receiver {
            return Err(Error::OtherReceiver(path(folder, name)));
        }
        cursor.receiver = receiver;
        if follow {
            // From now on, retention waits for it.
            cursor.follows = true;
            cursor.save(folder, name)?;
        }
        let reader = reader(folder, cursor.seq + 1, follow);
        Ok(Exporter {
            folder: folder.to_owned(),
            name: name.to_owned(),
            read: cursor.seq,
            cursor,
            reader,
            sender: Sender::new(destination, options)?,
            batch: Vec::new(),
            sent: None,
            limit: BATCH_RECORDS,
            follow,
            poll: POLL,
            backoff: Duration::ZERO,
            trouble: Trouble::default(),
        })
    }

    /// Returns the last record that was acknowledged.
    pub fn sent(&self) -> u64 {
        self.cursor.seq
    }

    /// Returns the number of records that the receiver has refused for good.
    pub fn refused(&self) -> u64 {
        self.cursor.refused
    }

    /// Sends until `stop` is true, or up to the end of the log. When it stops, what is on the disk is sent, if the receiver
    /// takes it soon.
    ///
    /// # Errors
    /// The log cannot be read or the cursor cannot be saved, or the receiver has not taken the rest within [`LAST`] after
    /// `stop`. Without `follow`, also if the receiver fails several times in a row.
    pub async fn run(&mut self, mut stop: watch::Receiver<bool>) -> Result<(), Error> {
        let mut stopped = stop.clone();
        let late = async move {
            let _ = stopped.wait_for(|stop| *stop).await;
            tokio::time::sleep(LAST).await;
            Err(Error::Receiver(format!("it has not taken the rest within {LAST:?}")))
        };
        tokio::select! {
            done = self.send(&mut stop) => done,
            late = late => late,
        }
    }

    /// Sends until `stop` is true, then what is on the disk.
    async fn send(&mut self, stop: &mut watch::Receiver<bool>) -> Result<(), Error> {
        loop {
            let is_last = *stop.borrow() || stop.has_changed().is_err();
            let (mut step, ends) = (self.step().await?, is_last || !self.follow);
            if step == Step::Idle && ends {
                step = self.confirm().await?;
            }
            let pause = match step {
                Step::Sent => continue,
                Step::Idle if ends => return Ok(()),
                Step::Idle => self.poll,
                Step::Failed(pause) => pause,
            };
            tokio::select! {
                _ = stop.wait_for(|stop| *stop), if !is_last => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn step(&mut self) -> Result<Step, Error> {
        self.fill()?;
        let count = self.batch.len().min(self.limit);
        let is_due = matches!(&self.sender, Sender::Syslog(syslog) if syslog.is_due());
        if count == 0 || is_due {
            return if is_due { self.confirm().await } else { Ok(Step::Idle) };
        }
        match self.sender.send(&self.batch[..count]).await {
            Ok(rejected) => {
                self.sent =
                    self.batch.drain(..count).filter_map(|entry| entry.record).next_back().or(self.sent);
                if !matches!(self.sender, Sender::Syslog(_)) {
                    self.accepted(rejected.min(count as u64))?;
                }
                self.limit = (self.limit * 2).min(BATCH_RECORDS);
                Ok(Step::Sent)
            }
            Err(failure) => self.failed(count, &failure),
        }
    }

    /// Has a receiver acknowledge what was sent, if its protocol does not do that for each batch.
    async fn confirm(&mut self) -> Result<Step, Error> {
        let Sender::Syslog(syslog) = &mut self.sender else { return Ok(Step::Idle) };
        match syslog.acknowledged().await {
            Ok(false) => Ok(Step::Idle),
            Ok(true) => self.accepted(0).map(|()| Step::Sent),
            Err(failure) => self.failed(0, &failure),
        }
    }

    /// Decides about a batch that could not be sent.
    fn failed(&mut self, count: usize, failure: &Failure) -> Result<Step, Error> {
        if self.sent.take().is_some() {
            // The receiver may not have what it has not acknowledged.
            self.batch.clear();
            self.reader = reader(&self.folder, self.cursor.seq + 1, self.follow);
            self.read = self.cursor.seq;
        }
        if self.follow {
            tracing::warn!(exporter = self.name, error = failure.cause, "failed to export audit records");
        }
        if (failure.refused || failure.is_large) && count > 1 {
            // One of them may be the cause.
            self.limit = count / 2;
            return Ok(Step::Failed(Duration::ZERO));
        }
        self.backoff = (self.backoff * 2).clamp(BACKOFF, BACKOFF_MAX);
        let requested = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if failure.refused {
            self.trouble.refused += 1;
            if self.trouble.refused >= REFUSED_TRIES {
                self.trouble.refused = 0;
                self.trouble.skipped += 1;
                self.give_up(self.trouble.skipped >= SKIPPED_MAX, failure)?;
                let seq = self.batch[0].record.map_or(0, |(seq, _)| seq);
                tracing::error!(exporter = self.name, seq, "receiver refuses an audit record; skipping it");
                self.sent = self.batch.drain(..1).find_map(|entry| entry.record);
                self.acknowledge(1)?;
                self.backoff = BACKOFF;
            }
        } else {
            self.trouble.failed += 1;
            self.give_up(self.trouble.failed >= FAILURES_MAX || requested > BACKOFF_MAX, failure)?;
        }
        Ok(Step::Failed(self.backoff.max(requested)))
    }

    /// Ends an exporter that does not follow.
    fn give_up(&self, is_time: bool, failure: &Failure) -> Result<(), Error> {
        match is_time && !self.follow {
            true => Err(Error::Receiver(format!("{}; sent up to record {}", failure.cause, self.cursor.seq))),
            false => Ok(()),
        }
    }

    /// Takes the next records, up to the bounds of a batch.
    fn fill(&mut self) -> Result<(), Error> {
        let mut bytes: usize = self.batch.iter().map(|entry| entry.line.len() + 1).sum();
        // One more line always fits below the bound of a receiver.
        while bytes + crate::LINE_MAX < BATCH_BYTES && self.batch.len() < BATCH_RECORDS {
            let Some(entry) = self.reader.read()? else { break };
            let (expected, found) = (self.read + 1, entry.record.map(|(seq, _)| seq));
            if let Some(seq) = found.filter(|seq| *seq > expected) {
                let (first, last) = (expected, seq - 1);
                tracing::error!(
                    exporter = self.name,
                    first,
                    last,
                    "audit records not exported: the log does not have them"
                );
            }
            self.read = found.unwrap_or(expected);
            if entry.record.is_none() {
                tracing::error!(
                    exporter = self.name,
                    segment = entry.segment,
                    line = entry.number,
                    "damaged audit record not exported"
                );
                continue;
            }
            bytes += entry.line.len() + 1;
            self.batch.push(entry);
        }
        Ok(())
    }

    /// Saves that the receiver has what was sent, except for `rejected` records of it.
    fn accepted(&mut self, rejected: u64) -> Result<(), Error> {
        (self.trouble, self.backoff) = (Trouble::default(), Duration::ZERO);
        self.acknowledge(rejected)?;
        if rejected > 0 {
            let all = self.cursor.refused;
            tracing::error!(
                exporter = self.name,
                rejected,
                all,
                "collector rejects audit records; skipping them"
            );
        }
        Ok(())
    }

    /// Saves that the receiver has what was sent, except for records that it has refused.
    fn acknowledge(&mut self, refused: u64) -> Result<(), Error> {
        if let Some((seq, hash)) = self.sent.take() {
            (self.cursor.seq, self.cursor.hash) = (seq, hash.to_string());
            self.cursor.refused += refused;
            self.cursor.save(&self.folder, &self.name)?;
        }
        Ok(())
    }
}

/// Returns a reader of what an exporter sends. One that follows sends only what is on the disk.
fn reader(folder: &Path, from: u64, follow: bool) -> Reader {
    if follow { Reader::durable(folder, from) } else { Reader::new(folder, from) }
}

/// Checks that a cursor belongs to a log.
fn check(folder: &Path, name: &str, cursor: &Cursor) -> Result<(), Error> {
    if cursor.seq == 0 {
        return Ok(());
    }
    // The record may have been deleted.
    match Reader::new(folder, cursor.seq).read()?.and_then(|entry| entry.record) {
        Some((seq, hash)) if seq == cursor.seq && hash.to_string() != cursor.hash => {
            Err(Error::OtherLog(path(folder, name), seq))
        }
        _ => Ok(()),
    }
}

/// Reads any bytes as each part of an answer that a receiver gives.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_answer(bytes: &[u8]) {
    otlp::any_answer(bytes);
    grpc::any_answer(bytes);
    http::any_text(bytes);
}

/// Reads any bytes as a whole answer of a receiver.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_exchange(bytes: &[u8]) {
    http::any_exchange(bytes);
}

#[cfg(test)]
mod tests;
