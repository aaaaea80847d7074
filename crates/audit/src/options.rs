//! Options of a log.

use std::time::Duration;

use crate::retention::Retention;

/// Options of a log.
#[derive(Debug, Clone)]
pub struct Options {
    /// `Log::record` waits until the record is on the disk, and fails if it cannot be written.
    pub strict: bool,
    /// Bounds of the log.
    pub retention: Retention,
    /// Maximum bytes of a segment.
    pub segment: u64,
    /// Maximum time between the first record of a segment and its end.
    pub span: Duration,
    /// Maximum time that a record waits for others, so that one flush of the disk serves them all.
    pub group: Duration,
    /// Interval of signed heads.
    pub head_interval: Duration,
    /// Maximum time that a caller waits for room in the queue.
    pub wait: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            strict: false,
            retention: Retention::default(),
            segment: 64 << 20,
            span: Duration::from_secs(24 * 60 * 60),
            group: Duration::from_millis(5),
            head_interval: Duration::from_secs(60),
            wait: Duration::from_secs(5),
        }
    }
}
