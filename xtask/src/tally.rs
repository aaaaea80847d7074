//! Counts test results in output: libtest's summary lines, and the lines of skipped tests.

/// Number of tests by result.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that cannot run here: `name: reason`.
    pub(crate) skipped: Vec<String>,
}

impl Tally {
    /// Counts one line of a test run's output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(skipped) = line.strip_prefix("skipped: ") {
            self.skipped.push(skipped.to_owned());
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for part in counts.split([';', '.']) {
            let words: Vec<&str> = part.split_whitespace().collect();
            match words[..] {
                [count, "passed"] => self.passed += count.parse().unwrap_or(0),
                [count, "failed"] => self.failed += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Counts one check of xtask.
    pub(crate) fn check(&mut self, held: bool) {
        if held { self.passed += 1 } else { self.failed += 1 }
    }

    /// Returns `N passed, N failed, N skipped`. libtest counts a skipped test as passed; this does not.
    pub(crate) fn line(&self) -> String {
        let skipped = self.skipped.len() as u64;
        format!("{} passed, {} failed, {skipped} skipped", self.passed.saturating_sub(skipped), self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_test_does_not_count_as_passed() {
        let mut tally = Tally::default();
        tally.read("skipped: jail::x: needs root");
        tally.read(
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        tally.read(
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
        );
        assert_eq!(tally.line(), "4 passed, 2 failed, 1 skipped");
    }
}
