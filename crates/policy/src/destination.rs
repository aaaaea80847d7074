//! Destinations of connections, and what is decided about them.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::host::{Host, InvalidHost, shown};

/// Decision of a rule, of a level and of all levels. The greater one is stricter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Decision {
    /// The connection is made.
    #[default]
    Allow,
    /// The connection is refused.
    Deny,
}

/// Host and port that a sandbox connects to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Name or address, as the sandbox named it.
    pub host: Host,
    /// Port.
    pub port: NonZeroU16,
}

/// Reason why a text is not a destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    /// Invalid host.
    #[error(transparent)]
    Host(#[from] InvalidHost),
    /// Invalid port.
    #[error("{0:?}: the port is not a number from 1 to 65535")]
    Port(String),
}

impl FromStr for Destination {
    type Err = InvalidDestination;

    /// Parses `HOST[:PORT]`; the default port is 443. An IPv6 address with a port stands in brackets.
    fn from_str(text: &str) -> Result<Destination, InvalidDestination> {
        if text.contains('/') {
            // A URL, or a range of addresses. Its end is no port.
            return Err(InvalidHost::Characters(shown(text)).into());
        }
        let with_port = match text.rsplit_once(':') {
            // An IPv6 address without brackets has no port.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => None,
            other => other,
        };
        let (host, port) = match with_port {
            Some((host, port)) => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = digits.then(|| port.parse().ok()).flatten();
                (host, port.ok_or_else(|| InvalidDestination::Port(shown(text)))?)
            }
            None => (text, const { NonZeroU16::new(443).unwrap() }),
        };
        Ok(Destination { host: host.parse()?, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}
