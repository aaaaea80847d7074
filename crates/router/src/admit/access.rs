//! Access rules of a listener.

pub(crate) mod credential;
mod review;
pub(crate) mod scoped;
mod shared;

use std::sync::Arc;

use http::HeaderMap;

pub use review::{ReviewConfig, Reviewer};
pub use scoped::{Claims, TokenKey};
pub use shared::Token;

use crate::Target;
use crate::refusal::Refusal;

/// Access rule of a listener.
#[derive(Debug, Clone)]
pub enum Access {
    /// Admits requests that carry this shared secret.
    Token(Token),
    /// Admits requests whose token is signed with this key, for the Sandbox that the token names.
    Scoped(Arc<TokenKey>),
    /// Admits requests whose token the Kubernetes API accepts, for any Sandbox.
    Reviewed(Arc<Reviewer>),
    /// Admits every request: it was authorized before, as for a stream that the API server forwards.
    Authorized,
    /// Admits every request for a Sandbox of this namespace: who connects has rights in that namespace.
    Namespace(String),
    /// Admits every request. Only by explicit configuration, never a default.
    Anyone,
}

/// Sandboxes that a request may reach.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Everything,
    Namespace(String),
    One(Claims),
}

impl Access {
    /// Returns the name of a client that was admitted, for the audit log.
    pub(crate) fn caller(&self) -> &'static str {
        match self {
            Access::Token(_) => "router-token",
            Access::Scoped(_) => "sandbox-token",
            Access::Reviewed(_) => "reviewed-token",
            Access::Authorized | Access::Namespace(_) => "port-forward",
            Access::Anyone => "anyone",
        }
    }

    /// Returns what a request with these headers may reach. `now` is in seconds since 1970.
    pub(crate) async fn admit(&self, headers: &HeaderMap, now: u64) -> Result<Grant, Refusal> {
        match self {
            Access::Authorized | Access::Anyone => return Ok(Grant::Everything),
            Access::Namespace(namespace) => return Ok(Grant::Namespace(namespace.clone())),
            Access::Token(_) | Access::Scoped(_) | Access::Reviewed(_) => {}
        }
        for shown in credential::shown(headers) {
            match self {
                Access::Token(token) if token.is(shown.as_bytes()) => return Ok(Grant::Everything),
                Access::Scoped(key) => {
                    if let Some(claims) = key.verify(&shown, now) {
                        return Ok(Grant::One(claims));
                    }
                }
                Access::Reviewed(reviewer) if reviewer.accepts(&shown).await? => {
                    return Ok(Grant::Everything);
                }
                _ => {}
            }
        }
        Err(Refusal::Unauthenticated)
    }
}

impl Grant {
    /// Fails if the grant does not cover the named Sandbox.
    pub(crate) fn covers(&self, target: &Target) -> Result<(), Refusal> {
        match self {
            Grant::One(claims) if claims.ns != target.namespace || claims.name != target.id => {
                Err(Refusal::Forbidden)
            }
            Grant::Namespace(namespace) if *namespace != target.namespace => Err(Refusal::Forbidden),
            Grant::Everything | Grant::Namespace(_) | Grant::One(_) => Ok(()),
        }
    }

    /// Fails if the grant is for another Sandbox of the same name.
    pub(crate) fn covers_life(&self, sandbox_uid: &str) -> Result<(), Refusal> {
        match self {
            Grant::One(Claims { uid: Some(uid), .. }) if uid != sandbox_uid => Err(Refusal::Forbidden),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use http::header::AUTHORIZATION;

    const SECRET: &str = "0123456789abcdef";

    async fn admits(access: &Access, values: &[&str]) -> Result<Grant, Refusal> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        access.admit(&headers, 1000).await
    }

    #[tokio::test]
    async fn access_by_token_admits_only_that_token() {
        let access = Access::Token(Token::new(SECRET).unwrap());
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let right = format!("Bearer {SECRET}");
        for good in [
            &right,
            &format!("bearer  {SECRET} "),
            &basic(&format!("x:{SECRET}")),
            &basic(&format!("{SECRET}:")),
            &basic(&format!("{SECRET}:x")),
        ] {
            assert_eq!(admits(&access, &[good]).await, Ok(Grant::Everything), "{good:?}");
        }
        for wrong in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &[SECRET],
            &["Basic 0123456789abcdef"],
            &["Basic %%%"],
            &[&right, &right],
            &[&right[..right.len() - 1]],
        ] {
            assert_eq!(admits(&access, wrong).await, Err(Refusal::Unauthenticated), "{wrong:?}");
        }
        for open in [Access::Anyone, Access::Authorized] {
            assert_eq!(admits(&open, &[]).await, Ok(Grant::Everything));
        }
    }

    fn target(namespace: &str, id: &str) -> Target {
        Target { namespace: namespace.into(), id: id.into(), port: 1, pod_ip: None, uid: None, timeout: None }
    }

    #[tokio::test]
    async fn access_to_a_namespace_covers_only_its_sandboxes() {
        let grant = admits(&Access::Namespace("n".into()), &[]).await.unwrap();
        assert_eq!(grant.covers(&target("n", "a")), Ok(()));
        assert_eq!(grant.covers(&target("default", "a")), Err(Refusal::Forbidden));
    }

    #[tokio::test]
    async fn a_scoped_token_covers_only_its_sandbox() {
        let key = TokenKey::new(&[b'k'; 32]).unwrap();
        let claims = Claims { ns: "n".into(), name: "a".into(), exp: 1001, uid: Some("u".into()) };
        let token = format!("Bearer {}", key.mint(&claims).unwrap());
        let access = Access::Scoped(Arc::new(key));
        let grant = admits(&access, &[&token]).await.unwrap();
        assert_eq!(grant.covers(&target("n", "a")), Ok(()));
        assert_eq!(grant.covers(&target("n", "b")), Err(Refusal::Forbidden));
        assert_eq!(grant.covers(&target("m", "a")), Err(Refusal::Forbidden));
        assert_eq!((grant.covers_life("u"), grant.covers_life("v")), (Ok(()), Err(Refusal::Forbidden)));
        let without = Grant::One(Claims { uid: None, ..claims });
        assert_eq!(without.covers_life("v"), Ok(()));
    }
}
