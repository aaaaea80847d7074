//! The last Pods that have ended: the proxy may still report what it has decided before.

use std::collections::VecDeque;

/// Maximum Pods.
const MOST: usize = 1024;

/// Facts about the last Pods that have ended.
pub(super) struct Recent<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent(VecDeque::new())
    }
}

impl<K: PartialEq, V: Clone> Recent<K, V> {
    /// Adds a Pod, and forgets the oldest one.
    pub(super) fn push(&mut self, key: K, value: V) {
        self.0.push_back((key, value));
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Returns what is known about a Pod.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_pods_are_known() {
        let mut recent = Recent::default();
        (0..=MOST).for_each(|number| recent.push(number, number));
        assert_eq!(recent.get(&0), None);
        assert_eq!((recent.get(&1), recent.get(&MOST)), (Some(1), Some(MOST)));
    }
}
