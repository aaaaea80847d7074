//! Tokens of ServiceAccounts: JSON Web Tokens that are signed with a key of the data folder. Only those of Secrets are stored.
//!
//! A token names its account by UID and is checked against the stored objects whenever it is used. It ends with its
//! time, its account, the namespace of the account, and the object that it is bound to.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::credentials::{TOKEN_BYTES, read_if_there, write_private};

pub(crate) use hutch_api::API_AUDIENCE as AUDIENCE;

/// The one header of these tokens. A token with another algorithm is refused.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
/// Bytes of the signing key.
const KEY_BYTES: usize = 32;

/// Claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// Audiences for which it is good.
    pub(crate) aud: Vec<String>,
    /// Unix second from which on it is void; `None` for the token of a Secret.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) exp: Option<i64>,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    /// Unique id of this token.
    pub(crate) jti: String,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) bound: Bound,
}

/// The objects with which a token ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub(crate) namespace: String,
    pub(crate) serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) secret: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) node: Option<Reference>,
}

/// One object: another one of the same name is not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The key that signs tokens.
pub(crate) struct Signer(hmac::Key);

impl Signer {
    /// Reads the key of a folder, or makes it. Without a folder it lasts as long as the process.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Signer, Error> {
        let Some(folder) = folder else { return Ok(Signer::new(&fresh()?)) };
        let file = folder.join("serviceaccount.key");
        if let Some(text) = read_if_there(&file)? {
            let key = URL_SAFE_NO_PAD.decode(text.trim()).ok().filter(|key| key.len() == KEY_BYTES);
            let cause = "it is damaged: remove it to make a new key, which ends all ServiceAccount tokens";
            let damaged = || Error::Credentials { path: file.clone(), cause: cause.into() };
            return Ok(Signer::new(&key.ok_or_else(damaged)?));
        }
        let key = fresh()?;
        write_private(&file, &URL_SAFE_NO_PAD.encode(key))?;
        Ok(Signer::new(&key))
    }

    fn new(key: &[u8]) -> Signer {
        Signer(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Signs a token; `None` when it would be longer than a token may be.
    pub(crate) fn sign(&self, claims: &Claims) -> Option<String> {
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).ok()?);
        let signed = format!("{}.{payload}", URL_SAFE_NO_PAD.encode(HEADER));
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, signed.as_bytes()));
        Some(format!("{signed}.{signature}")).filter(|token| token.len() <= TOKEN_BYTES)
    }

    /// Returns the claims of a token that this key signed and that is valid at this second.
    pub(crate) fn verify(&self, token: &[u8], now: i64) -> Option<Claims> {
        let token = std::str::from_utf8(token).ok().filter(|token| token.len() <= TOKEN_BYTES)?;
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if header != URL_SAFE_NO_PAD.encode(HEADER) {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // Compared in constant time.
        hmac::verify(&self.0, signed.as_bytes(), &signature).ok()?;
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        (claims.nbf <= now && claims.exp.is_none_or(|end| now < end)).then_some(claims)
    }
}

fn fresh() -> Result<[u8; KEY_BYTES], Error> {
    let mut key = [0; KEY_BYTES];
    let failed = |_| Error::Bootstrap("no randomness for the key of ServiceAccount tokens".into());
    aws_lc_rs::rand::fill(&mut key).map_err(failed)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        let reference = |name: &str| Reference { name: name.into(), uid: format!("uid-{name}") };
        Claims {
            aud: vec![AUDIENCE.into()],
            exp: Some(200),
            iat: 100,
            iss: AUDIENCE.into(),
            jti: "1".into(),
            nbf: 100,
            sub: "system:serviceaccount:default:a".into(),
            bound: Bound {
                namespace: "default".into(),
                serviceaccount: reference("a"),
                pod: None,
                secret: None,
                node: None,
            },
        }
    }

    #[test]
    fn token_is_good_in_its_time_only() {
        let signer = Signer::new(&[7; KEY_BYTES]);
        let token = signer.sign(&claims()).unwrap();
        for (now, good) in [(99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(signer.verify(token.as_bytes(), now).is_some(), good, "{now}");
        }
        assert_eq!(signer.verify(token.as_bytes(), 150), Some(claims()));
    }

    #[test]
    fn token_of_another_key_or_algorithm_is_refused() {
        let signer = Signer::new(&[7; KEY_BYTES]);
        let token = signer.sign(&claims()).unwrap();
        assert!(Signer::new(&[8; KEY_BYTES]).verify(token.as_bytes(), 150).is_none());
        let (header, rest) = token.split_once('.').unwrap();
        let (payload, signature) = rest.split_once('.').unwrap();
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
        let mut other = claims();
        other.exp = Some(1 << 40);
        let longer = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&other).unwrap());
        for forged in [
            format!("{none}.{payload}."),
            format!("{none}.{payload}.{signature}"),
            format!("{header}.{longer}.{signature}"),
            format!("{header}.{payload}."),
            format!("{header}.{payload}"),
            format!("{header}.{payload}.{signature}.{signature}"),
            String::new(),
            ".".into(),
        ] {
            assert!(signer.verify(forged.as_bytes(), 150).is_none(), "{forged}");
        }
    }

    #[test]
    fn token_longer_than_a_header_is_not_made() {
        let mut claims = claims();
        claims.aud = vec!["a".repeat(TOKEN_BYTES)];
        assert_eq!(Signer::new(&[7; KEY_BYTES]).sign(&claims), None);
    }

    #[test]
    fn key_lasts_and_is_the_owners() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca");
        let token = Signer::open(Some(&ca)).unwrap().sign(&claims()).unwrap();
        assert!(Signer::open(Some(&ca)).unwrap().verify(token.as_bytes(), 150).is_some());
        let file = ca.join("serviceaccount.key");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::fs::write(&file, "short").unwrap();
        assert!(Signer::open(Some(&ca)).is_err());
    }
}
