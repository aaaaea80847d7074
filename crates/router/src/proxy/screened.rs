//! Answers that are scanned before clients receive them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, IF_RANGE, RANGE, TRAILER};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hutch_kubelet::PodId;
use hutch_screen::{Found, Origin, Output, Screen, Until};
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use crate::proxy::Router;
use crate::proxy::forward;
use crate::refusal::Refusal;
use crate::{Backend, Target};

/// Bytes of an answer that arrive within [`WHOLE_TIME`] are judged before its head is sent.
const WHOLE: usize = 64 << 10;
const WHOLE_TIME: Duration = Duration::from_millis(100);
/// Time for which bytes of an answer wait for more.
const HOLD: Duration = Duration::from_millis(50);

/// Says what is scanned in the answers of Pods.
pub trait Screens: Send + Sync + 'static {
    /// Returns what is scanned of a Pod; `None` if nothing is.
    ///
    /// # Errors
    /// It is not known: the reason.
    fn of<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Option<Screen>, String>>;
    /// Returns true if nothing is scanned of any Pod.
    fn is_idle(&self) -> bool;
}

impl Router {
    /// Returns what is scanned in the answer of a Pod.
    pub(crate) async fn screen(&self, backend: &Backend, target: &Target) -> Result<Option<Screen>, Refusal> {
        let Some(screens) = self.0.config.screens.as_ref().filter(|screens| !screens.is_idle()) else {
            return Ok(None);
        };
        screens.of(&backend.pod).await.map_err(|reason| {
            tracing::warn!(sandbox = target.id, reason, "not routed");
            Refusal::Unreachable(target.id.clone())
        })
    }
}

/// Changes a request so that its answer can be scanned: as a whole and without compression.
///
/// # Errors
/// It switches protocols.
pub(crate) fn prepare(headers: &mut HeaderMap, screen: &Screen) -> Result<(), Refusal> {
    if screen.is_strict() && forward::upgrade_of(headers).is_some() {
        return Err(Refusal::NotScanned("a connection that switches protocols"));
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.remove("grpc-accept-encoding");
    headers.remove("connect-accept-encoding");
    headers.remove(RANGE);
    headers.remove(IF_RANGE);
    Ok(())
}

/// Returns an answer with what is replaced in it.
///
/// # Errors
/// What is found is refused, or the answer cannot be scanned.
pub(crate) async fn answer(
    response: Response<Body>,
    screen: Screen,
    pod: &PodId,
    port: u16,
) -> Result<Response<Body>, Refusal> {
    let (mut head, mut body) = response.into_parts();
    // The words of the status are not scanned.
    head.extensions.remove::<hyper::ext::ReasonPhrase>();
    if body.is_end_stream() {
        return Ok(Response::from_parts(head, body));
    }
    // Also of single messages.
    let declaring = [CONTENT_ENCODING.as_str(), "grpc-encoding", "connect-content-encoding"];
    let mut encoded = declaring.iter().flat_map(|name| head.headers.get_all(*name));
    if screen.is_strict() && encoded.any(|name| !name.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Refusal::NotScanned("a compressed answer"));
    }
    let frames = forward::is_grpc(&head.headers);
    let origin =
        Origin { pod: format!("{}/{}", pod.namespace, pod.name).into(), part: port.to_string().into() };
    let mut output = Output::new(screen, origin);
    if frames {
        // The length of a message stands before it.
        output.keep_length();
    }
    // The length and trailers may not hold any more.
    head.headers.remove(CONTENT_LENGTH);
    let deadline = Instant::now() + WHOLE_TIME;
    let (mut count, mut ended) = (0, false);
    let mut trailers = None;
    while count <= WHOLE && !ended {
        let Ok(frame) = timeout_at(deadline, body.frame()).await else { break };
        match frame {
            None => ended = true,
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer ended early");
                return Ok(Response::from_parts(head, Body::new(Broken::of(error))));
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    count += bytes.len();
                    output.take(&bytes);
                }
                Err(frame) if frames => trailers = Some(frame),
                Err(_) => {}
            },
        }
    }
    let refused = |found: Found| Refusal::Found(found.to_string());
    if ended {
        let bytes = output.finish().map_err(refused)?;
        let scanned = Scanned { ready: Some(bytes.into()), trailers, ..Scanned::ended(output, frames) };
        if scanned.trailers.is_none() && !head.headers.contains_key(TRAILER) {
            let length = scanned.ready.as_ref().map_or(0, Bytes::len);
            head.headers.insert(CONTENT_LENGTH, length.into());
        }
        return Ok(Response::from_parts(head, Body::new(scanned)));
    }
    let mut ready = Vec::new();
    while output.is_full() {
        ready.extend(output.pass(Until::Window).map_err(refused)?);
    }
    let scanned =
        Scanned { body: Some(body), ready: Some(ready.into()), trailers, ..Scanned::ended(output, frames) };
    Ok(Response::from_parts(head, Body::new(scanned)))
}

/// Body that ends with an error.
struct Broken(Option<axum::Error>);

impl Broken {
    fn of(error: axum::Error) -> Broken {
        Broken(Some(error))
    }
}

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Poll::Ready(self.0.take().map(Err))
    }
}

/// Body that is scanned while it is passed on.
struct Scanned {
    /// `None` after its end.
    body: Option<Body>,
    output: Output,
    ready: Option<Bytes>,
    /// Of gRPC. Others are not scanned, and do not pass.
    trailers: Option<Frame<Bytes>>,
    is_grpc: bool,
    /// Finding that ends it.
    refused: Option<Found>,
    timer: Pin<Box<Sleep>>,
    timing: bool,
}

impl Scanned {
    fn ended(output: Output, is_grpc: bool) -> Scanned {
        // What is held already waits no longer than what comes.
        let (timer, timing) = (Box::pin(sleep(HOLD)), !output.is_empty());
        Scanned { body: None, output, ready: None, trailers: None, is_grpc, refused: None, timer, timing }
    }

    fn pass(&mut self, passed: Result<Vec<u8>, Found>) {
        match passed {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => {
                self.ready = Some([self.ready.take().unwrap_or_default().as_ref(), &bytes].concat().into())
            }
            Err(found) => (self.refused, self.body) = (Some(found), None),
        }
        self.timing &= !self.output.is_empty();
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.output.is_empty() {
            self.timer.as_mut().reset(Instant::now() + HOLD);
            self.timing = true;
        }
        self.output.take(bytes);
        while self.output.is_full() && self.refused.is_none() {
            let passed = self.output.pass(Until::Window);
            self.pass(passed);
        }
    }
}

impl http_body::Body for Scanned {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.ready.take().filter(|bytes| !bytes.is_empty()) {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(found) = this.refused.take() {
                return Poll::Ready(Some(Err(axum::Error::new(found.to_string()))));
            }
            let Some(body) = &mut this.body else { return Poll::Ready(this.trailers.take().map(Ok)) };
            if this.timing && this.timer.as_mut().poll(context).is_ready() {
                this.timing = false;
                let passed = this.output.pass(Until::End);
                this.pass(passed);
                continue;
            }
            match ready!(Pin::new(body).poll_frame(context)).transpose()? {
                None => {
                    this.body = None;
                    let passed = this.output.finish();
                    this.pass(passed);
                }
                Some(frame) => match frame.into_data() {
                    Ok(bytes) => this.take(&bytes),
                    Err(trailers) => this.trailers = this.is_grpc.then_some(trailers),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Door, Level};

    use super::*;

    fn screen(action: &str) -> Screen {
        let scanner = serde_json::from_value(serde_json::json!({"downloads": action})).ok();
        let level = Level { scanner, ..Level::new(Authority::Namespace, "p", None) };
        Screen::of(&[level], Door::Downloads).expect("the door is scanned")
    }

    fn token() -> String {
        ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat()
    }

    /// Returns the head and the body of an answer, in pieces with a pause between them.
    async fn scanned(
        action: &str,
        headers: &[(&str, &str)],
        pieces: Vec<String>,
        pause: Duration,
    ) -> Result<(HeaderMap, Result<String, axum::Error>), Refusal> {
        let stream = futures::stream::unfold(pieces.into_iter(), move |mut pieces| async move {
            let piece = pieces.next()?;
            tokio::time::sleep(pause).await;
            Some((Ok::<_, std::io::Error>(piece), pieces))
        });
        let mut response = Response::new(Body::from_stream(stream));
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            response.headers_mut().insert(name, value.parse().expect("a value"));
        }
        let pod = PodId { namespace: "n".into(), name: "a".into(), uid: "u".into() };
        let (head, body) = answer(response, screen(action), &pod, 80).await?.into_parts();
        let bytes = body.collect().await.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        Ok((head.headers, bytes))
    }

    #[tokio::test(start_paused = true)]
    async fn short_answer_is_judged_before_its_head() {
        let text = format!("a {} b", token());
        let parts: Vec<String> = vec![text[..20].to_owned(), text[20..].to_owned()];
        let now = Duration::ZERO;
        let refused = scanned("Block", &[], parts.clone(), now).await.map(drop);
        let why = "the scanner finds `github-pat` in the output".to_owned();
        assert_eq!(refused, Err(Refusal::Found(why)));
        let (headers, body) =
            scanned("Redact", &[("content-length", "46")], parts.clone(), now).await.unwrap();
        assert_eq!(body.unwrap(), "a [redacted: github-pat] b");
        assert_eq!(headers[CONTENT_LENGTH], "26");
        let (_, body) = scanned("Log", &[], parts, now).await.unwrap();
        assert_eq!(body.unwrap(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn long_answer_breaks_off() {
        let filler = "a line of an answer\n".repeat(10_000);
        let pieces = || vec![filler.clone(), filler.clone(), format!("{}\n", token()), filler.clone()];
        for pause in [Duration::ZERO, WHOLE_TIME * 2] {
            let (_, body) = scanned("Block", &[], pieces(), pause).await.unwrap();
            let error = body.expect_err("it breaks off").to_string();
            assert!(error.contains("github-pat"), "{error}");
            let (headers, body) =
                scanned("Redact", &[("content-length", "1")], pieces(), pause).await.unwrap();
            let all = pieces().concat();
            assert!(body.unwrap() == all.replace(&token(), "[redacted: github-pat]"), "{pause:?}");
            assert!(!headers.contains_key(CONTENT_LENGTH));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_scanned_is_refused() {
        let zipped = [("content-encoding", "gzip")];
        let text = || vec!["x".to_owned()];
        let refused = scanned("Redact", &zipped, text(), Duration::ZERO).await.map(drop);
        assert_eq!(refused, Err(Refusal::NotScanned("a compressed answer")));
        assert!(scanned("Log", &zipped, text(), Duration::ZERO).await.is_ok());
        // A message of gRPC has a length, so nothing in it is replaced.
        let grpc = [("content-type", "application/grpc")];
        let refused = scanned("Redact", &grpc, vec![token()], Duration::ZERO).await.map(drop);
        assert!(matches!(refused, Err(Refusal::Found(_))));
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, HeaderValue::from_static("bytes=0-1"));
        prepare(&mut headers, &screen("Block")).unwrap();
        assert!(!headers.contains_key(RANGE) && headers[ACCEPT_ENCODING] == "identity");
        headers.insert(http::header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(http::header::UPGRADE, HeaderValue::from_static("websocket"));
        assert!(prepare(&mut headers, &screen("Block")).is_err());
        assert!(prepare(&mut headers, &screen("Log")).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn stream_of_events_does_not_stall() {
        let pieces = vec!["data: 1\n\n".to_owned(), "data: 2\n\n".to_owned()];
        let began = Instant::now();
        let pause = Duration::from_secs(60);
        let (_, body) = scanned("Redact", &[], pieces, pause).await.unwrap();
        assert_eq!(body.unwrap(), "data: 1\n\ndata: 2\n\n");
        assert!(began.elapsed() < pause * 2 + Duration::from_secs(1));
    }
}
