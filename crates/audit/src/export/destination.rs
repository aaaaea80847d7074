//! Destinations of exporters, as they are given in flags.

use std::path::PathBuf;
use std::str::FromStr;

use aws_lc_rs::digest;
use http::Uri;

use crate::Error;
use crate::hex::hex;

/// Port of syslog over TLS.
const SYSLOG_TLS_PORT: u16 = 6514;
/// Port of syslog over TCP.
const SYSLOG_PORT: u16 = 601;
/// Port of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;
/// Beginnings of a destination.
const SCHEMES: &str =
    "must begin with file:, syslog+tcp:, syslog+tls:, otlp+http(s):, otlp+grpc(s): or webhook+http(s):";

/// Receiver of an exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// File of JSON lines.
    File(PathBuf),
    /// Syslog (RFC 5424) over TCP, or TLS (RFC 5425).
    Syslog {
        /// Host.
        host: String,
        /// Port.
        port: u16,
        /// With TLS.
        tls: bool,
    },
    /// Logs of OpenTelemetry over HTTP.
    Otlp(Uri),
    /// Logs of OpenTelemetry over gRPC.
    OtlpGrpc {
        /// Host.
        host: String,
        /// Port.
        port: u16,
        /// With TLS.
        tls: bool,
    },
    /// HTTP requests with a signature.
    Webhook(Uri),
}

/// Options of an exporter. Contents of files are read by the caller.
#[derive(Clone, Default)]
pub struct ExportOptions {
    /// Certificates of the authorities of the receiver, PEM; none for those of the machine.
    pub authorities: Option<Vec<u8>>,
    /// Secret of a webhook.
    pub secret: Option<Vec<u8>>,
    /// Headers of requests, such as `Authorization`: one in each line.
    pub headers: Option<String>,
}

impl Destination {
    /// Returns a name that is another one for each receiver. It has nothing of a URL, which may hold secrets.
    pub(crate) fn name(&self) -> String {
        let digest = digest::digest(&digest::SHA256, format!("{self:?}").as_bytes());
        format!("sha256:{}", hex(digest.as_ref()))
    }
}

impl FromStr for Destination {
    type Err = Error;

    fn from_str(text: &str) -> Result<Destination, Error> {
        let wrong = |why: &str| Error::Destination(format!("{text:?}: {why}"));
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(wrong(SCHEMES));
        };
        if scheme == "file" {
            let path = PathBuf::from(rest.strip_prefix("//").unwrap_or(rest));
            return match path.is_absolute() {
                true => Ok(Destination::File(path)),
                false => Err(wrong("must be file:/ABSOLUTE/PATH")),
            };
        }
        let (kind, transport) = scheme.split_once('+').unwrap_or((scheme, ""));
        let protocol = if kind == "syslog" || transport.starts_with("grpc") { "http" } else { transport };
        let uri: Uri = format!("{protocol}:{rest}").parse().map_err(|_| wrong("is not a URL"))?;
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else { return Err(wrong("has no host")) };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong("must not contain credentials; use a file of headers or of a secret"));
        }
        let is_place = uri.path().len() <= 1 && uri.query().is_none();
        let place = || host.trim_matches(['[', ']']).to_owned();
        match (kind, transport) {
            ("syslog", "tcp" | "tls") | ("otlp", "grpc" | "grpcs") if !is_place => {
                Err(wrong("must end after the port"))
            }
            ("syslog", "tcp" | "tls") => {
                let tls = transport == "tls";
                let port = uri.port_u16().unwrap_or(if tls { SYSLOG_TLS_PORT } else { SYSLOG_PORT });
                Ok(Destination::Syslog { host: place(), port, tls })
            }
            ("otlp", "grpc" | "grpcs") => {
                let port = uri.port_u16().unwrap_or(GRPC_PORT);
                Ok(Destination::OtlpGrpc { host: place(), port, tls: transport == "grpcs" })
            }
            ("otlp", "http" | "https") if uri.path().len() <= 1 => {
                let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
                let uri = format!("{transport}://{authority}/v1/logs").parse();
                uri.map(Destination::Otlp).map_err(|_| wrong("is not a URL"))
            }
            ("otlp", "http" | "https") => Ok(Destination::Otlp(uri)),
            ("webhook", "http" | "https") => Ok(Destination::Webhook(uri)),
            _ => Err(wrong(SCHEMES)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed() {
        let syslog = |host: &str, port, tls| Destination::Syslog { host: host.into(), port, tls };
        let grpc = |host: &str, port, tls| Destination::OtlpGrpc { host: host.into(), port, tls };
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        for (text, expected) in [
            ("file:/var/log/a.jsonl", Destination::File("/var/log/a.jsonl".into())),
            ("file:///a", Destination::File("/a".into())),
            ("syslog+tcp://a.example", syslog("a.example", 601, false)),
            ("syslog+tls://a.example", syslog("a.example", 6514, true)),
            ("syslog+tls://[::1]:7", syslog("::1", 7, true)),
            ("otlp+http://localhost:4318", Destination::Otlp(uri("http://localhost:4318/v1/logs"))),
            ("otlp+https://a.example/x/logs", Destination::Otlp(uri("https://a.example/x/logs"))),
            ("otlp+grpc://a.example", grpc("a.example", 4317, false)),
            ("otlp+grpcs://[::1]:7/", grpc("::1", 7, true)),
            ("webhook+https://a.example/in?x=1", Destination::Webhook(uri("https://a.example/in?x=1"))),
        ] {
            assert_eq!(text.parse::<Destination>().unwrap(), expected, "{text}");
        }
        for wrong in [
            "a.example",
            "file:a",
            "http://a.example",
            "syslog+udp://a.example",
            "syslog+tcp://",
            "otlp+http:///x",
            "syslog+tcp://a.example/x",
            "webhook+https://u:p@a.example/",
            "otlp://a.example",
            "otlp+grpc://a.example/v1/logs",
            "webhook+grpc://a.example",
        ] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }
}
