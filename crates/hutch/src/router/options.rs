//! The settings of `hutch router`: command line before file before environment before default.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hutch_router::ClientCertificates;

use super::flags::{Flag, Given, Kind, Source, duration, number, truth};
use crate::address::BindAddress;

use Kind::{Switch, Value};

const FLAGS: [Flag; 40] = [
    ("http-bind-address", Value("ADDRESS"), ":8080", "address for plain HTTP; empty disables it"),
    ("https-bind-address", Value("ADDRESS"), "", "address for HTTPS; empty disables it"),
    ("metrics-bind-address", Value("ADDRESS"), ":9090", "address for /metrics; empty or 0 disables it"),
    (
        "health-probe-bind-address",
        Value("ADDRESS"),
        ":8081",
        "address for /healthz and /readyz; empty or 0 disables it",
    ),
    ("tls-cert-file", Value("FILE"), "", "certificate chain, PEM; read again when it changes"),
    ("tls-key-file", Value("FILE"), "", "private key, PEM; read again when it changes"),
    ("tls-client-ca-file", Value("FILE"), "", "authorities that sign client certificates, PEM"),
    ("mtls-mode", Value("MODE"), "off", "client certificates: off, optional, required"),
    ("cluster-domain", Value("DOMAIN"), "cluster.local", "accepted, no effect: addresses come from the API"),
    ("proxy-timeout", Value("DURATION"), "none", "maximum time for a whole request, including the response"),
    ("response-header-timeout", Value("DURATION"), "none", "maximum time to receive the response headers"),
    ("shutdown-timeout", Value("DURATION"), "30s", "maximum time to complete requests after SIGTERM"),
    ("max-request-body-bytes", Value("NUMBER"), "0", "maximum size of a request body in bytes; 0: unlimited"),
    ("allow-loopback-pod-ip", Switch, "false", "a Pod may have a loopback address"),
    ("upstream-max-retries", Value("NUMBER"), "3", "maximum number of retries to connect to a sandbox"),
    (
        "upstream-retry-initial-delay",
        Value("DURATION"),
        "200ms",
        "pause before the first of them; then doubled",
    ),
    ("upstream-retry-max-delay", Value("DURATION"), "800ms", "longest pause"),
    (
        "enable-tracing",
        Switch,
        "false",
        "send a span for each request by OTLP, configured by the OTEL_* variables; on by default where OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set",
    ),
    ("enable-otel-metrics", Switch, "false", "not available here: refused when true"),
    ("authz-mode", Value("MODE"), "none", "tokenreview, scoped-token, or allow-all: every client"),
    ("authz-tokenreview-ttl", Value("DURATION"), "30s", "lifetime of a cached token review"),
    ("authz-tokenreview-cache-size", Value("NUMBER"), "2048", "maximum number of cached token reviews"),
    ("authz-tokenreview-require-token", Switch, "true", "a token is always required; false is refused"),
    (
        "authz-tokenreview-audiences",
        Value("LIST"),
        "",
        "audiences of which a token must have one, with commas",
    ),
    ("authz-scoped-token-secret-file", Value("FILE"), "", "key of scoped tokens, 32 bytes at least"),
    (
        "sandboxd-key-file",
        Value("FILE"),
        "",
        "key of `hutch sandboxd install`: each request carries the token that the Pod's sandboxd requires; 32 bytes at least",
    ),
    ("cache-enabled", Switch, "true", "watch Sandboxes and Pods; false: ask the API at every request"),
    ("cache-namespace", Value("NAME"), "", "watch this namespace alone"),
    ("wake-on-connect", Switch, "false", "a request wakes a Sandbox that sleeps and is annotated for it"),
    (
        "kubeconfig",
        Value("FILE"),
        "",
        "how the API is reached; else KUBECONFIG, else in-cluster, else ~/.kube/config",
    ),
    ("access-log", Switch, "true", "one line of JSON on standard error for each request"),
    ("config", Value("FILE"), "", "YAML file with the names of these flags as keys"),
    ("version", Switch, "false", "print the version"),
    ("help", Switch, "false", "print this"),
    ("zap-log-level", Value("LEVEL"), "info", "debug, info, error, panic or a number"),
    ("zap-encoder", Value("NAME"), "json", "json or console"),
    ("zap-devel", Switch, "false", "level debug, encoder console"),
    ("zap-stacktrace-level", Value("LEVEL"), "", "accepted for compatibility, no effect"),
    ("zap-time-encoding", Value("NAME"), "", "accepted for compatibility, no effect"),
    ("h", Switch, "false", "print this"),
];

/// Authorization mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    AllowAll,
    TokenReview { ttl: Duration, cache_size: usize, audiences: Vec<String> },
    ScopedToken(PathBuf),
}

/// Encoding of log lines other than the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoder {
    Json,
    Console,
}

/// Files of the HTTPS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_authority: Option<PathBuf>,
    pub(crate) client: ClientCertificates,
}

/// All settings, checked.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) http: Option<BindAddress>,
    pub(crate) https: Option<(BindAddress, TlsOptions)>,
    pub(crate) metrics: Option<BindAddress>,
    pub(crate) health: Option<BindAddress>,
    pub(crate) proxy_timeout: Option<Duration>,
    pub(crate) response_header_timeout: Option<Duration>,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) body_limit: Option<u64>,
    pub(crate) allow_loopback: bool,
    pub(crate) retry_delays: Vec<Duration>,
    pub(crate) mode: Mode,
    pub(crate) sandboxd_key: Option<PathBuf>,
    pub(crate) cache: bool,
    pub(crate) cache_namespace: Option<String>,
    pub(crate) wake_on_connect: bool,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) access_log: bool,
    pub(crate) tracing: bool,
    pub(crate) log_level: String,
    pub(crate) log_encoder: Encoder,
    /// Warnings to log at the start.
    pub(crate) warnings: Vec<String>,
}

/// Action that the command line requests.
#[derive(Debug)]
pub(crate) enum Wanted {
    Help(String),
    Version,
    Run(Box<Options>),
}

/// Maximum retries of a connection.
const RETRIES_MAX: u64 = 100;

impl Options {
    /// Reads all sources. A mistake is one line that names the flag, the key of the file or the variable.
    pub(crate) fn read(
        words: &[OsString],
        environment: impl Fn(&str) -> Option<String>,
        file: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Wanted, String> {
        let mut given = Given::command_line(&FLAGS, words)?;
        let asked = |given: &Given, name: &str| given.read(name, truth).map(Option::unwrap_or_default);
        if asked(&given, "help")? || asked(&given, "h")? {
            return Ok(Wanted::Help(help()));
        }
        if asked(&given, "version")? {
            return Ok(Wanted::Version);
        }
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        if let Some(path) = set("SANDBOX_ROUTER_CONFIG") {
            given.add_environment("config", "SANDBOX_ROUTER_CONFIG", path);
        }
        if let Some(path) = given.text("config").filter(|path| !path.is_empty()).map(PathBuf::from) {
            let text =
                file(&path).map_err(|error| format!("--config: cannot read {}: {error}", path.display()))?;
            given.add_file(&FLAGS, &path, &text)?;
        }
        if let Some(seconds) = set("PROXY_TIMEOUT_SECONDS") {
            let mistake = || format!("PROXY_TIMEOUT_SECONDS: `{seconds}` is not a number of seconds above 0");
            let parsed = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let parsed = parsed.filter(|parsed| !parsed.is_zero()).ok_or_else(mistake)?;
            given.add_environment(
                "proxy-timeout",
                "PROXY_TIMEOUT_SECONDS",
                format!("{}ns", parsed.as_nanos()),
            );
        }
        let mut options = build(&given)?;
        let collector = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
        let named = || collector.into_iter().any(|name| set(name).is_some());
        options.tracing = given.read("enable-tracing", truth)?.unwrap_or_else(named);
        let metrics = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
        if set(metrics).is_some() {
            options.warnings.push(format!("{metrics} is set, and this router exports no metrics by OTLP"));
        }
        Ok(Wanted::Run(Box::new(options)))
    }
}

fn build(given: &Given) -> Result<Options, String> {
    let switch = |name: &str, default: bool| given.read(name, truth).map(|value| value.unwrap_or(default));
    if switch("enable-otel-metrics", false)? {
        return Err("--enable-otel-metrics: this router exports no metrics by OTLP; leave it out".into());
    }
    let http = bind(given, "http-bind-address", Some(":8080"))?;
    let https = match bind(given, "https-bind-address", None)? {
        Some(address) => Some((address, tls(given)?)),
        None => {
            if client_certificates(given)? != ClientCertificates::Off {
                return Err("--mtls-mode: needs --https-bind-address".into());
            }
            None
        }
    };
    if http.is_none() && https.is_none() {
        return Err(
            "--http-bind-address: is empty, and so is --https-bind-address; one of them is needed".into()
        );
    }
    let mut warnings = Vec::new();
    if !matches!(given.source("cluster-domain"), None | Some(Source::Environment(_))) {
        warnings.push("--cluster-domain is not used: addresses come from the API".to_owned());
    }
    let limit = given.read("max-request-body-bytes", number)?.filter(|limit| *limit > 0);
    let (log_level, log_encoder) = log(given)?;
    Ok(Options {
        http,
        https,
        metrics: bind(given, "metrics-bind-address", Some(":9090"))?,
        health: bind(given, "health-probe-bind-address", Some(":8081"))?,
        proxy_timeout: given.read("proxy-timeout", positive)?,
        response_header_timeout: given.read("response-header-timeout", positive)?,
        shutdown_timeout: given.read("shutdown-timeout", duration)?.unwrap_or(Duration::from_secs(30)),
        body_limit: limit,
        allow_loopback: switch("allow-loopback-pod-ip", false)?,
        retry_delays: retries(given)?,
        mode: mode(given)?,
        sandboxd_key: text(given, "sandboxd-key-file").map(PathBuf::from),
        cache: switch("cache-enabled", true)?,
        cache_namespace: text(given, "cache-namespace"),
        wake_on_connect: switch("wake-on-connect", false)?,
        kubeconfig: text(given, "kubeconfig").map(PathBuf::from),
        access_log: switch("access-log", true)?,
        tracing: false,
        log_level,
        log_encoder,
        warnings,
    })
}

fn text(given: &Given, name: &str) -> Option<String> {
    given.text(name).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn bind(given: &Given, name: &str, default: Option<&str>) -> Result<Option<BindAddress>, String> {
    let read = |text: &str| match text {
        "" => Ok(None),
        "0" if name != "http-bind-address" => Ok(None),
        _ => BindAddress::parse(text).map(Some),
    };
    match given.read(name, read)? {
        Some(address) => Ok(address),
        None => default.map(BindAddress::parse).transpose(),
    }
}

fn client_certificates(given: &Given) -> Result<ClientCertificates, String> {
    let read = |text: &str| match text {
        "off" => Ok(ClientCertificates::Off),
        "optional" => Ok(ClientCertificates::Optional),
        "required" => Ok(ClientCertificates::Required),
        _ => Err(format!("`{text}` is not one of off, optional, required")),
    };
    Ok(given.read("mtls-mode", read)?.unwrap_or(ClientCertificates::Off))
}

fn tls(given: &Given) -> Result<TlsOptions, String> {
    let file = |name: &str| {
        text(given, name).map(PathBuf::from).ok_or_else(|| format!("--{name}: --https-bind-address needs it"))
    };
    let client = client_certificates(given)?;
    let client_authority = text(given, "tls-client-ca-file").map(PathBuf::from);
    if client != ClientCertificates::Off && client_authority.is_none() {
        return Err("--tls-client-ca-file: --mtls-mode needs it".into());
    }
    Ok(TlsOptions {
        certificate: file("tls-cert-file")?,
        key: file("tls-key-file")?,
        client_authority,
        client,
    })
}

fn positive(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| match time.is_zero() {
        true => Err(format!("`{text}` is not above 0")),
        false => Ok(time),
    })
}

fn retries(given: &Given) -> Result<Vec<Duration>, String> {
    let few = |text: &str| {
        number(text).and_then(|n| match n <= RETRIES_MAX {
            true => Ok(n),
            false => Err(format!("`{text}` is more than {RETRIES_MAX}")),
        })
    };
    let retries = given.read("upstream-max-retries", few)?.unwrap_or(3);
    let first = given.read("upstream-retry-initial-delay", duration)?.unwrap_or(Duration::from_millis(200));
    let most = given.read("upstream-retry-max-delay", duration)?.unwrap_or(Duration::from_millis(800));
    let doubled = std::iter::successors(Some(first), |delay| Some(delay.saturating_mul(2).min(most)));
    Ok(doubled.map(|delay| delay.min(most)).take(usize::try_from(retries).unwrap_or(0)).collect())
}

fn mode(given: &Given) -> Result<Mode, String> {
    let ttl = given.read("authz-tokenreview-ttl", positive)?.unwrap_or(Duration::from_secs(30));
    let some = |text: &str| {
        number(text).ok().filter(|n| *n > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
    };
    let cache_size = given.read("authz-tokenreview-cache-size", some)?.unwrap_or(2048);
    let cache_size = usize::try_from(cache_size).unwrap_or(usize::MAX);
    if given.read("authz-tokenreview-require-token", truth)? == Some(false) {
        return Err("--authz-tokenreview-require-token: mode tokenreview always wants a token; \
                    --authz-mode=allow-all admits every client"
            .into());
    }
    let list = given.text("authz-tokenreview-audiences").unwrap_or_default();
    let audiences: Vec<String> =
        list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect();
    let key = text(given, "authz-scoped-token-secret-file").map(PathBuf::from);
    let read = |text: &str| match text {
        "allow-all" => Ok(Mode::AllowAll),
        "tokenreview" => Ok(Mode::TokenReview { ttl, cache_size, audiences: audiences.clone() }),
        "scoped-token" => key
            .clone()
            .map(Mode::ScopedToken)
            .ok_or_else(|| "scoped-token needs --authz-scoped-token-secret-file".to_owned()),
        _ => Err(format!("`{text}` is not one of tokenreview, scoped-token, allow-all")),
    };
    given.read("authz-mode", read)?.ok_or_else(|| {
        "--authz-mode: is not set; tokenreview, scoped-token, or allow-all to admit every client".into()
    })
}

fn log(given: &Given) -> Result<(String, Encoder), String> {
    let level = |text: &str| match text {
        "debug" => Ok("info,hutch=debug,hutch_router=debug".to_owned()),
        "info" => Ok("warn,hutch=info,hutch_router=info".to_owned()),
        "error" | "panic" => Ok("error".to_owned()),
        _ => number(text)
            .map(|_| "debug,hutch=trace,hutch_router=trace".to_owned())
            .map_err(|_| format!("`{text}` is not one of debug, info, error, panic or a number")),
    };
    let encoder = |text: &str| match text {
        "json" => Ok(Encoder::Json),
        "console" => Ok(Encoder::Console),
        _ => Err(format!("`{text}` is not one of json, console")),
    };
    let devel = given.read("zap-devel", truth)?.unwrap_or(false);
    let (usual, look) = if devel { ("debug", Encoder::Console) } else { ("info", Encoder::Json) };
    let chosen = given.read("zap-log-level", level)?.map_or_else(|| level(usual), Ok)?;
    Ok((chosen, given.read("zap-encoder", encoder)?.unwrap_or(look)))
}

fn help() -> String {
    let mut text =
        String::from("HTTP and WebSocket to the sandboxes of a cluster.\n\nUsage: hutch router [FLAGS]\n\n");
    // `-h` is `--help`.
    for (name, kind, default, meaning) in FLAGS.into_iter().filter(|(name, ..)| *name != "h") {
        let head = match kind {
            Switch => format!("--{name}"),
            Value(what) => format!("--{name} {what}"),
        };
        let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
        text.push_str(&format!("  {head:<44}{meaning}{default}\n"));
    }
    text
}

#[cfg(test)]
#[path = "options/tests.rs"]
mod tests;
