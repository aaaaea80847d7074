//! The way between a client and the API server, where requests and answers get lost, late or refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::BoxError;

use crate::dice::Dice;
use crate::stage::{Delete, Fault, Stage};

/// Requests until death of a client that does not die.
const NEVER: i64 = i64::MAX;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// One client's way. Clones share it.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Inner>);

struct Inner {
    name: String,
    server: Client,
    stage: Arc<Stage>,
    dice: Dice,
    /// Set when faults hit it.
    exposed: bool,
    dead: AtomicBool,
    writes_to_live: AtomicI64,
}

/// Fate of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Done,
    /// Never reaches the server.
    Broken,
    /// The server refuses it.
    Refused(StatusCode),
    /// Done, but the client does not hear of it.
    Lost,
    /// The client dies before it is sent.
    DiesBefore,
    /// Done, and the client dies before it hears of it.
    DiesAfter,
}

impl Wire {
    pub(crate) fn new(name: &str, server: Client, stage: &Arc<Stage>, dice: Dice, exposed: bool) -> Self {
        let (dead, writes_to_live) = (AtomicBool::new(false), AtomicI64::new(NEVER));
        let (name, stage) = (name.to_owned(), stage.clone());
        Wire(Arc::new(Inner { name, server, stage, dice, exposed, dead, writes_to_live }))
    }

    pub(crate) fn client(&self) -> Client {
        let wire = self.clone();
        let service = tower::service_fn(move |request| wire.clone().request(request));
        Client::new(service, "default")
    }

    /// Cuts off the client in both directions, as if it had been killed.
    pub(crate) fn kill(&self) {
        self.0.dead.store(true, Ordering::SeqCst);
    }

    /// It dies at its so manieth write.
    pub(crate) fn kill_at(&self, write: i64) {
        self.0.writes_to_live.store(write, Ordering::SeqCst);
    }

    pub(crate) fn spare(&self) {
        self.kill_at(NEVER);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }

    fn trouble(&self) -> bool {
        self.0.exposed && self.0.stage.is_storm()
    }

    /// Delays a request or response. A response to a killed client never arrives.
    async fn travel(&self) {
        let dice = &self.0.dice;
        if let Some(Fault::Slow(time)) = self.fault() {
            self.0.stage.hit();
            sleep(time).await;
        }
        if self.trouble() {
            let slow = dice.chance(30);
            sleep(dice.ms(if slow { 100..2500 } else { 1..15 })).await;
        } else if self.0.exposed {
            sleep(Duration::from_millis(1)).await;
        }
        if self.is_dead() {
            futures::future::pending::<()>().await;
        }
    }

    fn fault(&self) -> Option<Fault> {
        self.0.stage.fault().filter(|_| self.0.exposed)
    }

    /// Returns the fate of a request under the active fault.
    fn befallen(&self, changes: bool) -> Option<Fate> {
        let fate = match self.fault()? {
            Fault::Gone => Fate::Broken,
            Fault::Conflicts if changes => Fate::Refused(StatusCode::CONFLICT),
            Fault::Busy => Fate::Refused(StatusCode::TOO_MANY_REQUESTS),
            Fault::Conflicts | Fault::Slow(_) | Fault::TooOld => return None,
        };
        self.0.stage.hit();
        Some(fate)
    }

    fn fate(&self, method: &Method) -> Fate {
        let writes = *method != Method::GET;
        if writes && self.0.writes_to_live.fetch_sub(1, Ordering::SeqCst) == 1 {
            return if self.0.dice.chance(500) { Fate::DiesBefore } else { Fate::DiesAfter };
        }
        let changes = *method == Method::PATCH || *method == Method::PUT;
        if let Some(fate) = self.befallen(changes) {
            return fate;
        }
        if !self.trouble() {
            return Fate::Done;
        }
        if self.0.stage.is_outage() {
            return Fate::Broken;
        }
        match self.0.dice.below(1000) {
            0..30 => Fate::Broken,
            30..60 if writes => Fate::Lost,
            60..80 => Fate::Refused(StatusCode::TOO_MANY_REQUESTS),
            80..95 => Fate::Refused(StatusCode::INTERNAL_SERVER_ERROR),
            95..160 if changes => Fate::Refused(StatusCode::CONFLICT),
            _ => Fate::Done,
        }
    }

    async fn request(self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (method, path) = (request.method().clone(), request.uri().to_string());
        let watches = path.contains("watch=true");
        let fate = self.fate(&method);
        self.travel().await;
        match fate {
            Fate::Broken => return Err("the connection broke".into()),
            Fate::Refused(status) => return Ok(refusal(status)),
            Fate::DiesBefore => {
                self.die().await;
            }
            _ => {}
        }
        let (parts, body) = request.into_parts();
        let sent = body.collect().await?.to_bytes();
        let request = Request::from_parts(parts, Body::from(sent.clone()));
        let answer = self.0.server.send(request).await?;
        let (parts, body) = answer.into_parts();
        if watches {
            self.0.stage.note(&format!("{} watches {path} {}", self.0.name, parts.status));
            return Ok(Response::from_parts(parts, self.watched(body)));
        }
        let received = body.collect().await?.to_bytes();
        self.note(&method, &path, parts.status, &sent, &received, fate);
        if fate == Fate::DiesAfter {
            self.die().await;
        }
        self.travel().await;
        if fate == Fate::Lost {
            return Err("the answer was lost".into());
        }
        Ok(Response::from_parts(parts, Full::new(received).map_err(|never| match never {}).boxed_unsync()))
    }

    /// Unless it was spared meanwhile.
    async fn die(&self) {
        if self.0.writes_to_live.load(Ordering::SeqCst) > NEVER / 2 {
            return;
        }
        self.0.stage.note(&format!("{} dies", self.0.name));
        self.kill();
        futures::future::pending::<()>().await;
    }

    fn note(
        &self,
        method: &Method,
        path: &str,
        status: StatusCode,
        sent: &[u8],
        received: &[u8],
        fate: Fate,
    ) {
        let stage = &self.0.stage;
        if *method == Method::GET {
            return;
        }
        let answer: Value = serde_json::from_slice(received).unwrap_or_default();
        let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or("-");
        let sent: Value = serde_json::from_slice(sent).unwrap_or_default();
        let fate = if fate == Fate::Done { String::new() } else { format!(" {fate:?}") };
        let ended = if status.is_success() { version } else { answer["message"].as_str().unwrap_or("") };
        stage.note(&format!("{} {method} {path} {} {ended}{fate} {sent}", self.0.name, status.as_u16()));
        if !status.is_success() {
            return;
        }
        // Events are reports of writes and need not come to rest.
        if !path.contains("/events") {
            stage.wrote();
        }
        if *method == Method::DELETE && self.0.exposed {
            let uid = sent["preconditions"]["uid"].as_str().map(str::to_owned);
            let path = path.split('?').next().unwrap_or_default().to_owned();
            stage.deleted(Delete { path, uid });
        }
    }

    /// Delays a watch's events, and ends the watch early or as too old. It is polled at times of its own: a shared wake-up
    /// would have no certain order.
    fn watched(&self, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let dice = Dice::new(self.0.dice.number(), "watch");
        let start = (self.clone(), dice, Some(body));
        let pieces = futures::stream::unfold(start, |(wire, dice, body)| async move {
            let mut body = body?;
            loop {
                let trouble = wire.trouble();
                let late = trouble && dice.chance(20);
                sleep(dice.ms(match (trouble, late) {
                    (true, true) => 200..6000,
                    (true, false) => 1..50,
                    (false, _) if wire.0.stage.is_storm() => 1..30,
                    (false, _) => 100..900,
                }))
                .await;
                if wire.is_dead() {
                    futures::future::pending::<()>().await;
                }
                if trouble && (wire.0.stage.is_outage() || dice.chance(2)) {
                    return None;
                }
                if wire.fault() == Some(Fault::Gone) {
                    wire.0.stage.hit();
                    return None;
                }
                if wire.fault() == Some(Fault::TooOld) {
                    wire.0.stage.hit();
                    return Some((Ok(Frame::data(too_old())), (wire, dice, None)));
                }
                if trouble && dice.chance(2) {
                    return Some((Ok(Frame::data(too_old())), (wire, dice, None)));
                }
                if let Some(piece) = body.frame().now_or_never() {
                    let piece = piece?.map_err(BoxError::from);
                    return Some((piece, (wire, dice, Some(body))));
                }
            }
        });
        BodyExt::boxed_unsync(StreamBody::new(pieces))
    }
}

fn status(code: StatusCode) -> Value {
    let reason = match code {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::GONE => "Expired",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": "refused by the simulation", "code": code.as_u16()})
}

fn refusal(code: StatusCode) -> Answer {
    let body = Full::new(Bytes::from(status(code).to_string())).map_err(|never| match never {});
    let response = Response::builder().status(code).header("content-type", "application/json");
    let response =
        if code == StatusCode::TOO_MANY_REQUESTS { response.header("retry-after", "1") } else { response };
    response.body(body.boxed_unsync()).unwrap()
}

fn too_old() -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": status(StatusCode::GONE)})))
}
