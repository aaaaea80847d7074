//! Kubernetes quantities: `250m`, `512Mi`, `1e3`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

/// Maximum digits after the point that are read; the value of further ones is rounded up.
const FRACTION_DIGITS: usize = 18;

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// An amount of a resource, exact to a thousandth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantity {
    milli: i128,
    /// Uses the suffixes `Ki`, `Mi` and so on.
    binary: bool,
}

impl Quantity {
    /// A number of whole units.
    pub fn of_units(count: usize) -> Quantity {
        Quantity { milli: i128::try_from(count).unwrap_or(i128::MAX / 1000) * 1000, binary: false }
    }

    /// Parses a quantity. `None` means invalid or out of range. Parts smaller than a thousandth are rounded up.
    pub fn parse(text: &str) -> Option<Quantity> {
        let (negative, whole, fraction, suffix) = split(text)?;
        let (factor, divisor, binary) = scale(suffix)?;
        let (fraction, rest) = fraction.split_at(fraction.len().min(FRACTION_DIGITS));
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let digits = digits.checked_add(u128::from(rest.contains(|digit| digit != '0')))?;
        let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?).checked_mul(divisor)?;
        let scaled = digits.checked_mul(factor)?;
        let below = (scaled % divisor).checked_mul(1000)?.div_ceil(divisor);
        let milli = (scaled / divisor).checked_mul(1000)?.checked_add(below)?;
        let milli = i128::try_from(milli).ok()?;
        Some(Quantity { milli: if negative { -milli } else { milli }, binary })
    }

    /// The amount in thousandths.
    pub fn milli(self) -> i128 {
        self.milli
    }

    /// The amount in whole units, rounded up. `None` means negative or out of range.
    pub fn to_units(self) -> Option<u64> {
        u64::try_from(u128::try_from(self.milli).ok()?.div_ceil(1000)).ok()
    }

    /// The sum. It is formatted as the first amount that is not zero.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        let binary = if self.milli == 0 { other.binary } else { self.binary };
        Quantity { milli: self.milli.saturating_add(other.milli), binary }
    }

    /// The difference to another amount, at least zero.
    #[must_use]
    pub fn beyond(self, other: Quantity) -> Quantity {
        Quantity { milli: self.milli.saturating_sub(other.milli).max(0), ..self }
    }

    /// The larger one of two amounts.
    #[must_use]
    pub fn max(self, other: Quantity) -> Quantity {
        if other.milli > self.milli { other } else { self }
    }
}

/// Formats the amount with the largest suffix that needs no fraction.
impl fmt::Display for Quantity {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli % 1000 != 0 {
            return write!(to, "{}m", self.milli);
        }
        let (base, table) = if self.binary { (1024, BINARY) } else { (1000, DECIMAL) };
        let (mut value, mut index) = (self.milli / 1000, 0);
        while value != 0 && value % base == 0 && index + 1 < table.len() {
            value /= base;
            index += 1;
        }
        write!(to, "{value}{}", table[index])
    }
}

/// Returns the value of a field times 1000, rounded up, as CPU quantities are used.
pub fn millis(field: &Text) -> Option<u64> {
    u64::try_from(Quantity::parse(&field.0)?.milli).ok()
}

/// Returns the value of a field in whole units (bytes), rounded up.
pub fn units(field: &Text) -> Option<u64> {
    Quantity::parse(&field.0)?.to_units()
}

/// Returns true if a text is a quantity of any size: a decimal number and a suffix or an exponent.
pub fn is_valid(text: &str) -> bool {
    split(text).is_some()
}

/// Splits a quantity into its sign (true: negative), the digits before and after the point, and the suffix.
fn split(text: &str) -> Option<(bool, &str, &str, &str)> {
    let number = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let exponent = suffix.strip_prefix(['e', 'E']).map(|e| e.strip_prefix(['+', '-']).unwrap_or(e));
    let is_exponent = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let is_suffix = matches!(suffix, "n" | "u" | "m")
        || DECIMAL.contains(&suffix)
        || BINARY.contains(&suffix)
        || exponent.is_some_and(is_exponent);
    let is_number = !(whole.is_empty() && fraction.is_empty() || fraction.contains('.'));
    (is_number && is_suffix).then_some((text.starts_with('-'), whole, fraction, suffix))
}

/// Returns factor and divisor of a suffix, and true for a binary one.
fn scale(suffix: &str) -> Option<(u128, u128, bool)> {
    let power = |base: u128, table: &[&str]| {
        let index = table.iter().position(|own| *own == suffix)?;
        base.checked_pow(u32::try_from(index).ok()?)
    };
    match suffix {
        "m" => return Some((1, 1000, false)),
        "u" => return Some((1, 1_000_000, false)),
        "n" => return Some((1, 1_000_000_000, false)),
        _ => {}
    }
    if let Some(factor) = power(1000, &DECIMAL) {
        return Some((factor, 1, false));
    }
    if let Some(factor) = power(1024, &BINARY) {
        return Some((factor, 1, true));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let factor = 10_u128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, factor, false) } else { (factor, 1, false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_is_formatted_in_its_shortest_form() {
        for (text, shown) in [
            ("0", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1500m", "1500m"),
            ("2000m", "2"),
            ("0.5", "500m"),
            ("1Gi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1e3", "1k"),
            ("1E", "1E"),
            ("-1", "-1"),
            ("1u", "1m"),
        ] {
            let parsed = Quantity::parse(text).map(|quantity| quantity.to_string());
            assert_eq!(parsed, Some(shown.into()), "{text}");
        }
        for text in ["", "x", "1x", "1..2", "Mi", "1Gigi"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
        let amount = |text| Quantity::parse(text).unwrap();
        assert_eq!(Quantity::default().plus(amount("1Gi")).plus(amount("512Mi")).to_string(), "1536Mi");
    }

    #[test]
    fn quantity_is_converted_to_units_and_thousandths() {
        for (text, in_units, in_millis) in [
            ("1", Some(1), Some(1000)),
            ("250m", Some(1), Some(250)),
            ("0.5", Some(1), Some(500)),
            ("1.5Gi", Some(1_610_612_736), Some(1_610_612_736_000)),
            ("1.123456789012345678Ei", Some(1_295_257_491_548_890_609), None),
            ("512Mi", Some(536_870_912), Some(536_870_912_000)),
            ("2k", Some(2000), Some(2_000_000)),
            ("1e3", Some(1000), Some(1_000_000)),
            ("1e-38", Some(1), Some(1)),
            ("+2.", Some(2), Some(2000)),
            ("1Ei", Some(1 << 60), None),
            ("2E", Some(2_000_000_000_000_000_000), None),
            ("0.00000000001", Some(1), Some(1)),
            ("0.0000000000000000000000000000000000000000000000001", Some(1), Some(1)),
            ("000000000000000000000000000001", Some(1), Some(1000)),
            (".", None, None),
            ("1.2.3", None, None),
            ("1Ä", None, None),
            ("", None, None),
            ("Mi", None, None),
            ("-1", None, None),
            ("--1", None, None),
            ("1x", None, None),
            ("1e", None, None),
            ("1e999999999999", None, None),
            ("99999999999999999999Pi", None, None),
        ] {
            assert_eq!(units(&Text(text.into())), in_units, "{text}");
            assert_eq!(millis(&Text(text.into())), in_millis, "{text}");
        }
        assert!(is_valid("1e999999999999") && !is_valid("1e"));
    }
}
