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

/// Returns true if a path is that of a method that runs a command.
pub fn runs(path: &str) -> bool {
    matches!(path, "/process.v1.ProcessService/Execute" | "/process.v1.ProcessService/Start")
}

/// Returns the command in the body of a call of such a method; `None` if it runs nothing.
pub fn command(content_type: &str, body: &[u8]) -> Option<Vec<String>> {
    let protocol = Protocol::of(content_type)?;
    let message = match protocol.wire {
        Wire::ConnectUnary => body.to_vec().into(),
        wire => {
            let mut deframer = framing::Deframer::new(wire == Wire::GrpcWeb { text: true });
            deframer.push(body).ok()?;
            let message = deframer.next().ok()??;
            let is_only = matches!(deframer.next(), Ok(None)) && deframer.is_empty();
            is_only.then_some(message)?
        }
    };
    // `Start` has it in the same field.
    let request: messages::ExecuteRequest = call::decode(protocol.codec, &message).ok()?;
    Some(request.config?.command)
}

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

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use prost::Message;

    use super::*;

    #[test]
    fn command_of_a_call_is_read_in_every_protocol() {
        let arguments = ["sh", "-c", "ls"].map(str::to_owned).to_vec();
        let config = messages::ProcessConfig { command: arguments.clone(), ..Default::default() };
        let proto = messages::StartRequest { config: Some(config), pty: None, detach: true }.encode_to_vec();
        let json = br#"{"config": {"command": ["sh", "-c", "ls"]}}"#.to_vec();
        let framed = |message: &[u8]| framing::frame(0, message).to_vec();
        let text = STANDARD.encode(framed(&proto)).into_bytes();
        for (kind, body) in [
            ("application/grpc", framed(&proto)),
            ("application/grpc+proto; a=b", framed(&proto)),
            ("application/grpc-web", framed(&proto)),
            ("application/grpc-web-text", text.clone()),
            ("application/proto", proto.clone()),
            ("application/json", json.clone()),
            ("application/connect+proto", framed(&proto)),
            ("application/connect+json", framed(&json)),
        ] {
            assert_eq!(command(kind, &body), Some(arguments.clone()), "{kind}");
        }
        for (kind, body) in [
            ("text/plain", json),
            ("application/grpc", proto.clone()),
            ("application/grpc", text),
            ("application/grpc", framing::frame(1, &proto).to_vec()),
            ("application/grpc", [framed(&proto), framed(&proto)].concat()),
            ("application/grpc", framed(&proto)[..9].to_vec()),
            ("application/grpc", framed(b"")),
            ("application/proto", Vec::new()),
        ] {
            assert_eq!(command(kind, &body), None, "{kind}");
        }
        assert!(runs("/process.v1.ProcessService/Execute") && !runs("/process.v1.ProcessService/List"));
    }
}
