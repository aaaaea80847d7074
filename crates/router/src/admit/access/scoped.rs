//! Tokens for one Sandbox: claims, signed with a key that the router shares with the issuer of tokens.
//!
//! `v1.<payload>.<signature>`, both parts base64url without padding; the signature is HMAC-SHA256 over
//! `agent-sandbox/scoped-token/v1.<payload>`.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::Error;

const VERSION: &str = "v1";
const DOMAIN: &str = "agent-sandbox/scoped-token/v1.";
/// Maximum characters of a token; a longer one is rejected unparsed. Names have at most 253 characters each.
const LONGEST: usize = 4096;

/// Payload of a token. An unknown field makes the token invalid: it could be a restriction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Namespace of the Sandbox.
    pub ns: String,
    /// Name of the Sandbox.
    pub name: String,
    /// Expiry in seconds since 1970. The token is invalid from that second on.
    pub exp: u64,
    /// UID of the Sandbox. With a UID the token does not admit a later Sandbox of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Key that signs tokens. `Debug` does not show it.
pub struct TokenKey(hmac::Key);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

/// Makes a key from the content of a file, without surrounding white space.
pub(crate) fn hmac_key(secret: &[u8]) -> Result<hmac::Key, Error> {
    let secret = secret.trim_ascii();
    if secret.len() < TokenKey::SHORTEST {
        return Err(Error::WeakKey);
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret))
}

impl TokenKey {
    /// Minimum bytes of a key.
    pub const SHORTEST: usize = 32;

    /// Makes a key, without surrounding white space.
    ///
    /// # Errors
    /// [`Error::WeakKey`].
    pub fn new(secret: &[u8]) -> Result<TokenKey, Error> {
        hmac_key(secret).map(TokenKey)
    }

    /// Signs claims.
    ///
    /// # Errors
    /// [`Error::Claim`] for claims that no router accepts.
    pub fn mint(&self, claims: &Claims) -> Result<String, Error> {
        if claims.ns.is_empty() || claims.name.is_empty() {
            return Err(Error::Claim("a token names a namespace and a Sandbox"));
        }
        if claims.uid.as_deref() == Some("") {
            return Err(Error::Claim("the UID of a Sandbox is not empty"));
        }
        let payload = serde_json::to_vec(claims).map_err(|_| Error::Claim("it cannot be written as JSON"))?;
        Ok(self.signed(&URL_SAFE_NO_PAD.encode(payload)))
    }

    /// Signs a payload without validating it.
    pub(crate) fn signed(&self, payload: &str) -> String {
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, &signed(payload)));
        format!("{VERSION}.{payload}.{signature}")
    }

    /// Returns the claims of a token with a valid signature that has not expired. `now` is in seconds since
    /// 1970.
    pub fn verify(&self, token: &str, now: u64) -> Option<Claims> {
        if token.len() > LONGEST {
            return None;
        }
        let (version, rest) = token.split_once('.')?;
        let (payload, signature) = rest.split_once('.')?;
        if version != VERSION {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        // Compared in constant time.
        hmac::verify(&self.0, &signed(payload), &signature).ok()?;
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        (now < claims.exp).then_some(claims)
    }
}

fn signed(payload: &str) -> Vec<u8> {
    [DOMAIN.as_bytes(), payload.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VECTOR: &str = "v1.eyJucyI6ImRlZmF1bHQiLCJuYW1lIjoic2ItMSIsImV4cCI6NDEwMjQ0NDgwMH0.4ZHtV1CxsHmYxhFMzPTbiMjJAuAwGymV-iKKtjHg7vQ";

    fn key() -> TokenKey {
        TokenKey::new(&[b'k'; 32]).unwrap()
    }

    fn claims() -> Claims {
        Claims { ns: "default".into(), name: "sb-1".into(), exp: 4_102_444_800, uid: None }
    }

    #[test]
    fn the_published_vector_is_minted_and_verified() {
        assert_eq!(key().mint(&claims()).unwrap(), VECTOR);
        assert_eq!(key().verify(VECTOR, 4_102_444_799), Some(claims()));
        assert_eq!(key().verify(VECTOR, 4_102_444_800), None, "void from that second on");
    }

    #[test]
    fn malformed_or_unsigned_tokens_are_rejected() {
        let (head, signature) = VECTOR.rsplit_once('.').unwrap();
        let other = TokenKey::new(&[b'l'; 32]).unwrap();
        let unknown = |payload: &str| {
            let payload = URL_SAFE_NO_PAD.encode(payload);
            let tag = hmac::sign(&key().0, &signed(&payload));
            format!("v1.{payload}.{}", URL_SAFE_NO_PAD.encode(tag))
        };
        for token in [
            "",
            "v1",
            "v1.",
            "v1..",
            head,
            &format!("{head}."),
            &format!("v2.{}", &VECTOR[3..]),
            &format!("{head}.{signature}="),
            &format!("{VECTOR}.x"),
            &other.mint(&claims()).unwrap(),
            &unknown(r#"{"ns":"default","name":"sb-1","exp":4102444800,"port":1}"#),
            &unknown(r#"{"ns":"default","name":"sb-1","name":"sb-2","exp":4102444800}"#),
            &unknown(r#"{"ns":"default","name":"sb-1"}"#),
            &unknown("[]"),
        ] {
            assert_eq!(key().verify(token, 0), None, "{token}");
        }
    }

    #[test]
    fn weak_keys_and_empty_claims_are_refused() {
        assert!(matches!(TokenKey::new(b"  0123456789012345678901234567890\n"), Err(Error::WeakKey)));
        assert!(!format!("{:?}", key()).contains('k'.to_string().repeat(3).as_str()));
        for wrong in [
            Claims { ns: String::new(), ..claims() },
            Claims { name: String::new(), ..claims() },
            Claims { uid: Some(String::new()), ..claims() },
        ] {
            assert!(matches!(key().mint(&wrong), Err(Error::Claim(_))), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn minted_tokens_verify_until_they_expire(ns in "[a-z0-9-]{1,63}", name in "[a-z0-9-]{1,63}", exp in 1..u64::MAX, uid in proptest::option::of("[a-f0-9-]{1,36}")) {
            let claims = Claims { ns, name, exp, uid };
            let token = key().mint(&claims).unwrap();
            prop_assert_eq!(key().verify(&token, exp - 1), Some(claims));
            prop_assert_eq!(key().verify(&token, exp), None);
        }

        #[test]
        fn arbitrary_or_modified_tokens_are_rejected(text in ".{0,200}", place in 0..VECTOR.len(), byte in 33_u8..127) {
            prop_assert_eq!(key().verify(&text, 0), None);
            let mut changed = VECTOR.as_bytes().to_vec();
            changed[place] = byte;
            let changed = String::from_utf8(changed).unwrap();
            if changed != VECTOR {
                prop_assert_eq!(key().verify(&changed, 0), None);
            }
        }
    }
}
