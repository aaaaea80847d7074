//! Decides which segments are deleted. Pure.

use std::time::Duration;

use crate::cursor::Progress;
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

/// Segments to delete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) segments: usize,
    pub(crate) why: Option<Removal>,
    /// Exporters that have not sent all of these records, with the number of records that each one has not sent.
    pub(crate) unsent: Vec<(String, u64)>,
    /// Exporters because of which a segment beyond a bound is not deleted yet.
    pub(crate) waits: Vec<String>,
}

/// Returns the segments to delete. `current` are the bytes of the segment that is written. What an exporter that follows
/// has not sent is deleted above the hard bound alone.
pub(crate) fn plan(bounds: &Retention, segments: &[Aged], current: u64, exporters: &[Progress]) -> Plan {
    let mut total = current + segments.iter().map(|segment| segment.bytes).sum::<u64>();
    let mut plan = Plan::default();
    for segment in segments {
        let why = if total > bounds.bytes {
            Removal::Size
        } else if segment.age > bounds.age {
            Removal::Age
        } else {
            break;
        };
        let waits = exporters.iter().filter(|exporter| exporter.follows && exporter.sent < segment.last);
        let waits: Vec<String> = waits.map(|exporter| exporter.name.clone()).collect();
        if !waits.is_empty() && total <= bounds.hard_bytes {
            plan.waits = waits;
            break;
        }
        total -= segment.bytes;
        plan.segments += 1;
        plan.why = match plan.why {
            _ if !waits.is_empty() => Some(Removal::HardBound),
            known => known.or(Some(why)),
        };
    }
    let deleted = &segments[..plan.segments];
    if let (Some(first), Some(last)) = (deleted.first(), deleted.last()) {
        let unsent = exporters.iter().filter(|exporter| exporter.sent < last.last);
        let lost = |exporter: &Progress| last.last - exporter.sent.max(first.first - 1);
        plan.unsent = unsent.map(|exporter| (exporter.name.clone(), lost(exporter))).collect();
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
        let sent = |sent, follows| [Progress { name: "s".to_owned(), sent, follows }];
        let deleted = |count, exporters: &[Progress]| {
            let plan = plan(&bounds, &segments(count), 50, exporters);
            (plan.segments, plan.why, plan.unsent, plan.waits)
        };
        let (size, none) = (Some(Removal::Size), Vec::new);
        assert_eq!(deleted(3, &[]), (0, None, vec![], none()));
        assert_eq!(deleted(5, &[]), (2, size, vec![], none()));
        assert_eq!(deleted(5, &sent(10, true)), (1, size, vec![], vec!["s".to_owned()]));
        assert_eq!(deleted(5, &sent(9, true)), (0, None, vec![], vec!["s".to_owned()]));
        // Above the hard bound.
        let hard = Some(Removal::HardBound);
        assert_eq!(deleted(6, &sent(0, true)), (1, hard, vec![("s".into(), 10)], vec!["s".to_owned()]));
        assert_eq!(deleted(6, &sent(7, true)), (1, hard, vec![("s".into(), 3)], vec!["s".to_owned()]));
        // Retention does not wait for an exporter that has ended, and counts what it has not sent.
        assert_eq!(deleted(5, &sent(14, false)), (2, size, vec![("s".into(), 6)], none()));
    }

    #[test]
    fn segments_are_deleted_by_age() {
        let bounds = Retention { bytes: 1 << 30, age: DAY * 3 - Duration::from_secs(1), hard_bytes: 1 << 31 };
        let found = plan(&bounds, &segments(5), 0, &[]);
        assert_eq!(found, Plan { segments: 3, why: Some(Removal::Age), ..Plan::default() });
    }
}
