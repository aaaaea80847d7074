//! Credentials of one sandbox: programs inside have placeholders, and the values stand only in requests that are sent.
//!
//! A placeholder is replaced after the request was decided, on verified TLS, for a host, port and path to which the
//! credential is bound, until it ends. Anywhere else it is refused. Answers of such hosts get the placeholder back.

mod answer;
mod body;
mod encode;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod packed;
mod place;
mod redact;
mod sign;
mod sigv4;

use std::fmt;
use std::sync::{Arc, OnceLock};

pub(crate) use answer::answer;
pub(crate) use body::{Guarded, completed};
pub(crate) use frames::Placeholders;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use frames::any_placeholders;
use hutch_policy::{Aws, Binding, Destination, Path};
use hutch_scan::Credentials as Exact;
pub(crate) use place::{Placed, place};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Secret text, which is erased when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text.
    pub fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    /// Returns the text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Without the text.
impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}

/// Credential of a sandbox, with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Name.
    pub name: String,
    /// Placeholder that the sandbox has.
    pub placeholder: String,
    /// Value.
    pub value: Secret,
    /// Where the value may go.
    pub binding: Binding,
    /// Where it may go at most, by its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Binding>,
    /// Time from which on the value is not used, in seconds since 1970.
    pub ends: Option<i64>,
    /// The source has no value now. The placeholder stands in its place, and is refused everywhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
}

/// Maximum former values of a sandbox.
const FORMER: usize = 32;

/// Credentials of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Set {
    pub(crate) issued: Vec<Issued>,
    /// With values that were replaced, the newest last. They may be valid for a while, so they are redacted too.
    former: Vec<Issued>,
    /// The search for all values, made when it is first needed.
    exact: OnceLock<Option<Arc<Exact>>>,
}

impl PartialEq for Set {
    fn eq(&self, other: &Set) -> bool {
        (&self.issued, &self.former) == (&other.issued, &other.former)
    }
}

impl Eq for Set {}

impl From<Vec<Issued>> for Set {
    fn from(issued: Vec<Issued>) -> Set {
        Set { issued, ..Set::default() }
    }
}

impl Set {
    /// Returns the first credential whose placeholder stands in these bytes.
    pub(crate) fn found_in(&self, bytes: &[u8]) -> Option<&Issued> {
        self.issued.iter().find(|one| contains(bytes, &one.placeholder))
    }

    /// Returns the first credential whose placeholder stands in the name of a header, in any case.
    pub(crate) fn named_in(&self, name: &str) -> Option<&Issued> {
        let name = name.to_ascii_lowercase();
        self.issued.iter().find(|one| contains(name.as_bytes(), &one.placeholder.to_ascii_lowercase()))
    }

    /// Returns the search for the values in what leaves; `None` without values.
    pub(crate) fn exact(&self) -> Option<Arc<Exact>> {
        let made = self.exact.get_or_init(|| {
            let all = self.issued.iter().chain(&self.former).filter(|one| !one.missing);
            // The broker bounds values to a size for which this cannot fail.
            let exact = Exact::new(all.map(|one| (one.name.as_str(), one.value.expose().as_bytes()))).ok()?;
            (!exact.is_empty()).then(|| Arc::new(exact))
        });
        made.clone()
    }

    /// Returns the credentials for a destination.
    pub(crate) fn of<'a>(&'a self, destination: &'a Destination) -> impl Iterator<Item = &'a Issued> {
        self.issued.iter().filter(|one| one.covers(destination))
    }

    /// Returns the set that takes the place of this one.
    pub(crate) fn followed_by(&self, issued: Vec<Issued>) -> Set {
        let former = Issued::former(self.former.iter().chain(&self.issued), &issued);
        Set { issued, former, exact: OnceLock::new() }
    }

    /// Returns the values, with their placeholders, that answers of a destination must not contain.
    pub(crate) fn redacted<'a>(&'a self, destination: &'a Destination) -> impl Iterator<Item = &'a Issued> {
        let former = self.former.iter().filter(|one| one.covers(destination));
        self.of(destination).chain(former)
    }

    /// Returns true if all credentials for the destination belong to keys of AWS. Of such a key only the secret counts, which
    /// no request has.
    fn is_of_aws(&self, destination: &Destination) -> bool {
        let belongs = |one: &Issued| {
            let named =
                |aws: &Aws| aws.access_key_id == one.name || aws.session_token.as_ref() == Some(&one.name);
            one.binding.aws.is_some()
                || self.issued.iter().filter_map(|key| key.binding.aws.as_ref()).any(named)
        };
        self.of(destination).all(belongs)
    }

    /// Returns the time at which the next credential for the destination ends.
    pub(crate) fn next_end(&self, destination: &Destination, now: i64) -> Option<i64> {
        self.of(destination).filter_map(|one| one.ends).filter(|ends| *ends > now).min()
    }

    /// Returns true if values may go to the destination, or could before, so that its answers are redacted.
    pub(crate) fn redacts(&self, destination: &Destination) -> bool {
        self.redacted(destination).next().is_some()
    }

    /// Returns true without values, present or former.
    pub(crate) fn is_empty(&self) -> bool {
        self.issued.is_empty() && self.former.is_empty()
    }
}

/// Returns true if a placeholder stands in these bytes. An empty one stands nowhere.
fn contains(bytes: &[u8], placeholder: &str) -> bool {
    let placeholder = placeholder.as_bytes();
    !placeholder.is_empty() && bytes.windows(placeholder.len()).any(|window| window == placeholder)
}

impl Issued {
    /// Returns those of earlier credentials, the newest last, whose values are not in use now. They may be valid for a while, so
    /// they are still redacted.
    pub fn former<'a>(earlier: impl Iterator<Item = &'a Issued>, now: &[Issued]) -> Vec<Issued> {
        let is_former = |one: &&Issued| !one.missing && now.iter().all(|now| now.value != one.value);
        let mut former: Vec<Issued> = earlier.filter(is_former).cloned().collect();
        former.drain(..former.len().saturating_sub(FORMER));
        former
    }

    /// Returns true if the value may go to the destination, with some path.
    pub(crate) fn covers(&self, destination: &Destination) -> bool {
        self.binding.covers(destination)
            && self.bounds.as_ref().is_none_or(|bounds| bounds.covers(destination))
    }

    /// Returns why the value may not stand in a request; `None` if it may.
    pub(crate) fn closed(
        &self,
        destination: &Destination,
        path: &Path,
        tls: bool,
        now: i64,
    ) -> Option<&'static str> {
        if self.missing {
            return Some("it has no value now");
        }
        if !tls {
            return Some("the connection has no TLS");
        }
        if !self.covers(destination) {
            return Some("it is not bound to this host and port");
        }
        let within = self.bounds.as_ref().is_none_or(|bounds| bounds.covers_path(path));
        if !within || !self.binding.covers_path(path) {
            return Some("it is not bound to this path");
        }
        self.ends.is_some_and(|ends| now >= ends).then_some("it has expired")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> Issued {
        let binding = r#"{"hosts": ["api.example"], "paths": ["/a/**"]}"#;
        Issued {
            name: "api".into(),
            placeholder: "ghp_placeholder".into(),
            value: Secret::new("real-value".into()),
            binding: serde_json::from_str(binding).unwrap(),
            bounds: None,
            ends: Some(10),
            missing: false,
        }
    }

    #[test]
    fn value_stands_only_in_requests_to_which_it_is_bound() {
        let closed = |destination: &str, path: &str, tls, now| {
            let path = Path::read(path).unwrap();
            issued().closed(&destination.parse().unwrap(), &path, tls, now)
        };
        assert_eq!(closed("api.example", "/a/b", true, 9), None);
        for (destination, path, tls, now, expected) in [
            ("api.example", "/a/b", false, 9, "TLS"),
            ("other.example", "/a/b", true, 9, "host"),
            ("api.example:8443", "/a/b", true, 9, "host"),
            ("api.example", "/b", true, 9, "path"),
            ("api.example", "/a/b", true, 10, "expired"),
        ] {
            let why = closed(destination, path, tls, now).unwrap();
            assert!(why.contains(expected), "{destination}{path}: {why}");
        }
    }

    #[test]
    fn value_stays_within_the_bounds_of_its_provider() {
        let bounded = |bounds: &str| Issued { bounds: serde_json::from_str(bounds).unwrap(), ..issued() };
        let closed = |bounds: &str| {
            let path = Path::read("/a/b").unwrap();
            bounded(bounds).closed(&"api.example".parse().unwrap(), &path, true, 9)
        };
        assert_eq!(closed(r#"{"hosts": ["api.example"]}"#), None);
        for bounds in [r#"{"hosts": ["other.example"]}"#, r#"{"hosts": ["api.example"], "ports": [8443]}"#] {
            assert_eq!(closed(bounds), Some("it is not bound to this host and port"), "{bounds}");
        }
        let elsewhere = r#"{"hosts": ["api.example"], "paths": ["/c/**"]}"#;
        assert_eq!(closed(elsewhere), Some("it is not bound to this path"));
    }

    #[test]
    fn value_that_was_replaced_is_still_redacted() {
        let with = |value: &str| Issued { value: Secret::new(value.into()), ..issued() };
        let destination = "api.example".parse().unwrap();
        let redacted = |set: &Set| -> Vec<String> {
            set.redacted(&destination).map(|one| one.value.expose().to_owned()).collect()
        };
        let mut set = Set::from(vec![with("first")]);
        for value in ["second", "third", "first"] {
            set = set.followed_by(vec![with(value)]);
        }
        assert_eq!(redacted(&set), ["first", "second", "third"]);
        for number in 0..2 * FORMER {
            set = set.followed_by(vec![with(&number.to_string())]);
        }
        assert_eq!(redacted(&set).len(), FORMER + 1);
        let missing = Issued { missing: true, ..with("placeholder") };
        let set = Set::from(vec![missing]).followed_by(vec![with("value")]);
        assert_eq!(redacted(&set), ["value"]);
    }

    #[test]
    fn placeholder_without_a_value_is_refused() {
        let missing = Issued { missing: true, ..issued() };
        let path = Path::read("/a/b").unwrap();
        let why = missing.closed(&"api.example".parse().unwrap(), &path, true, 9);
        assert_eq!(why, Some("it has no value now"));
    }

    #[test]
    fn debug_output_has_no_value() {
        assert!(!format!("{:?}", issued()).contains("real-value"));
    }
}
