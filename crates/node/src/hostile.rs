//! Quantities of users, from any bytes: reading them neither panics nor runs without end.

use hutch_api::quantity::{millis, units};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A quantity, in both scales that are used, which agree.
pub fn quantities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let quantity = Quantity(text.to_owned());
    let whole = units(&quantity);
    if let Some(whole) = whole {
        assert_eq!(units(&Quantity(whole.to_string())), Some(whole), "{text:?}");
    }
    if let Some(millis) = millis(&quantity) {
        assert_eq!(whole, Some(millis.div_ceil(1000)), "{text:?}");
        assert_eq!(self::millis(&Quantity(format!("{millis}m"))), Some(millis), "{text:?}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("node_quantities", super::quantities);
    }
}
