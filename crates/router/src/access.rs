//! Who may use a way in.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use crate::Error;

/// A shared secret. It is kept only as a digest and cannot be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Characters that a token must have at least.
    pub const SHORTEST: usize = 16;

    /// Takes the secret, without the white space around it.
    ///
    /// # Errors
    /// [`Error::WeakToken`].
    pub fn new(secret: &str) -> Result<Token, Error> {
        let secret = secret.trim();
        if secret.len() < Token::SHORTEST || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::WeakToken);
        }
        Ok(Token(digest(secret.as_bytes())))
    }

    /// Compares digests, over all of their length: the time tells nothing of the secret.
    fn is(&self, given: &[u8]) -> bool {
        let pairs = self.0.iter().zip(digest(given));
        std::hint::black_box(pairs.fold(0, |difference, (own, given)| difference | (own ^ given))) == 0
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Who may use a way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Whoever shows the token as `Authorization: Bearer <token>`.
    Token(Token),
    /// Whoever comes this way was let in before, as at a stream that the API server forwards.
    Authorized,
    /// Whoever can reach it. To be asked for by name, never a default.
    Anyone,
}

impl Access {
    /// Whether a request with these headers may pass.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let Access::Token(token) = self else { return true };
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(only), None) = (given.next(), given.next()) else { return false };
        let Ok(text) = only.to_str() else { return false };
        let Some((scheme, secret)) = text.split_once(' ') else { return false };
        scheme.eq_ignore_ascii_case("bearer") && token.is(secret.trim().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn only_the_one_token_passes() {
        let access = Access::Token(Token::new(&format!(" {SECRET}\n")).unwrap());
        let admits = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            access.admits(&headers)
        };
        assert!(admits(&[&format!("Bearer {SECRET}")]));
        assert!(admits(&[&format!("bearer  {SECRET}")]));
        let right = format!("Bearer {SECRET}");
        for wrong in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &[SECRET],
            &["Basic 0123456789abcdef"],
            &[&right, &right],
        ] {
            assert!(!admits(wrong), "{wrong:?}");
        }
        assert!(!admits(&[&right[..right.len() - 1]]));
        assert!(Access::Anyone.admits(&HeaderMap::new()) && Access::Authorized.admits(&HeaderMap::new()));
    }

    #[test]
    fn a_weak_token_is_refused_and_no_token_is_shown() {
        for weak in ["", "   ", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé"] {
            assert_eq!(Token::new(weak), Err(Error::WeakToken), "{weak:?}");
        }
        assert!(!format!("{:?}", Access::Token(Token::new(SECRET).unwrap())).contains(SECRET));
    }
}
