//! Entries that a copy left out.

/// Maximum names; further entries are counted.
const NAMED_MAX: usize = 20;

/// The first of them by name, and how many.
#[derive(Debug, Default)]
pub(super) struct LeftOut(pub(super) Vec<String>, pub(super) usize);

impl LeftOut {
    pub(super) fn add(&mut self, text: String) {
        self.1 += 1;
        if self.0.len() < NAMED_MAX {
            self.0.push(text);
        }
    }
}
