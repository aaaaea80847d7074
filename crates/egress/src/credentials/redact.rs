//! Puts placeholders in the place of values, in bytes that arrive in pieces.

use zeroize::Zeroizing;

/// Bytes to find, and what takes their place. The bytes are secret.
pub(crate) struct Pair {
    pub(crate) value: Zeroizing<Vec<u8>>,
    pub(crate) placeholder: Vec<u8>,
}

/// Bytes of one answer. The end of a piece is kept back while a value may begin there.
#[derive(Default)]
pub(crate) struct Redactor {
    pairs: Vec<Pair>,
    kept: Zeroizing<Vec<u8>>,
}

impl Redactor {
    pub(crate) fn new(mut pairs: Vec<Pair>) -> Redactor {
        pairs.retain(|pair| !pair.value.is_empty());
        // Of values that begin at the same place the longest counts.
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.value.len()));
        Redactor { pairs, kept: Zeroizing::default() }
    }

    /// Takes a piece, and returns what may be passed on.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.kept.extend_from_slice(piece);
        self.pass(false)
    }

    /// Returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.pass(true)
    }

    /// Returns the bytes of a whole text.
    pub(crate) fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut found = Vec::with_capacity(bytes.len());
        let mut at = 0;
        let mut changed = false;
        while at < bytes.len() {
            match self.starting(&bytes[at..]) {
                Some(pair) => {
                    found.extend_from_slice(&pair.placeholder);
                    at += pair.value.len();
                    changed = true;
                }
                None => {
                    found.push(bytes[at]);
                    at += 1;
                }
            }
        }
        changed.then_some(found)
    }

    fn starting(&self, bytes: &[u8]) -> Option<&Pair> {
        self.pairs.iter().find(|pair| bytes.starts_with(&pair.value))
    }

    fn pass(&mut self, is_end: bool) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.kept);
        let mut out = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let begins = |pair: &Pair| pair.value.len() > rest.len() && pair.value.starts_with(rest);
            if !is_end && self.pairs.iter().any(begins) {
                self.kept.extend_from_slice(rest);
                break;
            }
            match self.starting(rest) {
                Some(pair) => {
                    out.extend_from_slice(&pair.placeholder);
                    at += pair.value.len();
                }
                None => {
                    out.push(bytes[at]);
                    at += 1;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(pairs: &[(&str, &str)]) -> Redactor {
        let pair = |(value, placeholder): &(&str, &str)| Pair {
            value: Zeroizing::new(value.as_bytes().to_vec()),
            placeholder: placeholder.as_bytes().to_vec(),
        };
        Redactor::new(pairs.iter().map(pair).collect())
    }

    #[test]
    fn value_is_redacted_wherever_a_piece_ends() {
        let text = b"a secret-1 b secret-12 c secret- secresecret-1";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut redactor = redactor(&[("secret-1", "P"), ("secret-12", "Q")]);
                let mut out = redactor.push(&text[..first]);
                out.extend(redactor.push(&text[first..second]));
                out.extend(redactor.push(&text[second..]));
                out.extend(redactor.finish());
                assert_eq!(String::from_utf8(out).unwrap(), "a P b Q c secret- secreP", "{first} {second}");
            }
        }
    }

    #[test]
    fn whole_text_without_a_value_is_unchanged() {
        let redactor = redactor(&[("secret", "P"), ("", "empty")]);
        assert_eq!(redactor.whole(b"nothing"), None);
        assert_eq!(redactor.whole(b"xsecretx").unwrap(), b"xPx");
    }
}
