//! Exchanges credentials for a token of one repository, as the distribution specification has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};
use serde::Deserialize;

use crate::Error;
use crate::challenge::Challenge;
use crate::error::shorten;
use crate::http_client::{HttpClient, Query, host_of};
use crate::keychain::Credential;
use crate::secret::Secret;

/// Maximum bytes of an answer with a token.
const MAX_ANSWER: usize = 64 << 10;
/// Name of this client for identity tokens.
const CLIENT: &str = "hutch";

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// A registry's repository, for which a token is wanted.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// Host and port of the registry.
    pub(crate) host: &'a str,
    pub(crate) repository: &'a str,
}

/// Returns the header `Authorization` for a challenge; `None` when the credential does not fit it or is refused.
pub(crate) async fn authorize(
    http: &HttpClient,
    target: &Target<'_>,
    challenges: &[Challenge],
    credential: Option<&Credential>,
) -> Result<Option<HeaderValue>, Error> {
    if let Some(Credential::Bearer(token)) = credential {
        return header(target, "Bearer ", token).map(Some);
    }
    for challenge in challenges {
        match (challenge, credential) {
            (Challenge::Bearer { realm, service }, _) => {
                return exchange(http, target, realm, service.as_deref(), credential).await;
            }
            (Challenge::Basic, Some(Credential::Basic { user, password })) => {
                return header(target, "Basic ", &basic(user, password)).map(Some);
            }
            (Challenge::Basic, _) => {}
        }
    }
    Ok(None)
}

/// Requests a token from the realm.
async fn exchange(
    http: &HttpClient,
    target: &Target<'_>,
    realm: &str,
    service: Option<&str>,
    credential: Option<&Credential>,
) -> Result<Option<HeaderValue>, Error> {
    let invalid = |reason: String| Error::InvalidAnswer { host: target.host.into(), reason };
    let uri: Uri = realm.parse().map_err(|_| invalid("names an invalid realm for tokens".into()))?;
    // Without TLS, credentials go only where the same host would get them anyway.
    let plain = uri.scheme_str() == Some("http");
    let same = uri.authority().is_some_and(|a| a.as_str().eq_ignore_ascii_case(target.host));
    if !http.may_reach(&uri) || (plain && !same) {
        return Err(invalid(format!("names the realm {:?} for tokens, which has no TLS", shorten(realm))));
    }
    let mut parameters = vec![("scope", format!("repository:{}:pull", target.repository))];
    parameters.extend(service.map(|service| ("service", service.to_owned())));
    let mut query = Query { uri: uri.clone(), ..Query::default() };
    match credential {
        Some(Credential::Identity(token)) => {
            parameters.push(("grant_type", "refresh_token".into()));
            parameters.push(("client_id", CLIENT.into()));
            let form =
                Secret::new(format!("{}&refresh_token={}", encode(&parameters), escape(token.expose())));
            query.form = Some(Bytes::copy_from_slice(form.expose().as_bytes()));
        }
        other => {
            let separator = if uri.query().is_some() { '&' } else { '?' };
            let text =
                format!("{}{separator}{}", realm.split('#').next().unwrap_or_default(), encode(&parameters));
            query.uri = text.parse().map_err(|_| invalid("names an invalid realm for tokens".into()))?;
            if let Some(Credential::Basic { user, password }) = other {
                query.authorization = Some(header(target, "Basic ", &basic(user, password))?);
            }
        }
    }
    let host = host_of(&uri);
    let answer = http.send(query).await?;
    let refused = [StatusCode::BAD_REQUEST, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    if refused.contains(&answer.response.status()) {
        return Ok(None);
    }
    let body = answer.check("a token")?.read_all(MAX_ANSWER, "a token", &http.limits).await?;
    // The parser's own message may repeat content.
    let answer: Answer = serde_json::from_slice(&body)
        .map_err(|_| Error::InvalidAnswer { host: host.clone(), reason: "its answer has no token".into() })?;
    let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if token.is_empty() {
        return Err(Error::InvalidAnswer { host, reason: "its answer has no token".into() });
    }
    header(target, "Bearer ", &Secret::new(token)).map(Some)
}

fn basic(user: &str, password: &Secret) -> Secret {
    let pair = Secret::new(format!("{user}:{}", password.expose()));
    Secret::new(STANDARD.encode(pair.expose()))
}

/// Makes a header that `Debug` does not show.
fn header(target: &Target<'_>, scheme: &str, secret: &Secret) -> Result<HeaderValue, Error> {
    let text = Secret::new(format!("{scheme}{}", secret.expose()));
    let mut value = HeaderValue::from_str(text.expose()).map_err(|_| Error::Credentials {
        origin: target.host.into(),
        reason: "the token has characters that no header may have".into(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn encode(parameters: &[(&str, String)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", escape(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Escapes all that has a meaning in a query or a form.
fn escape(text: &str) -> String {
    let byte = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_cannot_add_parameters() {
        let text = encode(&[("service", "a&scope=b c".to_owned())]);
        assert_eq!(text, "service=a%26scope%3Db%20c");
    }

    #[test]
    fn header_is_not_shown() {
        let target = Target { host: "h", repository: "r" };
        let value = header(&target, "Bearer ", &Secret::new("hunter2".into())).unwrap();
        assert!(!format!("{value:?}").contains("hunter2"));
        assert!(header(&target, "Bearer ", &Secret::new("a\r\nX: y".into())).is_err());
    }
}
