//! Requests to one repository at one place, with the credentials that it accepts.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode, Uri};
use tokio::sync::Mutex;

use crate::challenge::{Challenge, challenges};
use crate::config::Place;
use crate::error::shorten;
use crate::http_client::{Answer, HttpClient, Query};
use crate::keychain::Credential;
use crate::limits::Attempts;
use crate::manifest::{ACCEPT, Blob, MAX_MANIFEST};
use crate::token::{Target, authorize};
use crate::{Digest, Error};

/// One repository at one place.
pub(crate) struct Session {
    http: Arc<HttpClient>,
    place: Place,
    repository: String,
    credentials: Vec<Credential>,
    login: Mutex<Login>,
}

/// State of the login, shared by all requests of the session.
#[derive(Default)]
struct Login {
    authorization: Option<HeaderValue>,
    /// Number of credentials that were tried. None counts as one.
    tried: usize,
    /// Number of changes of the header.
    changes: u64,
    /// `true` once a request succeeded with the header, so that a refusal means that the token has expired.
    proven: bool,
}

/// A document as a registry sent it.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    pub(crate) content_type: Option<String>,
    pub(crate) digest: Digest,
}

impl Session {
    pub(crate) fn new(
        http: Arc<HttpClient>,
        place: Place,
        repository: &str,
        credentials: Vec<Credential>,
    ) -> Session {
        let repository = place.repository(repository);
        Session { http, place, repository, credentials, login: Mutex::default() }
    }

    /// Host and port of the place.
    pub(crate) fn host(&self) -> &str {
        &self.place.host
    }

    /// Fetches a manifest or an index by tag or digest. Content under a digest has that digest.
    pub(crate) async fn manifest(&self, reference: &str) -> Result<Document, Error> {
        self.manifest_as(reference, ACCEPT).await
    }

    /// As [`Session::manifest`], with these types.
    pub(crate) async fn manifest_as(&self, reference: &str, accept: &'static str) -> Result<Document, Error> {
        self.repeatedly(|| self.manifest_once(reference, accept)).await
    }

    /// Fetches the index of the manifests of a type that refer to a digest.
    pub(crate) async fn referrers(&self, digest: &Digest, artifact_type: &str) -> Result<Bytes, Error> {
        // In a query, `+` would be a space.
        let filter = artifact_type.replace('+', "%2B");
        let uri = self.uri("referrers", &format!("{digest}?artifactType={filter}"))?;
        let what = format!("referrers of {digest}");
        self.repeatedly(|| self.get_all(&uri, &what, MAX_MANIFEST)).await
    }

    /// Fetches a small blob as a whole, which has its digest.
    pub(crate) async fn document(&self, blob: &Blob) -> Result<Bytes, Error> {
        let what = blob.digest.to_string();
        let uri = self.uri("blobs", &what)?;
        let size = usize::try_from(blob.size).unwrap_or(usize::MAX);
        let bytes = self.repeatedly(|| self.get_all(&uri, &what, size)).await?;
        match Digest::of(&bytes) == blob.digest {
            true => Ok(bytes),
            false => Err(Error::DigestMismatch { host: self.host().into(), what }),
        }
    }

    async fn get_all(&self, uri: &Uri, what: &str, most: usize) -> Result<Bytes, Error> {
        let query = Query { uri: uri.clone(), accept: Some(ACCEPT), ..Query::default() };
        self.get(query).await?.check(what)?.read_all(most, what, &self.http.limits).await
    }

    /// Repeats a request for a small document while that may help.
    async fn repeatedly<T, F>(&self, once: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut attempts = Attempts::new(&self.http.limits);
        loop {
            let limit = self.http.limits.document;
            let outcome = tokio::time::timeout(limit, once()).await;
            let silent = |_| Err(Error::Silent { host: self.host().into(), limit });
            match outcome.unwrap_or_else(silent) {
                Ok(document) => return Ok(document),
                Err(error) => attempts.pause_after(error).await?,
            }
        }
    }

    async fn manifest_once(&self, reference: &str, accept: &'static str) -> Result<Document, Error> {
        let what = format!("manifest {} of {}", shorten(reference), self.repository);
        let uri = self.uri("manifests", reference)?;
        let answer = self.get(Query { uri, accept: Some(accept), ..Query::default() }).await?.check(&what)?;
        let text = |name| answer.response.headers().get(name).and_then(|value| value.to_str().ok());
        let content_type = text(CONTENT_TYPE.as_str()).map(str::to_owned);
        let named = text("docker-content-digest").and_then(Digest::parse);
        let host = answer.host.clone();
        let bytes = answer.read_all(MAX_MANIFEST, "the manifest", &self.http.limits).await?;
        let digest = Digest::of(&bytes);
        let expected = Digest::parse(reference).or(named);
        if expected.is_some_and(|expected| expected != digest) {
            return Err(Error::DigestMismatch { host, what });
        }
        Ok(Document { bytes, content_type, digest })
    }

    /// Requests a blob from an offset on.
    pub(crate) async fn blob(&self, blob: &Blob, from: u64) -> Result<Answer, Error> {
        let uri = self.uri("blobs", &blob.digest.to_string())?;
        self.get(Query { uri, from, ..Query::default() }).await
    }

    /// Sends a request, and logs in when the registry requires it.
    async fn get(&self, query: Query) -> Result<Answer, Error> {
        // One more than there are credentials: a token may have expired.
        for _ in 0..self.credentials.len() + 3 {
            let (authorization, changes) = {
                let login = self.login.lock().await;
                (login.authorization.clone(), login.changes)
            };
            let answer = self.http.send(Query { authorization, ..query.clone() }).await?;
            let status = answer.response.status();
            let denied = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
            if !denied || answer.redirected {
                let mut login = self.login.lock().await;
                login.proven |= login.changes == changes && status.is_success();
                return Ok(answer);
            }
            // Where only a password was refused, registries may leave the challenge out.
            let challenges = challenges(answer.response.headers());
            drop(answer);
            self.log_in(&challenges, changes).await?;
        }
        Err(self.unauthorized("it refuses all credentials"))
    }

    /// Renews an expired token, else tries the next credential.
    async fn log_in(&self, challenges: &[Challenge], changes: u64) -> Result<(), Error> {
        let mut login = self.login.lock().await;
        if login.changes != changes {
            // Another request of the session was faster.
            return Ok(());
        }
        if login.proven {
            login.proven = false;
            login.tried = login.tried.saturating_sub(1);
        }
        let target = Target { host: &self.place.host, repository: &self.repository };
        while login.tried < self.credentials.len().max(1) {
            let credential = self.credentials.get(login.tried);
            let header = authorize(&self.http, &target, challenges, credential).await?;
            login.tried += 1;
            if let Some(header) = header {
                login.authorization = Some(header);
                login.changes += 1;
                return Ok(());
            }
        }
        Err(self.unauthorized(match self.credentials.is_empty() {
            true => "there is no such repository, or it needs credentials",
            false => "it accepts none of the credentials, or there is no such repository",
        }))
    }

    fn unauthorized(&self, reason: &str) -> Error {
        Error::Unauthorized {
            host: self.host().into(),
            repository: self.repository.clone(),
            reason: reason.into(),
        }
    }

    fn uri(&self, kind: &str, reference: &str) -> Result<Uri, Error> {
        let scheme = if self.place.plain_http { "http" } else { "https" };
        let text = format!("{scheme}://{}/v2/{}/{kind}/{reference}", self.place.host, self.repository);
        let invalid =
            |_| Error::InvalidAnswer { host: self.host().into(), reason: "has an invalid address".into() };
        text.parse().map_err(invalid)
    }
}
