//! How long a Sandbox may be idle, as its annotations say.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{annotation, go_duration};

/// The least time that can be asked for: it takes a look or two to see that nothing happens.
pub const LEAST: Duration = Duration::from_secs(1);
/// The longest time between two reports of activity on a Sandbox that goes to sleep on disk.
pub const MOST_SELDOM: Duration = Duration::from_secs(300);

/// How long a Sandbox may be idle before it falls asleep. Nothing: it never does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patience {
    /// Before it is frozen, where Hutch runs the Pod itself.
    pub freeze_after: Option<Duration>,
    /// Before it is suspended.
    pub suspend_after: Option<Duration>,
    /// Where its sandboxd can be asked when it was last used.
    pub activity_port: Option<u16>,
}

/// What durations look like.
const DURATION: &str = "a duration of at least 1s, such as 90s, 10m or 1h30m";
/// What ports look like.
const PORT: &str = "a port, 1 to 65535";

/// An annotation that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {value:?} is not {wanted}")]
pub struct BadPatience {
    /// Which one.
    pub key: &'static str,
    /// What would be right.
    pub wanted: &'static str,
    /// What it says, cut at 64 characters.
    pub value: String,
}

impl Patience {
    /// Reads annotations. The Sandbox's own come first; for what they do not say, those of its Pod template count.
    ///
    /// # Errors
    /// The first annotation that is no duration, too short a one, or no port.
    pub fn read<'a>(
        sets: impl IntoIterator<Item = &'a BTreeMap<String, String>> + Clone,
    ) -> Result<Patience, BadPatience> {
        let said =
            |key: &str| sets.clone().into_iter().find_map(|set| set.get(key)).filter(|said| !said.is_empty());
        let time =
            |key| read(key, said(key), DURATION, |said| go_duration(said).filter(|time| *time >= LEAST));
        Ok(Patience {
            freeze_after: time(annotation::IDLE_AFTER)?,
            suspend_after: time(annotation::SUSPEND_AFTER)?,
            activity_port: read(annotation::ACTIVITY_PORT, said(annotation::ACTIVITY_PORT), PORT, port)?,
        })
    }
}

fn read<T>(
    key: &'static str,
    said: Option<&String>,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, BadPatience> {
    let Some(said) = said else { return Ok(None) };
    let wrong = || BadPatience { key, wanted, value: said.chars().take(64).collect() };
    parse(said).map(Some).ok_or_else(wrong)
}

fn port(said: &str) -> Option<u16> {
    let plain = said.starts_with(|first: char| first.is_ascii_digit() && first != '0');
    said.parse().ok().filter(|_| plain)
}

/// How often activity is reported at the most, on a Sandbox that is suspended after so long: often enough that the
/// last report is never much older than the activity.
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
    fn the_sandbox_speaks_before_its_template() {
        let own = set(&[(annotation::IDLE_AFTER, "90s")]);
        let template = set(&[(annotation::IDLE_AFTER, "1h"), (annotation::SUSPEND_AFTER, "2h")]);
        let read = Patience::read([&own, &template]).unwrap();
        assert_eq!(read.freeze_after, Some(Duration::from_secs(90)));
        assert_eq!(read.suspend_after, Some(Duration::from_secs(7200)));
        assert_eq!(Patience::read([&set(&[])]).unwrap(), Patience::default());
        let off = set(&[(annotation::IDLE_AFTER, "")]);
        assert_eq!(Patience::read([&off, &template]).unwrap().freeze_after, None, "empty is: never");
    }

    #[test]
    fn what_is_no_time_is_named() {
        for bad in ["soon", "10", "-5m", "500ms", "0"] {
            let error = Patience::read([&set(&[(annotation::SUSPEND_AFTER, bad)])]).unwrap_err();
            assert!(error.to_string().contains(annotation::SUSPEND_AFTER), "{error}");
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn a_port_is_a_port() {
        let said = |text| Patience::read([&set(&[(annotation::ACTIVITY_PORT, text)])]);
        assert_eq!(said("8080").unwrap().activity_port, Some(8080));
        assert_eq!(said("").unwrap().activity_port, None);
        for bad in ["0", "08080", "+8080", "65536", "http"] {
            let error = said(bad).unwrap_err().to_string();
            assert!(error.contains(annotation::ACTIVITY_PORT) && error.contains("1 to 65535"), "{error}");
        }
    }

    #[test]
    fn reports_are_rare_and_in_time() {
        for seconds in [1, 4, 60, 3600, 1_000_000] {
            let after = Duration::from_secs(seconds);
            assert!(report_every(after) * 4 <= after && report_every(after) <= MOST_SELDOM);
        }
    }
}
