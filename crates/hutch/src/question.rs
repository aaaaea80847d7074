//! Destinations and URLs in the arguments of commands about policies.

use std::str::FromStr;

use hutch_policy::{Destination, Path};

/// A destination or a URL.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) destination: Destination,
    pub(crate) web: Option<Web>,
}

/// Parts of a URL beside its destination.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) tls: bool,
    pub(crate) websocket: bool,
    pub(crate) path: Path,
    pub(crate) query: String,
}

impl FromStr for Question {
    type Err = String;

    fn from_str(text: &str) -> Result<Question, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let destination = text.parse().map_err(|error| format!("{error}"))?;
            return Ok(Question { destination, web: None });
        };
        let (tls, websocket, port) = match scheme {
            "https" => (true, false, 443),
            "http" => (false, false, 80),
            "wss" => (true, true, 443),
            "ws" => (false, true, 80),
            _ => {
                return Err(format!(
                    "{scheme:?} is not a scheme of a URL; there are https, http, wss and ws"
                ));
            }
        };
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = if path.is_empty() { "/" } else { path };
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let destination = authority.parse().map_err(|error| format!("{error}"))?;
        let path = Path::read(path).map_err(|error| format!("{text:?}: {error}"))?;
        Ok(Question { destination, web: Some(Web { tls, websocket, path, query: query.to_owned() }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_a_destination_and_a_request() {
        for (text, destination) in [
            ("a.example", "a.example:443"),
            ("a.example:5432", "a.example:5432"),
            ("https://a.example", "a.example:443"),
            ("http://a.example/x?y=z", "a.example:80"),
            ("wss://a.example:444?q", "a.example:444"),
            ("https://[2001:db8::1]/", "[2001:db8::1]:443"),
        ] {
            assert_eq!(text.parse::<Question>().expect(text).destination.to_string(), destination);
        }
        for wrong in
            ["", "ftp://a.example", "https://", "https://a b/", "https://a.example/../x", "a.example/x"]
        {
            assert!(wrong.parse::<Question>().is_err(), "{wrong}");
        }
    }
}
