//! Exporters: each sends the records of a log to one receiver, at least once, in order.
//!
//! The log is the queue. A cursor is saved after the receiver has acknowledged a batch, so a restart repeats at most one
//! batch. Each record carries its number, by which a receiver recognizes repeats.

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
use crate::{Entry, Error, Reader};

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

    async fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        match self {
            Sender::File(file) => file.send(batch),
            Sender::Syslog(syslog) => syslog.send(batch).await,
            Sender::Otlp(otlp) => otlp.send(batch).await,
            Sender::Grpc(grpc) => grpc.send(batch).await,
            Sender::Webhook(webhook) => webhook.send(batch).await,
        }
    }
}

/// Exporter of one log to one receiver.
pub struct Exporter {
    folder: PathBuf,
    name: String,
    cursor: Cursor,
    reader: Reader,
    sender: Sender,
    batch: Vec<Entry>,
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
        if !cursor.receiver.is_empty() && cursor.receiver != receiver {
            return Err(Error::OtherReceiver(path(folder, name)));
        }
        cursor.receiver = receiver;
        let from = cursor.seq + 1;
        let reader = if follow { Reader::durable(folder, from) } else { Reader::new(folder, from) };
        Ok(Exporter {
            folder: folder.to_owned(),
            name: name.to_owned(),
            cursor,
            reader,
            sender: Sender::new(destination, options)?,
            batch: Vec::new(),
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
            let pause = match self.step().await? {
                Step::Sent => continue,
                Step::Idle if is_last || !self.follow => return Ok(()),
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
        if count == 0 {
            return Ok(Step::Idle);
        }
        let failure = match self.sender.send(&self.batch[..count]).await {
            Ok(()) => {
                self.acknowledge(count, 0)?;
                (self.trouble, self.backoff) = (Trouble::default(), Duration::ZERO);
                self.limit = (self.limit * 2).min(BATCH_RECORDS);
                return Ok(Step::Sent);
            }
            Err(failure) => failure,
        };
        self.failed(count, &failure)
    }

    /// Decides about a batch that could not be sent.
    fn failed(&mut self, count: usize, failure: &Failure) -> Result<Step, Error> {
        self.backoff = (self.backoff * 2).clamp(BACKOFF, BACKOFF_MAX);
        if self.follow {
            tracing::warn!(exporter = self.name, error = failure.cause, "failed to export audit records");
        }
        if (failure.refused || failure.is_large) && count > 1 {
            // One of them may be the cause.
            self.limit = count / 2;
            return Ok(Step::Failed(Duration::ZERO));
        }
        let requested = failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        if failure.refused {
            self.trouble.refused += 1;
            if self.trouble.refused >= REFUSED_TRIES {
                self.trouble.refused = 0;
                self.trouble.skipped += 1;
                self.give_up(self.trouble.skipped >= SKIPPED_MAX, failure)?;
                let seq = self.batch[0].record.map_or(0, |(seq, _)| seq);
                tracing::error!(exporter = self.name, seq, "receiver refuses an audit record; skipping it");
                self.acknowledge(1, 1)?;
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

    fn acknowledge(&mut self, count: usize, refused: u64) -> Result<(), Error> {
        let last = self.batch.drain(..count).filter_map(|entry| entry.record).next_back();
        if let Some((seq, hash)) = last {
            let refused = self.cursor.refused + refused;
            self.cursor.seq = seq;
            self.cursor.hash = hash.to_string();
            self.cursor.refused = refused;
            self.cursor.save(&self.folder, &self.name)?;
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests;
