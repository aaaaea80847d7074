//! Names and addresses of hosts, as clients write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use idna::AsciiDenyList;
use serde::{Deserialize, Serialize};

/// Maximum length of a name, in bytes.
pub(crate) const NAME_LIMIT: usize = 253;
/// Maximum length of a label, in bytes.
const LABEL_LIMIT: usize = 63;

/// Reason why a text is not the name or address of a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Empty, or an empty label.
    #[error("{0:?} has an empty label")]
    Empty(String),
    /// A name above 253 bytes or a label above 63.
    #[error("{0:?} is too long: a name has at most 253 bytes and a label 63")]
    TooLong(String),
    /// A character that no name has.
    #[error("{text:?} is not a host name{hint}", text = .0, hint = hint(.0))]
    Characters(String),
    /// An address where a name is required.
    #[error("{0:?} is an address, not a host name; write it under cidrs")]
    Address(String),
    /// Numbers that are no address, such as `1.2.3.256`.
    #[error("{0:?} ends with a number but is not an address")]
    Number(String),
}

/// Returns what would be right instead of a text that is often taken for a host name.
fn hint(text: &str) -> &'static str {
    let is_range = text.split_once('/').is_some_and(|(host, _)| host.parse::<IpAddr>().is_ok());
    let port = text.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    match text {
        _ if text.contains("://") => "; of a URL, write the host alone",
        _ if is_range => "; a range of addresses is written under `cidrs` of a policy",
        _ if text.contains('/') => {
            "; a path is written under `http` of a policy, as `http: [{paths: [/a/**]}]`"
        }
        _ if text.contains(',') => "; it is one host: write several as a list, or repeat the flag",
        _ if port => "; a port stands once after the host, or under `ports` of a policy",
        _ => "",
    }
}

/// Host name: ASCII, lower case, without a dot at the end. It is never an address in any notation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the labels from left to right.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<HostName, InvalidHost> {
        match text.parse()? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(InvalidHost::Address(shown(text))),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHost;

    fn try_from(text: String) -> Result<HostName, InvalidHost> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> String {
        name.0
    }
}

/// Name or address of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Name.
    Name(HostName),
    /// Address. An IPv4 address that is mapped into IPv6 is the IPv4 address.
    Address(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => name.fmt(formatter),
            Host::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
            Host::Address(address) => address.fmt(formatter),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Host {
        Host::Address(address.to_canonical())
    }
}

impl FromStr for Host {
    type Err = InvalidHost;

    /// Parses a host as programs do: IPv4 addresses also in decimal, octal, hexadecimal and short notation, because C
    /// libraries connect to these (`2130706433`, `0x7f.1`); IPv6 addresses with or without brackets.
    fn from_str(text: &str) -> Result<Host, InvalidHost> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Ok(address) = inner.unwrap_or(text).parse::<Ipv6Addr>() {
            return Ok(Host::from(IpAddr::V6(address)));
        }
        let name = idna::domain_to_ascii_cow(text.as_bytes(), AsciiDenyList::URL)
            .map_err(|_| InvalidHost::Characters(shown(text)))?;
        let name = name.strip_suffix('.').unwrap_or(&name);
        if name.split('.').any(str::is_empty) {
            return Err(InvalidHost::Empty(shown(text)));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        if !name.chars().all(plain) {
            return Err(InvalidHost::Characters(shown(text)));
        }
        if name.split('.').next_back().is_some_and(is_number) {
            let address = ipv4(name).ok_or_else(|| InvalidHost::Number(shown(text)))?;
            return Ok(Host::Address(IpAddr::V4(address)));
        }
        if name.len() > NAME_LIMIT || name.split('.').any(|label| label.len() > LABEL_LIMIT) {
            return Err(InvalidHost::TooLong(shown(text)));
        }
        Ok(Host::Name(HostName(name.to_owned())))
    }
}

/// Returns true if C libraries read the label as a number.
fn is_number(label: &str) -> bool {
    let hexadecimal =
        label.strip_prefix("0x").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit()));
    hexadecimal || label.chars().all(|c| c.is_ascii_digit())
}

/// Parses one to four numbers, of which the last fills the remaining bytes.
fn ipv4(name: &str) -> Option<Ipv4Addr> {
    let numbers: Vec<u64> = name.split('.').map(number).collect::<Option<_>>()?;
    let (last, bytes) = numbers.split_last()?;
    if bytes.len() > 3 || bytes.iter().any(|byte| *byte > 255) || *last >= 1 << (8 * (4 - bytes.len())) {
        return None;
    }
    let high = bytes.iter().enumerate().fold(0, |sum, (place, byte)| sum | byte << (24 - 8 * place));
    u32::try_from(high | last).ok().map(Ipv4Addr::from_bits)
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some("") => return Some(0),
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // More digits than these are no address, and could overflow.
    (digits.len() <= 16).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Returns the text for a message, shortened.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized() {
        for (text, expected) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("b\u{fc}cher.example", "xn--bcher-kva.example"),
            ("my_db", "my_db"),
            ("a-b.c", "a-b.c"),
            ("1e100.net", "1e100.net"),
            ("ｅｘａｍｐｌｅ.com", "example.com"),
        ] {
            assert_eq!(text.parse::<HostName>().unwrap().as_str(), expected, "{text}");
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        let long = format!("{}.com", "a".repeat(64));
        let longer = "a.".repeat(128);
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "a\0b",
            "a%41",
            "a/b",
            "a@b",
            "a:1",
            "a\nb",
            "*.a",
            "1.2.3.256",
            "a.1",
            "1.2.3.4.5",
        ] {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
        assert!(matches!(long.parse::<Host>(), Err(InvalidHost::TooLong(_))));
        assert!(matches!(longer.parse::<Host>(), Err(InvalidHost::TooLong(_))));
    }

    #[test]
    fn every_notation_of_an_address_is_an_address() {
        for text in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0X7F.1",
            "0177.0.0.1",
            "127.0.0.1.",
            "\u{ff11}27.0.0.1",
            "::ffff:127.0.0.1",
            "[::ffff:7f00:1]",
        ] {
            assert_eq!(text.parse(), Ok(Host::Address("127.0.0.1".parse().unwrap())), "{text}");
            assert!(matches!(text.parse::<HostName>(), Err(InvalidHost::Address(_))), "{text}");
        }
        assert_eq!("[::1]".parse(), Ok(Host::Address("::1".parse().unwrap())));
        assert_eq!(Host::Address("::1".parse().unwrap()).to_string(), "[::1]");
    }

    proptest::proptest! {
        #[test]
        fn normalizing_twice_changes_nothing(text in "\\PC{0,40}") {
            if let Ok(Host::Name(name)) = text.parse() {
                proptest::prop_assert_eq!(name.as_str().parse::<HostName>().unwrap(), name);
            }
        }

        #[test]
        fn numbers_never_pass_as_names(parts in proptest::collection::vec("(0x)?[0-9a-f]{1,4}", 1..5)) {
            let text = parts.join(".");
            if parts.iter().all(|part| number(part).is_some()) {
                proptest::prop_assert!(!matches!(text.parse(), Ok(Host::Name(_))), "{}", text);
            }
        }
    }
}
