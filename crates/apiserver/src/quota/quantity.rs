//! Amounts of resources: exact to a thousandth, shown as Kubernetes shows them.

use std::fmt;

/// An amount, in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Quantity {
    pub(super) milli: i128,
    /// Uses the suffixes `Ki`, `Mi` and so on.
    binary: bool,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

impl Quantity {
    pub(super) fn units(count: usize) -> Quantity {
        Quantity { milli: i128::try_from(count).unwrap_or(i128::MAX / 1000) * 1000, binary: false }
    }

    /// Reads a quantity; `None` if it is not one. Parts smaller than a thousandth are rounded up.
    pub(super) fn read(text: &str) -> Option<Quantity> {
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (factor, divisor, binary) = scale(suffix)?;
        let negative = number.starts_with('-');
        let number = number.trim_start_matches(['+', '-']);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let below = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(divisor)?;
        let scaled = digits.checked_mul(factor)?.checked_mul(1000)?;
        let milli = scaled / below + i128::from(scaled % below != 0);
        Some(Quantity { milli: if negative { -milli } else { milli }, binary })
    }

    /// The sum. It is shown as the first amount that is not zero.
    pub(super) fn plus(self, other: Quantity) -> Quantity {
        let binary = if self.milli == 0 { other.binary } else { self.binary };
        Quantity { milli: self.milli.saturating_add(other.milli), binary }
    }

    /// Returns the difference to another amount, at least zero.
    pub(super) fn beyond(self, other: Quantity) -> Quantity {
        Quantity { milli: self.milli.saturating_sub(other.milli).max(0), ..self }
    }

    pub(super) fn max(self, other: Quantity) -> Quantity {
        if other.milli > self.milli { other } else { self }
    }
}

/// Factor, divisor and notation of a suffix.
fn scale(suffix: &str) -> Option<(i128, i128, bool)> {
    let power = |base: i128, table: &[&str]| {
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
    let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, factor, false) } else { (factor, 1, false) })
}

/// The form with the largest suffix that needs no fraction.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_is_shown_in_its_shortest_form() {
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
            assert_eq!(
                Quantity::read(text).map(|quantity| quantity.to_string()),
                Some(shown.into()),
                "{text}"
            );
        }
        for text in ["", "x", "1x", "1..2", "Mi", "1Gigi"] {
            assert_eq!(Quantity::read(text), None, "{text}");
        }
        let sum =
            Quantity::default().plus(Quantity::read("1Gi").unwrap()).plus(Quantity::read("512Mi").unwrap());
        assert_eq!(sum.to_string(), "1536Mi");
    }
}
