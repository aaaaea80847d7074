//! Differences between a file of another format and the policy that comes of it.

use anyhow::bail;

/// Differences between a file and what comes of it, each in one line that begins with the path of a field.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Fields that mean something else, or nothing, here.
    pub(crate) changes: Vec<String>,
    /// Fields that cannot be enforced.
    pub(crate) refusals: Vec<String>,
}

impl Notes {
    /// Notes a field that means something else.
    pub(super) fn change(&mut self, field: &str, what: &str) {
        self.changes.push(format!("{field}: {what}"));
    }

    /// Notes a field that cannot be enforced.
    pub(super) fn refuse(&mut self, field: &str, why: impl std::fmt::Display) {
        self.refusals.push(format!("{field}: {why}"));
    }

    /// Returns an error for the first field that cannot be enforced.
    pub(crate) fn refused(&self) -> anyhow::Result<()> {
        match self.refusals.as_slice() {
            [] => Ok(()),
            [only] => bail!("{only}"),
            [first, rest @ ..] => bail!("{first} (and {} more)", rest.len()),
        }
    }
}
