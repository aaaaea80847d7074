//! Parsers of command lines with any bytes: they neither panic nor run without end.

use crate::{go, quantity};

/// Parses flags and values in the syntax of Go, and in our own. A value is within its bounds, and parses again from its
/// plain form.
pub(crate) fn values(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(go::Word::Flag(name, _)) = go::word(text) {
        assert!(!name.is_empty() && !name.starts_with(['-', '=']), "{text:?}");
    }
    let _ = (go::boolean(text), go::float(text));
    if let Some(number) = go::integer(text) {
        assert_eq!(go::integer(&number.to_string()), Some(number), "{text:?}");
    }
    if let Ok(bytes) = quantity::bytes(text) {
        assert_eq!(quantity::bytes(&bytes.to_string()), Ok(bytes), "{text:?}");
    }
    if let Ok(time) = quantity::duration(text) {
        assert!(!time.is_zero(), "{text:?}");
        // Beyond, a float is not exact.
        let seconds = time.as_secs().clamp(1, 1 << 53);
        assert_eq!(
            quantity::duration(&format!("{seconds}s")).map(|time| time.as_secs()),
            Ok(seconds),
            "{text:?}"
        );
    }
    let _ = (quantity::timeout(text), quantity::seconds(text), quantity::label(text));
    let _ = (quantity::certificate_lifetime(text), quantity::user(text), quantity::group(text));
    if let Ok(millis) = quantity::cpus(text) {
        assert!((10..=1_000_000).contains(&millis), "{text:?}");
    }
    if let Ok((name, value)) = quantity::variable(text) {
        assert_eq!(format!("{name}={value}"), text);
    }
    let _ = quantity::cidr(text);
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_values", super::values);
    }
}
