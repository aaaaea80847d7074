//! The HTTP contract of Agent Sandbox's Python runtime (port 8888), answer by answer, in the form that its FastAPI
//! program gives them: clients read these bodies.

mod execute;
mod invalid;
mod transfer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::files::Root;
use crate::process::Runner;
use crate::python::unquote;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Bytes of a JSON request. The system takes command lines of two megabytes; escapes make them longer.
pub const JSON_LIMIT: usize = 8 << 20;
/// Bytes of an uploaded file, framing included. The volume's own size is the bound that is met first.
pub const UPLOAD_LIMIT: usize = 64 << 30;

/// Answers requests. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Legacy {
    files: Arc<Root>,
    runner: Arc<Runner>,
    time_limit: Duration,
}

#[derive(Serialize)]
struct Message<'a> {
    message: &'a str,
}

#[derive(Serialize)]
struct Detail<'a> {
    detail: &'a str,
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    message: &'static str,
}

impl Legacy {
    /// Serves files below `files`; commands start there and end after `time_limit` when their request names none.
    pub fn new(files: Root, time_limit: Duration) -> Legacy {
        Legacy { files: Arc::new(files), runner: Arc::new(Runner::default()), time_limit }
    }

    /// The folder below which it serves.
    pub fn folder(&self) -> &Path {
        self.files.path()
    }

    /// Answers one request. When the future is dropped, the command that it runs is killed and the file that it
    /// receives is forgotten.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let path = unquote(request.uri().path());
        let get = request.method() == Method::GET;
        let post = request.method() == Method::POST;
        match path.as_str() {
            "/" if get => {
                json(StatusCode::OK, &Health { status: "ok", message: "Sandbox Runtime is active." })
            }
            "/" => not_allowed("GET"),
            "/execute" if post => self.execute(request).await,
            "/upload" if post => self.upload(request).await,
            "/execute" | "/upload" => not_allowed("POST"),
            "/download" | "/list" | "/exists" => slash(&request),
            _ => {
                let routed = ["/download/", "/list/", "/exists/"]
                    .into_iter()
                    .find_map(|route| Some((route, path.strip_prefix(route)?)));
                match routed {
                    None => json(StatusCode::NOT_FOUND, &Detail { detail: "Not Found" }),
                    Some(_) if !get => not_allowed("GET"),
                    // The second decoding is the contract's: clients that encode twice rely on it.
                    Some(("/download/", file)) => self.download(unquote(file)).await,
                    Some(("/list/", folder)) => self.list(unquote(folder)).await,
                    Some((_, file)) => self.exists(unquote(file)).await,
                }
            }
        }
    }
}

fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    let (status, content) = match serde_json::to_vec(content) {
        Ok(content) => (status, content),
        // Only a map with keys that are no strings cannot be written, and there is none.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    };
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn message(status: StatusCode, message: &str) -> Response<Body> {
    json(status, &Message { message })
}

fn denied() -> Response<Body> {
    message(StatusCode::FORBIDDEN, "Access denied")
}

fn not_allowed(allow: &'static str) -> Response<Body> {
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &Detail { detail: "Method Not Allowed" });
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// The route exists with a slash behind it.
fn slash<B>(request: &Request<B>) -> Response<Body> {
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    let target = format!("{}/{query}", request.uri().path());
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    if let Ok(target) = HeaderValue::from_str(&target) {
        response.headers_mut().insert(LOCATION, target);
    }
    response
}
