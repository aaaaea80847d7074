//! Use of the budgets of a sandbox, over all of its Pods.

use std::collections::HashMap;
use std::sync::Arc;

use crate::names::Hours;
use crate::usage::Usage;

/// Maximum sandboxes without a Pod that are remembered.
const ENDED: usize = 16_384;

/// Counters of one sandbox.
#[derive(Clone, Default)]
pub(crate) struct Used {
    pub(crate) usage: Arc<Usage>,
    pub(crate) hours: Hours,
}

/// Counters of all sandboxes, by their names.
#[derive(Default)]
pub(crate) struct AllUsed {
    /// Each with the number of its last use.
    by_name: HashMap<String, (u64, Used)>,
    uses: u64,
}

impl AllUsed {
    /// Returns the counters of a sandbox: those of its earlier Pods, if it has had some.
    pub(crate) fn of(&mut self, name: String) -> Used {
        if self.by_name.len() >= ENDED && !self.by_name.contains_key(&name) {
            // No Pod has them.
            let ended = self.by_name.iter().filter(|(_, (_, used))| Arc::strong_count(&used.usage) == 1);
            let oldest = ended.min_by_key(|(_, (last, _))| *last).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.by_name.remove(&name));
        }
        self.uses += 1;
        let (last, used) = self.by_name.entry(name).or_default();
        *last = self.uses;
        used.clone()
    }

    /// Forgets a sandbox that is gone.
    pub(crate) fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_a_name_until_it_is_forgotten() {
        let mut all = AllUsed::default();
        let first = all.of("a".to_owned());
        assert!(Arc::ptr_eq(&first.usage, &all.of("a".to_owned()).usage));
        assert!(!Arc::ptr_eq(&first.usage, &all.of("b".to_owned()).usage));
        all.forget("a");
        assert!(!Arc::ptr_eq(&first.usage, &all.of("a".to_owned()).usage));
    }

    #[test]
    fn ended_sandboxes_are_bounded_and_those_with_a_pod_stay() {
        let mut all = AllUsed::default();
        let kept = all.of("kept".to_owned());
        for number in 0..ENDED + 10 {
            all.of(number.to_string());
        }
        assert_eq!(all.by_name.len(), ENDED);
        assert!(Arc::ptr_eq(&kept.usage, &all.of("kept".to_owned()).usage));
    }
}
