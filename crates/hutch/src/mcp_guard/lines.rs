//! Reads lines of bounded length.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Maximum bytes of a line.
pub(super) const LIMIT: usize = 4 << 20;

/// Result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line without its end. The last one may have none.
    Whole(Vec<u8>),
    /// A line above the limit, which was skipped.
    TooLong,
    /// Nothing follows.
    End,
}

/// Lines of a reader.
pub(super) struct Lines<R> {
    reader: R,
    /// Beginning of a line. Kept here, so that nothing is lost when reading is given up for a while.
    line: Vec<u8>,
    skips: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Lines<R> {
        Lines { reader, line: Vec::new(), skips: false }
    }

    /// Reads the next line.
    pub(super) async fn next(&mut self) -> io::Result<Line> {
        loop {
            let bytes = self.reader.fill_buf().await?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            let is_over = bytes.is_empty();
            match self.line.len() + piece.len() > LIMIT {
                true => (self.skips, self.line) = (true, Vec::new()),
                false if self.skips => {}
                false => self.line.extend_from_slice(piece),
            }
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_none() && !is_over {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            return Ok(match std::mem::take(&mut self.skips) {
                true => Line::TooLong,
                false if is_over && line.is_empty() => Line::End,
                false => Line::Whole(line),
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
        let longer = vec![b'y'; LIMIT + 1];
        let text = [&b"a\n\nb\r\n"[..], &long, b"\n", &longer, b"\n", &longer, &longer, b"\nc"].concat();
        for capacity in [1 << 10, 1 << 16, text.len()] {
            let mut lines = Lines::new(tokio::io::BufReader::with_capacity(capacity, &text[..]));
            let expected = [
                Line::Whole(b"a".to_vec()),
                Line::Whole(Vec::new()),
                Line::Whole(b"b\r".to_vec()),
                Line::Whole(long.clone()),
                Line::TooLong,
                Line::TooLong,
                Line::Whole(b"c".to_vec()),
                Line::End,
            ];
            for line in expected {
                assert!(lines.next().await.unwrap() == line);
            }
        }
    }
}
