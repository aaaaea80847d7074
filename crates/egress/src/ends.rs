//! Ends of connections whose bytes are only passed on, for an audit log: each one, unless there are many.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Ends of one window that are recorded one by one. Further ones are summed.
const SINGLE: u32 = 16;
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum destinations that have a sum of their own.
const SUMS: usize = 64;
/// Destination of the sum of all others.
const OTHERS: &str = "other destinations";

/// Connections to one destination that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Host and port, as the sandbox named them.
    pub destination: String,
    /// Number of connections.
    pub connections: u32,
    /// Bytes that the sandbox has received.
    pub received: u64,
    /// Bytes that it has sent.
    pub sent: u64,
    /// True if one was cut off.
    pub reset: bool,
}

/// Ends of the connections of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    since: Option<Instant>,
    single: u32,
    sums: BTreeMap<String, Ended>,
}

impl Ends {
    /// Adds an end. Returns what is recorded now: sums are recorded with the first end of a later window.
    pub(crate) fn add(&mut self, ended: Ended, now: Instant) -> Vec<Ended> {
        let mut due = Vec::new();
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            due = self.take();
            (self.since, self.single) = (Some(now), 0);
        }
        if self.single < SINGLE {
            self.single += 1;
            due.push(ended);
            return due;
        }
        let has_own = self.sums.contains_key(&ended.destination) || self.sums.len() < SUMS;
        let key = if has_own { ended.destination } else { OTHERS.to_owned() };
        let none = Ended { destination: key.clone(), connections: 0, received: 0, sent: 0, reset: false };
        let sum = self.sums.entry(key).or_insert(none);
        sum.connections = sum.connections.saturating_add(ended.connections);
        sum.received = sum.received.saturating_add(ended.received);
        sum.sent = sum.sent.saturating_add(ended.sent);
        sum.reset |= ended.reset;
        due
    }

    /// Takes the sums.
    pub(crate) fn take(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.sums).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(destination: &str, reset: bool) -> Ended {
        Ended { destination: destination.to_owned(), connections: 1, received: 10, sent: 1, reset }
    }

    #[test]
    fn many_ends_are_summed_by_destination() {
        let (mut ends, now) = (Ends::default(), Instant::now());
        for _ in 0..SINGLE {
            assert_eq!(ends.add(ended("a:1", false), now), [ended("a:1", false)]);
        }
        for index in 0..1000 {
            let destination = if index % 2 == 0 { "a:1".to_owned() } else { format!("{index}:1") };
            assert_eq!(ends.add(ended(&destination, index == 500), now), []);
        }
        let due = ends.add(ended("b:1", true), now + WINDOW);
        assert_eq!(due.len(), SUMS + 2, "each sum, the rest, and the new one");
        let of = |name: &str| due.iter().find(|one| one.destination == name).unwrap();
        let sum = Ended { connections: 500, received: 5000, sent: 500, ..ended("a:1", true) };
        assert_eq!((of("a:1"), of("b:1")), (&sum, &ended("b:1", true)));
        assert_eq!(of(OTHERS).connections, 500 - (SUMS as u32 - 1));
        assert_eq!(ends.take(), []);
    }
}
