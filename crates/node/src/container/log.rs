//! The log file of a container's life, in the form of the container runtime interface:
//! `2026-01-02T03:04:05.000000006Z stdout F text`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hutch_image::remove_tree;
use jiff::Timestamp;

use super::output::Stream;

/// A file of this size is put aside, so a life holds at most twice as much.
pub(crate) const MAX_FILE_BYTES: u64 = 10 << 20;
/// A longer line is split, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 16 << 10;

/// Writes lines as they come.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    /// Starts of lines whose end has not come.
    unfinished: [Vec<u8>; 2],
}

/// The file in which older lines of the same life are.
pub(crate) fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Removes the logs of all lives but the one before `life`, so that a container that restarts forever has a bound.
///
/// A life that begins anew with the node's own keeps its log, which is continued.
pub(crate) fn keep(logs: &Path, life: u32) -> io::Result<()> {
    for entry in std::fs::read_dir(logs)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.split('.').next()?.parse::<u32>().ok());
        if number.is_none_or(|number| number != life && number.checked_add(1) != Some(life)) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

impl LogFile {
    pub(crate) fn open(path: &Path) -> io::Result<LogFile> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = file.metadata()?.len();
        Ok(LogFile { path: path.into(), file, size, unfinished: [Vec::new(), Vec::new()] })
    }

    /// Adds what a stream gave.
    pub(crate) fn add(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let mut out = Vec::with_capacity(bytes.len() + 64);
        let unfinished = &mut self.unfinished[stream as usize];
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            push_line(&mut out, stream, now, unfinished, &rest[..end]);
            rest = &rest[end + 1..];
        }
        unfinished.extend_from_slice(rest);
        while unfinished.len() > MAX_LINE_BYTES {
            let tail = unfinished.split_off(MAX_LINE_BYTES);
            header(&mut out, stream, now, 'P');
            out.extend_from_slice(unfinished);
            out.push(b'\n');
            *unfinished = tail;
        }
        self.write(&out)
    }

    /// Writes what has no line end yet: nothing more will come.
    pub(crate) fn finish(&mut self, now: Timestamp) -> io::Result<()> {
        let mut out = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let text = std::mem::take(&mut self.unfinished[stream as usize]);
            if !text.is_empty() {
                header(&mut out, stream, now, 'P');
                out.extend_from_slice(&text);
                out.push(b'\n');
            }
        }
        self.write(&out)
    }

    fn write(&mut self, out: &[u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        if self.size > 0 && self.size + out.len() as u64 > MAX_FILE_BYTES {
            std::fs::rename(&self.path, older(&self.path))?;
            self.file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(out)?;
        self.size += out.len() as u64;
        Ok(())
    }
}

fn header(out: &mut Vec<u8>, stream: Stream, now: Timestamp, tag: char) {
    out.extend_from_slice(format!("{now:.9} {} {tag} ", stream.name()).as_bytes());
}

fn push_line(out: &mut Vec<u8>, stream: Stream, now: Timestamp, start: &mut Vec<u8>, end: &[u8]) {
    let mut text = std::mem::take(start);
    text.extend_from_slice(end);
    let mut chunks = text.chunks(MAX_LINE_BYTES).peekable();
    if chunks.peek().is_none() {
        header(out, stream, now, 'F');
        out.push(b'\n');
    }
    while let Some(chunk) = chunks.next() {
        header(out, stream, now, if chunks.peek().is_some() { 'P' } else { 'F' });
        out.extend_from_slice(chunk);
        out.push(b'\n');
    }
}
