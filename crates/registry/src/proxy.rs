//! The proxy that the environment names for connections with TLS.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use crate::Error;

/// Variables with the proxy, and with the hosts that are reached without it. The first one that is set counts.
const HTTPS_PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
const FORM: &str = "must be like http://proxy.example:3128 or http://user:password@proxy.example:3128";

/// Variables in which programs expect a proxy, which may have a password.
pub const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// A proxy for connections with TLS, which may have a password. It gets requests `CONNECT`.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Proxy {
    /// Value of `HTTPS_PROXY`, or empty.
    url: String,
    /// Value of `NO_PROXY`: names of domains, addresses and ranges, separated by commas.
    except: String,
}

/// Without the password.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").finish_non_exhaustive()
    }
}

impl Proxy {
    /// Reads `HTTPS_PROXY` and `NO_PROXY`, or the same in lower case.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the proxy is not an `http://` URL.
    pub fn of_environment() -> Result<Proxy, Error> {
        let value = |names: [&'static str; 2]| {
            let set = names.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
            { set }.find(|(_, value)| !value.is_empty())
        };
        let invalid =
            |name: &str, reason: &str| Error::InvalidConfig { field: name.into(), reason: reason.into() };
        let Some((name, url)) = value(HTTPS_PROXY) else { return Ok(Proxy::default()) };
        let url = url.into_string().map_err(|_| invalid(name, FORM))?;
        let except = match value(NO_PROXY) {
            Some((name, except)) => except.into_string().map_err(|_| invalid(name, "is not UTF-8"))?,
            None => String::new(),
        };
        Proxy::new(url, except).ok_or_else(|| invalid(name, FORM))
    }

    fn new(url: String, except: String) -> Option<Proxy> {
        let parsed: Uri = url.parse().ok()?;
        let is_valid =
            parsed.scheme_str() == Some("http") && parsed.host().is_some_and(|host| !host.is_empty());
        is_valid.then_some(Proxy { url, except })
    }
}

/// Connects to hosts, through the proxy where it is for them.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    matcher: Arc<Matcher>,
}

impl Connector {
    pub(crate) fn new(tcp: HttpConnector, proxy: &Proxy) -> Connector {
        let matcher = Matcher::builder().https(proxy.url.clone()).no(proxy.except.clone()).build();
        Connector { tcp, matcher: Arc::new(matcher) }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let via = if is_loopback(&target) { None } else { self.matcher.intercept(&target) };
        let Some(via) = via else { return self.tcp.call(target).map_err(BoxError::from).boxed() };
        let mut tunnel = Tunnel::new(via.uri().clone(), self.tcp.clone());
        if let Some(login) = via.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        tunnel.call(target).map_err(BoxError::from).boxed()
    }
}

/// Returns `true` for hosts of this machine, which Docker too reaches without a proxy.
fn is_loopback(target: &Uri) -> bool {
    let host = target.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_is_for_hosts_with_tls_that_are_not_excepted() {
        let proxy = Proxy::new("http://u:p%40@proxy.example:3128".into(), "in.example, 10.0.0.0/8".into());
        let connector = Connector::new(HttpConnector::new(), &proxy.unwrap());
        for (target, through) in [
            ("https://ghcr.io/v2/", true),
            ("https://ghcr.io:444/v2/", true),
            ("http://registry.example:5000/v2/", false),
            ("https://in.example/v2/", false),
            ("https://a.in.example:5000/v2/", false),
            ("https://10.1.2.3/v2/", false),
            ("https://11.1.2.3/v2/", true),
        ] {
            let via = connector.matcher.intercept(&target.parse().unwrap());
            assert_eq!(via.is_some(), through, "{target}");
            if let Some(via) = via {
                assert_eq!(via.basic_auth().unwrap(), "Basic dTpwQA==");
            }
        }
        for (target, own) in [
            ("https://localhost:5000/", true),
            ("https://127.0.0.2/", true),
            ("https://[::1]:5000/", true),
            ("https://localhost.example/", false),
        ] {
            assert_eq!(is_loopback(&target.parse().unwrap()), own, "{target}");
        }
    }

    #[test]
    fn proxy_is_an_http_url_and_its_password_is_not_shown() {
        for url in
            ["proxy.example:3128", "https://proxy.example", "socks5://x:1", "http://", "http:///x", "secret"]
        {
            assert!(Proxy::new(url.into(), String::new()).is_none(), "{url}");
        }
        let proxy = Proxy::new("http://u:secret@proxy.example".into(), String::new()).unwrap();
        assert!(!format!("{proxy:?}").contains("secret"));
    }
}
