//! Tokens for one Sandbox: a claim, signed with a key that the router and whoever mints share.
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
/// Characters of a token; a longer text is not looked at. Names are at most 253 characters each.
const LONGEST: usize = 4096;

/// What a token says. Anything else in a payload makes the token void: it could be a restriction not known here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Namespace of the Sandbox.
    pub ns: String,
    /// Name of the Sandbox.
    pub name: String,
    /// End of its life: seconds since 1970. It is void from that second on.
    pub exp: u64,
    /// UID of the Sandbox. With it the token does not open a later Sandbox of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The key that signs tokens. It cannot be shown.
pub struct TokenKey(hmac::Key);

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

/// A key from what a file says, without the white space around it.
pub(crate) fn hmac_key(secret: &[u8]) -> Result<hmac::Key, Error> {
    let secret = secret.trim_ascii();
    if secret.len() < TokenKey::SHORTEST {
        return Err(Error::WeakKey);
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret))
}

impl TokenKey {
    /// Bytes that a key must have at least.
    pub const SHORTEST: usize = 32;

    /// Takes the key, without the white space around it.
    ///
    /// # Errors
    /// [`Error::WeakKey`].
    pub fn new(secret: &[u8]) -> Result<TokenKey, Error> {
        hmac_key(secret).map(TokenKey)
    }

    /// Signs a claim.
    ///
    /// # Errors
    /// [`Error::Claim`] for one that no router would accept.
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

    /// A token of this payload, whatever it says.
    pub(crate) fn signed(&self, payload: &str) -> String {
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, &signed(payload)));
        format!("{VERSION}.{payload}.{signature}")
    }

    /// The claim of a token that was signed with this key and is not void yet. `now` is in seconds since 1970.
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
    fn the_published_vector() {
        assert_eq!(key().mint(&claims()).unwrap(), VECTOR);
        assert_eq!(key().verify(VECTOR, 4_102_444_799), Some(claims()));
        assert_eq!(key().verify(VECTOR, 4_102_444_800), None, "void from that second on");
    }

    #[test]
    fn what_was_not_signed_so_is_void() {
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
        fn what_is_minted_is_read(ns in "[a-z0-9-]{1,63}", name in "[a-z0-9-]{1,63}", exp in 1..u64::MAX, uid in proptest::option::of("[a-f0-9-]{1,36}")) {
            let claims = Claims { ns, name, exp, uid };
            let token = key().mint(&claims).unwrap();
            prop_assert_eq!(key().verify(&token, exp - 1), Some(claims));
            prop_assert_eq!(key().verify(&token, exp), None);
        }

        #[test]
        fn no_text_breaks_it_and_no_change_passes(text in ".{0,200}", place in 0..VECTOR.len(), byte in 33_u8..127) {
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
