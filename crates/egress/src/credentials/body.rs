//! Placeholders in the bodies of requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::encode::{json, percent};
use super::sign::hashed;
use super::{Issued, Placed, contains};
use crate::body::Body;
use crate::refusal::Reason;
use crate::room::{Gathering, Held, Kind, Room, Sent};

/// Maximum bytes of a body in which values are placed.
const BODY: usize = 256 << 10;
/// Maximum time in which a body that is read arrives.
const BODY_TIME: Duration = Duration::from_secs(120);

impl Placed {
    /// Returns true if [`completed`] has something to do.
    pub(crate) fn reads_body(&self) -> bool {
        !self.in_body.is_empty() || self.signing.is_some()
    }
}

/// Returns a body with its values, if the request may have some in it, and hashes it if the request is signed.
///
/// # Errors
/// The body cannot be read, or is too long.
pub(crate) async fn completed(
    placed: &mut Placed,
    headers: &HeaderMap,
    body: Sent,
    room: &Arc<Room>,
) -> Result<Sent, Reason> {
    let body = filled(placed, headers, body, room).await?;
    hashed(placed, body, room).await
}

async fn filled(
    placed: &mut Placed,
    headers: &HeaderMap,
    body: Sent,
    room: &Arc<Room>,
) -> Result<Sent, Reason> {
    if placed.in_body.is_empty() {
        return Ok(body);
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let form: fn(&str) -> String = match kind.as_str() {
        "application/x-www-form-urlencoded" => percent,
        kind if kind == "application/json" || kind.ends_with("+json") => json,
        _ => return Ok(body),
    };
    let long = || Reason::Ambiguous(format!("its body is longer than {BODY} bytes, so it has no credential"));
    let late = || Reason::Ambiguous("its body does not arrive in time".to_owned());
    let held = whole(body, BODY, room, late).await?.ok_or_else(long)?;
    let Ok(text) = std::str::from_utf8(&held.bytes) else { return Ok(Sent::Whole(held, None)) };
    let (mut added, mut used) = (0, Vec::new());
    for one in &placed.in_body {
        let count = text.matches(&one.placeholder).count();
        if count > 0 {
            used.push(one.name.clone());
            added += count * Zeroizing::new(form(one.value.expose())).len();
        }
    }
    if added > BODY {
        return Err(long());
    }
    placed.used.extend(used);
    let taken = room.take(Kind::Filled, text.len() + added).await?;
    let filled = fill(text, &placed.in_body, form);
    if let Some(headers) = &mut placed.headers {
        // It is counted anew.
        headers.remove(header::CONTENT_LENGTH);
    }
    // Erased with the request.
    Ok(Sent::Whole(taken.replaced(filled), None))
}

/// Returns a text with the values of these credentials in this form.
pub(super) fn fill(text: &str, credentials: &[Issued], form: fn(&str) -> String) -> Zeroizing<String> {
    let mut filled = Zeroizing::new(text.to_owned());
    for one in credentials {
        filled = Zeroizing::new(filled.replace(&one.placeholder, &Zeroizing::new(form(one.value.expose()))));
    }
    filled
}

/// Reads a body; `None` if it is longer. The time in which it waits for room does not count.
///
/// # Errors
/// The body cannot be read, or is `late`.
pub(super) async fn whole(
    body: Sent,
    most: usize,
    room: &Arc<Room>,
    late: impl FnOnce() -> Reason,
) -> Result<Option<Held>, Reason> {
    let mut body = match body {
        Sent::Whole(held, _) => return Ok(Some(held).filter(|held| held.bytes.len() <= most)),
        Sent::Stream(body) => body,
    };
    if http_body::Body::size_hint(&body).lower() > most as u64 {
        return Ok(None);
    }
    let (mut bytes, mut deadline) = (Gathering::new(room, Kind::Again), Instant::now() + BODY_TIME);
    loop {
        let Ok(frame) = timeout_at(deadline, body.frame()).await else { return Err(late()) };
        let Some(frame) = frame.transpose().map_err(|error| Reason::Ambiguous(error.to_string()))? else {
            return Ok(Some(bytes.finish()));
        };
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Ok(None);
        }
        bytes.push_before(&mut deadline, &data).await?;
    }
}

/// Reports a placeholder of the credential of this name.
pub(crate) type Report = Arc<dyn Fn(Reason) + Send + Sync>;

/// Body of a request that ends with an error where a placeholder stands that may not leave.
pub(crate) struct Guarded {
    body: Body,
    foreign: Vec<(String, String)>,
    /// End of the bytes that were passed on.
    tail: Vec<u8>,
    report: Report,
}

impl Guarded {
    /// Returns the body, guarded if there are placeholders to find.
    pub(crate) fn body(body: Body, foreign: Vec<(String, String)>, report: Report) -> Body {
        match foreign.is_empty() || http_body::Body::is_end_stream(&body) {
            true => body,
            false => Guarded { body, foreign, tail: Vec::new(), report }.boxed_unsync(),
        }
    }

    fn find(&mut self, piece: &[u8]) -> Option<&str> {
        self.tail.extend_from_slice(piece);
        let found = self.foreign.iter().position(|(placeholder, _)| contains(&self.tail, placeholder));
        let longest = self.foreign.iter().map(|(placeholder, _)| placeholder.len()).max().unwrap_or(0);
        let gone = self.tail.len().saturating_sub(longest.saturating_sub(1));
        self.tail.drain(..gone);
        found.map(|index| self.foreign[index].1.as_str())
    }
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let frame = match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => frame,
            other => return other,
        };
        let found = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => this.find(&data.clone()).map(str::to_owned),
            (_, Some(trailers)) => {
                let trailers: Vec<Bytes> =
                    trailers.values().map(|value| Bytes::copy_from_slice(value.as_bytes())).collect();
                trailers.iter().find_map(|value| this.find(value).map(str::to_owned))
            }
            _ => None,
        };
        let Some(name) = found else { return Poll::Ready(Some(Ok(frame))) };
        let reason = Reason::Credential(name, "it is not bound to this host and port".to_owned());
        let error = reason.to_string();
        (this.report)(reason);
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
