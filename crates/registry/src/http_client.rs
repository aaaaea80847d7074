//! Requests with limits on time, size and redirects.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RANGE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::Config;
use crate::error::shorten;
use crate::limits::retry_after;
use crate::proxy::Connector;
use crate::{Error, Limits, tls};

/// Maximum redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// Maximum bytes of the head of an answer.
const MAX_HEAD: usize = 64 << 10;
/// Name of this client.
const AGENT: &str = concat!("hutch/", env!("CARGO_PKG_VERSION"));

/// Makes requests.
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
    config: Config,
    pub(crate) limits: Limits,
}

/// A request.
#[derive(Debug, Default, Clone)]
pub(crate) struct Query {
    pub(crate) uri: Uri,
    pub(crate) accept: Option<&'static str>,
    /// First byte that is requested.
    pub(crate) from: u64,
    /// Marked as sensitive, so that it has no `Debug`.
    pub(crate) authorization: Option<HeaderValue>,
    /// Form that is sent with POST.
    pub(crate) form: Option<Bytes>,
}

/// Head of an answer, with its body still to be read.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    /// Host that answered in the end.
    pub(crate) host: String,
    /// `true` if the answer is not of the host to which the request was addressed.
    pub(crate) redirected: bool,
}

impl HttpClient {
    pub(crate) fn new(config: &Config, limits: Limits) -> Result<HttpClient, Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(limits.connect));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls::client(config.ca_files())?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Connector::new(tcp, config.proxy()));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits.parallel)
            .http1_max_buf_size(MAX_HEAD)
            .build(connector);
        Ok(HttpClient { client, config: config.clone(), limits })
    }

    /// Returns `true` for addresses with TLS, and for hosts that are named as serving without.
    pub(crate) fn may_reach(&self, uri: &Uri) -> bool {
        match (uri.scheme_str(), uri.authority()) {
            (Some("https"), Some(_)) => true,
            (Some("http"), Some(host)) => self.config.allows_plain_http(&host.as_str().to_ascii_lowercase()),
            _ => false,
        }
    }

    /// Sends a request and follows redirects. Another host gets no `Authorization`, and no host without TLS is followed
    /// that is not named as one.
    pub(crate) async fn send(&self, query: Query) -> Result<Answer, Error> {
        let mut query = query;
        let mut redirected = false;
        for _ in 0..=MAX_REDIRECTS {
            let host = host_of(&query.uri);
            if !self.may_reach(&query.uri) {
                return Err(Error::InvalidAnswer {
                    host,
                    reason: "is not reached without TLS; plainHttp names hosts for which it is".into(),
                });
            }
            let response = self.send_once(&query, &host).await?;
            let status = response.status();
            let follow = [301, 302, 303, 307, 308].contains(&status.as_u16()) && query.form.is_none();
            if !follow {
                return Ok(Answer { response, host, redirected });
            }
            let target = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let target = target.and_then(|to| resolve(&query.uri, to));
            let Some(target) = target.filter(|uri| self.may_reach(uri)) else {
                return Err(Error::InvalidAnswer {
                    host,
                    reason: "redirects to an address that is not followed".into(),
                });
            };
            if (target.scheme(), target.authority()) != (query.uri.scheme(), query.uri.authority()) {
                query.authorization = None;
                redirected = true;
            }
            query.uri = target;
        }
        Err(Error::InvalidAnswer {
            host: host_of(&query.uri),
            reason: format!("redirects more than {MAX_REDIRECTS} times"),
        })
    }

    async fn send_once(&self, query: &Query, host: &str) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder().uri(&query.uri).header(USER_AGENT, AGENT);
        if let Some(accept) = query.accept {
            request = request.header(ACCEPT, accept);
        }
        if query.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", query.from));
        }
        if let Some(authorization) = &query.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if query.form.is_some() {
            request = request.method(Method::POST).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        let invalid = |_| Error::InvalidAnswer { host: host.into(), reason: "has an invalid address".into() };
        let request = request.body(Full::new(query.form.clone().unwrap_or_default())).map_err(invalid)?;
        let limit = self.limits.silence;
        match tokio::time::timeout(limit, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Error::Network { host: host.into(), reason: causes(&error) }),
            Err(_) => Err(Error::Silent { host: host.into(), limit }),
        }
    }
}

impl Answer {
    /// Returns an error unless the answer brings the content.
    pub(crate) fn check(self, what: &str) -> Result<Answer, Error> {
        let status = self.response.status();
        let host = self.host.clone();
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(self),
            StatusCode::NOT_FOUND => Err(Error::NotFound { host, what: what.into() }),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(self.busy()),
            _ if status.is_server_error() => Err(self.busy()),
            _ => {
                Err(Error::InvalidAnswer { host, reason: format!("answered {} for {what}", status.as_u16()) })
            }
        }
    }

    fn busy(self) -> Error {
        let wait = self.response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|text| retry_after(text, SystemTime::now()));
        Error::Busy { host: self.host, status: self.response.status().as_u16(), wait }
    }

    /// Reads the next bytes of the body; `None` at its end.
    pub(crate) async fn next(&mut self, limits: &Limits) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(limits.silence, self.response.body_mut().frame()).await;
            let frame =
                frame.map_err(|_| Error::Silent { host: self.host.clone(), limit: limits.silence })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|e| Error::Network { host: self.host.clone(), reason: causes(&e) })?;
            // Trailers are skipped.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Reads a whole body of at most `most` bytes.
    pub(crate) async fn read_all(mut self, most: usize, what: &str, limits: &Limits) -> Result<Bytes, Error> {
        let mut bytes = BytesMut::new();
        while let Some(data) = self.next(limits).await? {
            if bytes.len() + data.len() > most {
                let what = format!("{what} of {}", self.host);
                return Err(Error::TooLarge { what, limit: format!("{most} bytes") });
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    }
}

/// Returns host and port for messages.
pub(crate) fn host_of(uri: &Uri) -> String {
    shorten(uri.authority().map_or("", |authority| authority.as_str()))
}

/// Resolves the target of a redirect: an address, or a path of the same host.
fn resolve(base: &Uri, target: &str) -> Option<Uri> {
    let uri: Uri = target.parse().ok()?;
    if uri.scheme().is_some() {
        // A user in an address would be one more way to send credentials.
        return Some(uri).filter(|uri| !uri.authority().is_some_and(|a| a.as_str().contains('@')));
    }
    if !target.starts_with('/') || target.starts_with("//") {
        return None;
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = uri.path_and_query().cloned();
    Uri::from_parts(parts).ok()
}

/// Returns the cause of a failed request: the innermost error, without the address, which may hold a signature.
fn causes(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    // rustls's word for an answer that is not TLS.
    if text.contains("InvalidContentType") {
        return "it does not answer with TLS; --plain-http, or plainHttp in images.yaml, connects without"
            .into();
    }
    shorten(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_redirects_are_addresses_or_paths() {
        let base: Uri = "https://registry.example/v2/a/blobs/x?y".parse().unwrap();
        for (target, expected) in [
            ("https://cdn.example/x?s=1", Some("https://cdn.example/x?s=1")),
            ("/other?z", Some("https://registry.example/other?z")),
            ("//cdn.example/x", None),
            ("other", None),
            ("https://user:pw@cdn.example/x", None),
            ("", None),
        ] {
            assert_eq!(resolve(&base, target).map(|uri| uri.to_string()).as_deref(), expected, "{target}");
        }
    }

    #[test]
    fn only_named_hosts_are_reached_without_tls() {
        let config = Config::parse("plainHttp: ['localhost:5000']").unwrap();
        let client = HttpClient::new(&config, Limits::default()).unwrap();
        for (uri, may) in [
            ("https://anything.example/x", true),
            ("http://localhost:5000/x", true),
            ("http://LOCALHOST:5000/x", true),
            ("http://localhost/x", false),
            ("http://user@localhost:5000/x", false),
            ("http://localhost:5000.evil.example/x", false),
            ("ftp://localhost:5000/x", false),
        ] {
            assert_eq!(client.may_reach(&uri.parse().unwrap_or_default()), may, "{uri}");
        }
    }
}
