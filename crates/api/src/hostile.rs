//! Hostile tests of version conversion and of user-written fields and annotations. Each is one function of
//! arbitrary bytes that neither panics nor loops forever.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    ClaimLifecycle, DEPRECATED_VERSION, EXTENSIONS_GROUP, Error, GROUP, STORED_VERSION, convert, go_duration,
};

/// Converts a JSON object to each version. Any object that an API server can store converts in both
/// directions, whatever its annotations and fields hold.
pub fn conversion(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    let can_be_held = object.is_object()
        && ["metadata", "spec", "status"].into_iter().all(|part| is_map(&object, part))
        && object.get("metadata").is_none_or(|metadata| is_map(metadata, "annotations"));
    for group in [GROUP, EXTENSIONS_GROUP] {
        for version in [STORED_VERSION, DEPRECATED_VERSION] {
            match convert(object.clone(), &format!("{group}/{version}")) {
                Ok(there) => {
                    let back = convert(there, object["apiVersion"].as_str().unwrap_or_default());
                    assert!(back.is_ok() || !can_be_held, "{back:?}");
                }
                Err(error) => assert!(!can_be_held || matches!(error, Error::Unsupported { .. }), "{error}"),
            }
        }
    }
}

fn is_map(object: &Value, key: &str) -> bool {
    object.get(key).is_none_or(Value::is_object)
}

/// Parses a duration and a date; each value that parses must round-trip through its text form.
pub fn times(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(time) = go_duration(text) {
        assert!(time.as_nanos() <= i64::MAX as u128, "{text:?}");
        let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
        let shown = format!("{}h{}m{}s{nanos}ns", seconds / 3600, seconds / 60 % 60, seconds % 60);
        let again = go_duration(&shown).unwrap_or_else(|| panic!("{text:?}: {shown}"));
        assert_eq!(again, Duration::new(seconds, nanos), "{text:?}: {shown}");
    }
    let read = |value: Value| serde_json::from_value::<ClaimLifecycle>(json!({ "shutdownTime": value })).ok();
    let written =
        |lifecycle| serde_json::to_value(lifecycle).expect("a date is written")["shutdownTime"].take();
    if let Some(whole) = read(text.into()).map(written) {
        // Only whole seconds are formatted.
        assert_eq!(read(whole.clone()).map(written), Some(whole), "{text:?}");
    }
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn arbitrary_bytes_never_panic() {
        feed("api_conversion", super::conversion);
        feed("api_times", super::times);
    }
}
