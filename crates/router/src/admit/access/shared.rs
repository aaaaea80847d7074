//! Shared secret that admits every client that has it.

use sha2::{Digest, Sha256};

use crate::Error;

/// Shared secret. Only its digest is kept, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Minimum characters of a token.
    pub const SHORTEST: usize = 16;

    /// Makes a token, without surrounding white space.
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

    /// Compares digests over their full length, so that the duration does not depend on the secret.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let pairs = self.0.iter().zip(digest(given));
        std::hint::black_box(pairs.fold(0, |difference, (own, given)| difference | (own ^ given))) == 0
    }
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn only_the_exact_secret_matches() {
        let token = Token::new(&format!(" {SECRET}\n")).unwrap();
        assert!(token.is(SECRET.as_bytes()));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong:?}");
        }
    }

    #[test]
    fn weak_tokens_are_refused_and_debug_hides_tokens() {
        for weak in ["", "   ", "0123456789abcde", "0123456789 abcdef", "0123456789abcdé"] {
            assert_eq!(Token::new(weak), Err(Error::WeakToken), "{weak:?}");
        }
        assert!(!format!("{:?}", Token::new(SECRET).unwrap()).contains(SECRET));
    }
}
