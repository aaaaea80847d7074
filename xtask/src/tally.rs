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
    /// Names of tests that failed, and where and why they panicked.
    pub(crate) failures: Vec<String>,
    section: Section,
}

/// Part of libtest's output.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Neither of the others.
    #[default]
    Other,
    /// Between `failures:` and the result of a test program: output and names of failed tests.
    Failures,
    /// The line after a panic's place, there.
    Panic,
}

/// Maximum characters of a line about a failure, and maximum lines.
const MAX_LINE: usize = 300;
const MAX_LINES: usize = 200;

impl Tally {
    /// Counts one line of a test run's output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(skipped) = line.strip_prefix("skipped: ") {
            self.skipped.push(skipped.to_owned());
        }
        self.section = match (self.section, line) {
            (_, "failures:") => Section::Failures,
            (_, line) if line.starts_with("test result: ") => Section::Other,
            (Section::Failures, line) if line.contains(" panicked at ") => self.failure(line, Section::Panic),
            (Section::Failures, line) if is_indented_name(line) => {
                self.failure(line.trim(), Section::Failures)
            }
            (Section::Panic, line) => self.failure(line, Section::Failures),
            (section, _) => section,
        };
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

    fn failure(&mut self, line: &str, next: Section) -> Section {
        if self.failures.len() < MAX_LINES {
            self.failures.push(line.chars().take(MAX_LINE).collect());
        }
        next
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

/// Returns `true` for a line of libtest's list of failed tests.
fn is_indented_name(line: &str) -> bool {
    line.strip_prefix("    ").is_some_and(|name| !name.is_empty() && !name.contains(' '))
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

    #[test]
    fn failed_tests_are_named_with_their_panics() {
        let mut tally = Tally::default();
        let output = "thread 'x' panicked at elsewhere\nfailures:\n\n---- a::b stdout ----\n\n\
            thread 'a::b' (7) panicked at src/a.rs:1:2:\nnot so\nmore\n\nfailures:\n    a::b\n\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored\n    c::d";
        output.lines().for_each(|line| tally.read(line));
        assert_eq!(tally.failures, ["thread 'a::b' (7) panicked at src/a.rs:1:2:", "not so", "a::b"]);
    }
}
