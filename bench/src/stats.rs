//! Samples of durations, and their statistics.

use std::time::Duration;

/// Samples of one duration.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, more: Samples) {
        self.0.extend(more.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value that `share` (0..=1) of the samples do not exceed; zero without samples.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(0.5)
    }

    pub(crate) fn p99(&self) -> Duration {
        self.percentile(0.99)
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Samples(times.into_iter().collect())
    }
}

/// Formats a duration as milliseconds with two decimals.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut samples = Samples::default();
        for n in (1..=101).rev() {
            samples.add(Duration::from_millis(n));
        }
        assert_eq!(samples.p50(), Duration::from_millis(51));
        assert_eq!(samples.p99(), Duration::from_millis(100));
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }
}
