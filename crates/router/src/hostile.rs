//! Hostile tests of the parsers of request heads: for any bytes they neither panic nor loop.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version};

use crate::admit::access::credential;
use crate::proxy::forward::{self, Origin};
use crate::{Target, TokenKey};

fn headers(bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Parses routing headers and credentials from lines of `name: value`. An unsigned token is never valid.
pub fn heads(bytes: &[u8]) {
    let headers = headers(bytes);
    for loopback in [false, true] {
        if let Ok(target) = Target::read(&headers, loopback) {
            assert!(target.port > 0 && !target.id.contains(['/', '.', ':']), "{target:?}");
            assert!(target.pod_ip.is_none_or(|ip| loopback || !ip.is_loopback()), "{target:?}");
        }
    }
    let key = TokenKey::new(b"signing key that no input contains").expect("a key");
    for secret in credential::shown(&headers) {
        assert_eq!(key.verify(&secret, 0), None);
    }
}

/// Rewrites a target and lines of headers for the Sandbox: the path and the query stay byte for byte, the
/// host is the address of the Pod, and credentials and hop-by-hop headers are removed.
pub fn requests(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let Ok(target) = Uri::try_from(&bytes[..end]) else { return };
    let asked = headers(&bytes[end..]);
    let pod = SocketAddr::from(([10, 89, 0, 7], 8888));
    for (version, h2) in [(Version::HTTP_11, false), (Version::HTTP_11, true), (Version::HTTP_2, false)] {
        let (mut head, ()) = Request::new(()).into_parts();
        (head.uri, head.version, head.headers) = (target.clone(), version, asked.clone());
        forward::request(&mut head, Origin { peer: None, secure: false, caller: "x".into() }, pod, h2);
        let text = |uri: &Uri| uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        assert_eq!(text(&head.uri), text(&target));
        assert_eq!(head.uri.authority().is_some(), h2, "{target}");
        let host = head.headers.get(HOST).map(HeaderValue::as_bytes);
        assert_eq!(host, (!h2).then_some(&b"10.89.0.7:8888"[..]), "{target}");
        let ours = [&AUTHORIZATION, &TRANSFER_ENCODING, &HeaderName::from_static("keep-alive")];
        assert!(ours.iter().all(|name| !head.headers.contains_key(*name)), "{:?}", head.headers);
        let switched = head.headers.contains_key(UPGRADE);
        assert!(!switched || !h2 && version == Version::HTTP_11, "{:?}", head.headers);
        assert_eq!(switched, head.headers.contains_key(CONNECTION), "{:?}", head.headers);
        assert!(head.headers.get(TE).is_none_or(|value| value == "trailers"), "{:?}", head.headers);
    }
}

/// Verifies a signed payload: it yields claims with a name and an expiry, or is invalid. A token minted from
/// the claims yields the same claims. The payload is invalid under another key.
pub fn tokens(bytes: &[u8]) {
    let key = TokenKey::new(b"signing key of the hostile test!").expect("a key");
    let other = TokenKey::new(b"another key of the hostile test!!").expect("a key");
    let token = key.signed(&URL_SAFE_NO_PAD.encode(bytes));
    assert_eq!(other.verify(&token, 0), None);
    let Some(claims) = key.verify(&token, 0) else { return };
    assert_eq!(key.verify(&token, claims.exp), None, "{claims:?}");
    if let Ok(minted) = key.mint(&claims) {
        assert!(minted.len() > 4096 || key.verify(&minted, 0) == Some(claims));
    }
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_input_is_handled() {
        feed("router_heads", super::heads);
        feed("router_requests", super::requests);
        feed("router_tokens", super::tokens);
    }
}
