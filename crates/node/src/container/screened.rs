//! Scanners of policies for logs: secrets are replaced before they are in the file.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hutch_policy::{Door, Level};
use hutch_screen::{Findings, Origin, Screen, Sighting, Until};

use super::output::Stream;
use crate::config::Journal;

/// Scanners of the policies of a Pod for its logs, as they are now.
#[derive(Default)]
pub(crate) struct LogScreen {
    screen: Mutex<Option<Screen>>,
    log: OnceLock<Arc<dyn Findings>>,
}

impl fmt::Debug for LogScreen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("LogScreen").field(&self.screen).finish()
    }
}

/// Audit log, for findings in the logs of one Pod.
struct PodJournal {
    journal: Arc<dyn Journal>,
    /// Uid of the Pod.
    pod: String,
}

impl Findings for PodJournal {
    fn record(&self, sighting: &Sighting<'_>) {
        self.journal.found(&self.pod, sighting);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogScreen {
    /// Sets the levels.
    pub(crate) fn set(&self, levels: &[Arc<Level>]) {
        let screen = Screen::of(levels, Door::Logs);
        *lock(&self.screen) = screen;
    }

    /// Has findings recorded, as those of the Pod with this uid.
    pub(crate) fn record(&self, journal: Arc<dyn Journal>, pod: &str) {
        let log: Arc<dyn Findings> = Arc::new(PodJournal { journal, pod: pod.to_owned() });
        // A Pod is added once.
        let _ = self.log.set(log);
    }

    /// Returns a short text that a container has printed, as its log would show it.
    pub(crate) fn text(&self, origin: Origin, bytes: &[u8]) -> Vec<u8> {
        let Some(screen) = self.get() else { return bytes.to_vec() };
        let mut output = hutch_screen::Output::new(screen, origin);
        output.take(bytes);
        finish(&mut output)
    }

    /// Returns true if something scans the logs.
    pub(crate) fn is_set(&self) -> bool {
        lock(&self.screen).is_some()
    }

    fn get(&self) -> Option<Screen> {
        let screen = lock(&self.screen).clone()?;
        Some(match self.log.get() {
            Some(log) => screen.recorded(log.clone()),
            None => screen,
        })
    }
}

/// The log of one container, as its policies let it be written.
#[derive(Debug)]
pub(crate) struct Screened {
    screen: Arc<LogScreen>,
    origin: Origin,
    /// Output that is scanned, by stream.
    streams: [Mutex<Option<hutch_screen::Output>>; 2],
}

impl Screened {
    pub(crate) fn new(screen: Arc<LogScreen>, origin: Origin) -> Screened {
        Screened { screen, origin, streams: Default::default() }
    }

    /// Returns a short text of the container, as its log would show it.
    pub(crate) fn text(&self, bytes: &[u8]) -> Vec<u8> {
        self.screen.text(self.origin.clone(), bytes)
    }

    /// Returns what is to be written now that a stream gave bytes, and whether some wait.
    pub(crate) fn take<'a>(&self, stream: Stream, bytes: &'a [u8]) -> (Cow<'a, [u8]>, bool) {
        let mut output = lock(&self.streams[stream as usize]);
        let Some(screen) = self.screen.get() else {
            let mut rest = output.take().map(|mut output| finish(&mut output)).unwrap_or_default();
            if rest.is_empty() {
                return (bytes.into(), false);
            }
            rest.extend_from_slice(bytes);
            return (rest.into(), false);
        };
        let output =
            output.get_or_insert_with(|| hutch_screen::Output::new(screen.clone(), self.origin.clone()));
        output.set(screen);
        output.take(bytes);
        let mut passed = Vec::new();
        while output.is_full() {
            passed.extend(pass(output, Until::Window));
        }
        (passed.into(), !output.is_empty())
    }

    /// Returns the whole lines of a stream that wait.
    pub(crate) fn lines(&self, stream: Stream) -> Vec<u8> {
        let mut output = lock(&self.streams[stream as usize]);
        output.as_mut().map(|output| pass(output, Until::Line)).unwrap_or_default()
    }

    /// Returns all that waits of a stream: nothing more comes.
    pub(crate) fn finish(&self, stream: Stream) -> Vec<u8> {
        let output = lock(&self.streams[stream as usize]).take();
        output.map(|mut output| finish(&mut output)).unwrap_or_default()
    }
}

/// A log never ends by what is found in it.
fn pass(output: &mut hutch_screen::Output, until: Until) -> Vec<u8> {
    output.pass(until).unwrap_or_default()
}

fn finish(output: &mut hutch_screen::Output) -> Vec<u8> {
    output.finish().unwrap_or_default()
}
