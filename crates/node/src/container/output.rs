//! Output of a container's main process: kept in its log and passed on to attached clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{broadcast, watch};

use super::log::LogFile;
use crate::stdio::Terminal;

/// Pieces that an attached client may lag behind before it loses some.
const BACKLOG: usize = 64;
/// Read at once, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// Which stream bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout = 0,
    Stderr = 1,
}

impl Stream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// The output of one life of a container.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    log: Mutex<Option<LogFile>>,
    clients: broadcast::Sender<(Stream, Bytes)>,
    /// Counts writes to the log; closed when nothing more comes.
    written: Mutex<Option<watch::Sender<u64>>>,
}

impl Output {
    pub(crate) fn new(path: &Path) -> io::Result<Output> {
        Ok(Output {
            path: path.into(),
            log: Mutex::new(Some(LogFile::open(path)?)),
            clients: broadcast::channel(BACKLOG).0,
            written: Mutex::new(Some(watch::channel(0).0)),
        })
    }

    /// The log file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the output from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<(Stream, Bytes)> {
        self.clients.subscribe()
    }

    /// Changes with every write to the log, and is closed when the last was made. Nothing when it was already.
    pub(crate) fn follow(&self) -> Option<watch::Receiver<u64>> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.as_ref().map(watch::Sender::subscribe)
    }

    fn add(&self, stream: Stream, bytes: &[u8]) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let result = log.as_mut().map_or(Ok(()), |log| log.add(stream, bytes, Timestamp::now()));
        if let Err(error) = result {
            // A full disk must not stop the sandbox: its log has a hole then.
            tracing::warn!(log = %self.path.display(), %error, "a container's output is not kept");
        }
        drop(log);
        if let Some(written) = &*self.written.lock().unwrap_or_else(PoisonError::into_inner) {
            written.send_modify(|count| *count += 1);
        }
        if self.clients.receiver_count() > 0 {
            // An error means that no client is attached.
            let _ = self.clients.send((stream, Bytes::copy_from_slice(bytes)));
        }
    }

    /// Nothing more comes.
    pub(crate) fn finish(&self) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = log.map(|mut log| log.finish(Timestamp::now())) {
            tracing::warn!(log = %self.path.display(), %error, "the end of a container's output is not kept");
        }
        let last = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = last {
            last.send_modify(|count| *count += 1);
        }
    }

    /// Adds what was printed, on a thread that may block: a container can keep the disk busy.
    async fn keep(self: &Arc<Self>, stream: Stream, bytes: Vec<u8>) {
        let output = self.clone();
        // Fails only when the runtime is shutting down.
        let _ = tokio::task::spawn_blocking(move || output.add(stream, &bytes)).await;
    }

    /// Takes everything from a pipe until it is closed. Holds no buffer while nothing comes.
    pub(crate) async fn pump(self: Arc<Self>, stream: Stream, pipe: pipe::Receiver) {
        while pipe.readable().await.is_ok() {
            match take(&pipe) {
                Ok(bytes) if bytes.is_empty() => return,
                Ok(bytes) => self.keep(stream, bytes).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Takes everything from a terminal until it is hung up.
    pub(crate) async fn pump_terminal(self: Arc<Self>, mut terminal: Terminal) {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = terminal.read(&mut buffer).await {
            self.keep(Stream::Stdout, buffer[..count].to_vec()).await;
        }
    }
}

/// Takes what is there; nothing is the end.
fn take(pipe: &pipe::Receiver) -> io::Result<Vec<u8>> {
    let mut buffer = [0; CHUNK_BYTES];
    pipe.try_read(&mut buffer).map(|count| buffer[..count].to_vec())
}
