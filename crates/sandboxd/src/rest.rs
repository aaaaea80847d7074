//! Files over REST (port 8080): `/v1/files`, `/v1/health`, `/v1/metadata` as in sandboxd of Agent Sandbox,
//! and further routes: stat, move, mkdir, chmod, folders as tar, watching, listening ports.

mod archive;
mod change;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;
mod range;
mod refusal;
mod target;
mod time;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::answer::{Body, answer};
use crate::content::Content;
use crate::files::Root;
use crate::server::Door;
use crate::token::Token;
use crate::{ports, rest::refusal::Refusal};
use hutch_activity::Activity;

/// Parts of a variable's name that hide it from clients.
const WITHHELD: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];

/// Handler of requests. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Rest {
    root: Arc<Root>,
    metadata: Arc<BTreeMap<String, String>>,
    begun: Instant,
    token: Token,
    activity: Arc<Activity>,
    own_ports: Arc<[u16]>,
    archives: archive::Archives,
    watches: watch::Watches,
    stop: CancellationToken,
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    uptime_seconds: u64,
}

#[derive(Serialize)]
struct Metadata<'a> {
    env: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Ports {
    ports: Vec<ports::Listening>,
}

/// Returns the variables for clients: those with the prefix and without a name that suggests a secret.
pub fn metadata(
    prefix: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let shown = |name: &str| {
        let upper = name.to_ascii_uppercase();
        name.starts_with(prefix) && !WITHHELD.iter().any(|word| upper.contains(word))
    };
    environment.into_iter().filter(|(name, _)| shown(name)).collect()
}

impl Rest {
    /// Serves files below `root`, `metadata` and `activity`, and lists ports except `own_ports`. After `stop`
    /// it reports shutting down, and ends endless responses.
    pub fn new(
        root: Arc<Root>,
        metadata: BTreeMap<String, String>,
        token: Token,
        activity: Arc<Activity>,
        own_ports: Vec<u16>,
        stop: CancellationToken,
    ) -> Rest {
        Rest {
            root,
            metadata: Arc::new(metadata),
            begun: Instant::now(),
            token,
            activity,
            own_ports: own_ports.into(),
            archives: archive::Archives::default(),
            watches: watch::Watches::default(),
            stop,
        }
    }

    fn health(&self) -> Response<Body> {
        if self.stop.is_cancelled() {
            return Refusal::unavailable("sandboxd is shutting down").answer();
        }
        json(StatusCode::OK, &Health { status: "ok", uptime_seconds: self.begun.elapsed().as_secs() })
    }

    async fn routed(&self, request: Request<Content>) -> Result<Response<Body>, Refusal> {
        let uri = request.uri().clone();
        let (path, method) = (uri.path(), request.method().clone());
        let reads = method == Method::GET || method == Method::HEAD;
        if let Some((route, rest)) = target::route(path) {
            let place = || target::decode(rest).map(|given| (self.root.locate(&given), given));
            return match (route, &method) {
                ("files", _) if reads => {
                    let (place, given) = place()?;
                    self.get(request, place, &given).await
                }
                ("files", &Method::PUT) => self.put(request, place).await,
                ("files", &Method::DELETE) => self.delete(&uri, place()?.0).await,
                ("stat", _) if reads => self.stat(place()?).await,
                ("folders", &Method::PUT) => self.make_folder(&uri, place()?.0).await,
                ("mode", &Method::PUT) => self.set_mode(&uri, place()?.0).await,
                ("move", &Method::POST) => self.rename(&uri, place()?.0).await,
                ("archive", &Method::GET) => self.pack(place()?.0).await,
                ("archive", &Method::PUT) => self.unpack(request, place()?.0).await,
                ("watch", &Method::GET) => self.watch(&uri, place()?.0).await,
                _ => Ok(not_allowed(target::methods(route))),
            };
        }
        match path {
            "/v1/metadata" if reads => Ok(json(StatusCode::OK, &Metadata { env: &self.metadata })),
            "/v1/activity" if reads => Ok(json(StatusCode::OK, &self.activity.report())),
            "/v1/ports" if reads => {
                let own = self.own_ports.clone();
                let listed = tokio::task::spawn_blocking(move || ports::listening(&own)).await;
                let ports = listed.map_err(|error| Refusal::internal(&error.to_string()))?;
                Ok(json(
                    StatusCode::OK,
                    &Ports { ports: ports.map_err(|e| Refusal::internal(&e.to_string()))? },
                ))
            }
            "/v1/metadata" | "/v1/ports" | "/v1/activity" => Ok(not_allowed("GET, HEAD")),
            _ if target::route(&format!("{path}/")).is_some() => {
                Ok(redirect(&uri, &method, &format!("{path}/")))
            }
            _ => Ok(answer(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n")),
        }
    }
}

impl Door for Rest {
    async fn answer(&self, request: Request<Content>) -> Response<Body> {
        let head = request.method() == Method::HEAD;
        let path = request.uri().path();
        let mut answered = if let Some(cleaned) = target::cleaned(path) {
            redirect(request.uri(), request.method(), &cleaned)
        } else if path == "/v1/health" {
            match head || request.method() == Method::GET {
                true => self.health(),
                false => not_allowed("GET, HEAD"),
            }
        } else if !self.token.admits(request.headers()) {
            let mut refused = Refusal::unauthenticated().answer();
            refused.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        } else {
            self.routed(request).await.unwrap_or_else(Refusal::answer)
        };
        answered.headers_mut().entry("x-content-type-options").or_insert(HeaderValue::from_static("nosniff"));
        answered
    }

    fn is_use(&self, request: &Request<Content>) -> bool {
        let asked = ["/v1/health", "/v1/activity"].contains(&request.uri().path());
        !asked && self.token.admits(request.headers())
    }
}

/// Adds a line end, as in the upstream contract.
fn json(status: StatusCode, content: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(content) {
        Ok(mut content) => {
            content.push(b'\n');
            answer(status, "application/json", content)
        }
        Err(error) => Refusal::internal(&error.to_string()).answer(),
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = answer(status, "", "");
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

fn not_allowed(allow: &'static str) -> Response<Body> {
    let kind = "text/plain; charset=utf-8";
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, kind, "Method Not Allowed\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

fn redirect(uri: &hyper::Uri, method: &Method, path: &str) -> Response<Body> {
    let status = match *method {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::TEMPORARY_REDIRECT,
    };
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let mut response = empty(status);
    if let Ok(to) = HeaderValue::from_str(&format!("{path}{query}")) {
        response.headers_mut().insert(LOCATION, to);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_named_like_secrets_are_hidden() {
        let environment =
            ["SANDBOX_ID", "SANDBOX_API_KEY", "SANDBOX_token", "SANDBOX_cert_dir", "HOME", "sandbox_x"];
        let shown = metadata("SANDBOX_", environment.map(|name| (name.to_owned(), "v".to_owned())));
        assert_eq!(shown.into_keys().collect::<Vec<_>>(), ["SANDBOX_ID"]);
    }
}
