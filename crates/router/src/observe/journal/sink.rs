//! Writes log lines from a thread of its own, many at a time, so that no request waits for a slow log reader.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Maximum bytes of unwritten lines; further lines are dropped and counted.
const WAITING: usize = 4 << 20;
/// Time that lines are collected after the first one.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    lost: u64,
    writing: bool,
    closed: bool,
}

/// Queues lines for a writer thread.
pub struct LogSink {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Serialize)]
struct Lost {
    level: &'static str,
    msg: &'static str,
    lost: u64,
}

impl LogSink {
    /// Starts a sink that writes to `out` from a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(out: impl Write + Send + 'static) -> std::io::Result<Arc<LogSink>> {
        let sink = Arc::new(LogSink { waiting: Mutex::default(), changed: Condvar::new() });
        let own = sink.clone();
        std::thread::Builder::new().name("access-log".into()).spawn(move || own.write(out))?;
        Ok(sink)
    }

    /// Queues a value as one line of JSON.
    pub(crate) fn put(&self, entry: &impl Serialize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes.len() >= WAITING {
            waiting.lost += 1;
            return;
        }
        let first = waiting.bytes.is_empty();
        // Encoding structs of strings and numbers into memory cannot fail.
        let _ = serde_json::to_writer(&mut waiting.bytes, entry);
        waiting.bytes.push(b'\n');
        drop(waiting);
        if first {
            self.changed.notify_all();
        }
    }

    /// Returns when every queued line has been written, or after `limit`.
    pub fn flush(&self, limit: Duration) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        self.changed.notify_all();
        let unwritten = |waiting: &mut Waiting| !waiting.bytes.is_empty() || waiting.writing;
        // After the limit the remaining lines are lost, and the process ends without a log.
        let _ = self.changed.wait_timeout_while(waiting, limit, unwritten);
    }

    fn write(&self, mut out: impl Write) {
        let mut taken = Vec::new();
        loop {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.writing = false;
            self.changed.notify_all();
            let empty = |waiting: &mut Waiting| waiting.bytes.is_empty();
            waiting = self.changed.wait_while(waiting, empty).unwrap_or_else(PoisonError::into_inner);
            let hurry = waiting.closed;
            drop(waiting);
            if !hurry {
                std::thread::sleep(GATHER);
            }
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            taken.clear();
            std::mem::swap(&mut taken, &mut waiting.bytes);
            let lost = std::mem::take(&mut waiting.lost);
            waiting.writing = true;
            drop(waiting);
            // A failing log must not stop routing.
            let _ = out.write_all(&taken);
            if lost > 0 {
                let entry = Lost { level: "error", msg: "access log lines lost", lost };
                let _ = serde_json::to_writer(&mut out, &entry);
                let _ = out.write_all(b"\n");
            }
            let _ = out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Writes to a channel after it is released.
    struct Held(mpsc::Receiver<()>, mpsc::Sender<Vec<u8>>);

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lost_lines_are_counted_in_the_log() {
        let (go, gone) = mpsc::channel();
        let (wrote, written) = mpsc::channel();
        let sink = LogSink::start(Held(gone, wrote)).unwrap();
        sink.put(&"first");
        // The writer holds the first line; further lines queue up to the bound.
        while !sink.waiting.lock().unwrap().writing {
            std::thread::sleep(Duration::from_millis(1));
        }
        let long = "x".repeat(1 << 20);
        for _ in 0..10 {
            sink.put(&long);
        }
        assert!(sink.waiting.lock().unwrap().lost >= 5);
        drop(go);
        sink.flush(Duration::from_secs(10));
        drop(sink);
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let all = String::from_utf8(all).unwrap();
        assert!(all.starts_with("\"first\"\n\"xxx"), "{}", &all[..40]);
        assert!(all.contains(r#""msg":"access log lines lost","lost":"#), "{}", &all[all.len() - 80..]);
    }
}
