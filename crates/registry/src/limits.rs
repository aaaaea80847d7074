//! Timeouts, and how often what failed is tried again.

use std::time::{Duration, SystemTime};

use crate::Error;

/// Maximum attempts for one piece of content, however much progress each makes.
const MAX_ATTEMPTS: u32 = 200;
/// Pause that a `Retry-After` of zero gets.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// Timeouts and retries of pulls.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum time for a connection with its TLS handshake.
    pub connect: Duration,
    /// Maximum time without a byte.
    pub silence: Duration,
    /// Bytes of a layer that must arrive in that time, unless fewer are left.
    pub least: u64,
    /// Maximum time for a manifest or a token.
    pub document: Duration,
    /// Attempts without progress before a request has failed.
    pub attempts: u32,
    /// Pause after the first failure; it doubles with each.
    pub first_pause: Duration,
    /// Longest pause, also of those that registries request.
    pub longest_pause: Duration,
    /// Layers of one image that are downloaded at once.
    pub parallel: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(30),
            silence: Duration::from_secs(60),
            least: 1 << 20,
            document: Duration::from_secs(120),
            attempts: 5,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(60),
            parallel: 3,
        }
    }
}

/// Attempts for one piece of content.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    limits: &'a Limits,
    without_progress: u32,
    all: u32,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Attempts<'a> {
        Attempts { limits, without_progress: 0, all: 0 }
    }

    /// Records that the last attempt brought content.
    pub(crate) fn progressed(&mut self) {
        self.without_progress = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, when another attempt would not help or there were enough.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<(), Error> {
        let pause = self.pause(&error, rand::random_range(0.5..1.0)).ok_or(error)?;
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn pause(&mut self, error: &Error, jitter: f64) -> Option<Duration> {
        self.without_progress += 1;
        self.all += 1;
        let enough = self.without_progress >= self.limits.attempts || self.all >= MAX_ATTEMPTS;
        if enough || !error.is_transient() {
            return None;
        }
        if let Error::Busy { wait: Some(wait), .. } = error {
            return (*wait <= self.limits.longest_pause).then_some((*wait).max(LEAST_PAUSE));
        }
        let doubled = self.limits.first_pause.saturating_mul(1 << (self.without_progress - 1).min(16));
        Some(doubled.min(self.limits.longest_pause).mul_f64(jitter))
    }
}

/// Reads a header `Retry-After`: seconds or a date.
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(wait: Option<u64>) -> Error {
        Error::Busy { host: "h".into(), status: 429, wait: wait.map(Duration::from_secs) }
    }

    #[test]
    fn pauses_double_until_attempts_are_used_up() {
        let limits = Limits { attempts: 4, longest_pause: Duration::from_millis(900), ..Limits::default() };
        let mut attempts = Attempts::new(&limits);
        let pauses: Vec<_> = (0..4).map(|_| attempts.pause(&busy(None), 1.0)).collect();
        assert_eq!(pauses, [Some(500), Some(900), Some(900), None].map(|p| p.map(Duration::from_millis)));
        attempts.progressed();
        assert!(attempts.pause(&busy(None), 1.0).is_some());
    }

    #[test]
    fn progress_does_not_make_attempts_endless() {
        let limits = Limits::default();
        let mut attempts = Attempts::new(&limits);
        let mut count = 0;
        while attempts.pause(&busy(None), 1.0).is_some() {
            attempts.progressed();
            count += 1;
        }
        assert_eq!(count, MAX_ATTEMPTS - 1);
    }

    #[test]
    fn requested_pause_is_kept_up_to_the_longest() {
        let limits = Limits::default();
        let mut attempts = Attempts::new(&limits);
        assert_eq!(attempts.pause(&busy(Some(7)), 1.0), Some(Duration::from_secs(7)));
        assert_eq!(attempts.pause(&busy(Some(61)), 1.0), None);
        assert_eq!(attempts.pause(&Error::Unsupported("x".into()), 1.0), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Wed, 25 Nov 2026 04:00:00 GMT").unwrap();
        for (text, seconds) in [
            ("3", Some(3)),
            ("Wed, 25 Nov 2026 04:00:09 GMT", Some(9)),
            ("Wed, 25 Nov 2020 04:00:09 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(retry_after(text, now), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
