//! Idle timeouts of Sandboxes.

use std::time::Duration;

use jiff::Timestamp;

/// Idle timeout of a Sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleTimeout {
    /// Name of the Sandbox.
    pub name: String,
    /// Idle time before the suspend.
    pub after: Duration,
    /// Last activity that was reported.
    pub reported: Option<Timestamp>,
    /// Port of sandboxd, to poll its last activity.
    pub activity_port: Option<u16>,
    /// resourceVersion of the Sandbox of these values.
    pub version: Option<String>,
}
