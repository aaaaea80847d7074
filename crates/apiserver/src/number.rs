//! Numbers of a body whose kind is known only by a schema: whole ones of 64 bits, everything else in floating point, as a
//! Kubernetes API server reads them.

use serde_json::{Number, Value};

/// Largest number up to which every whole one has a floating point number of its own.
const LARGEST_EXACT: f64 = 9_007_199_254_740_991.0;

/// Returns true if a floating point number stands for a whole one.
pub(crate) fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() <= LARGEST_EXACT
}

/// Makes floating point numbers of whole ones that have no place in 64 bits with a sign.
pub(crate) fn widen(value: &mut Value) {
    each(value, &|number| {
        let float = number.as_f64()?;
        if number.is_u64() && !number.is_i64() { Number::from_f64(float) } else { None }
    });
}

/// Writes whole numbers without a point.
pub(crate) fn shorten(value: &mut Value) {
    each(value, &|number| {
        let float = number.as_f64().filter(|float| number.is_f64() && is_whole(*float))?;
        // It is whole and far from the bounds of 64 bits.
        Some(Number::from(float as i64))
    });
}

fn each(value: &mut Value, change: &impl Fn(&Number) -> Option<Number>) {
    match value {
        Value::Number(number) => {
            if let Some(other) = change(number) {
                *number = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each(field, change)),
        _ => {}
    }
}

/// A floating point number as messages of a Kubernetes API server show it: `1.5`, `1e+19`.
pub(crate) fn shown(number: f64) -> String {
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn large_numbers_lose_their_last_digits_and_whole_ones_their_point() {
        let mut value =
            json!([9_223_372_036_854_775_807_u64, 9_223_372_036_854_775_808_u64, 1.0, 1.5, -0.0, 1e16]);
        widen(&mut value);
        let float = 9_223_372_036_854_775_808.0;
        assert_eq!(value, json!([9_223_372_036_854_775_807_i64, float, 1.0, 1.5, -0.0, 1e16]));
        shorten(&mut value);
        assert_eq!(value, json!([9_223_372_036_854_775_807_i64, float, 1, 1.5, 0, 1e16]));
    }

    #[test]
    fn numbers_are_shown_as_in_go() {
        let table = [
            (1.5, "1.5"),
            (1e19, "1e+19"),
            (-9.223372036854776e18, "-9.223372036854776e+18"),
            (1e-7, "1e-07"),
        ];
        for (number, text) in table {
            assert_eq!(shown(number), text);
        }
    }
}
