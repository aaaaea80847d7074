//! What reads the head of a request, as one function of any bytes: it neither panics nor runs without end.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::access::credential;
use crate::{Target, TokenKey};

/// Routing headers and credentials, from lines of `name: value`. Whoever did not sign a token has none that opens.
pub fn heads(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    for loopback in [false, true] {
        if let Ok(target) = Target::read(&headers, loopback) {
            assert!(target.port > 0 && !target.id.contains(['/', '.', ':']), "{target:?}");
            assert!(target.pod_ip.is_none_or(|ip| loopback || !ip.is_loopback()), "{target:?}");
        }
    }
    let key = TokenKey::new(b"nobody who sends these bytes has it").expect("a key");
    for secret in credential::shown(&headers) {
        assert_eq!(key.verify(&secret, 0), None);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("router_heads", super::heads);
    }
}
