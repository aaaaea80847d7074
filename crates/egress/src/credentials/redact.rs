//! Puts placeholders in the place of values, in bytes that arrive in pieces.

use zeroize::Zeroizing;

/// Bytes to find, and what takes their place. The bytes are secret.
pub(crate) struct Pair {
    pub(crate) value: Zeroizing<Vec<u8>>,
    pub(crate) placeholder: Vec<u8>,
}

/// Bytes of one answer. The end of a piece is kept back while a value may begin there.
pub(crate) struct Redactor {
    /// The longest first: of values that begin at the same place it counts.
    pairs: Vec<Pair>,
    /// First bytes of the values.
    firsts: [bool; 256],
    kept: Zeroizing<Vec<u8>>,
}

impl Redactor {
    pub(crate) fn new(mut pairs: Vec<Pair>) -> Redactor {
        pairs.retain(|pair| !pair.value.is_empty());
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.value.len()));
        let mut firsts = [false; 256];
        pairs
            .iter()
            .filter_map(|pair| pair.value.first())
            .for_each(|first| firsts[usize::from(*first)] = true);
        Redactor { pairs, firsts, kept: Zeroizing::default() }
    }

    /// Takes a piece, and returns what may be passed on.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.kept);
        bytes.extend_from_slice(piece);
        let (out, rest) = self.pass(&bytes, false);
        self.kept.extend_from_slice(&bytes[rest..]);
        out
    }

    /// Returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.kept);
        self.pass(&bytes, true).0
    }

    /// Returns a whole text with its values replaced; `None` if it has none.
    pub(crate) fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let has =
            |from: usize| self.firsts[usize::from(bytes[from])] && self.starting(&bytes[from..]).is_some();
        (0..bytes.len()).any(has).then(|| self.pass(bytes, true).0)
    }

    fn starting(&self, bytes: &[u8]) -> Option<&Pair> {
        self.pairs.iter().find(|pair| bytes.starts_with(&pair.value))
    }

    /// Replaces values. Returns the text, and where the rest begins, in which a value may begin that is not complete.
    fn pass(&self, bytes: &[u8], is_end: bool) -> (Vec<u8>, usize) {
        let longest = self.pairs.first().map_or(0, |pair| pair.value.len());
        let mut out = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let first = rest.iter().position(|byte| self.firsts[usize::from(*byte)]).unwrap_or(rest.len());
            if first > 0 {
                out.extend_from_slice(&rest[..first]);
                at += first;
                continue;
            }
            let begins = |pair: &Pair| pair.value.len() > rest.len() && pair.value.starts_with(rest);
            if !is_end && rest.len() < longest && self.pairs.iter().any(begins) {
                break;
            }
            match self.starting(rest) {
                Some(pair) => {
                    out.extend_from_slice(&pair.placeholder);
                    at += pair.value.len();
                }
                None => {
                    out.push(rest[0]);
                    at += 1;
                }
            }
        }
        (out, at)
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
