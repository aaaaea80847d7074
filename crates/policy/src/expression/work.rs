//! Bound of the time that the conditions of one decision take: code inside a sandbox chooses the arguments and the number of
//! calls.

use std::cell::Cell;

/// Units of one decision. A unit is about the time in which a byte of a text is searched.
const MOST: usize = 32 << 20;
/// Units of an evaluation about a call, beside its bytes, and of each of its values.
pub(super) const EVALUATION: usize = 2000;
pub(super) const VALUE: usize = 100;
/// Units of reading a regular expression.
pub(super) const READING: usize = 16 << 10;

thread_local! {
    /// Units that the present decision of this thread has left; `None` outside of one.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A decision, which ends when this is dropped. It is made on one thread.
pub(crate) struct Work(());

impl Work {
    /// Begins a decision.
    pub(crate) fn begin() -> Work {
        LEFT.set(Some(MOST));
        Work(())
    }

    /// Returns true if conditions have had no value because the units were used up.
    pub(crate) fn is_used_up(&self) -> bool {
        LEFT.get() == Some(0)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        LEFT.set(None);
    }
}

/// Takes units. Returns false if there are too few; then none are left.
pub(super) fn take(units: usize) -> bool {
    let Some(left) = LEFT.get() else { return true };
    let rest = left.checked_sub(units).filter(|rest| *rest > 0);
    LEFT.set(Some(rest.unwrap_or(0)));
    rest.is_some()
}
