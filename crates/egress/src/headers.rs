//! Headers of requests and answers.

use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Version};
use hutch_policy::is_same_header;
use hyper::body::Incoming;

/// Headers that belong to one connection. `trailer` does not: without it, no trailers are sent on in chunks.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];
/// Headers by which a server may take a request for another one than it was decided to be.
const OVERRIDES: [&str; 6] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
];

/// Maximum bytes of a method.
const METHOD: usize = 20;

/// Headers that say where a body ends. Servers that read `_` as `-` would find another end.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// Names that a header `connection` may have.
const OF_CONNECTION: [&str; 9] = [
    "",
    "close",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Returns why a request of this method and with these headers is refused, whatever the policies decide.
pub fn never_sent(method: &Method, headers: &HeaderMap) -> Option<String> {
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Some(format!("the method {method}"));
    }
    if !is_plain(method) {
        return Some(format!("its method is not at most {METHOD} capital letters and hyphens"));
    }
    misleads(headers)
}

/// Returns true if a method can be a name, and not text that the scanner would have to read.
pub(crate) fn is_plain(method: &Method) -> bool {
    let method = method.as_str();
    method.len() <= METHOD && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// Returns why a server could take a request for another one than was decided: by its headers or trailers.
pub(crate) fn misleads(headers: &HeaderMap) -> Option<String> {
    let overrides = |name: &&HeaderName| OVERRIDES.iter().any(|known| is_same_header(name.as_str(), known));
    if let Some(name) = headers.keys().find(overrides) {
        return Some(format!("the header {name} changes its meaning"));
    }
    let framing = |name: &&HeaderName| {
        FRAMING.iter().any(|known| *known != name.as_str() && is_same_header(name.as_str(), known))
    };
    if let Some(name) = headers.keys().find(framing) {
        return Some(format!("some servers read the header {name} as the length of its body"));
    }
    // HTTP/2 can carry them, and servers of HTTP/1.1 cut them off.
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let spaced =
        |value: &HeaderValue| is_space(value.as_bytes().first()) || is_space(value.as_bytes().last());
    if let Some((name, _)) = headers.iter().find(|(_, value)| spaced(value)) {
        return Some(format!("the header {name} begins or ends with a space"));
    }
    let of_connection = |name: &str| OF_CONNECTION.contains(&name.trim().to_ascii_lowercase().as_str());
    let removes =
        |value: &HeaderValue| !value.to_str().is_ok_and(|named| named.split(',').all(of_connection));
    let removes = headers.get_all(header::CONNECTION).iter().any(removes);
    removes.then(|| "its header connection removes other headers".to_owned())
}

/// Joins the cookies of a request, which HTTP/2 may send in several headers: rules and servers of HTTP/1.1 know one.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if all.len() < 2 {
        return;
    }
    // Joined, they are as valid as each.
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(b"; ".as_slice())) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Returns true if the client wants a WebSocket.
pub(crate) fn is_websocket(request: &Request<Incoming>) -> bool {
    let value = request.headers().get(header::UPGRADE);
    request.version() == Version::HTTP_11
        && value.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Removes headers that belong to one connection, but for those of a change to a WebSocket.
pub(crate) fn keep_end_to_end(headers: &mut HeaderMap, websocket: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // Few are there, and to search for each would take longer.
    let of_connection = |name: &&HeaderName| HOP_BY_HOP.contains(name);
    let found: Vec<HeaderName> = headers.keys().filter(of_connection).cloned().collect();
    for name in named.iter().chain(&found) {
        headers.remove(name);
    }
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}

/// Returns the bytes of a head, as HTTP/1.1 sends it.
pub(crate) fn head_bytes(parts: &Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(1, |target| target.as_str().len());
    parts.method.as_str().len() + target + fields_bytes(&parts.headers)
}

/// Returns the bytes of headers or trailers, as HTTP/1.1 sends them.
pub(crate) fn fields_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
