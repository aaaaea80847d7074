//! Ports in rules.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::host::shown;

/// Reason why a text is not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port from 1 to 65535 or a range like 8000-8080")]
pub struct InvalidPorts(String);

/// Range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "NumberOrText")]
pub struct PortRange {
    first: NonZeroU16,
    last: NonZeroU16,
}

/// Number or text in an object: `443` or `"8000-8080"`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum NumberOrText {
    Number(u64),
    Text(String),
}

impl fmt::Display for NumberOrText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NumberOrText::Number(number) => number.fmt(formatter),
            NumberOrText::Text(text) => text.fmt(formatter),
        }
    }
}

impl PortRange {
    /// Every port.
    pub const ALL: PortRange = PortRange { first: NonZeroU16::MIN, last: NonZeroU16::MAX };

    /// Returns the range of one port.
    pub const fn one(port: NonZeroU16) -> PortRange {
        PortRange { first: port, last: port }
    }

    /// Returns the range of these ports, both included; `None` if it is empty.
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        let (first, last) = (NonZeroU16::new(first)?, NonZeroU16::new(last)?);
        (first <= last).then_some(PortRange { first, last })
    }

    /// Returns the first port.
    pub fn first(&self) -> u16 {
        self.first.get()
    }

    /// Returns the last port.
    pub fn last(&self) -> u16 {
        self.last.get()
    }

    /// Returns true if the port is in the range.
    pub fn contains(&self, port: u16) -> bool {
        (self.first.get()..=self.last.get()).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => self.first.fmt(formatter),
            false => write!(formatter, "{}-{}", self.first, self.last),
        }
    }
}

impl FromStr for PortRange {
    type Err = InvalidPorts;

    fn from_str(text: &str) -> Result<PortRange, InvalidPorts> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port =
            |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(PortRange { first, last }),
            _ => Err(InvalidPorts(shown(text))),
        }
    }
}

impl TryFrom<NumberOrText> for PortRange {
    type Error = InvalidPorts;

    fn try_from(value: NumberOrText) -> Result<PortRange, InvalidPorts> {
        value.to_string().parse()
    }
}

impl From<PortRange> for NumberOrText {
    fn from(range: PortRange) -> NumberOrText {
        match range.first == range.last {
            true => NumberOrText::Number(range.first.get().into()),
            false => NumberOrText::Text(range.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_ranges() {
        for (json, expected) in [("443", "443"), ("\"443\"", "443"), ("\"8000-8080\"", "8000-8080")] {
            let range: PortRange = serde_json::from_str(json).unwrap();
            assert_eq!(range.to_string(), expected);
            assert_eq!(
                serde_json::from_value::<PortRange>(serde_json::to_value(range).unwrap()).unwrap(),
                range
            );
        }
        let range: PortRange = "8000-8080".parse().unwrap();
        assert!(
            range.contains(8000) && range.contains(8080) && !range.contains(7999) && !range.contains(8081)
        );
        for json in
            ["0", "65536", "\"0-1\"", "\"2-1\"", "\"\"", "\"-\"", "\"1-2-3\"", "\"+1\"", "-1", "1.5", "null"]
        {
            assert!(serde_json::from_str::<PortRange>(json).is_err(), "{json}");
        }
    }
}
