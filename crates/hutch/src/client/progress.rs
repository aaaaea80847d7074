//! Progress on standard error: one line that is rewritten on a terminal, else a line for each change.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use super::plain;

/// Maximum characters of a line that is rewritten; a longer one would wrap and stay.
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

    /// Returns true if the line is rewritten, so that frequent reports are useful.
    pub(super) fn is_live(&self) -> bool {
        self.terminal
    }
}

impl hutch_client::Progress for Progress {
    /// Shows the text. A repeated text updates the elapsed time on a terminal, and is ignored elsewhere.
    fn waiting(&mut self, text: &str) {
        let text = plain(text);
        let mut stderr = std::io::stderr().lock();
        // A closed standard error is no failure.
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

    /// Removes the line from the terminal.
    fn ended(&mut self) {
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
        hutch_client::Progress::ended(self);
    }
}
