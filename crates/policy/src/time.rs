//! Times in policies: RFC 3339.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};

use crate::host::shown;

/// Reads a time.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong =
        || de::Error::custom(format!("{:?} is not a time; write it like 2026-01-31T12:00:00Z", shown(&text)));
    text.parse().map(Some).map_err(|_| wrong())
}
