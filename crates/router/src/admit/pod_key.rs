//! Tokens for the sandboxd of a Pod, derived from a key that the router and the Pod's init container have and
//! the untrusted code has not.
//!
//! The code beside sandboxd can read the token that sandboxd requires. So each Pod has a token of its own,
//! which grants nothing that this code could not do anyway: base64url of HMAC-SHA256 over
//! `hutch/sandboxd-token/v1.` and the Pod's UID.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;

use crate::Error;
use crate::admit::access::scoped::hmac_key;

const DOMAIN: &[u8] = b"hutch/sandboxd-token/v1.";

/// Key that derives the tokens. `Debug` does not show it.
pub struct PodKey(hmac::Key);

impl std::fmt::Debug for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodKey(..)")
    }
}

impl PodKey {
    /// Makes a key, without surrounding white space; at least [`crate::TokenKey::SHORTEST`] bytes.
    ///
    /// # Errors
    /// [`Error::WeakKey`].
    pub fn new(secret: &[u8]) -> Result<PodKey, Error> {
        hmac_key(secret).map(PodKey)
    }

    /// Returns the token that the sandboxd of the Pod with this UID requires: 43 visible characters.
    pub fn token(&self, pod_uid: &str) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(DOMAIN);
        context.update(pod_uid.as_bytes());
        URL_SAFE_NO_PAD.encode(context.sign())
    }

    /// Returns the token as a value of `Authorization` that is marked as sensitive.
    pub(crate) fn authorization(&self, pod_uid: &str) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.token(pod_uid))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

    #[test]
    fn each_pod_has_its_own_token() {
        let key = PodKey::new(KEY).unwrap();
        let token = key.token("a9c2");
        assert_eq!(token, "UcbdJ2reyn7t9qt5L24sPwT8efDNVhjskHmW71Oomvc");
        assert_ne!(token, key.token("a9c3"));
        assert_ne!(token, PodKey::new(b"another key, which is as long as").unwrap().token("a9c2"));
        assert_eq!(token, PodKey::new(&[KEY, b"\n"].concat()).unwrap().token("a9c2"));
        assert!(PodKey::new(b"short").is_err());
        assert_eq!(format!("{key:?} {:?}", key.authorization("a9c2").unwrap()), "PodKey(..) Sensitive");
    }
}
