//! Hostile tests of the parsers of client input: for any bytes they neither panic nor loop.

use axum::extract::ws::Message;
use bytes::Bytes;
use jiff::Timestamp;

use crate::channel::Coding;
use crate::exec::resize::Sizes;
use crate::query::Query;

/// Parses frames and header blocks of SPDY.
pub fn spdy(bytes: &[u8]) {
    crate::spdy::hostile::frames(bytes);
}

/// Parses messages of the WebSocket protocols, and terminal sizes in them.
pub fn channels(bytes: &[u8]) {
    let mut sizes = Sizes::default();
    for coding in [Coding::Binary, Coding::Base64] {
        let messages = [
            Some(Message::Binary(Bytes::copy_from_slice(bytes))),
            std::str::from_utf8(bytes).ok().map(|text| Message::Text(text.into())),
        ];
        for (_, payload) in messages.into_iter().flatten().filter_map(|message| coding.decode(message)) {
            sizes.push(&payload);
        }
    }
}

/// Parses the query of a stream for each kind of stream.
pub fn queries(bytes: &[u8]) {
    let Ok(uri) = http::Uri::try_from([b"/?".as_slice(), bytes].concat()) else { return };
    let query = Query::of(&uri);
    let _ = query.exec().map(|request| assert!(!request.command.is_empty()));
    let _ = query.attach();
    let _ = query.logs(Timestamp::UNIX_EPOCH);
    let _ = query.ports().map(|ports| assert!(!ports.contains(&0)));
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_input_is_handled() {
        feed("remote_spdy", super::spdy);
        feed("remote_channels", super::channels);
        feed("remote_queries", super::queries);
    }
}
