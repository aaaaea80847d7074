//! Bounds of the snapshots of a namespace, by its annotations.

use std::collections::BTreeMap;

use crate::annotation::{SNAPSHOTS_BYTES, SNAPSHOTS_KEEP_LAST};
use crate::quantity::Quantity;

/// Maximum of [`Retention::keep_last`].
const MAX_KEPT: usize = 10_000;

/// Bounds of the snapshots of a namespace. The memory of suspended Sandboxes is not concerned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Complete snapshots of each Sandbox; without it, all are kept.
    pub keep_last: Option<usize>,
    /// Bytes of all images; without it, there is no bound.
    pub bytes: Option<u64>,
}

impl Retention {
    /// Reads the annotations of a namespace.
    ///
    /// # Errors
    /// Key and problem of one that is invalid.
    pub fn of(annotations: &BTreeMap<String, String>) -> Result<Retention, (&'static str, String)> {
        let mut retention = Retention::default();
        if let Some(text) = annotations.get(SNAPSHOTS_KEEP_LAST) {
            let number = text.parse().ok().filter(|number| (1..=MAX_KEPT).contains(number));
            let wrong = || (SNAPSHOTS_KEEP_LAST, format!("must be a number from 1 to {MAX_KEPT}"));
            retention.keep_last = Some(number.ok_or_else(wrong)?);
        }
        if let Some(text) = annotations.get(SNAPSHOTS_BYTES) {
            let bytes = Quantity::parse(text).and_then(Quantity::to_units);
            let wrong = || (SNAPSHOTS_BYTES, "must be a number of bytes, such as `10Gi`".to_owned());
            retention.bytes = Some(bytes.ok_or_else(wrong)?);
        }
        Ok(retention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_bounds_or_are_named() {
        let read = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Retention::of(&pairs.collect())
        };
        assert_eq!(read(&[("other", "x")]), Ok(Retention::default()));
        let both = read(&[(SNAPSHOTS_KEEP_LAST, "3"), (SNAPSHOTS_BYTES, "1Ki")]);
        assert_eq!(both, Ok(Retention { keep_last: Some(3), bytes: Some(1024) }));
        assert_eq!(read(&[(SNAPSHOTS_BYTES, "0")]), Ok(Retention { keep_last: None, bytes: Some(0) }));
        for (key, value) in [
            (SNAPSHOTS_KEEP_LAST, "0"),
            (SNAPSHOTS_KEEP_LAST, "10001"),
            (SNAPSHOTS_KEEP_LAST, ""),
            (SNAPSHOTS_KEEP_LAST, "-1"),
            (SNAPSHOTS_BYTES, "much"),
            (SNAPSHOTS_BYTES, "-1"),
        ] {
            assert_eq!(read(&[(key, value)]).map_err(|(key, _)| key), Err(key), "{value:?}");
        }
    }
}
