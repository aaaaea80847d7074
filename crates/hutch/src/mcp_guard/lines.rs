//! Reads lines of bounded length.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use super::ids::{Finder, Ids};

/// Maximum bytes of a line.
pub(super) const LIMIT: usize = 4 << 20;

/// Result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line without its end. The last one may have none.
    Whole(Vec<u8>),
    /// A line above the limit, which was skipped, with the ids of its messages.
    TooLong(Ids),
    /// Nothing follows.
    End,
}

/// Lines of a reader.
pub(super) struct Lines<R> {
    reader: R,
    /// Beginning of a line. Kept here, so that nothing is lost when reading is given up for a while.
    line: Vec<u8>,
    /// Finds the ids in a line that is skipped.
    skips: Option<Finder>,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Lines<R> {
        Lines { reader, line: Vec::new(), skips: None }
    }

    /// Reads the next line.
    pub(super) async fn next(&mut self) -> io::Result<Line> {
        loop {
            let bytes = self.reader.fill_buf().await?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            let is_over = bytes.is_empty();
            if self.line.len() + piece.len() > LIMIT {
                let finder = self.skips.get_or_insert_default();
                finder.feed(&std::mem::take(&mut self.line));
            }
            match &mut self.skips {
                Some(finder) => finder.feed(piece),
                None => self.line.extend_from_slice(piece),
            }
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_none() && !is_over {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            return Ok(match self.skips.take() {
                Some(finder) => Line::TooLong(finder.finish()),
                None if is_over && line.is_empty() => Line::End,
                None => Line::Whole(line),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_whole_and_bounded() {
        let long = vec![b'x'; LIMIT];
        let longer = format!(r#"{{"result":"{}","id":7}}"#, "y".repeat(LIMIT)).into_bytes();
        let ids = |answers: &[i32]| Ids {
            answers: answers.iter().map(|id| (*id).into()).collect(),
            ..Ids::default()
        };
        let text = [&b"a\n\nb\r\n"[..], &long, b"\n", &longer, b"\n", &long, &longer, b"\nc"].concat();
        for capacity in [1 << 10, 1 << 16, text.len()] {
            let mut lines = Lines::new(tokio::io::BufReader::with_capacity(capacity, &text[..]));
            let expected = [
                Line::Whole(b"a".to_vec()),
                Line::Whole(Vec::new()),
                Line::Whole(b"b\r".to_vec()),
                Line::Whole(long.clone()),
                Line::TooLong(ids(&[7])),
                Line::TooLong(ids(&[7])),
                Line::Whole(b"c".to_vec()),
                Line::End,
            ];
            for line in expected {
                assert!(lines.next().await.unwrap() == line);
            }
        }
    }
}
