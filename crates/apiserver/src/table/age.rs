//! Times as ages, in the words of kubectl.

use jiff::Timestamp;
use serde_json::Value;

/// A duration in seconds as kubectl writes it: `5s`, `3m20s`, `2d4h`, `3y`.
pub(crate) fn human_duration(seconds: i64) -> String {
    let two = |large: i64, unit: char, small: i64, lesser: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{lesser}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        // A clock that is a second ahead is no error.
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// The age of a time of an object: `<unknown>` if absent, `<invalid>` if it is not a time.
pub(crate) fn age(time: Option<&Value>, now: Timestamp) -> String {
    match time {
        None | Some(Value::Null) => "<unknown>".into(),
        Some(time) => match time.as_str().and_then(|t| t.parse::<Timestamp>().ok()) {
            Some(time) => human_duration(now.duration_since(time).as_secs()),
            None => "<invalid>".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_writes_them() {
        let (m, h, d) = (60, 3600, 86400);
        let cases = [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * m, "2m"),
            (3 * m + 20, "3m20s"),
            (10 * m + 5, "10m"),
            (179 * m, "179m"),
            (3 * h, "3h"),
            (7 * h + 5 * m, "7h5m"),
            (8 * h + 5 * m, "8h"),
            (47 * h, "47h"),
            (2 * d, "2d"),
            (7 * d + 3 * h, "7d3h"),
            (8 * d + 3 * h, "8d"),
            (729 * d, "729d"),
            (730 * d, "2y"),
            (800 * d, "2y70d"),
            (9 * 365 * d, "9y"),
        ];
        for (seconds, wanted) in cases {
            assert_eq!(human_duration(seconds), wanted, "{seconds}");
        }
    }
}
