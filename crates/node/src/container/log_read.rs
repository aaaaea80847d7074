//! Reads a container's log for a client.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hutch_kubelet::{ByteReader, LogRequest};
use jiff::{SignedDuration, Timestamp};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::log::{MAX_FILE_BYTES, older};

/// Buffer towards the client, in bytes.
const PIPE_BYTES: usize = 64 << 10;
/// More than one file can hold, whatever was written while it was read.
const MAX_READ_BYTES: u64 = 2 * MAX_FILE_BYTES;

/// Opens the log of one life. `follow` is what the life's output gives while it lasts.
pub(crate) async fn read(
    path: PathBuf,
    request: &LogRequest,
    follow: Option<watch::Receiver<u64>>,
    now: Timestamp,
) -> io::Result<ByteReader> {
    let since = request.since_seconds.and_then(|seconds| {
        let ago = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        now.checked_sub(ago).ok()
    });
    let mut view = View {
        timestamps: request.timestamps,
        since,
        left: request.limit_bytes.unwrap_or(u64::MAX),
        rest: Vec::new(),
    };
    let tail = request.tail_lines;
    let (mut tailer, old, mut view) = tokio::task::spawn_blocking(move || {
        let mut lines = read_all(&older(&path))?;
        let mut tailer = Tailer { path, file: None, position: 0 };
        lines.extend(tailer.more()?);
        let lines = match tail {
            Some(count) => last_lines(&lines, count),
            None => &lines,
        };
        let text = view.show(lines);
        Ok::<_, io::Error>((tailer, text, view))
    })
    .await
    .map_err(io::Error::other)??;
    let (reader, mut writer) = tokio::io::duplex(PIPE_BYTES);
    tokio::spawn(async move {
        // A client that went away ends this at the next write.
        let _ = async {
            writer.write_all(&old).await?;
            let Some(mut follow) = follow else { return Ok(()) };
            loop {
                let over = tokio::select! {
                    changed = follow.changed() => changed.is_err(),
                    () = closed(&mut writer) => return Ok(()),
                };
                let read = tokio::task::spawn_blocking(move || {
                    let more = tailer.more();
                    (tailer, more)
                });
                let more;
                (tailer, more) = read.await.map_err(io::Error::other)?;
                writer.write_all(&view.show(&more?)).await?;
                if over || view.left == 0 {
                    return io::Result::Ok(());
                }
            }
        }
        .await;
    });
    Ok(Box::pin(reader))
}

/// Resolves when the other side of the pipe was dropped: only then does reading from it end.
async fn closed(stream: &mut tokio::io::DuplexStream) {
    let mut byte = [0];
    while let Ok(1..) = tokio::io::AsyncReadExt::read(stream, &mut byte).await {}
}

fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(bytes)
}

/// Maximum lines and bytes of a message from a log, as of a kubelet.
const MESSAGE_LINES: u64 = 80;
const MESSAGE_BYTES: usize = 2048;
/// Bytes that are read for it.
const MAX_TAIL_BYTES: u64 = 64 << 10;

/// Returns the end of a log that the node has written, for the status of its container. Blocks.
pub(crate) fn tail(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    // Of lines with times, more than a message needs.
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_TAIL_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let mut view = View { timestamps: false, since: None, left: u64::MAX, rest: Vec::new() };
    let text = view.show(last_lines(&bytes, MESSAGE_LINES));
    let text = String::from_utf8_lossy(&text);
    let start = text.ceil_char_boundary(text.len().saturating_sub(MESSAGE_BYTES));
    Some(text[start..].to_owned()).filter(|text| !text.is_empty())
}

/// Follows a file that is put aside when it is large.
struct Tailer {
    path: PathBuf,
    file: Option<File>,
    position: u64,
}

impl Tailer {
    /// Returns the bytes that were added since the last call.
    fn more(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            if self.file.is_none() {
                self.position = 0;
                match File::open(&self.path) {
                    Ok(file) => self.file = Some(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
                    Err(error) => return Err(error),
                }
            }
            let Some(file) = &mut self.file else { return Ok(bytes) };
            file.seek(SeekFrom::Start(self.position))?;
            self.position += file.take(MAX_READ_BYTES).read_to_end(&mut bytes)? as u64;
            let current = std::fs::metadata(&self.path).map(|m| m.ino());
            if current.is_ok_and(|inode| file.metadata().is_ok_and(|m| m.ino() == inode)) {
                return Ok(bytes);
            }
            self.file = None;
        }
    }
}

/// The last so many lines of the log; pieces of one line count once.
fn last_lines(log: &[u8], count: u64) -> &[u8] {
    let mut seen = 0;
    let mut start = log.len();
    for line in log.split_inclusive(|b| *b == b'\n').rev() {
        // A whole line's last piece is marked F; what comes before it with P belongs to it.
        if fields(line).is_none_or(|(_, full, _)| full) || start == log.len() {
            if seen == count {
                break;
            }
            seen += 1;
        }
        start -= line.len();
    }
    &log[start..]
}

/// Time, whether the line is whole, and text, of one line of the log.
fn fields(line: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let mut parts = line.strip_suffix(b"\n").unwrap_or(line).splitn(4, |b| *b == b' ');
    let (time, _stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((time, tag == b"F", text))
}

/// How a client wants to see the log.
struct View {
    timestamps: bool,
    since: Option<Timestamp>,
    left: u64,
    /// Start of a line whose end was not written yet.
    rest: Vec<u8>,
}

impl View {
    fn show(&mut self, log: &[u8]) -> Vec<u8> {
        let mut log = [std::mem::take(&mut self.rest), log.to_vec()].concat();
        let complete = log.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        self.rest = log.split_off(complete);
        let mut out = Vec::with_capacity(log.len());
        let mut within = false;
        for line in log.split_inclusive(|b| *b == b'\n') {
            let Some((time, full, text)) = fields(line) else { continue };
            if self.since.is_some_and(|since| parse_time(time).is_some_and(|time| time < since)) {
                continue;
            }
            if self.timestamps && !within {
                out.extend_from_slice(time);
                out.push(b' ');
            }
            out.extend_from_slice(text);
            if full {
                out.push(b'\n');
            }
            within = !full;
        }
        out.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= out.len() as u64;
        out
    }
}

fn parse_time(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests {
    use std::sync::Arc;

    use hutch_screen::Origin;
    use tokio::io::AsyncReadExt;

    use super::super::log::{LogFile, MAX_LINE_BYTES};
    use super::super::output::{Output, Stream};
    use super::super::screened::Screened;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    async fn text(path: &Path, request: LogRequest) -> String {
        let mut text = String::new();
        let mut reader = read(path.into(), &request, None, at(100)).await.unwrap();
        reader.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn lines_are_kept_and_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(&path).unwrap();
        log.add(Stream::Stdout, b"one\ntw", at(10)).unwrap();
        log.add(Stream::Stderr, b"err\n", at(20)).unwrap();
        log.add(Stream::Stdout, b"o\n\nlast", at(90)).unwrap();
        log.finish(at(95)).unwrap();
        let all = LogRequest::default();
        assert_eq!(text(&path, all.clone()).await, "one\nerr\ntwo\n\nlast");
        let with = |change: fn(&mut LogRequest)| {
            let mut request = LogRequest::default();
            change(&mut request);
            request
        };
        assert_eq!(text(&path, with(|r| r.tail_lines = Some(2))).await, "\nlast");
        assert_eq!(text(&path, with(|r| r.tail_lines = Some(0))).await, "");
        assert_eq!(text(&path, with(|r| r.since_seconds = Some(20))).await, "two\n\nlast");
        assert_eq!(text(&path, with(|r| r.limit_bytes = Some(5))).await, "one\ne");
        let stamped = text(&path, with(|r| r.timestamps = true)).await;
        assert!(stamped.starts_with("1970-01-01T00:00:10.000000000Z one\n"), "{stamped}");
    }

    #[tokio::test]
    async fn long_lines_and_large_logs_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(&path).unwrap();
        let line = [vec![b'x'; 3 * MAX_LINE_BYTES], b"\n".to_vec()].concat();
        log.add(Stream::Stdout, &line, at(10)).unwrap();
        assert_eq!(text(&path, LogRequest::default()).await.len(), line.len());
        for _ in 0..700 {
            log.add(Stream::Stdout, &line, at(10)).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= MAX_FILE_BYTES);
        assert!(std::fs::metadata(older(&path)).unwrap().len() <= MAX_FILE_BYTES);
        let last = text(&path, LogRequest { tail_lines: Some(1), ..LogRequest::default() }).await;
        assert_eq!(last.len(), line.len());
    }

    #[tokio::test]
    async fn a_follower_sees_what_comes_and_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let origin = Origin { pod: "n/a".into(), part: "main".into() };
        let output =
            Arc::new(Output::new(&dir.path().join("0.log"), Screened::new(Arc::default(), origin)).unwrap());
        let (sender, receiver) = tokio::net::unix::pipe::pipe().unwrap();
        let pump = tokio::spawn(output.clone().pump(Stream::Stdout, receiver));
        let request = LogRequest { follow: true, ..LogRequest::default() };
        let mut reader = read(output.path().into(), &request, output.follow(), at(0)).await.unwrap();
        let mut sender = sender;
        sender.write_all(b"hello\n").await.unwrap();
        let mut line = [0; 6];
        reader.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"hello\n");
        sender.write_all(b"bye").await.unwrap();
        drop(sender);
        pump.await.unwrap();
        output.finish();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "bye");
    }

    #[test]
    fn message_is_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(tail(&path), None);
        let line = |n: usize| format!("2026-01-01T00:00:00Z stdout F line {n}\n");
        std::fs::write(&path, (0..10_000).map(line).collect::<String>()).unwrap();
        let text = tail(&path).unwrap();
        assert_eq!(text.lines().count(), 80);
        assert!(text.starts_with("line 9920\n") && text.ends_with("line 9999\n"), "{text}");
        std::fs::write(&path, format!("2026-01-01T00:00:00Z stderr F {}\n", "x".repeat(5000))).unwrap();
        assert_eq!(tail(&path).unwrap().len(), MESSAGE_BYTES);
    }
}
