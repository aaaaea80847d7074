//! Output of a container's main process: kept in its log and passed on to attached clients.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::log::LogFile;
use super::screened::Screened;
use crate::stdio::Terminal;

/// Pieces that an attached client may lag behind before it loses some.
const BACKLOG: usize = 64;
/// Read at once, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
/// Time for which a log that is scanned waits for more, so that a secret of several lines is found.
const HOLD: Duration = Duration::from_millis(100);

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
    screened: Screened,
}

impl Output {
    /// Returns what scans the output.
    pub(super) fn screened(&self) -> &Screened {
        &self.screened
    }

    pub(crate) fn new(path: &Path, screened: Screened) -> io::Result<Output> {
        Ok(Output {
            screened,
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

    /// Adds what was printed. Returns true if a part of it waits.
    fn add(&self, stream: Stream, bytes: &[u8]) -> bool {
        if self.clients.receiver_count() > 0 {
            // An error means that no client is attached.
            let _ = self.clients.send((stream, Bytes::copy_from_slice(bytes)));
        }
        let (passed, waits) = self.screened.take(stream, bytes);
        self.write(stream, &passed);
        waits
    }

    fn write(&self, stream: Stream, bytes: &[u8]) {
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
    }

    /// Nothing more comes.
    pub(crate) fn finish(&self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.write(stream, &self.screened.finish(stream));
        }
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = log.map(|mut log| log.finish(Timestamp::now())) {
            tracing::warn!(log = %self.path.display(), %error, "the end of a container's output is not kept");
        }
        let last = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = last {
            last.send_modify(|count| *count += 1);
        }
    }

    /// Adds what was printed, on a thread that may block: a container can keep the disk busy. Returns the time at which
    /// whole lines that wait are written.
    async fn keep(self: &Arc<Self>, stream: Stream, bytes: Vec<u8>, due: Option<Instant>) -> Option<Instant> {
        let output = self.clone();
        // Fails only when the runtime is shutting down.
        let waits = tokio::task::spawn_blocking(move || output.add(stream, &bytes)).await.unwrap_or(false);
        waits.then(|| due.unwrap_or_else(|| Instant::now() + HOLD))
    }

    /// Writes whole lines that wait.
    async fn write_lines(self: &Arc<Self>, stream: Stream) {
        let output = self.clone();
        let write = move || output.write(stream, &output.screened.lines(stream));
        let _ = tokio::task::spawn_blocking(write).await;
    }

    /// Takes everything from a pipe until it is closed. Holds no buffer while nothing comes.
    pub(crate) async fn pump(self: Arc<Self>, stream: Stream, pipe: pipe::Receiver) {
        let mut due = None;
        loop {
            let Some(readable) = before(due, pipe.readable()).await else {
                self.write_lines(stream).await;
                due = None;
                continue;
            };
            if readable.is_err() {
                return;
            }
            match take(&pipe) {
                Ok(bytes) if bytes.is_empty() => return,
                Ok(bytes) => due = self.keep(stream, bytes, due).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Takes everything from a terminal until it is hung up.
    pub(crate) async fn pump_terminal(self: Arc<Self>, mut terminal: Terminal) {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut due = None;
        loop {
            match before(due, terminal.read(&mut buffer)).await {
                Some(Ok(count @ 1..)) => {
                    due = self.keep(Stream::Stdout, buffer[..count].to_vec(), due).await;
                }
                Some(_) => return,
                None => {
                    self.write_lines(Stream::Stdout).await;
                    due = None;
                }
            }
        }
    }
}

/// Returns what a future gives, unless the time comes first.
async fn before<T>(due: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match due {
        Some(due) => tokio::time::timeout_at(due, future).await.ok(),
        None => Some(future.await),
    }
}

/// Takes what is there; nothing is the end.
fn take(pipe: &pipe::Receiver) -> io::Result<Vec<u8>> {
    let mut buffer = [0; CHUNK_BYTES];
    pipe.try_read(&mut buffer).map(|count| buffer[..count].to_vec())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use hutch_policy::{Authority, Level};
    use hutch_screen::Origin;

    use super::super::screened::LogScreen;
    use super::*;

    fn level(logs: &str) -> Arc<Level> {
        let scanner = serde_json::from_value(serde_json::json!({"logs": logs})).ok();
        Arc::new(Level { scanner, ..Level::new(Authority::Namespace, "p", None) })
    }

    /// Made of parts, so that scanners of repositories do not report this file.
    fn token() -> String {
        ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat()
    }

    #[tokio::test]
    async fn secrets_are_replaced_before_they_are_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let screen = Arc::new(LogScreen::default());
        let origin = Origin { pod: "n/a".into(), part: "main".into() };
        let output = Arc::new(Output::new(&path, Screened::new(screen.clone(), origin)).unwrap());
        let mut written = output.follow().unwrap();
        let (sender, receiver) = pipe::pipe().unwrap();
        let pump = tokio::spawn(output.clone().pump(Stream::Stdout, receiver));
        let write = async |text: &str| {
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                sender.writable().await.unwrap();
                rest = &rest[sender.try_write(rest).unwrap_or(0)..];
            }
        };
        write("before\n").await;
        written.changed().await.unwrap();
        screen.set(&[level("Redact")]);
        let token = token();
        // A line in two pieces, of which the second comes much later than whole lines wait.
        write(&format!("one {}", &token[..10])).await;
        tokio::time::sleep(2 * HOLD).await;
        write(&format!("{}\ntwo\n", &token[10..])).await;
        let log = || std::fs::read_to_string(&path).unwrap();
        let began = Instant::now();
        while !log().contains(" two\n") {
            assert!(began.elapsed() < hutch_testkit::wait::WAIT_LIMIT, "lines wait: {}", log());
            tokio::time::sleep(HOLD / 10).await;
        }
        write(&format!("three {token}")).await;
        drop(sender);
        pump.await.unwrap();
        output.finish();
        let texts: Vec<String> =
            log().lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect();
        let expected = ["before", "one [redacted: github-pat]", "two", "three [redacted: github-pat]"];
        assert_eq!(texts, expected);
    }

    /// Bytes that wait when no policy scans any more are written too.
    #[test]
    fn nothing_is_lost_when_the_policy_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let screen = Arc::new(LogScreen::default());
        screen.set(&[level("Log")]);
        let origin = Origin { pod: "n/a".into(), part: "main".into() };
        let output = Output::new(&path, Screened::new(screen.clone(), origin)).unwrap();
        assert!(output.add(Stream::Stderr, b"a"));
        screen.set(&[]);
        assert!(!output.add(Stream::Stderr, b"b\n"));
        assert!(std::fs::read_to_string(&path).unwrap().ends_with(" stderr F ab\n"));
    }
}
