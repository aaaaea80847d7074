//! Listen addresses in the syntax of Go programs.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

/// A listen address. Without a host, every address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindAddress {
    host: Option<String>,
    port: u16,
}

impl BindAddress {
    /// Parses `:8080`, `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`.
    pub(crate) fn parse(text: &str) -> Result<BindAddress, String> {
        let wrong =
            || format!("`{text}` is not an address to listen on; write it like :8080 or 127.0.0.1:8080");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                inner.strip_suffix(']').filter(|inner| inner.parse::<Ipv6Addr>().is_ok()).ok_or_else(wrong)?
            }
            None if host.contains([':', '/', ' ']) => return Err(wrong()),
            None => host,
        };
        Ok(BindAddress { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }

    /// Binds the first available address. An address in use is an error, and no other is tried.
    pub(crate) async fn bind(&self) -> std::io::Result<TcpListener> {
        let mut failed = None;
        for candidate in self.candidates().await? {
            match TcpListener::bind(candidate).await {
                Ok(socket) => return Ok(socket),
                Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed
            .unwrap_or_else(|| std::io::Error::new(ErrorKind::NotFound, "it is no address of this machine")))
    }

    /// Returns the addresses to try in order.
    async fn candidates(&self) -> std::io::Result<Vec<SocketAddr>> {
        match &self.host {
            // The IPv6 address serves both families, if there is IPv6.
            None => Ok([IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)]
                .map(|ip| SocketAddr::new(ip, self.port))
                .to_vec()),
            Some(host) => Ok(tokio::net::lookup_host((host.as_str(), self.port)).await?.collect()),
        }
    }
}

impl std::fmt::Display for BindAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host.as_deref().unwrap_or_default(), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_have_the_syntax_of_go() {
        for (text, first) in
            [(":8080", "[::]:8080"), ("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:9090", "[::1]:9090")]
        {
            let candidates = BindAddress::parse(text).unwrap().candidates().await.unwrap();
            assert_eq!(candidates[0].to_string(), first);
        }
        for wrong in
            ["8080", ":", ":x", ":+80", ":65536", "::1:80", "[::1:80", "[x]:80", "http://a:80", "a b:80"]
        {
            assert!(BindAddress::parse(wrong).is_err(), "{wrong}");
        }
    }
}
