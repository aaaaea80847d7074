//! Terminal sizes as clients send them: `{"Width":80,"Height":24}`, one after another.

use serde::Deserialize;

use crate::TerminalSize;

/// Maximum bytes of an incomplete size; a size has about 30 bytes.
const MAX_PENDING: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wire {
    width: u16,
    height: u16,
}

/// Parses sizes from a byte stream split at any position.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pending: Vec<u8>,
}

impl Sizes {
    /// Returns the sizes that are complete with these bytes. Invalid text is skipped.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<TerminalSize> {
        self.pending.extend_from_slice(bytes);
        let mut sizes = Vec::new();
        let mut values = serde_json::Deserializer::from_slice(&self.pending).into_iter::<Wire>();
        let used = loop {
            match values.next() {
                Some(Ok(Wire { width, height })) => sizes.push(TerminalSize { columns: width, rows: height }),
                Some(Err(error)) if !error.is_eof() => break self.pending.len(),
                _ => break values.byte_offset(),
            }
        };
        self.pending.drain(..used);
        if self.pending.len() > MAX_PENDING {
            self.pending.clear();
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_from_any_split() {
        let text = b"{\"Width\":80,\"Height\":24}\n{\"Width\":132,\"Height\":50}\n";
        for cut in 0..text.len() {
            let mut sizes = Sizes::default();
            let mut found = sizes.push(&text[..cut]);
            found.extend(sizes.push(&text[cut..]));
            let expected = [(80, 24), (132, 50)].map(|(columns, rows)| TerminalSize { columns, rows });
            assert_eq!(found, expected, "cut at {cut}");
        }
    }

    #[test]
    fn invalid_sizes_are_skipped() {
        let mut sizes = Sizes::default();
        assert!(sizes.push(b"{\"Width\":-1,\"Height\":2}").is_empty());
        assert!(sizes.push(&[b' '; 4096]).is_empty());
        assert!(sizes.push(format!("\"{}", "x".repeat(4096)).as_bytes()).is_empty());
        assert!(sizes.pending.len() <= MAX_PENDING);
        assert_eq!(sizes.push(b"{\"Width\":1,\"Height\":2}").len(), 1);
    }
}
