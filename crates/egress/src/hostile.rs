//! Hostile tests of the parsers, from arbitrary bytes.

use crate::first::classify;

/// Answers any DNS message. See [`crate::dns::any_message`].
pub fn dns(bytes: &[u8]) {
    crate::dns::any_message(bytes);
}

/// Classifies any first bytes. What a prefix is stays what it is when more bytes follow, unless it is incomplete.
pub fn first(bytes: &[u8]) {
    let whole = classify(bytes);
    if let Some(half) = bytes.get(..bytes.len() / 2) {
        let half = classify(half);
        assert!(half == crate::first::First::Incomplete || half == whole, "{half:?} became {whole:?}");
    }
}

/// Reads any first bytes of a client of a proxy, and any request of SOCKS. What is complete does not change when more bytes
/// follow.
pub fn explicit(bytes: &[u8]) {
    use crate::explicit::{Opening, Socks, opening, socks};
    let (whole, request) = (opening(bytes), socks(bytes));
    if let Opening::Connect(_, length) | Opening::SocksMethods(length) = &whole {
        assert!(*length <= bytes.len());
    }
    let half = &bytes[..bytes.len() / 2];
    let found = opening(half);
    assert!(found == Opening::Incomplete || found == whole, "{found:?} became {whole:?}");
    let found = socks(half);
    assert!(found == Socks::Incomplete || found == request, "{found:?} became {request:?}");
}

/// Reads the token of any head, and any password of SOCKS. One that is complete does not change when more bytes follow.
pub fn gateway(bytes: &[u8]) {
    use crate::gateway::{Password, password, token};
    let _ = token(bytes);
    let whole = password(bytes);
    if let Password::Token(_, length) = &whole {
        assert!(*length <= bytes.len());
    }
    let found = password(&bytes[..bytes.len() / 2]);
    assert!(found == Password::Incomplete || found == whole, "{found:?} became {whole:?}");
}

/// Redacts any answer. See [`crate::credentials`].
pub fn redaction(bytes: &[u8]) {
    crate::credentials::hostile::redaction(bytes);
}

/// Puts values into any body of a request.
pub fn placing(bytes: &[u8]) {
    crate::credentials::hostile::placing(bytes);
}

/// Reads the header of any request that is signed for AWS.
pub fn signature(bytes: &[u8]) {
    crate::credentials::hostile::signature(bytes);
}
