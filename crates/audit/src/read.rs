//! Reads the records of a log in order, also while another process writes it.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::folder::{Segment, durable, segments};
use crate::line::{Hash, LINE_MAX, Line, parse};

/// One line of a segment.
pub(crate) struct Raw {
    /// Bytes without the end of the line; of one that is too long, the first ones.
    pub(crate) bytes: Vec<u8>,
    /// False if the end of the line is missing.
    pub(crate) complete: bool,
}

/// Lines of an open segment.
pub(crate) struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    /// Number of the last line, from one.
    pub(crate) number: u64,
    offset: u64,
}

impl Lines {
    pub(crate) fn open(segment: &Segment) -> Result<Lines, Error> {
        let file = File::open(&segment.path).map_err(Error::file(&segment.path))?;
        let reader = BufReader::with_capacity(256 << 10, file);
        Ok(Lines { reader, path: segment.path.clone(), number: 0, offset: 0 })
    }

    /// Returns the next line; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Raw>, Error> {
        let mut raw = Raw { bytes: Vec::new(), complete: false };
        let mut length = 0;
        loop {
            let buffer = self.reader.fill_buf().map_err(Error::file(&self.path))?;
            if buffer.is_empty() {
                break;
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            let room = (LINE_MAX + 1).saturating_sub(raw.bytes.len());
            raw.bytes.extend_from_slice(&buffer[..end.unwrap_or(taken).min(room)]);
            self.reader.consume(taken);
            length += taken as u64;
            if end.is_some() {
                raw.complete = true;
                break;
            }
        }
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.offset += length;
        Ok(Some(raw))
    }

    /// Returns the line to the segment, to be read again later.
    fn undo(&mut self, raw: &Raw, offset: u64) -> Result<(), Error> {
        debug_assert!(!raw.complete || self.offset > offset);
        self.number -= 1;
        self.offset = offset;
        self.reader.seek(SeekFrom::Start(offset)).map_err(Error::file(&self.path))?;
        Ok(())
    }
}

/// A record, or a line that is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the segment.
    pub segment: String,
    /// Number of the line in it, from one.
    pub number: u64,
    /// The line, without its end.
    pub line: Vec<u8>,
    /// Number and hash of the record; `None` if the line is damaged.
    pub record: Option<(u64, Hash)>,
}

impl Entry {
    /// Returns the parsed line.
    pub fn parsed(&self) -> Option<Line<'_>> {
        parse(&self.line)
    }

    /// Returns the bytes of the event.
    pub fn event(&self) -> &[u8] {
        self.parsed().map_or(&[], |line| line.event)
    }
}

/// Reads records from a number on.
pub struct Reader {
    folder: PathBuf,
    /// Number of the first record to return.
    from: u64,
    /// Return only what a writer has brought to the disk.
    durable: Option<u64>,
    open: Option<(Segment, Lines)>,
    /// Segment after the open one. The open one has its last line then.
    next: Option<Segment>,
}

impl Reader {
    /// Returns a reader of all complete lines from a record on.
    pub fn new(folder: &Path, from: u64) -> Reader {
        Reader { folder: folder.to_owned(), from, durable: None, open: None, next: None }
    }

    /// Returns a reader of what a writer has brought to the disk. Other lines may still change.
    pub fn durable(folder: &Path, from: u64) -> Reader {
        Reader { durable: Some(0), ..Reader::new(folder, from) }
    }

    /// Skips the segments whose records are all older than a time.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn skip_older(&mut self, time: std::time::SystemTime) -> Result<(), Error> {
        for segment in segments(&self.folder)? {
            let written = std::fs::metadata(&segment.path).and_then(|metadata| metadata.modified());
            if written.map_err(Error::file(&segment.path))? >= time {
                self.from = self.from.max(segment.first);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the next record, or `None` while no further one is there.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            let Some((segment, lines)) = &mut self.open else {
                let Some(first) = self.first()? else { return Ok(None) };
                self.open = Some((first.clone(), Lines::open(&first)?));
                continue;
            };
            let offset = lines.offset;
            let raw = lines.next()?;
            if let Some(raw) = raw {
                let record = parse(&raw.bytes).map(|line| (line.seq, line.hash));
                let waits = match (record, self.durable) {
                    _ if !raw.complete => true,
                    (Some((seq, _)), Some(known)) if seq > known => {
                        self.durable = durable(&self.folder).or(Some(u64::MAX));
                        self.durable.is_some_and(|known| seq > known)
                    }
                    _ => false,
                };
                if !waits {
                    if record.is_some_and(|(seq, _)| seq < self.from) {
                        continue;
                    }
                    let (segment, number) = (segment.name(), lines.number);
                    return Ok(Some(Entry { segment, number, line: raw.bytes, record }));
                }
                lines.undo(&raw, offset)?;
                if raw.complete {
                    return Ok(None);
                }
            }
            // The end. A segment grows until there is a next one: what was written meanwhile is read before that.
            match self.next.take() {
                Some(next) => self.open = Some((next.clone(), Lines::open(&next)?)),
                None => {
                    let current = segment.first;
                    self.next = segments(&self.folder)?.into_iter().find(|next| next.first > current);
                    if self.next.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Returns the segment with the first record to return.
    fn first(&self) -> Result<Option<Segment>, Error> {
        let segments = segments(&self.folder)?;
        let after = segments.iter().position(|segment| segment.first > self.from).unwrap_or(segments.len());
        Ok(segments.into_iter().nth(after.saturating_sub(1)))
    }
}
