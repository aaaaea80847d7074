//! When Sandboxes go to sleep.

use std::time::Duration;

use jiff::Timestamp;

/// When a Sandbox goes to sleep by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sleeps {
    /// Name of the Sandbox.
    pub name: String,
    /// So long after it was last used.
    pub after: Duration,
    /// When it was last used, as somebody has reported.
    pub reported: Option<Timestamp>,
    /// Where its sandboxd can be asked when it was last used.
    pub activity_port: Option<u16>,
    /// The version of the Sandbox of which all this is.
    pub version: Option<String>,
}
