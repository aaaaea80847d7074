//! State of a pool between reconciles, in memory alone.

use std::collections::{BTreeSet, HashMap};

use jiff::SignedDuration;
use tokio::time::Instant;

/// State of one pool.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Names of Sandboxes whose creation the server has not answered: they may exist.
    pub(crate) unanswered: Vec<String>,
    /// Time at which this process created each Sandbox that was not Ready at the last reconcile, by name.
    created: HashMap<String, Instant>,
    /// Set while the last event reported the pool as not progressing.
    pub(crate) stuck: bool,
}

impl Memory {
    /// Records that a Sandbox of that name is requested. Returns whether an earlier request was not answered.
    pub(crate) fn request(&mut self, name: &str) -> bool {
        let again = self.unanswered.iter().any(|known| known == name);
        if !again {
            self.unanswered.push(name.to_owned());
        }
        again
    }

    /// Records that the Sandbox of that name was created just now.
    pub(crate) fn created(&mut self, name: &str, now: Instant) {
        self.created.insert(name.to_owned(), now);
    }

    /// Returns the age of each waiting Sandbox that this process created, and forgets all others.
    pub(crate) fn ages(
        &mut self,
        waiting: &BTreeSet<String>,
        now: Instant,
    ) -> HashMap<String, SignedDuration> {
        self.created.retain(|name, _| waiting.contains(name));
        let age = |created: &Instant| SignedDuration::try_from(now.saturating_duration_since(*created));
        let ages =
            self.created.iter().map(|(name, time)| (name.clone(), age(time).unwrap_or(SignedDuration::MAX)));
        ages.collect()
    }

    /// Records that the request for the Sandbox of that name was answered.
    pub(crate) fn answered(&mut self, name: &str) {
        self.unanswered.retain(|known| known != name);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_cover_only_sandboxes_of_this_process() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        memory.created("a", now);
        memory.created("b", now + Duration::from_secs(2));
        let waiting = BTreeSet::from(["a".to_owned(), "of-another-process".to_owned()]);
        let ages = memory.ages(&waiting, now + Duration::from_secs(3));
        assert_eq!(ages, HashMap::from([("a".to_owned(), SignedDuration::from_secs(3))]));
        assert!(memory.ages(&BTreeSet::new(), now).is_empty() && memory.created.is_empty());
    }
}
