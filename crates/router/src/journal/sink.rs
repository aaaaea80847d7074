//! Lines that a thread of their own writes, many at a time: a request does not wait for whoever reads the log.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Bytes that wait to be written; beyond, lines are lost and their number is told.
const WAITING: usize = 4 << 20;
/// How long lines are gathered after the first one.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    lost: u64,
    writing: bool,
    closed: bool,
}

/// Takes lines and has them written.
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
    /// A sink that writes to `out` from a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(out: impl Write + Send + 'static) -> std::io::Result<Arc<LogSink>> {
        let sink = Arc::new(LogSink { waiting: Mutex::default(), changed: Condvar::new() });
        let own = sink.clone();
        std::thread::Builder::new().name("access-log".into()).spawn(move || own.write(out))?;
        Ok(sink)
    }

    /// Takes what can be written as one line of JSON.
    pub(crate) fn put(&self, entry: &impl Serialize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes.len() >= WAITING {
            waiting.lost += 1;
            return;
        }
        let first = waiting.bytes.is_empty();
        // Into memory, of structs of texts and numbers: it cannot fail.
        let _ = serde_json::to_writer(&mut waiting.bytes, entry);
        waiting.bytes.push(b'\n');
        drop(waiting);
        if first {
            self.changed.notify_all();
        }
    }

    /// Returns when everything taken so far was written, or after `limit`.
    pub fn flush(&self, limit: Duration) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        self.changed.notify_all();
        let unwritten = |waiting: &mut Waiting| !waiting.bytes.is_empty() || waiting.writing;
        // After the limit the lines are lost; there is nobody left to tell.
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
            // A log that cannot be written is no reason to stop routing.
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

    /// Writes to a channel, once it was let.
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
    fn lines_are_written_and_those_lost_are_told() {
        let (go, gone) = mpsc::channel();
        let (wrote, written) = mpsc::channel();
        let sink = LogSink::start(Held(gone, wrote)).unwrap();
        sink.put(&"first");
        // The writer holds the first line; everything else waits, up to the bound.
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
