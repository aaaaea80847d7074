//! Patterns of host names in rules.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::host::{HostName, InvalidHost, shown};

/// Reason why a text is not a pattern of host names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// The part without `*` is not a name.
    #[error(transparent)]
    Host(#[from] InvalidHost),
    /// `*` alone.
    #[error("{0:?} stands for every host; a rule of a policy with `any: true` is for that")]
    Everything(String),
    /// `*` where it has no meaning.
    #[error("{0:?}: `*` stands alone or once within the first label, and `**` only as the first label")]
    Misplaced(String),
    /// `*` directly before the name of an owner.
    #[error("{0:?} covers names of many owners; write {1:?}, or `**` in place of `*` for names at any depth")]
    NoDot(String, String),
    /// Names of many owners.
    #[error("{0:?} covers every name below the public suffix {1:?}, which belong to many owners")]
    PublicSuffix(String, String),
}

/// Pattern of host names.
///
/// | Pattern | Matches | Does not match |
/// |---|---|---|
/// | `a.example.com` | `a.example.com` | |
/// | `*.example.com` | `a.example.com` | `example.com`, `a.b.example.com` |
/// | `**.example.com` | `a.example.com`, `a.b.example.com` | `example.com` |
/// | `api-*.example.com` | `api-1.example.com`, `api-.example.com` | `api-1.b.example.com` |
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    /// One name.
    Exact(HostName),
    /// Names with this suffix and a first label that starts and ends so.
    Label {
        /// Start of the first label.
        start: String,
        /// End of the first label.
        end: String,
        /// The other labels.
        parent: HostName,
    },
    /// Names with one or more labels before this suffix.
    Below(HostName),
}

impl HostPattern {
    /// Returns a name that the pattern covers.
    pub(crate) fn example(&self) -> HostName {
        let (label, parent) = match self {
            HostPattern::Exact(name) => return name.clone(),
            HostPattern::Label { start, end, parent } => (format!("{start}x{end}"), parent),
            HostPattern::Below(parent) => ("x".to_owned(), parent),
        };
        format!("{label}.{parent}").parse().unwrap_or_else(|_| parent.clone())
    }

    /// Returns true if the pattern covers the name.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            HostPattern::Exact(exact) => exact == name,
            HostPattern::Label { start, end, parent } => {
                let Some((first, rest)) = name.as_str().split_once('.') else { return false };
                rest == parent.as_str()
                    && first.len() >= start.len() + end.len()
                    && first.starts_with(start.as_str())
                    && first.ends_with(end.as_str())
            }
            HostPattern::Below(parent) => {
                let rest = name.as_str().strip_suffix(parent.as_str());
                rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<HostPattern, InvalidPattern> {
        if !text.contains('*') {
            return Ok(HostPattern::Exact(text.parse()?));
        }
        if text.trim_matches('*').is_empty() {
            return Err(InvalidPattern::Everything(shown(text)));
        }
        let misplaced = || InvalidPattern::Misplaced(shown(text));
        let (first, parent) = text.split_once('.').ok_or_else(misplaced)?;
        if parent.contains('*') || !first.contains('*') {
            return Err(misplaced());
        }
        let parent: HostName = parent.parse()?;
        if psl::suffix_str(parent.as_str()) == Some(parent.as_str()) {
            let label = first.strip_prefix('*').filter(|label| !label.is_empty() && !label.contains('*'));
            return Err(match label {
                Some(label) => InvalidPattern::NoDot(shown(text), format!("*.{label}.{parent}")),
                None => InvalidPattern::PublicSuffix(shown(text), parent.to_string()),
            });
        }
        if first == "**" {
            return Ok(HostPattern::Below(parent));
        }
        let (start, end) = first.split_once('*').ok_or_else(misplaced)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !start.chars().chain(end.chars()).all(plain) || first.len() > 63 {
            return Err(misplaced());
        }
        let (start, end) = (start.to_ascii_lowercase(), end.to_ascii_lowercase());
        Ok(HostPattern::Label { start, end, parent })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(name) => name.fmt(formatter),
            HostPattern::Label { start, end, parent } => write!(formatter, "{start}*{end}.{parent}"),
            HostPattern::Below(parent) => write!(formatter, "**.{parent}"),
        }
    }
}

impl TryFrom<String> for HostPattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<HostPattern, InvalidPattern> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> String {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<HostPattern>().unwrap().matches(&name.parse().unwrap())
    }

    #[test]
    fn each_form_matches_its_names() {
        for (pattern, yes, no) in [
            (
                "a.example.com",
                vec!["A.example.com."],
                vec!["b.a.example.com", "example.com", "xa.example.com"],
            ),
            ("*.example.com", vec!["a.example.com"], vec!["example.com", "a.b.example.com", "aexample.com"]),
            (
                "**.example.com",
                vec!["a.example.com", "a.b.example.com"],
                vec!["example.com", "aexample.com", "a.example.com.evil.net"],
            ),
            (
                "api-*.example.com",
                vec!["api-1.example.com", "api-.example.com"],
                vec!["api.example.com", "x.example.com"],
            ),
            ("*-eu.example.com", vec!["a-eu.example.com"], vec!["eu.example.com", "a-eu.b.example.com"]),
            ("a*a.example.com", vec!["aa.example.com", "aba.example.com"], vec!["a.example.com"]),
            ("*.B\u{fc}cher.example", vec!["a.xn--bcher-kva.example"], vec!["b\u{fc}cher.example"]),
        ] {
            assert!(yes.iter().all(|name| matches(pattern, name)), "{pattern} {yes:?}");
            assert!(!no.iter().any(|name| matches(pattern, name)), "{pattern} {no:?}");
        }
    }

    #[test]
    fn patterns_without_meaning_or_with_many_owners_are_refused() {
        for (text, expected) in [
            ("*", "any: true"),
            ("**", "any: true"),
            ("a.*.com", "first label"),
            ("a.b*", "first label"),
            ("a*", "first label"),
            ("a*b*.example.com", "first label"),
            ("**a.example.com", "first label"),
            ("***.example.com", "first label"),
            ("*.com", "public suffix"),
            ("**.co.uk", "public suffix"),
            ("*.github.io", "public suffix"),
            ("*.1", "is an address"),
            ("1.2.3.4", "is an address"),
            ("", "empty"),
            ("*.a b.example.com", "not a host name"),
        ] {
            let error = text.parse::<HostPattern>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn text_of_a_pattern_is_the_pattern(text in "(\\*\\*?|[a-c*-]{1,4})(\\.[a-c]{1,3}){1,3}") {
            if let Ok(pattern) = text.parse::<HostPattern>() {
                proptest::prop_assert_eq!(pattern.to_string().parse::<HostPattern>().unwrap(), pattern);
            }
        }
    }
}
