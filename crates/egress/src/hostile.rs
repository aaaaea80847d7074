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

/// Follows the heads of any requests. Their pieces are followed as the whole is.
pub fn heads(bytes: &[u8]) {
    crate::heads::any_requests(bytes);
}

/// Follows the frames of any WebSocket. Their pieces are followed and searched as the whole is.
pub fn frames(bytes: &[u8]) {
    crate::websocket::any_frames(bytes);
    crate::credentials::any_placeholders(bytes);
}

/// Reads any answer of a proxy outside. A connection is open only after a status that says so.
pub fn upstream(bytes: &[u8]) {
    if crate::way::opened(bytes).is_ok() {
        let status = bytes.strip_prefix(b"HTTP/1.1 ").or_else(|| bytes.strip_prefix(b"HTTP/1.0 "));
        // Empty lines before it are skipped.
        let status = status.or_else(|| bytes.trim_ascii_start().get(9..));
        assert_eq!(status.and_then(<[u8]>::first), Some(&b'2'), "{:?}", String::from_utf8_lossy(bytes));
    }
}

/// Reads any message as news. What is read is written in the same way.
pub fn news(bytes: &[u8]) {
    use crate::control::News;
    let Ok(news) = serde_json::from_slice::<News>(bytes) else { return };
    let again = serde_json::to_vec(&news).and_then(|bytes| serde_json::from_slice::<News>(&bytes));
    assert_eq!(again.ok(), Some(news));
}

/// Gives any line to the guard of a server of MCP, from both sides. What passes is one message that has one meaning, and an
/// answer is one line of JSON.
pub fn guarded(bytes: &[u8]) {
    crate::stdio::any_line(bytes);
}

/// Passes any body on that is compressed although no header says so.
pub fn packed(bytes: &[u8]) {
    crate::credentials::hostile::packed(bytes);
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

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("egress_heads", super::heads);
        feed("egress_frames", super::frames);
        feed("egress_upstream", super::upstream);
        feed("egress_news", super::news);
        feed("egress_guarded", super::guarded);
        feed("egress_packed", super::packed);
    }
}
