//! Amounts that a sandbox may use up in a time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::shown;
use crate::ports::NumberOrText;

/// Shortest and longest time of a budget.
const TIME: std::ops::RangeInclusive<u64> = 1..=31 * 24 * 3600;

/// Reason why a value is not an amount or a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAmount {
    /// Not a number of bytes.
    #[error("{0:?} is not a number of bytes; write it like 65536, 64Ki or 50Mi")]
    Bytes(String),
    /// Not a time.
    #[error("{0:?} is not a time; write it like 30s, 10m or 1h, at most 744h")]
    Time(String),
}

/// Number of bytes: a number, also with `k`, `M`, `G`, `Ki`, `Mi` or `Gi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "u64")]
pub struct Bytes(u64);

impl Bytes {
    /// Returns the number.
    pub fn count(self) -> u64 {
        self.0
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> u64 {
        bytes.0
    }
}

impl TryFrom<NumberOrText> for Bytes {
    type Error = InvalidAmount;

    fn try_from(value: NumberOrText) -> Result<Bytes, InvalidAmount> {
        let text = value.to_string();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, suffix) = text.split_at(digits);
        let factor = match suffix {
            "" => Some(1),
            "k" => Some(1000),
            "M" => Some(1_000_000),
            "G" => Some(1_000_000_000),
            "Ki" => Some(1 << 10),
            "Mi" => Some(1 << 20),
            "Gi" => Some(1 << 30),
            _ => None,
        };
        let count =
            number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        count.map(Bytes).ok_or_else(|| InvalidAmount::Bytes(shown(&text)))
    }
}

/// Time of a budget, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(u64);

impl Time {
    /// Returns the time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}s", self.0)
    }
}

impl From<Time> for String {
    fn from(time: Time) -> String {
        time.to_string()
    }
}

impl TryFrom<String> for Time {
    type Error = InvalidAmount;

    fn try_from(text: String) -> Result<Time, InvalidAmount> {
        let invalid = || InvalidAmount::Time(shown(&text));
        let (mut seconds, mut rest) = (0_u64, text.as_str());
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number: u64 = rest[..digits].parse().map_err(|_| invalid())?;
            let mut letters = rest[digits..].chars();
            let unit = match letters.next() {
                Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3600,
                _ => return Err(invalid()),
            };
            seconds =
                number.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(invalid)?;
            rest = letters.as_str();
        }
        if TIME.contains(&seconds) { Ok(Time(seconds)) } else { Err(invalid()) }
    }
}

/// Amounts that each sandbox may use up. A new connection or request beyond it is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Budget {
    /// Bytes that the sandbox sends; its connections end when they are used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<Bytes>,
    /// Time in which that many bytes are sent at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<Time>,
    /// Requests, and connections that are not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Time in which that many requests are made at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per: Option<Time>,
    /// Different hosts, as long as the sandbox exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u64>,
}

impl Budget {
    /// Returns the field that has no effect or is missing, and why.
    pub(crate) fn mistake(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Budget { bytes_out: Some(_), per: None, .. } => {
                Some((".per", "`bytesOut` needs a time, such as 1h"))
            }
            Budget { bytes_out: None, per: Some(_), .. } => {
                Some((".per", "has no effect without `bytesOut`"))
            }
            Budget { requests: Some(_), requests_per: None, .. } => {
                Some((".requestsPer", "`requests` needs a time, such as 1m"))
            }
            Budget { requests: None, requests_per: Some(_), .. } => {
                Some((".requestsPer", "has no effect without `requests`"))
            }
            Budget { bytes_out: None, requests: None, hosts: None, .. } => {
                Some(("", "limits nothing: it needs `bytesOut`, `requests` or `hosts`"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times() {
        let bytes = |json: &str| serde_json::from_str::<Bytes>(json).ok().map(Bytes::count);
        for (json, expected) in [
            ("5", Some(5)),
            ("\"64Ki\"", Some(65_536)),
            ("\"50Mi\"", Some(50 << 20)),
            ("\"2k\"", Some(2000)),
            ("\"\"", None),
            ("\"Ki\"", None),
            ("\"1x\"", None),
            ("-1", None),
            ("\"99999999999999Gi\"", None),
        ] {
            assert_eq!(bytes(json), expected, "{json}");
        }
        let time = |text: &str| Time::try_from(text.to_owned()).ok().map(|time| time.0);
        for (text, expected) in [
            ("30s", Some(30)),
            ("1h30m", Some(5400)),
            ("0s", None),
            ("", None),
            ("1", None),
            ("1d", None),
            ("9999h", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }
}
