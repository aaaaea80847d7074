//! Processes over gRPC (port 9090): `process.v1.ProcessService` for clients of gRPC, gRPC-Web and Connect,
//! and server reflection.
//!
//! The protocols differ in the framing of messages and the encoding of errors; a frame of five bytes before
//! each message is common to them. So the framing is here, above `hyper`, and the methods do not depend on
//! it.

mod call;
mod framing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod messages;
mod number;
mod protocol;
mod reflection;
mod reply;
mod service;
mod status;

use std::sync::Arc;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::answer::{Body, answer};
use crate::content::Content;
use crate::files::Root;
use crate::process::{Processes, Runner};
use crate::server::Door;
use crate::token::Token;
use call::Call;
use protocol::{Protocol, Wire};
use status::{Code, Status};

pub use framing::MESSAGE_LIMIT;

/// Handler of requests. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Rpc {
    root: Arc<Root>,
    processes: Processes,
    runner: Arc<Runner>,
    token: Token,
}

impl Rpc {
    /// Starts processes below `root`.
    pub fn new(root: Arc<Root>, processes: Processes, runner: Arc<Runner>, token: Token) -> Rpc {
        Rpc { root, processes, runner, token }
    }

    async fn called(&self, call: Call) -> Response<Body> {
        if !self.token.admits(&call.headers) {
            let message = "this sandbox demands its token, as \"authorization: Bearer <token>\"";
            return call.refuse(Status::new(Code::Unauthenticated, message));
        }
        let path = call.path.clone();
        let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return call.unknown();
        };
        match service {
            "process.v1.ProcessService" => service::dispatch(self, method, call).await,
            "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection"
                if method == "ServerReflectionInfo" && call.protocol.wire != Wire::ConnectUnary =>
            {
                reflection::answer(call)
            }
            _ => call.unknown(),
        }
    }
}

impl Door for Rpc {
    async fn answer(&self, request: Request<Content>) -> Response<Body> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let Some(protocol) = Protocol::of(kind) else {
            let mut refused = answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, "text/plain", "");
            let accepted = protocol::KINDS.join(", ");
            refused
                .headers_mut()
                .insert("accept-post", HeaderValue::from_str(&accepted).unwrap_or(ALLOW_POST));
            return refused;
        };
        if request.method() != Method::POST {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "");
            refused.headers_mut().insert(ALLOW, ALLOW_POST);
            return refused;
        }
        match Call::new(protocol, request) {
            Ok(call) => self.called(call).await,
            Err(status) => reply::failure(protocol, &status),
        }
    }

    fn is_use(&self, request: &Request<Content>) -> bool {
        self.token.admits(request.headers())
    }
}

const ALLOW_POST: HeaderValue = HeaderValue::from_static("POST");
