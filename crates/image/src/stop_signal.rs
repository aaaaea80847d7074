//! The signal by which an image wants its program to be ended.

/// Number of the first and of the last real-time signal that programs see on Linux with glibc.
const REAL_TIME: (i32, i32) = (34, 64);
/// Names of the signals 1 to 31 without `SIG`, in order.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// A signal, 1 to 64. The default is `SIGTERM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal(i32);

impl StopSignal {
    /// Reads `SIGQUIT`, `QUIT`, `3`, `SIGRTMIN+3` or `SIGRTMAX-1`, as container runtimes do.
    pub fn parse(text: &str) -> Option<StopSignal> {
        if let Ok(number) = text.parse::<i32>() {
            return (1..=REAL_TIME.1).contains(&number).then_some(StopSignal(number));
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let offset = |text: &str, sign: char| -> Option<i32> {
            match text.strip_prefix(sign) {
                None if text.is_empty() => Some(0),
                rest => rest?.parse::<u8>().ok().map(i32::from),
            }
        };
        let (first, last) = REAL_TIME;
        let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
            (Some(rest), _) => first + offset(rest, '+')?,
            (_, Some(rest)) => last - offset(rest, '-')?,
            _ => {
                return (1..)
                    .zip(NAMES)
                    .find(|(_, known)| *known == name)
                    .map(|(number, _)| StopSignal(number));
            }
        };
        (first..=last).contains(&number).then_some(StopSignal(number))
    }

    /// The number.
    pub fn as_raw(self) -> i32 {
        self.0
    }
}

impl Default for StopSignal {
    fn default() -> StopSignal {
        StopSignal(15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_is_a_name_or_a_number() {
        for (text, number) in [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("SIGSYS", Some(31)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("64", Some(64)),
            ("", None),
            ("SIG", None),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("SIGRTMIN+31", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMAX+1", None),
            ("SIGRTMIN+300", None),
            ("SIGNONE", None),
        ] {
            assert_eq!(StopSignal::parse(text).map(StopSignal::as_raw), number, "{text}");
        }
        assert_eq!(StopSignal::parse("SIGTERM"), Some(StopSignal::default()));
    }
}
