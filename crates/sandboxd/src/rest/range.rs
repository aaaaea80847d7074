//! Byte ranges of requests.

/// Range that a `Range` header selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The whole file: no range, or several, which have the whole file as response.
    All,
    /// From the first to the last byte, both included.
    Part(u64, u64),
    /// Not satisfiable.
    Nothing,
}

/// Parses `bytes=first-last`, `bytes=first-` or `bytes=-count`. An empty file is always returned as a whole.
pub(super) fn wanted(header: &str, size: u64) -> Wanted {
    let Some(ranges) = header.trim().strip_prefix("bytes=") else { return Wanted::Nothing };
    if ranges.contains(',') || size == 0 {
        return Wanted::All;
    }
    let Some((first, last)) = ranges.split_once('-') else { return Wanted::Nothing };
    let number = |text: &str| {
        let digits = text.trim();
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten()
    };
    match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(count) if count > 0 => Wanted::Part(size.saturating_sub(count), size - 1),
            _ => Wanted::Nothing,
        },
        (first, last) => {
            let end = if last.is_empty() { Some(size - 1) } else { number(last) };
            match (number(first), end) {
                (Some(first), Some(last)) if first < size && first <= last => {
                    Wanted::Part(first, last.min(size - 1))
                }
                _ => Wanted::Nothing,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges() {
        for (header, size, expected) in [
            ("bytes=0-0", 10, Wanted::Part(0, 0)),
            ("bytes=2-5", 10, Wanted::Part(2, 5)),
            ("bytes=2-", 10, Wanted::Part(2, 9)),
            ("bytes=-3", 10, Wanted::Part(7, 9)),
            ("bytes=-30", 10, Wanted::Part(0, 9)),
            ("bytes=5-500", 10, Wanted::Part(5, 9)),
            ("bytes=0-", 0, Wanted::All),
            ("bytes=0-1,4-5", 10, Wanted::All),
            ("bytes=10-", 10, Wanted::Nothing),
            ("bytes=5-2", 10, Wanted::Nothing),
            ("bytes=-0", 10, Wanted::Nothing),
            ("bytes=-", 10, Wanted::Nothing),
            ("bytes=+1-2", 10, Wanted::Nothing),
            ("lines=1-2", 10, Wanted::Nothing),
            ("bytes=99999999999999999999-", 10, Wanted::Nothing),
        ] {
            assert_eq!(wanted(header, size), expected, "{header} of {size}");
        }
    }

    proptest! {
        #[test]
        fn ranges_are_within_the_file(header in "(bytes=)?[0-9,-]{0,24}", size in any::<u64>()) {
            if let Wanted::Part(first, last) = wanted(&header, size) {
                prop_assert!(first <= last && last < size);
            }
        }
    }
}
