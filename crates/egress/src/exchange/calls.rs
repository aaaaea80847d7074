//! Calls in the body of a request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hutch_policy::is_same_header;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::refusal::Reason;
use crate::room::{Gathering, Held, Kind, Room};
use crate::values::memory;
use crate::wide;

/// Maximum bytes of a body whose calls are read, and the time for them.
const CALLS: usize = 1 << 20;
const CALLS_TIME: Duration = Duration::from_secs(30);
/// Maximum memory for the values of such a body, in bytes.
const VALUES: usize = 8 << 20;
/// Maximum bytes of the id of a call.
const ID: usize = 256;
const NOT_UTF8: &str = "its body is not UTF-8";

/// Reads a body whose calls are judged.
pub(super) async fn read_calls(parts: &Parts, body: Incoming, room: &Arc<Room>) -> Result<Held, Reason> {
    let refused = |why: &str| Err(Reason::Ambiguous(why.to_owned()));
    let named = |name: HeaderName| {
        let same = move |found: &HeaderName| is_same_header(found.as_str(), name.as_str());
        parts.headers.iter().filter(move |(found, _)| same(found)).map(|(_, value)| value)
    };
    if named(header::CONTENT_ENCODING).next().is_some() {
        return refused("its body is encoded, so its calls cannot be read");
    }
    let mut kinds = named(header::CONTENT_TYPE);
    let utf8 = |kind: &HeaderValue| {
        let parameters = kind.to_str().ok()?.split(';').skip(1).map(|parameter| parameter.split_once('='));
        let charset = |(name, value): (&str, &str)| {
            !name.trim().eq_ignore_ascii_case("charset")
                || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        };
        parameters.flatten().all(charset).then_some(())
    };
    if kinds.next().is_some_and(|kind| utf8(kind).is_none()) || kinds.next().is_some() {
        return refused(NOT_UTF8);
    }
    let held = whole(Limited::new(body, CALLS), room).await?;
    // Without these rules it would not be a message, and some servers would read it as one.
    if wide::is_json(&held.bytes) {
        return refused(NOT_UTF8);
    }
    if memory(&held.bytes) > VALUES {
        return refused("its body has more values of JSON than are read");
    }
    Ok(held)
}

/// Reads a body into one piece of memory: kept as they arrive, pieces of one byte would take 32 each. The time in which it
/// waits for room does not count.
async fn whole<B>(mut body: B, room: &Arc<Room>) -> Result<Held, Reason>
where
    B: Body<Data = Bytes, Error: fmt::Display> + Unpin,
{
    let (mut bytes, mut deadline) = (Gathering::new(room, Kind::Request), Instant::now() + CALLS_TIME);
    loop {
        let frame = timeout_at(deadline, body.frame()).await;
        let late = |_| Reason::Ambiguous("its body does not arrive in time".to_owned());
        let failed = |error| {
            let why = format!("its body cannot be read, or has more than {CALLS} bytes: {error}");
            Reason::Ambiguous(why)
        };
        let frame = frame.map_err(late)?.transpose().map_err(failed)?;
        let Some(frame) = frame else { return Ok(bytes.finish()) };
        if let Ok(data) = frame.into_data() {
            bytes.push_before(&mut deadline, &data).await?;
        }
    }
}

/// Reads at most so many bytes of a body, of which nothing is kept.
pub(super) async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B, most: usize) {
    let mut read = 0;
    while read < most {
        let Some(Ok(frame)) = body.frame().await else { return };
        read += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Returns the id of a single call, if its text is at most 256 bytes long: it is kept until the answer.
pub(super) fn id_of(body: &[u8]) -> Option<serde_json::Value> {
    /// Nothing else of a message is kept.
    #[derive(Deserialize)]
    struct Message {
        id: Option<serde_json::Value>,
    }
    let Message { id } = serde_json::from_slice(body).ok()?;
    id.filter(|id| id.is_number() || id.as_str().is_some_and(|id| id.len() <= ID))
}
