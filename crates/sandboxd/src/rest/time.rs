//! Formats times as in the contract.

/// Formats seconds since 1970 as `2026-01-02T03:04:05Z`.
pub(super) fn rfc3339(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Returns year, month and day of a number of days since 1970, in the Gregorian calendar. Years start in
/// March, so that the leap day is the last of one.
fn date(days: i64) -> (i64, i64, i64) {
    let since_march_of_year_0 = days + 719_468;
    let era = since_march_of_year_0.div_euclid(146_097);
    let of_era = since_march_of_year_0.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    proptest! {
        /// Compares with the library that writes `Last-Modified`.
        #[test]
        fn dates_match_the_http_library(seconds in 0i64..32_503_680_000) {
            let http = httpdate::fmt_http_date(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds as u64));
            let text = rfc3339(seconds);
            prop_assert_eq!(&http[5..7], &text[8..10]);
            prop_assert_eq!(&http[12..16], &text[..4]);
            prop_assert_eq!(&http[17..25], &text[11..19]);
        }
    }
}
