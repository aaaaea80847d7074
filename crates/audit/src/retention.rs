//! Decides which segments are deleted. Pure.

use std::time::Duration;

use crate::event::Removal;

/// Bounds of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum bytes.
    pub bytes: u64,
    /// Maximum age of a segment.
    pub age: Duration,
    /// Maximum bytes, even if an exporter has not sent the records.
    pub hard_bytes: u64,
}

impl Default for Retention {
    /// 10 GiB or 90 days; 20 GiB if an exporter lags behind.
    fn default() -> Retention {
        Retention { bytes: 10 << 30, age: Duration::from_secs(90 * 24 * 60 * 60), hard_bytes: 20 << 30 }
    }
}

/// A segment that can be deleted, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aged {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
}

/// Records to delete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) segments: usize,
    pub(crate) why: Removal,
    /// Exporters that have not sent all of them.
    pub(crate) unsent: Vec<String>,
}

/// Returns the segments to delete. `current` are the bytes of the segment that is written, `cursors` the last record that
/// each exporter has sent.
pub(crate) fn plan(
    bounds: &Retention,
    segments: &[Aged],
    current: u64,
    cursors: &[(String, u64)],
) -> Option<Plan> {
    let mut total = current + segments.iter().map(|segment| segment.bytes).sum::<u64>();
    let mut plan: Option<Plan> = None;
    for segment in segments {
        let unsent = cursors.iter().filter(|(_, sent)| *sent < segment.last).map(|(name, _)| name.clone());
        let unsent: Vec<String> = unsent.collect();
        let why = if total > bounds.bytes {
            Removal::Size
        } else if segment.age > bounds.age {
            Removal::Age
        } else {
            break;
        };
        let is_over = total > bounds.hard_bytes;
        if !unsent.is_empty() && !is_over {
            break;
        }
        let why = if unsent.is_empty() { why } else { Removal::HardBound };
        total -= segment.bytes;
        let plan = plan.get_or_insert(Plan { segments: 0, why, unsent: Vec::new() });
        plan.segments += 1;
        if !unsent.is_empty() {
            (plan.why, plan.unsent) = (why, unsent);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn segments(count: u64) -> Vec<Aged> {
        let segment =
            |n: u64| Aged { first: n * 10 + 1, last: n * 10 + 10, bytes: 100, age: DAY * (count - n) as u32 };
        (0..count).map(segment).collect()
    }

    #[test]
    fn segments_over_a_bound_are_deleted_once_they_are_sent() {
        let bounds = Retention { bytes: 350, age: DAY * 90, hard_bytes: 550 };
        let sent = |seq| [("s".to_owned(), seq)];
        let deleted = |count, cursors: &[(String, u64)]| {
            plan(&bounds, &segments(count), 50, cursors).map(|plan| (plan.segments, plan.why, plan.unsent))
        };
        assert_eq!(deleted(3, &[]), None);
        assert_eq!(deleted(5, &[]), Some((2, Removal::Size, vec![])));
        assert_eq!(deleted(5, &sent(10)), Some((1, Removal::Size, vec![])));
        assert_eq!(deleted(5, &sent(9)), None);
        // Above the hard bound.
        assert_eq!(deleted(6, &sent(0)), Some((1, Removal::HardBound, vec!["s".into()])));
    }

    #[test]
    fn segments_are_deleted_by_age() {
        let bounds = Retention { bytes: 1 << 30, age: DAY * 3 - Duration::from_secs(1), hard_bytes: 1 << 31 };
        let found = plan(&bounds, &segments(5), 0, &[]);
        assert_eq!(found, Some(Plan { segments: 3, why: Removal::Age, unsent: vec![] }));
    }
}
