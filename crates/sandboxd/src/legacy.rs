//! HTTP contract of Agent Sandbox's Python runtime (port 8888), with the response bodies of its FastAPI
//! program, which clients parse.

pub(crate) mod execute;
mod invalid;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ALLOW, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::answer::{Body, full, json};
use crate::content::Content;
use crate::files::Root;
use crate::process::Runner;
pub use crate::python::unquote;
use crate::server::Door;
use crate::token::Token;

/// Maximum bytes of a JSON request. The system accepts command lines of two megabytes; escapes make them
/// longer.
pub const JSON_LIMIT: usize = 8 << 20;
/// Maximum bytes of an uploaded file, framing included. The volume's own size is the smaller limit.
pub const UPLOAD_LIMIT: usize = 64 << 30;

/// Handler of requests. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Legacy {
    files: Arc<Root>,
    runner: Arc<Runner>,
    time_limit: Duration,
    token: Token,
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
    /// Serves files below `files`; commands start there and time out after `time_limit` unless their request
    /// sets a limit.
    pub fn new(files: Arc<Root>, runner: Arc<Runner>, time_limit: Duration, token: Token) -> Legacy {
        Legacy { files, runner, time_limit, token }
    }
}

impl Door for Legacy {
    /// Dropping the future kills the running command and removes the unfinished upload.
    async fn answer(&self, request: Request<Content>) -> Response<Body> {
        let path = unquote(request.uri().path());
        let get = request.method() == Method::GET;
        let post = request.method() == Method::POST;
        match path.as_str() {
            "/" if get => {
                json(StatusCode::OK, &Health { status: "ok", message: "Sandbox Runtime is active." })
            }
            "/" => not_allowed("GET"),
            _ if !self.token.admits(request.headers()) => {
                json(StatusCode::UNAUTHORIZED, &Detail { detail: "Not authenticated" })
            }
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
                    // The second decoding is part of the contract: clients that encode twice rely on it.
                    Some(("/download/", file)) => self.download(unquote(file)).await,
                    Some(("/list/", folder)) => self.list(unquote(folder)).await,
                    Some((_, file)) => self.exists(unquote(file)).await,
                }
            }
        }
    }

    fn is_use(&self, request: &Request<Content>) -> bool {
        request.uri().path() != "/" && self.token.admits(request.headers())
    }
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

/// Redirects to the route with a slash at its end.
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
