//! Conversion between versions, as one function of any bytes: it neither panics nor runs without end.

use serde_json::Value;

use crate::{DEPRECATED_VERSION, EXTENSIONS_GROUP, GROUP, STORED_VERSION, convert};

/// An object as JSON, converted to each version.
pub fn conversion(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    for group in [GROUP, EXTENSIONS_GROUP] {
        for version in [STORED_VERSION, DEPRECATED_VERSION] {
            let _ = convert(object.clone(), &format!("{group}/{version}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("api_conversion", super::conversion);
    }
}
