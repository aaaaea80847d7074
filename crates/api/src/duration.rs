//! Durations in Go's notation.

use std::time::Duration;

/// `0`, or numbers with units: `1h30m`, `1.5s`, `250ms`, `10us`, `5ns`. Never negative: no flag needs that.
pub fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = number.parse::<f64>().ok()? * seconds;
        sum = sum.checked_add(Duration::try_from_secs_f64(part).ok()?)?;
        rest = tail;
    }
    // Maximum of Go's `time.Duration`.
    (sum.as_nanos() <= i64::MAX as u128).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_read_as_in_go() {
        let milliseconds = Duration::from_millis;
        for (text, value) in [
            ("0", milliseconds(0)),
            ("5m", milliseconds(300_000)),
            ("1h30m", milliseconds(5_400_000)),
            ("1.5s", milliseconds(1500)),
            ("250ms", milliseconds(250)),
            ("+1s", milliseconds(1000)),
            ("5m0s", milliseconds(300_000)),
            (".5s", milliseconds(500)),
            ("3us", Duration::from_micros(3)),
        ] {
            assert_eq!(go_duration(text), Some(value), "{text}");
        }
        for text in ["", "5", "-1s", "s", "1d", "1 s", "1s ", "1..5s", "9999999999h"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }
}
