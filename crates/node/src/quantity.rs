//! Kubernetes quantities: `250m`, `512Mi`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Digits after the point that are read; what is finer is rounded up.
const FINEST: usize = 18;

/// The value times 1000, rounded up, as CPU quantities are used.
pub(crate) fn millis(quantity: &Quantity) -> Option<u64> {
    scaled(&quantity.0, 1000)
}

/// The value in whole units (bytes), rounded up.
pub(crate) fn units(quantity: &Quantity) -> Option<u64> {
    scaled(&quantity.0, 1)
}

fn scaled(text: &str, factor: u128) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (multiply, divide) = suffix_value(suffix)?;
    let (fraction, finer) = fraction.split_at(fraction.len().min(FINEST));
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let all: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let all = all.checked_add(u128::from(finer.contains(|digit| digit != '0')))?;
    let value = all.checked_mul(multiply)?.checked_mul(factor)?;
    u64::try_from(value.div_ceil(scale.checked_mul(divide)?)).ok()
}

/// What a suffix multiplies and divides by.
fn suffix_value(suffix: &str) -> Option<(u128, u128)> {
    let value = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10u128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read() {
        for (text, in_units, in_millis) in [
            ("1", Some(1), Some(1000)),
            ("250m", Some(1), Some(250)),
            ("0.5", Some(1), Some(500)),
            ("1.5Gi", Some(1_610_612_736), Some(1_610_612_736_000)),
            ("512Mi", Some(536_870_912), Some(536_870_912_000)),
            ("2k", Some(2000), Some(2_000_000)),
            ("1e3", Some(1000), Some(1_000_000)),
            ("+2.", Some(2), Some(2000)),
            ("1Ei", Some(1 << 60), None),
            ("2E", Some(2_000_000_000_000_000_000), None),
            ("0.00000000001", Some(1), Some(1)),
            ("000000000000000000000000000001", Some(1), Some(1000)),
            (".", None, None),
            ("1.2.3", None, None),
            ("1Ä", None, None),
            ("", None, None),
            ("Mi", None, None),
            ("-1", None, None),
            ("1x", None, None),
            ("99999999999999999999Pi", None, None),
        ] {
            assert_eq!(units(&Quantity(text.into())), in_units, "{text}");
            assert_eq!(millis(&Quantity(text.into())), in_millis, "{text}");
        }
    }
}
