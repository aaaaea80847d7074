//! Rewrites the heads of requests and responses for the other side of the proxy.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, TE, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Uri, Version};

use crate::Access;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers of one connection, not of the request. `Trailer` is not among them: trailers are forwarded.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Returns the protocol that a request or a response switches to.
pub(crate) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asked).cloned()
}

/// Origin of a request.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Address of the client, if it has one.
    pub(crate) peer: Option<HeaderValue>,
    /// True if the request came over TLS.
    pub(crate) secure: bool,
    /// Name of the client in the audit log.
    pub(crate) caller: Arc<str>,
}

impl Origin {
    /// Returns the origin of the requests of a connection.
    pub(crate) fn of(peer: SocketAddr, secure: bool, access: &Access) -> Origin {
        let address = peer.ip().to_canonical().to_string().parse().ok();
        Origin { peer: address, secure, caller: access.caller().into() }
    }
}

/// Returns true for a gRPC call, which needs HTTP/2 to the Sandbox too.
pub(crate) fn is_grpc(head: &HeaderMap) -> bool {
    let kind = head.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    // `application/grpc-web` uses HTTP/1.1.
    kind.strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Rewrites the head of a request for the Sandbox, over HTTP/1.1 or (`h2`) HTTP/2.
pub(crate) fn request(head: &mut http::request::Parts, origin: Origin, to: SocketAddr, h2: bool) {
    let upgrade = (head.version == Version::HTTP_11).then(|| upgrade_of(&head.headers)).flatten();
    let trailers = tokens(&head.headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let host = head.headers.get(HOST).cloned().or_else(|| head.uri.authority()?.as_str().parse().ok());
    // The path and the query are forwarded byte for byte.
    let target = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    head.uri = if h2 { absolute(to, target) } else { Uri::from(target) };
    head.version = if h2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let headers = &mut head.headers;
    let ours = |name: &HeaderName| {
        [AUTHORIZATION, EXPECT, FORWARDED].contains(name) || name.as_str().starts_with("x-forwarded-")
    };
    remove(headers, |name| is_hop_by_hop(name) || ours(name));
    join_cookies(headers);
    if let Some(protocol) = upgrade.filter(|_| !h2) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol);
        // A server would compare it with its own Host, which the router sets.
        headers.remove(ORIGIN);
    } else if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    let proto = Some(HeaderValue::from_static(if origin.secure { "https" } else { "http" }));
    for (name, value) in
        [(X_FORWARDED_FOR, origin.peer), (X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, proto)]
    {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
    headers.remove(HOST);
    if !h2 && let Ok(own) = to.to_string().parse() {
        headers.insert(HOST, own);
    }
}

fn absolute(to: SocketAddr, target: PathAndQuery) -> Uri {
    let built = Uri::builder().scheme("http").authority(to.to_string()).path_and_query(target).build();
    // An address with a port is always a valid authority.
    built.unwrap_or_default()
}

/// Joins cookies into one header: HTTP/2 splits them into several, HTTP/1.1 has one.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Removes hop-by-hop headers and those that `Connection` names.
pub(crate) fn strip(headers: &mut HeaderMap) {
    remove(headers, is_hop_by_hop);
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(&name.as_str())
}

/// Removes the unwanted headers and those that `Connection` names. Most requests have few of them, so the
/// function searches the present headers.
fn remove(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    let named = tokens(headers, &CONNECTION).filter_map(|token| token.parse().ok());
    let found: Vec<HeaderName> = named.chain(headers.keys().filter(|name| unwanted(name)).cloned()).collect();
    for name in found {
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
    use proptest::prelude::*;

    fn forwarded(request: http::request::Builder) -> http::request::Parts {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        let origin = Origin { peer: Some("192.0.2.1".parse().unwrap()), secure: false, caller: "x".into() };
        super::request(&mut head, origin, "10.89.0.7:8888".parse().unwrap(), false);
        head
    }

    #[test]
    fn forwarding_keeps_the_target_and_rewrites_the_head() {
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
    fn an_upgrade_is_forwarded_without_origin() {
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
    #[test]
    fn grpc_is_detected_by_content_type() {
        let of = |value: &str| is_grpc(&HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]));
        for grpc in ["application/grpc", "application/grpc+proto", "application/grpc;x=1"] {
            assert!(of(grpc), "{grpc}");
        }
        for other in ["application/grpc-web", "application/grpc-web+proto", "application/json", ""] {
            assert!(!of(other), "{other}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn http2_requests_have_an_authority_and_one_cookie() {
        let request =
            Request::get("/a.B/C").header("host", "out").header("cookie", "a=1").header("cookie", "b=2");
        let (mut head, ()) = request.header("te", "trailers").body(()).unwrap().into_parts();
        let origin = Origin { peer: None, secure: true, caller: "x".into() };
        super::request(&mut head, origin, "[fd00::7]:9090".parse().unwrap(), true);
        assert_eq!(head.uri.to_string(), "http://[fd00::7]:9090/a.B/C");
        let shown = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(shown("host"), None);
        assert_eq!(shown("cookie").as_deref(), Some("a=1; b=2"));
        assert_eq!(shown("te").as_deref(), Some("trailers"));
        assert_eq!(shown("x-forwarded-proto").as_deref(), Some("https"));
    }

    proptest! {
        #[test]
        fn hop_by_hop_headers_are_not_forwarded(named in "[a-z-]{1,12}", more in "[ -~]{0,40}") {
            let request = Request::get("/").header("connection", format!("{named}, {more}"));
            let head = forwarded(request.header(named.as_str(), "x").header("transfer-encoding", "chunked"));
            for name in ["connection", "transfer-encoding", "authorization"] {
                prop_assert!(!head.headers.contains_key(name) || upgrade_of(&head.headers).is_some());
            }
            let ours = ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
            prop_assert!(ours.contains(&named.as_str()) || !head.headers.contains_key(named.as_str()));
        }
    }
}
