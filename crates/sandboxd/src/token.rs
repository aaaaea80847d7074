//! Token that clients must present, if configured. It is read from the environment or a file, never from the
//! arguments, which every process can list.

use std::path::Path;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// Variable with the token.
pub(crate) const VARIABLE: &str = "SANDBOXD_TOKEN";
/// Variable with the path of a file with the token.
pub(crate) const FILE_VARIABLE: &str = "SANDBOXD_TOKEN_FILE";
/// Variables that no started process inherits.
pub(crate) const VARIABLES: [&str; 2] = [VARIABLE, FILE_VARIABLE];

/// Minimum bytes of a token, so that it cannot be guessed.
pub(crate) const SHORTEST: usize = 16;
/// Maximum bytes of a token.
pub(crate) const LONGEST: usize = 4096;

/// Required token, if any.
#[derive(Clone, Default)]
pub struct Token(Option<std::sync::Arc<[u8]>>);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.0.is_some() { "Token(set)" } else { "Token(none)" })
    }
}

impl Token {
    /// Reads the token from the environment or from the file that is named there, without surrounding white
    /// space.
    ///
    /// # Errors
    /// Describes the invalid setting, without the token.
    pub fn read(environment: impl Fn(&str) -> Option<String>) -> Result<Token, String> {
        let given = |name| environment(name).filter(|text| !text.is_empty());
        let (text, from) = match (given(VARIABLE), given(FILE_VARIABLE)) {
            (None, None) => return Ok(Token::default()),
            (Some(_), Some(_)) => {
                return Err(format!("{VARIABLE} and {FILE_VARIABLE} are both given; give one"));
            }
            (Some(text), None) => (text, VARIABLE),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(Path::new(&file))
                    .map_err(|error| format!("{FILE_VARIABLE}: cannot read {file}: {error}"))?;
                (text, FILE_VARIABLE)
            }
        };
        let text = text.trim();
        let usable =
            text.bytes().all(|byte| byte.is_ascii_graphic()) && (SHORTEST..=LONGEST).contains(&text.len());
        match usable {
            true => Ok(Token(Some(text.as_bytes().into()))),
            false => Err(format!("{from} must be {SHORTEST} to {LONGEST} visible ASCII characters")),
        }
    }

    /// Returns true if clients must present a token.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if a request carries the token, as `Authorization: Bearer <token>`, or none is required.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0 else { return true };
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(only), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, said)) = only.as_bytes().split_at_checked("bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && same(said, token)
    }
}

/// Compares in a time that depends only on the length.
fn same(one: &[u8], other: &[u8]) -> bool {
    let different =
        one.iter().zip(other).fold(0, |different, (a, b)| std::hint::black_box(different | (a ^ b)));
    std::hint::black_box(different) == 0 && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<Token, String> {
        Token::read(|name| (name == VARIABLE).then(|| text.to_owned()))
    }

    fn admits(token: &Token, said: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for text in said {
            headers.append(AUTHORIZATION, text.parse().unwrap());
        }
        token.admits(&headers)
    }

    #[test]
    fn only_requests_with_the_token_are_admitted() {
        let token = token(" 0123456789abcdef\n").unwrap();
        assert!(admits(&token, &["Bearer 0123456789abcdef"]) && admits(&token, &["bearer 0123456789abcdef"]));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcde",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!admits(&token, &[wrong]), "{wrong:?}");
        }
        assert!(!admits(&token, &[]));
        assert!(!admits(&token, &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"]));
        assert!(admits(&Token::default(), &[]));
        assert_eq!(format!("{token:?}"), "Token(set)");
    }

    #[test]
    fn invalid_tokens_are_refused_and_not_printed() {
        for wrong in
            ["short", "fifteen-letters", "with a space in it", "caf\u{e9}-caf\u{e9}-caf\u{e9}-caf\u{e9}"]
        {
            let said = token(wrong).unwrap_err();
            assert!(said.contains(VARIABLE) && !said.contains(wrong), "{said}");
        }
        assert!(!token("").unwrap().is_set());
        assert!(Token::read(|_| Some("0123456789abcdef".into())).unwrap_err().contains("give one"));
        let missing = Token::read(|name| (name == FILE_VARIABLE).then(|| "/no/such/file".to_owned()));
        assert!(missing.unwrap_err().contains("/no/such/file"));
    }
}
