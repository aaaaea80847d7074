//! The origin of a request: scheme, host and port, in the forms in which requests name it.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use http::uri::{self, Authority, PathAndQuery, Scheme, Uri};
use hutch_policy::Destination;

use crate::refusal::Reason;

/// Ports that URIs and `Host` leave out.
const HTTPS: u16 = 443;
const HTTP: u16 = 80;

/// Server of requests, and whether they are sent over TLS.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) destination: Destination,
    pub(crate) tls: bool,
    /// Name or address, as text.
    pub(crate) host: String,
    authority: Authority,
    header: HeaderValue,
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        (&self.destination, self.tls) == (&other.destination, other.tls)
    }
}

impl Origin {
    /// Returns the origin of requests to a destination.
    ///
    /// # Errors
    /// No URI can name it.
    pub(crate) fn new(destination: Destination, tls: bool) -> Result<Arc<Origin>, Reason> {
        let host = destination.host.to_string();
        let with_port = format!("{host}:{}", destination.port);
        let authority = if tls && destination.port.get() == HTTPS { &host } else { &with_port };
        let without = if tls { HTTPS } else { HTTP };
        let header = if destination.port.get() == without { &host } else { &with_port };
        let authority = authority.parse::<Authority>().map_err(invalid)?;
        let header = header.parse::<HeaderValue>().map_err(invalid)?;
        Ok(Arc::new(Origin { destination, tls, host, authority, header }))
    }

    /// Returns the name of the scheme.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// Returns the URI of a target there. The port of HTTPS is left out.
    ///
    /// # Errors
    /// No URI has this target.
    pub(crate) fn uri(&self, target: Option<&PathAndQuery>) -> Result<Uri, Reason> {
        let mut parts = uri::Parts::default();
        parts.scheme = Some(if self.tls { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(target.cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        Uri::from_parts(parts).map_err(invalid)
    }

    /// Returns the value of `Host`. The port of the scheme is left out.
    pub(crate) fn header(&self) -> HeaderValue {
        self.header.clone()
    }
}

fn invalid(error: impl fmt::Display) -> Reason {
    Reason::Ambiguous(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_scheme_is_left_out() {
        for (destination, tls, uri, host) in [
            ("a.example", true, "https://a.example/b?c", "a.example"),
            ("a.example:80", true, "https://a.example:80/b?c", "a.example:80"),
            ("a.example", false, "http://a.example:443/b?c", "a.example:443"),
            ("a.example:80", false, "http://a.example:80/b?c", "a.example"),
            ("[2001:db8::1]:8080", false, "http://[2001:db8::1]:8080/b?c", "[2001:db8::1]:8080"),
            ("[2001:db8::1]", true, "https://[2001:db8::1]/b?c", "[2001:db8::1]"),
            ("x_y.example", true, "https://x_y.example/b?c", "x_y.example"),
        ] {
            let origin = Origin::new(destination.parse().unwrap(), tls).unwrap();
            let target = PathAndQuery::from_static("/b?c");
            assert_eq!(origin.uri(Some(&target)).unwrap().to_string(), uri);
            assert_eq!(origin.header(), host);
        }
    }
}
