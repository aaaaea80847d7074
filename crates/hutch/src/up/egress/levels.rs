//! Levels that the proxy knows: each once, however many Pods have it.

use std::sync::Arc;

use hutch_egress::control::Order;
use hutch_policy::Level;

use super::Supervisor;

/// A level that the process knows, and the number of Pods that have it.
pub(super) struct Known {
    // Held, so that no other level gets its place in memory, by which it is found.
    pub(super) level: Arc<Level>,
    pub(super) number: u64,
    pods: usize,
}

/// Returns the place of a level in memory.
fn address(level: &Arc<Level>) -> usize {
    Arc::as_ptr(level).addr()
}

impl Supervisor {
    /// Counts a use of a level. Returns the order that makes it known, if it is new.
    pub(super) fn hold(&mut self, level: &Arc<Level>) -> Option<Order> {
        if let Some(known) = self.levels.get_mut(&address(level)) {
            known.pods += 1;
            return None;
        }
        let number = self.number();
        self.levels.insert(address(level), Known { level: level.clone(), number, pods: 1 });
        Some(Order::Level { id: number, level: Level::clone(level) })
    }

    /// Counts the end of a use. Returns the order that forgets the level, if it was the last.
    pub(super) fn release(&mut self, level: &Arc<Level>) -> Option<Order> {
        let known = self.levels.get_mut(&address(level))?;
        known.pods -= 1;
        if known.pods > 0 {
            return None;
        }
        let known = self.levels.remove(&address(level))?;
        Some(Order::Forget { id: known.number })
    }

    /// Returns the numbers of levels that are known.
    pub(super) fn numbers(&self, levels: &[Arc<Level>]) -> Vec<u64> {
        levels.iter().filter_map(|level| Some(self.levels.get(&address(level))?.number)).collect()
    }
}
