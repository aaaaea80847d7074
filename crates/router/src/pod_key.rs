//! Tokens that the sandboxd of one Pod demands, made from a key that the router and the Pod's init container have and the
//! code inside has not.
//!
//! The code beside sandboxd can read what sandboxd demands. So each Pod has a token of its own, which opens nothing that
//! this code could not do anyway: base64url of HMAC-SHA256 over `hutch/sandboxd-token/v1.` and the Pod's UID.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;

use crate::Error;
use crate::access::scoped::hmac_key;

const DOMAIN: &[u8] = b"hutch/sandboxd-token/v1.";

/// The key that makes them. It cannot be shown.
pub struct PodKey(hmac::Key);

impl std::fmt::Debug for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodKey(..)")
    }
}

impl PodKey {
    /// Takes the key, without the white space around it; at least [`crate::TokenKey::SHORTEST`] bytes.
    ///
    /// # Errors
    /// [`Error::WeakKey`].
    pub fn new(secret: &[u8]) -> Result<PodKey, Error> {
        hmac_key(secret).map(PodKey)
    }

    /// What the sandboxd of the Pod with this UID demands: 43 visible characters.
    pub fn token(&self, pod_uid: &str) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(DOMAIN);
        context.update(pod_uid.as_bytes());
        URL_SAFE_NO_PAD.encode(context.sign())
    }

    /// The same as a value of `Authorization`, which no log shows.
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
    fn each_pod_has_one_of_its_own() {
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
