//! What a request and an answer look like on the other side of the proxy.

use std::net::{IpAddr, SocketAddr};

use http::header::{
    AUTHORIZATION, CONNECTION, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Uri, Version};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that mean one connection, not the request. `Trailer` is not among them: trailers are passed on.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The protocol that a request or an answer switches to.
pub(crate) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

/// Turns the head of a request into what the sandbox is sent.
pub(crate) fn request(head: &mut http::request::Parts, peer: Option<IpAddr>, to: SocketAddr) {
    let upgrade = (head.version == Version::HTTP_11).then(|| upgrade_of(&head.headers)).flatten();
    let trailers = tokens(&head.headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let host = head.headers.get(HOST).cloned().or_else(|| head.uri.authority()?.as_str().parse().ok());
    let scheme = head.uri.scheme_str().unwrap_or("http").to_owned();
    // The path and the query as they came, byte for byte.
    let target = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    head.uri = Uri::from(target);
    head.version = Version::HTTP_11;
    let headers = &mut head.headers;
    strip(headers);
    for name in [AUTHORIZATION, EXPECT, FORWARDED] {
        headers.remove(name);
    }
    let claimed: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("x-forwarded-")).cloned().collect();
    for name in claimed {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
        // A server inside would compare it with its own Host, which is ours to set.
        headers.remove(ORIGIN);
    } else if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    let address = peer.and_then(|peer| peer.to_string().parse().ok());
    let proto = HeaderValue::from_str(&scheme).ok();
    let own = to.to_string().parse().ok();
    for (name, value) in
        [(X_FORWARDED_FOR, address), (X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, proto), (HOST, own)]
    {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

/// Removes what is meant for one connection, with what `Connection` names.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok()).collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn forwarded(request: http::request::Builder) -> http::request::Parts {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        super::request(&mut head, Some("192.0.2.1".parse().unwrap()), "10.89.0.7:8888".parse().unwrap());
        head
    }

    #[test]
    fn the_target_stays_as_it_was_and_the_head_becomes_ours() {
        let head = forwarded(
            Request::get("http://out.example//a/%2e%2e/%2F..//b?x=%20&y=/../")
                .header("host", "out.example")
                .header("authorization", "Bearer secret")
                .header("proxy-authorization", "secret")
                .header("connection", "close, X-Private")
                .header("x-private", "1")
                .header("keep-alive", "1")
                .header("te", "gzip, trailers")
                .header("transfer-encoding", "chunked")
                .header("x-forwarded-for", "203.0.113.1")
                .header("x-forwarded-prefix", "/x")
                .header("forwarded", "for=203.0.113.1")
                .header("origin", "http://o")
                .header("x-sandbox-id", "a")
                .header("cookie", "c"),
        );
        assert_eq!(head.uri.to_string(), "//a/%2e%2e/%2F..//b?x=%20&y=/../");
        let mut kept: Vec<_> =
            head.headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        kept.sort();
        assert_eq!(
            kept,
            [
                "cookie: c",
                "host: 10.89.0.7:8888",
                "origin: http://o",
                "te: trailers",
                "x-forwarded-for: 192.0.2.1",
                "x-forwarded-host: out.example",
                "x-forwarded-proto: http",
                "x-sandbox-id: a"
            ]
        );
    }

    #[test]
    fn an_upgrade_is_asked_for_again() {
        let head = forwarded(
            Request::get("/ws")
                .header("connection", "keep-alive, Upgrade")
                .header("upgrade", "websocket")
                .header("origin", "http://o"),
        );
        assert_eq!(upgrade_of(&head.headers).unwrap(), "websocket");
        assert!(!head.headers.contains_key(ORIGIN));
        assert!(upgrade_of(&forwarded(Request::get("/ws").header("upgrade", "websocket")).headers).is_none());
    }
}
