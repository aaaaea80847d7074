//! Path and parameters of a request, decoded.

use std::num::{IntErrorKind, ParseIntError};

use axum::extract::Query as QueryOf;
use http::Uri;

use crate::failure::Failure;

/// Decodes `%XX` in a path; `None` when it is malformed or not UTF-8.
pub(crate) fn percent_decode(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push((digit()? << 4 | digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Result<Query, Failure> {
        if uri.query().is_none_or(str::is_empty) {
            return Ok(Query::default());
        }
        let pairs = QueryOf::<Vec<(String, String)>>::try_from_uri(uri);
        pairs.map(|pairs| Query(pairs.0)).map_err(|error| Failure::bad_request(error.body_text()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn all<'a, 'b>(&'a self, name: &'b str) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A boolean parameter as Go reads it; absent is false.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value, "false" | "0" | "False" | "FALSE" | "f" | "F"))
    }

    /// A parameter of 64 bits with a sign, as Go reads it: a plus is taken, and nothing at all is no number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        let read = |text: &str| {
            text.parse()
                .map_err(|error| Failure::bad_request(format!("strconv.ParseInt: {}", wrong(text, &error))))
        };
        self.get(name).map(read).transpose()
    }

    /// A number as above; `None` unless it is positive.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<u64>, Failure> {
        let positive = |number| u64::try_from(number).ok().filter(|number| *number > 0);
        Ok(self.number(name)?.and_then(positive))
    }

    /// `resourceVersion`, digits only; an empty one says nothing. The error is its text.
    pub(crate) fn revision(&self) -> Result<Option<u64>, String> {
        let Some(text) = self.get("resourceVersion").filter(|text| !text.is_empty()) else { return Ok(None) };
        let unsigned = if text.starts_with('+') { "" } else { text };
        unsigned.parse().map(Some).map_err(|error| {
            format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: {}", wrong(text, &error))
        })
    }
}

/// The error of parsing a number, in Go's words.
fn wrong(text: &str, error: &ParseIntError) -> String {
    let why = match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    format!("parsing {text:?}: {why}")
}
