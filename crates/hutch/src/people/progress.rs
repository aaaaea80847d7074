//! What is being waited for, on standard error: one line that is rewritten on a terminal, else a line for each change.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use super::plain;

/// Longest text of a line that is rewritten, in characters; a longer one would wrap and stay.
const LINE_MAX: usize = 70;

/// The line.
pub(super) struct Progress {
    terminal: bool,
    began: Instant,
    shown: String,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), began: Instant::now(), shown: String::new() }
    }

    /// Whether the line is rewritten, so that it may be told often.
    pub(super) fn is_live(&self) -> bool {
        self.terminal
    }

    /// Tells it. Told again, a terminal shows the time that has passed, and a file gets nothing.
    pub(super) fn say(&mut self, text: &str) {
        let text = plain(text);
        let mut stderr = std::io::stderr().lock();
        // Whoever closed standard error does not want to know.
        let _ = if self.terminal {
            let short: String = text.chars().take(LINE_MAX).collect();
            write!(stderr, "\r\x1b[K{short} ({} s)", self.began.elapsed().as_secs())
        } else if text == self.shown {
            Ok(())
        } else {
            writeln!(stderr, "hutch: {text}")
        };
        let _ = stderr.flush();
        self.shown = text;
    }

    /// Takes the line off the terminal.
    pub(super) fn clear(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
        }
        self.shown.clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
