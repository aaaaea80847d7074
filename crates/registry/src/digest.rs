//! The one form of digest by which content is named.

use std::fmt;

use sha2::Digest as _;

/// A sha256 digest. Only [`Digest::parse`] and [`Digest::of`] make one, so its digits are safe as a file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Reads `sha256:` and 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix("sha256:")?;
        is_hex(hex).then(|| Digest(hex.to_owned()))
    }

    /// Computes the digest of bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::finish(sha2::Sha256::new_with_prefix(bytes))
    }

    pub(crate) fn finish(hash: sha2::Sha256) -> Digest {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(64);
        for byte in hash.finalize() {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Digest(hex)
    }

    /// The 64 digits.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

/// Returns `true` for 64 lower-case hexadecimal digits.
pub(crate) fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
