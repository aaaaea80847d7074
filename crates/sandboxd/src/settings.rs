//! What the program is told: flags first, then environment, then the contract's defaults.

use std::path::PathBuf;
use std::time::Duration;

/// How the program serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Folder below which files live and in which commands start. Default `/app`.
    pub base: PathBuf,
    /// TCP port; 0 picks a free one. Default 8888.
    pub port: u16,
    /// How long a command may run when its request does not say. Default 300 s.
    pub time_limit: Duration,
}

/// What the arguments asked for when it was not to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// `--help`.
    Help,
    /// `--version`.
    Version,
    /// Something else; the text says what is wrong.
    Wrong(String),
}

/// What `--help` prints.
pub const HELP: &str = "hutch-sandboxd: runs commands and keeps files inside a sandbox, over HTTP

Usage: hutch-sandboxd [--port PORT] [--base-dir DIR] | --clock

  --clock          print CLOCK_MONOTONIC in nanoseconds and end
  --port PORT      listen here (SANDBOX_PORT; default 8888; 0 picks a free one)
  --base-dir DIR   files and commands live here (SANDBOX_BASE_DIR; default /app)

SANDBOX_EXEC_TIMEOUT_SECONDS: time limit of a command that names none (default 300).
";

const PORT: u16 = 8888;
const TIME_LIMIT: Duration = Duration::from_secs(300);

impl Settings {
    /// Reads the arguments (without the program's name) and the environment.
    ///
    /// # Errors
    /// When the program is not to serve: help, version, or something that is wrong.
    pub fn read(
        arguments: impl IntoIterator<Item = String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, Usage> {
        let (mut port, mut base) = (None, None);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (flag, mut value) = match argument.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let slot = match flag.as_str() {
                "--port" => &mut port,
                "--base-dir" => &mut base,
                "--help" | "-h" => return Err(Usage::Help),
                "--version" => return Err(Usage::Version),
                _ => return Err(Usage::Wrong(format!("unknown argument {flag:?}"))),
            };
            value = value.or_else(|| arguments.next());
            *slot = Some(value.ok_or_else(|| Usage::Wrong(format!("{flag} needs a value")))?);
        }
        let port = match port.or_else(|| environment("SANDBOX_PORT").filter(|text| !text.is_empty())) {
            None => PORT,
            Some(text) => text.parse().map_err(|_| Usage::Wrong(format!("{text:?} is not a port")))?,
        };
        let base = base.or_else(|| environment("SANDBOX_BASE_DIR").filter(|text| !text.is_empty()));
        // A wrong time limit is the default, not an error: that is the contract.
        let time_limit = environment("SANDBOX_EXEC_TIMEOUT_SECONDS")
            .and_then(|text| text.trim().parse::<f64>().ok())
            .filter(|seconds| *seconds > 0.0)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .unwrap_or(TIME_LIMIT);
        Ok(Settings { base: base.unwrap_or_else(|| "/app".into()).into(), port, time_limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, Usage> {
        let find =
            |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::read(arguments.iter().map(|a| (*a).to_owned()), find)
    }

    #[test]
    fn flags_win_over_environment_and_environment_over_defaults() {
        let plain = read(&[], &[]).unwrap();
        assert_eq!(plain, Settings { base: "/app".into(), port: 8888, time_limit: Duration::from_secs(300) });
        let environment =
            [("SANDBOX_PORT", "1"), ("SANDBOX_BASE_DIR", "/b"), ("SANDBOX_EXEC_TIMEOUT_SECONDS", "1.5")];
        let set = read(&["--port", "2", "--base-dir=/c"], &environment).unwrap();
        assert_eq!(set, Settings { base: "/c".into(), port: 2, time_limit: Duration::from_millis(1500) });
        assert_eq!(read(&[], &environment).unwrap().base, PathBuf::from("/b"));
    }

    #[test]
    fn a_wrong_time_limit_is_the_default_and_a_wrong_port_is_not() {
        for wrong in ["", "x", "-1", "0", "nan", "inf"] {
            let settings = read(&[], &[("SANDBOX_EXEC_TIMEOUT_SECONDS", wrong)]).unwrap();
            assert_eq!(settings.time_limit, Duration::from_secs(300), "{wrong:?}");
        }
        assert_eq!(read(&["--port", "70000"], &[]), Err(Usage::Wrong("\"70000\" is not a port".into())));
        assert_eq!(read(&["--port"], &[]), Err(Usage::Wrong("--port needs a value".into())));
        assert_eq!(read(&["--what"], &[]), Err(Usage::Wrong("unknown argument \"--what\"".into())));
    }
}
