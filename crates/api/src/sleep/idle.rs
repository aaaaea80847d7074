//! Idle times of a Sandbox, decoded from its annotations.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{annotation, go_duration};

/// Minimum idle time: one or two reconciles are needed to observe that a Sandbox is idle.
pub const LEAST: Duration = Duration::from_secs(1);
/// Maximum time between two activity reports of a Sandbox that may be suspended when idle.
pub const MOST_SELDOM: Duration = Duration::from_secs(300);

/// Idle times before a Sandbox falls asleep. `None`: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleTimes {
    /// Idle time before it is frozen, where Hutch runs the Pod itself.
    pub freeze_after: Option<Duration>,
    /// Idle time before the memory of a frozen one is written to swap: at least `freeze_after`, less than `suspend_after`.
    pub page_out_after: Option<Duration>,
    /// Idle time before it is suspended.
    pub suspend_after: Option<Duration>,
    /// Port at which its sandboxd reports the time of last use.
    pub activity_port: Option<u16>,
}

/// Valid form of durations.
const DURATION: &str = "a duration of at least 1s, such as 90s, 10m or 1h30m";
/// Valid form of ports.
const PORT: &str = "a port, 1 to 65535";
/// Requirements of the time before memory is written to swap.
const AFTER_FREEZE: &str = "possible without hutch.dev/idle-after: memory of a frozen Sandbox is paged out";
const NOT_BEFORE_FREEZE: &str = "at least hutch.dev/idle-after: memory of a frozen Sandbox is paged out";
const BEFORE_SUSPEND: &str = "less than hutch.dev/suspend-after, which removes the processes";

/// An invalid annotation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {value:?} is not {wanted}")]
pub struct InvalidIdleTime {
    /// Key of the annotation.
    pub key: &'static str,
    /// Valid form.
    pub wanted: &'static str,
    /// Its value, cut at 64 characters.
    pub value: String,
}

impl IdleTimes {
    /// Decodes annotations. The Sandbox's own take precedence; those of its Pod template are the fallback.
    ///
    /// # Errors
    /// The first annotation that is not a duration, is too short, or is not a port.
    pub fn read<'a>(
        sets: impl IntoIterator<Item = &'a BTreeMap<String, String>> + Clone,
    ) -> Result<IdleTimes, InvalidIdleTime> {
        let value = |key: &str| {
            sets.clone().into_iter().find_map(|set| set.get(key)).filter(|value| !value.is_empty())
        };
        let time =
            |key| read(key, value(key), DURATION, |value| go_duration(value).filter(|time| *time >= LEAST));
        let times = IdleTimes {
            freeze_after: time(annotation::IDLE_AFTER)?,
            page_out_after: time(annotation::PAGE_OUT_AFTER)?,
            suspend_after: time(annotation::SUSPEND_AFTER)?,
            activity_port: read(annotation::ACTIVITY_PORT, value(annotation::ACTIVITY_PORT), PORT, port)?,
        };
        let key = annotation::PAGE_OUT_AFTER;
        match times.out_of_order() {
            Some(wanted) => read(key, value(key), wanted, |_| None::<()>).map(|_| times),
            None => Ok(times),
        }
    }

    /// Returns the requirement that the time before a page-out breaks: its state has to come between the two others.
    fn out_of_order(&self) -> Option<&'static str> {
        let page_out = self.page_out_after?;
        match (self.freeze_after, self.suspend_after) {
            (None, _) => Some(AFTER_FREEZE),
            (Some(freeze), _) if page_out < freeze => Some(NOT_BEFORE_FREEZE),
            (_, Some(suspend)) if page_out >= suspend => Some(BEFORE_SUSPEND),
            _ => None,
        }
    }
}

/// Returns the time after a suspend that keeps memory at which the memory is removed. The first set of annotations takes
/// precedence.
///
/// # Errors
/// It is not a duration, or too short.
pub fn drop_memory_after<'a>(
    sets: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
) -> Result<Option<Duration>, InvalidIdleTime> {
    let key = annotation::DROP_MEMORY_AFTER;
    let value = sets.into_iter().find_map(|set| set.get(key)).filter(|value| !value.is_empty());
    read(key, value, DURATION, |value| go_duration(value).filter(|time| *time >= LEAST))
}

fn read<T>(
    key: &'static str,
    value: Option<&String>,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, InvalidIdleTime> {
    let Some(value) = value else { return Ok(None) };
    let wrong = || InvalidIdleTime { key, wanted, value: value.chars().take(64).collect() };
    parse(value).map(Some).ok_or_else(wrong)
}

fn port(value: &str) -> Option<u16> {
    let plain = value.starts_with(|first: char| first.is_ascii_digit() && first != '0');
    value.parse().ok().filter(|_| plain)
}

/// Returns the minimum interval of activity reports on a Sandbox with this idle time before suspension: short
/// enough that the last report is never much older than the activity.
pub fn report_every(suspend_after: Duration) -> Duration {
    (suspend_after / 4).min(MOST_SELDOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn sandbox_annotation_overrides_its_template() {
        let own = set(&[(annotation::IDLE_AFTER, "90s")]);
        let template = set(&[(annotation::IDLE_AFTER, "1h"), (annotation::SUSPEND_AFTER, "2h")]);
        let read = IdleTimes::read([&own, &template]).unwrap();
        assert_eq!(read.freeze_after, Some(Duration::from_secs(90)));
        assert_eq!(read.suspend_after, Some(Duration::from_secs(7200)));
        assert_eq!(IdleTimes::read([&set(&[])]).unwrap(), IdleTimes::default());
        let off = set(&[(annotation::IDLE_AFTER, "")]);
        assert_eq!(IdleTimes::read([&off, &template]).unwrap().freeze_after, None, "empty is: never");
    }

    #[test]
    fn invalid_duration_is_reported() {
        for bad in ["soon", "10", "-5m", "500ms", "0"] {
            let error = IdleTimes::read([&set(&[(annotation::SUSPEND_AFTER, bad)])]).unwrap_err();
            assert!(error.to_string().contains(annotation::SUSPEND_AFTER), "{error}");
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn invalid_time_of_the_removal_of_memory_disables_nothing_else() {
        let bad = set(&[(annotation::DROP_MEMORY_AFTER, "soon"), (annotation::IDLE_AFTER, "90s")]);
        assert_eq!(IdleTimes::read([&bad]).unwrap().freeze_after, Some(Duration::from_secs(90)));
        let error = drop_memory_after([&bad]).unwrap_err().to_string();
        assert!(error.contains(annotation::DROP_MEMORY_AFTER) && error.contains("soon"), "{error}");
        let good = set(&[(annotation::DROP_MEMORY_AFTER, "24h")]);
        assert_eq!(drop_memory_after([&good, &bad]).unwrap(), Some(Duration::from_secs(86400)));
        assert_eq!(drop_memory_after([&set(&[(annotation::DROP_MEMORY_AFTER, "")]), &good]).unwrap(), None);
    }

    #[test]
    fn page_out_time_lies_between_those_of_freeze_and_suspension() {
        let keys = [annotation::IDLE_AFTER, annotation::PAGE_OUT_AFTER, annotation::SUSPEND_AFTER];
        let read = |values: [&str; 3]| {
            let pairs: Vec<_> = keys.into_iter().zip(values).collect();
            IdleTimes::read([&set(&pairs)])
        };
        for good in [["1m", "1m", "2m"], ["1m", "90s", ""], ["1m", "", "30s"], ["", "", ""]] {
            let times = read(good).unwrap();
            assert_eq!(times.page_out_after.is_some(), !good[1].is_empty(), "{good:?}");
        }
        for (bad, other) in [
            (["", "5m", ""], annotation::IDLE_AFTER),
            (["", "5m", "1h"], annotation::IDLE_AFTER),
            (["10m", "5m", ""], annotation::IDLE_AFTER),
            (["1m", "5m", "5m"], annotation::SUSPEND_AFTER),
            (["1m", "5m", "2m"], annotation::SUSPEND_AFTER),
            (["1m", "later", ""], "a duration"),
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.key, annotation::PAGE_OUT_AFTER, "{bad:?}");
            let text = error.to_string();
            assert!(text.contains(&format!("{:?}", bad[1])) && text.contains(other), "{text}");
        }
    }

    #[test]
    fn invalid_port_is_reported() {
        let value = |text| IdleTimes::read([&set(&[(annotation::ACTIVITY_PORT, text)])]);
        assert_eq!(value("8080").unwrap().activity_port, Some(8080));
        assert_eq!(value("").unwrap().activity_port, None);
        for bad in ["0", "08080", "+8080", "65536", "http"] {
            let error = value(bad).unwrap_err().to_string();
            assert!(error.contains(annotation::ACTIVITY_PORT) && error.contains("1 to 65535"), "{error}");
        }
    }

    #[test]
    fn report_interval_is_bounded_by_idle_time() {
        for seconds in [1, 4, 60, 3600, 1_000_000] {
            let after = Duration::from_secs(seconds);
            assert!(report_every(after) * 4 <= after && report_every(after) <= MOST_SELDOM);
        }
    }
}
