//! Settings of the program: from flags first, then the environment, then the defaults of the contracts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::server::IDLE_LIMIT;
use crate::token::Token;

/// Port of one API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// TCP port; 0 picks a free one. `None`: the API is disabled.
    pub number: Option<u16>,
    /// True if explicitly configured. A default port that is in use stays closed.
    pub asked: bool,
}

/// Settings of the program.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of files, and working directory of commands. Default `/workspace`.
    pub root: PathBuf,
    /// Address to listen on; all addresses if absent.
    pub host: Option<IpAddr>,
    /// The HTTP contract of the Python runtime. Default 8888.
    pub http: Port,
    /// Files over REST. Default 8080.
    pub rest: Port,
    /// Processes over gRPC. Default 9090.
    pub grpc: Port,
    /// Maximum duration of a command of the HTTP contract whose request sets none. Default 300 s.
    pub time_limit: Duration,
    /// Prefix of the variables that clients see. Default `SANDBOX_`.
    pub metadata_prefix: String,
    /// Maximum duration of a shutdown after SIGTERM. Default 10 s.
    pub shutdown_limit: Duration,
    /// Idle timeout of a connection before a request. Default 75 s.
    pub idle_limit: Duration,
    /// Maximum bytes of output in one message. Default 32 KiB.
    pub chunk: usize,
    /// Token that every request must carry.
    pub token: Token,
}

/// Reason not to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// `--help`.
    Help,
    /// `--version`.
    Version,
    /// Unknown argument, or one without its value; with the error text. Exit status 2.
    Wrong(String),
    /// Invalid value; with the error text. Exit status 1.
    Invalid(String),
}

/// Text of `--help`.
pub const HELP: &str = "hutch-sandboxd: runs commands and keeps files inside a sandbox

Usage: hutch-sandboxd [FLAG VALUE]... [-- COMMAND [ARGUMENT]...] | --clock | --after-restore

  -- COMMAND [ARGUMENT]...   the container's own command; sandboxd passes signals on to it and ends when it ends
  --clock                    print the time since boot (CLOCK_MONOTONIC) in nanoseconds, and exit
  --after-restore            fail if a process that is not sandboxd runs here: in a copy of its memory it may repeat
                             the random numbers of the original
  --root-dir DIR             folder of files, working directory of commands (SANDBOX_BASE_DIR; default /workspace);
                             also --base-dir
  --listen-host ADDRESS      listen on this address only (default: all)
  --grpc-port PORT           gRPC, gRPC-Web and Connect (SANDBOX_GRPC_PORT; default 9090)
  --rest-port PORT           files over REST (SANDBOX_REST_PORT; default 8080)
  --port PORT                the Python runtime's HTTP contract (SANDBOX_PORT; default 8888)
  --metadata-env-prefix TEXT prefix of the variables in /v1/metadata (default SANDBOX_)
  --shutdown-timeout TIME    maximum duration of a shutdown (default 10s)
  --http-idle-timeout TIME   idle timeout of a connection (default 1m15s)
  --stream-chunk-size BYTES  output in one message (default 0, which is 32768; at most 1048576)

PORT: 1 to 65535, 0 for a free one, or `off`. A default port that is in use stays closed.
SANDBOXD_TOKEN or SANDBOXD_TOKEN_FILE: token that every request must carry, as `Authorization: Bearer TOKEN`.
SANDBOX_EXEC_TIMEOUT_SECONDS: time limit of a command of the HTTP contract that names none (default 300).
";

const ROOT: &str = "/workspace";
const HTTP_PORT: u16 = 8888;
const REST_PORT: u16 = 8080;
const GRPC_PORT: u16 = 9090;
const TIME_LIMIT: Duration = Duration::from_secs(300);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
const CHUNK: usize = 32 << 10;
const CHUNK_LIMIT: usize = 1 << 20;

const FLAGS: [&str; 10] = [
    "root-dir",
    "base-dir",
    "listen-host",
    "grpc-port",
    "rest-port",
    "port",
    "metadata-env-prefix",
    "shutdown-timeout",
    "http-idle-timeout",
    "stream-chunk-size",
];

impl Settings {
    /// Parses the arguments (without the program's name) and the environment.
    ///
    /// # Errors
    /// Returns the reason not to serve: help, version, or an invalid setting.
    pub fn read(
        arguments: impl IntoIterator<Item = String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, Usage> {
        let flags = flags(arguments)?;
        let flag = |name: &str| flags.get(name).cloned();
        let variable = |name: &str| environment(name).filter(|text| !text.is_empty());
        let port =
            |name, variable_name, usual| port(name, flag(name).or_else(|| variable(variable_name)), usual);
        let root = flag("root-dir").or_else(|| flag("base-dir")).or_else(|| variable("SANDBOX_BASE_DIR"));
        // An invalid time limit yields the default, not an error, as in the upstream contract.
        let time_limit = environment("SANDBOX_EXEC_TIMEOUT_SECONDS")
            .and_then(|text| text.trim().parse::<f64>().ok())
            .filter(|seconds| *seconds > 0.0)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .unwrap_or(TIME_LIMIT);
        let settings = Settings {
            root: root.unwrap_or_else(|| ROOT.into()).into(),
            host: flag("listen-host").map(|text| host(&text)).transpose()?,
            http: port("port", "SANDBOX_PORT", HTTP_PORT)?,
            rest: port("rest-port", "SANDBOX_REST_PORT", REST_PORT)?,
            grpc: port("grpc-port", "SANDBOX_GRPC_PORT", GRPC_PORT)?,
            time_limit,
            metadata_prefix: flag("metadata-env-prefix").unwrap_or_else(|| "SANDBOX_".into()),
            shutdown_limit: time("shutdown-timeout", flag("shutdown-timeout"), SHUTDOWN_LIMIT)?,
            idle_limit: time("http-idle-timeout", flag("http-idle-timeout"), IDLE_LIMIT)?,
            chunk: chunk(flag("stream-chunk-size"))?,
            token: Token::read(&environment).map_err(Usage::Invalid)?,
        };
        settings.differ()?;
        Ok(settings)
    }

    fn differ(&self) -> Result<(), Usage> {
        let all = [("port", self.http), ("rest-port", self.rest), ("grpc-port", self.grpc)];
        for (number, (name, one)) in all.iter().enumerate() {
            let same = all[..number].iter().find(|(_, other)| {
                one.number.is_some_and(|number| number != 0) && one.number == other.number
            });
            if let (Some((other, _)), Some(number)) = (same, one.number) {
                return Err(Usage::Invalid(format!(
                    "--{other} and --{name} are both {number}; they must differ"
                )));
            }
        }
        Ok(())
    }
}

/// Returns every flag; the last of a repeated flag wins. One dash is as good as two. Logging flags are
/// accepted and have no effect: there is no log.
fn flags(arguments: impl IntoIterator<Item = String>) -> Result<BTreeMap<String, String>, Usage> {
    let mut given = BTreeMap::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let unknown = || Usage::Wrong(format!("unknown argument {argument:?}"));
        let bare = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')).ok_or_else(unknown)?;
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        match name {
            "help" | "h" => return Err(Usage::Help),
            "version" => return Err(Usage::Version),
            "zap-devel" => {}
            name if FLAGS.contains(&name) || name.starts_with("zap-") => {
                let value = value.or_else(|| arguments.next());
                let value = value.ok_or_else(|| Usage::Wrong(format!("--{name} needs a value")))?;
                given.insert(name.to_owned(), value);
            }
            _ => return Err(unknown()),
        }
    }
    Ok(given)
}

fn host(text: &str) -> Result<IpAddr, Usage> {
    text.trim_matches(['[', ']'])
        .parse()
        .map_err(|_| Usage::Invalid(format!("--listen-host: {text:?} is not an IP address")))
}

fn port(name: &str, given: Option<String>, usual: u16) -> Result<Port, Usage> {
    let number = match given.as_deref() {
        None => Some(usual),
        Some("off") => None,
        Some(text) => {
            let wrong = || Usage::Invalid(format!("--{name}: {text:?} is not a port (1 to 65535, 0 or off)"));
            Some(text.parse().map_err(|_| wrong())?)
        }
    };
    Ok(Port { number, asked: given.is_some() })
}

fn chunk(given: Option<String>) -> Result<usize, Usage> {
    let Some(text) = given else { return Ok(CHUNK) };
    let wrong = || Usage::Invalid(format!("--stream-chunk-size: {text:?} is not 0 to {CHUNK_LIMIT} bytes"));
    match text.parse::<usize>().map_err(|_| wrong())? {
        0 => Ok(CHUNK),
        bytes if bytes <= CHUNK_LIMIT => Ok(bytes),
        _ => Err(wrong()),
    }
}

fn time(name: &str, given: Option<String>, usual: Duration) -> Result<Duration, Usage> {
    let Some(text) = given else { return Ok(usual) };
    let wrong = || Usage::Invalid(format!("--{name}: {text:?} is not a time such as 500ms, 10s or 1m30s"));
    let read = duration(&text).filter(|time| !time.is_zero());
    read.ok_or_else(wrong)
}

/// Parses a duration such as `1h30m`, `1.5s`, `500ms`.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let seconds = match &tail[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = &tail[end..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, Usage> {
        let find =
            |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::read(arguments.iter().map(|a| (*a).to_owned()), find)
    }

    fn wrong(arguments: &[&str]) -> String {
        match read(arguments, &[]) {
            Err(Usage::Invalid(text) | Usage::Wrong(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_is_in_help_and_docs() {
        let told = include_str!("../../../docs/sandboxd.md");
        for name in FLAGS.into_iter().chain(["clock", "after-restore", "help", "version"]) {
            assert!(told.contains(&format!("`--{name}`")), "docs/sandboxd.md does not tell of --{name}");
        }
        for name in FLAGS {
            assert!(HELP.contains(&format!("--{name}")), "--help does not tell of --{name}");
        }
    }

    #[test]
    fn flags_override_environment_and_environment_overrides_defaults() {
        let plain = read(&[], &[]).unwrap();
        assert_eq!((plain.root, plain.time_limit), (PathBuf::from("/workspace"), Duration::from_secs(300)));
        let numbers = [plain.http, plain.rest, plain.grpc].map(|port| (port.number, port.asked));
        assert_eq!(numbers, [(Some(8888), false), (Some(8080), false), (Some(9090), false)]);
        let environment = [
            ("SANDBOX_PORT", "1"),
            ("SANDBOX_REST_PORT", "off"),
            ("SANDBOX_BASE_DIR", "/b"),
            ("SANDBOX_EXEC_TIMEOUT_SECONDS", "1.5"),
        ];
        let set = read(&["--port", "2", "-base-dir=/c", "--zap-log-level", "debug"], &environment).unwrap();
        assert_eq!((set.root, set.time_limit), (PathBuf::from("/c"), Duration::from_millis(1500)));
        assert_eq!((set.http.number, set.http.asked, set.rest.number), (Some(2), true, None));
        assert_eq!(read(&[], &environment).unwrap().root, PathBuf::from("/b"));
        let set = read(&["--listen-host=::1", "--shutdown-timeout=1m1.5s", "--stream-chunk-size=4096"], &[])
            .unwrap();
        assert_eq!(set.host, Some("::1".parse().unwrap()));
        assert_eq!((set.shutdown_limit, set.chunk), (Duration::from_millis(61_500), 4096));
    }

    #[test]
    fn invalid_settings_are_errors_except_the_time_limit() {
        for wrong in ["", "x", "-1", "0", "nan", "inf"] {
            let settings = read(&[], &[("SANDBOX_EXEC_TIMEOUT_SECONDS", wrong)]).unwrap();
            assert_eq!(settings.time_limit, Duration::from_secs(300), "{wrong:?}");
        }
        assert!(wrong(&["--port", "70000"]).contains("--port: \"70000\""));
        assert!(wrong(&["--port"]).contains("--port needs a value"));
        assert!(wrong(&["--what"]).contains("unknown argument \"--what\""));
        assert!(wrong(&["stray"]).contains("unknown argument \"stray\""));
        assert!(wrong(&["--rest-port=9090"]).contains("--rest-port and --grpc-port are both 9090"));
        assert!(wrong(&["--listen-host=localhost"]).contains("not an IP address"));
        assert!(wrong(&["--shutdown-timeout=10"]).contains("--shutdown-timeout"));
        assert!(wrong(&["--stream-chunk-size=-1"]).contains("--stream-chunk-size"));
        assert!(read(&["--port=0", "--rest-port=0", "--grpc-port=0"], &[]).is_ok());
    }

    proptest! {
        #[test]
        fn any_arguments_yield_settings_or_an_error(words in prop::collection::vec("-{0,3}[a-z=-]{0,12}[0-9a-zµ.]{0,6}", 0..6)) {
            let _ = Settings::read(words, |_| None);
        }

        #[test]
        fn durations_add_up(hours in 0u64..99, seconds in 0u64..99, milliseconds in 0u64..999) {
            let text = format!("{hours}h{seconds}s{milliseconds}ms");
            let expected = Duration::from_millis(hours * 3_600_000 + seconds * 1000 + milliseconds);
            let read = duration(&text).unwrap();
            prop_assert!(read.abs_diff(expected) < Duration::from_micros(1), "{:?}", read);
        }
    }
}
