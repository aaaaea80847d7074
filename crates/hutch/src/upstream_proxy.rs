//! Value of `--upstream-proxy`. It may hold a password, so no message has it.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_egress::UpstreamProxy;
use hutch_policy::Destination;

/// Variable that is read when the flag is not given.
pub(crate) const VARIABLE: &str = "HUTCH_UPSTREAM_PROXY";

/// A URL as it was given. Only [`of`] checks it, because clap shows values that it refuses.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ProxyUrl(String);

impl ProxyUrl {
    /// Returns a URL of a format in which HTTP has the port 80 by default.
    pub(crate) fn with_default_port(url: &str) -> ProxyUrl {
        let url = url.strip_suffix('/').unwrap_or(url);
        let address = url.rsplit_once(['@', '/']).map_or(url, |(_, address)| address);
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        ProxyUrl(if has_port { url.to_owned() } else { format!("{url}:80") })
    }

    /// Checks the URL.
    ///
    /// # Errors
    /// Its form, without the value.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        parse(&self.0).map(drop)
    }
}

impl FromStr for ProxyUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<ProxyUrl, Infallible> {
        Ok(ProxyUrl(text.to_owned()))
    }
}

/// Without the value.
impl fmt::Debug for ProxyUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ProxyUrl").finish_non_exhaustive()
    }
}

/// Returns the proxy of the flag, else that of the variable, if there is one.
pub(crate) fn of(flag: Option<&ProxyUrl>) -> anyhow::Result<Option<UpstreamProxy>> {
    if let Some(url) = flag {
        return parse(&url.0).context("--upstream-proxy").map(Some);
    }
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.to_str().ok_or_else(|| anyhow!("{VARIABLE}: not UTF-8"))?;
    parse(text).context(VARIABLE).map(Some)
}

fn parse(url: &str) -> anyhow::Result<UpstreamProxy> {
    const FORM: &str = "write it like http://proxy.example:3128 or http://user:password@proxy.example:3128";
    let rest = url.strip_prefix("http://").context(FORM)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (login, address) = match rest.rsplit_once('@') {
        Some((login, address)) => (Some(login), address),
        None => (None, rest),
    };
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'));
    ensure!(has_port, FORM);
    // Its error could have a password that was not encoded.
    let address: Destination = address.parse().map_err(|_| anyhow!(FORM))?;
    let authorization = login.map(|login| {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (user, password) = (decode(user).context(FORM)?, decode(password).context(FORM)?);
        Ok::<_, anyhow::Error>(format!("Basic {}", STANDARD.encode([&user[..], b":", &password].concat())))
    });
    Ok(UpstreamProxy { address: address.to_string(), authorization: authorization.transpose()? })
}

/// Decodes percent-encoding; `None` if it is malformed.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        decoded.push(u8::from_str_radix(digits, 16).ok()?);
        decoded.extend(&piece.as_bytes()[2..]);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_with_and_without_a_password() {
        for (url, address, authorization) in [
            ("http://proxy.example:3128", "proxy.example:3128", None),
            ("http://Proxy.example:3128/", "proxy.example:3128", None),
            ("http://[::1]:8080", "[::1]:8080", None),
            ("http://u:p@10.0.0.1:1", "10.0.0.1:1", Some("Basic dTpw")),
            ("http://u%40x:a%3ab@proxy.example:1", "proxy.example:1", Some("Basic dUB4OmE6Yg==")),
            ("http://u:a@b@proxy.example:1", "proxy.example:1", Some("Basic dTphQGI=")),
        ] {
            let proxy = parse(url).unwrap();
            assert_eq!(
                (proxy.address.as_str(), proxy.authorization.as_deref()),
                (address, authorization),
                "{url}"
            );
        }
    }

    #[test]
    fn mistakes_do_not_show_the_password() {
        for url in [
            "https://u:secret@proxy.example:1",
            "u:secret@proxy.example:1",
            "http://u:secret@proxy.example",
            "http://u:secret@proxy.example:x",
            "http://u:secret@proxy.example:0",
            "http://u:secret@:1",
            "http://u:%secret@proxy.example:1",
            "http://u:secret@proxy.example:1/path",
            "http://u:secret",
        ] {
            let error = parse(url).unwrap_err();
            assert!(
                format!("{error:#}").contains("write it like") && !format!("{error:#?}").contains("secret"),
                "{url}"
            );
        }
        let url: ProxyUrl = "http://u:secret@proxy.example:1".parse().unwrap();
        assert!(!format!("{url:?}{:?}", of(Some(&url)).unwrap()).contains("secret"));
    }
}
