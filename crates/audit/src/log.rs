//! The log as its callers see it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::Error;
use crate::disk::Disk;
use crate::event::Record;
use crate::folder::{Durable, create, lock};
use crate::head::SigningKey;
use crate::options::Options;
use crate::queue::{Item, QUEUE_MAX, Queue};
use crate::recover::tail;
use crate::writer::{Parts, Writer};

/// An open log. Clones write the same one.
#[derive(Clone)]
pub struct Log {
    queue: Arc<Queue>,
    strict: bool,
    wait: Duration,
    writer: Arc<Mutex<Option<JoinHandle<()>>>>,
    folder: PathBuf,
}

impl Log {
    /// Opens the log in a folder, or makes one. This process is its only writer.
    ///
    /// # Errors
    /// Another process writes it, or a file cannot be used.
    pub fn open(folder: &Path, options: Options) -> Result<Log, Error> {
        Log::on(folder, options, Disk::default())
    }

    pub(crate) fn on(folder: &Path, options: Options, disk: Disk) -> Result<Log, Error> {
        create(folder)?;
        let lock = lock(folder)?;
        let key = SigningKey::open(folder)?;
        let durable = Durable::open(folder)?;
        let tail = tail(folder)?;
        let queue = Arc::new(Queue::new(QUEUE_MAX));
        let (strict, wait) = (options.strict, options.wait);
        let parts =
            Parts { folder: folder.to_owned(), options, queue: queue.clone(), disk, key, durable, lock };
        let writer = Writer::open(parts, &tail)?;
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(Error::file(folder))?;
        let writer = Arc::new(Mutex::new(Some(thread)));
        Ok(Log { queue, strict, wait, writer, folder: folder.to_owned() })
    }

    /// Returns its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns true if [`Log::record`] waits for the disk.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Records an event. Waits for room in the queue; with `strict`, until the record is on the disk.
    ///
    /// # Errors
    /// The record is not in the log. With `strict`, its side effect must then not happen. Otherwise the loss is counted, and
    /// a later record reports it.
    pub async fn record(&self, record: Record) -> Result<(), Error> {
        if self.strict {
            return self.record_durably(record).await;
        }
        self.enqueue(record).await
    }

    /// Records an event. Waits for room in the queue only.
    ///
    /// # Errors
    /// There was no room within the maximum wait. The loss is counted, and a later record reports it.
    pub async fn enqueue(&self, record: Record) -> Result<(), Error> {
        let recorded = self.queue.push_within(Item::new(record, None), self.wait).await;
        if matches!(recorded, Err(Error::Full)) {
            self.queue.lose(1);
        }
        recorded
    }

    /// Records an event and waits until it is on the disk.
    ///
    /// # Errors
    /// The disk has refused it, or the writer does not keep up. It is not in the log, and not counted as lost.
    pub async fn record_durably(&self, record: Record) -> Result<(), Error> {
        let (answer, outcome) = oneshot::channel();
        self.queue.push_within(Item::new(record, Some(answer)), self.wait).await?;
        outcome.await.unwrap_or(Err(Error::Closed))
    }

    /// Records an event without waiting. A caller that cannot wait awaits [`Log::room`] before.
    ///
    /// # Errors
    /// The queue is full. The loss is counted, and a later record reports it.
    pub fn push(&self, record: Record) -> Result<(), Error> {
        self.queue.push(Item::new(record, None)).map_err(|(_, error)| {
            self.queue.lose(1);
            error
        })
    }

    /// Has the records written that wait for others, because they were gathered before.
    pub fn flush(&self) {
        self.queue.flush();
    }

    /// Counts records that were lost on their way here. A later record reports it.
    pub fn lost(&self, count: u64) {
        self.queue.lose(count);
    }

    /// Waits until the queue has room, so that a burst of events slows down its cause.
    ///
    /// # Errors
    /// There was no room within the maximum wait.
    pub async fn room(&self) -> Result<(), Error> {
        self.queue.room(self.wait).await
    }

    /// Writes what waits, signs the end and closes the log. Blocks until then.
    pub fn close(&self) {
        self.queue.close();
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the writer of the audit log panicked");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Only the last clone.
        if Arc::strong_count(&self.writer) == 1 {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests;
