//! Bars of a pull, and of what is read or written, on standard error if that is a terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hutch_registry::{Digest, Event};

/// Time between two drawings.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum bars of layers: a pull has fewer in work, and all must fit on a small terminal.
const MOST: usize = 10;
/// Characters of a bar.
const WIDTH: usize = 30;
/// Digits of a digest that are shown.
const SHORT: usize = 12;

/// Progress of a pull.
pub(super) struct Progress {
    is_shown: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of all layers.
    bytes: u64,
    /// Bytes of each layer that are there, and that it has.
    layers: BTreeMap<Digest, (u64, u64)>,
    drawing: Drawing,
}

/// Lines that the next drawing replaces.
#[derive(Default)]
struct Drawing {
    /// Number of lines on the terminal.
    lines: usize,
    drawn: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { is_shown: std::io::stderr().is_terminal(), state: Mutex::default() }
    }

    /// Bytes of all layers.
    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    pub(super) fn show(&self, event: Event) {
        let mut state = self.state();
        match event {
            Event::Resolved { bytes, .. } => state.bytes = bytes,
            Event::Layer { digest, done, size } => drop(state.layers.insert(digest, (done, size))),
        }
        if self.is_shown && state.drawing.is_due() {
            let bars = state.bars();
            state.drawing.draw(&bars);
        }
    }

    /// Leaves the line of all layers.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if self.is_shown && !state.layers.is_empty() {
            let total = state.total();
            state.drawing.draw(&[total]);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A bar for each layer in work, and one for all.
    fn bars(&self) -> Vec<String> {
        let in_work = self.layers.iter().filter(|(_, (done, size))| done < size).take(MOST);
        let bar = |(digest, (done, size)): (&Digest, &(u64, u64))| {
            bar(&digest.hex().chars().take(SHORT).collect::<String>(), *done, *size)
        };
        in_work.map(bar).chain([self.total()]).collect()
    }

    fn total(&self) -> String {
        bar("all layers", self.layers.values().map(|(done, _)| done).sum(), self.bytes)
    }
}

impl Drawing {
    fn is_due(&self) -> bool {
        self.drawn.is_none_or(|drawn| drawn.elapsed() >= INTERVAL)
    }

    /// Replaces the lines of the last drawing.
    fn draw(&mut self, lines: &[String]) {
        let up = match self.lines {
            0 => String::new(),
            count => format!("\x1b[{count}A\x1b[J"),
        };
        self.lines = lines.len();
        self.drawn = Some(Instant::now());
        // A terminal that is gone does not matter for the work.
        let _ = write!(std::io::stderr(), "\r{up}{}\n", lines.join("\n"));
    }
}

/// Progress of one piece of work.
pub(super) struct Meter {
    title: &'static str,
    is_shown: bool,
    state: Mutex<(Drawing, Option<(u64, u64)>)>,
}

impl Meter {
    pub(super) fn new(title: &'static str) -> Meter {
        Meter { title, is_shown: std::io::stderr().is_terminal(), state: Mutex::default() }
    }

    /// Shows bytes that are done, and all that there are.
    pub(super) fn show(&self, done: u64, size: u64) {
        if self.is_shown {
            let (drawing, last) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some((done, size));
            if drawing.is_due() {
                drawing.draw(&[bar(self.title, done, size)]);
            }
        }
    }

    /// Leaves the line of the end.
    pub(super) fn end(&self) {
        let (drawing, last) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((done, size)) = last.take() {
            drawing.draw(&[bar(self.title, done, size)]);
        }
    }

    /// Counts what is written to `inner`, of about `size` bytes.
    pub(super) fn of<W>(&self, inner: W, size: u64) -> Metered<'_, W> {
        Metered { inner, meter: self, done: 0, size }
    }
}

/// Counts what is written.
pub(super) struct Metered<'a, W> {
    inner: W,
    meter: &'a Meter,
    done: u64,
    size: u64,
}

impl<W> Metered<'_, W> {
    pub(super) fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: Write> Write for Metered<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.done += count as u64;
        self.meter.show(self.done, self.size.max(self.done));
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn bar(title: &str, done: u64, size: u64) -> String {
    let part = done.min(size) as f64 / size.max(1) as f64;
    let full = (part * WIDTH as f64) as usize;
    let head = if full < WIDTH { ">" } else { "" };
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    format!(
        "{title:<SHORT$} [{:<WIDTH$}] {:>6.1} of {:.1} MB",
        format!("{}{head}", "=".repeat(full)),
        megabytes(done),
        megabytes(size)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_in_work_have_bars_and_all_have_one() {
        let progress = Progress { is_shown: false, state: Mutex::default() };
        let digests: Vec<_> = (0..20u8).map(|number| Digest::of(&[number])).collect();
        progress.show(Event::Resolved { digest: digests[0].clone(), layers: 20, bytes: 20_000_000 });
        for (number, digest) in digests.iter().enumerate() {
            let done = if number < 2 { 1_000_000 } else { 500_000 };
            progress.show(Event::Layer { digest: digest.clone(), done, size: 1_000_000 });
        }
        let bars = progress.state().bars();
        assert_eq!(bars.len(), MOST + 1);
        assert!(bars.iter().all(|bar| bar.len() < 80), "{bars:?}");
        let half = "[===============>              ]    0.5 of 1.0 MB";
        assert!(bars[..MOST].iter().all(|bar| bar.ends_with(half)), "{bars:?}");
        assert_eq!(bars[MOST], "all layers   [================>             ]   11.0 of 20.0 MB");
        assert_eq!(bar("x", 3, 3), format!("x            [{}]    0.0 of 0.0 MB", "=".repeat(WIDTH)));
        assert!(bar("x", 9, 0).contains(&format!("[>{}]", " ".repeat(WIDTH - 1))));
    }
}
