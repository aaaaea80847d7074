//! Files of a container as tar archives, which the `tar` in the container reads and writes.

use std::io;
use std::path::PathBuf;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::exec::NOT_FOUND;
use crate::{Command, Ended, Error, Input, Output, Sandboxes, Target};

/// Maximum queued pieces of the archive, in each direction.
const QUEUE: usize = 8;
/// Maximum bytes of a piece that is sent.
const CHUNK: usize = 32 * 1024;
/// Maximum bytes kept of the standard error of `tar`.
const STDERR_MAX: usize = 4096;

/// A path in a container, as `tar` takes it: a folder, and a name in it (empty: the folder itself).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Folder.
    pub folder: String,
    /// Name, and the first part of each path in the archive.
    pub name: PathBuf,
}

/// Destination of a copy into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Folder in which the archive is extracted.
    pub folder: String,
    /// Name in that folder; without one, the source keeps its own.
    pub name: Option<PathBuf>,
}

impl Member {
    /// Splits a path. A relative one starts at the container's working directory.
    pub fn new(path: &str) -> Member {
        let path = if path.is_empty() { "." } else { path };
        let trimmed = path.trim_end_matches('/');
        let (folder, name) = match trimmed.rsplit_once('/') {
            _ if trimmed.is_empty() => ("/", ""),
            Some(("", name)) => ("/", name),
            Some((folder, name)) => (folder, name),
            None => (".", trimmed),
        };
        match name {
            "" | "." | ".." => Member { folder: not_a_flag(path), name: PathBuf::new() },
            name => Member { folder: not_a_flag(folder), name: name.into() },
        }
    }
}

/// Changes a path that `tar` would take for a flag.
fn not_a_flag(path: &str) -> String {
    if path.starts_with('-') { format!("./{path}") } else { path.to_owned() }
}

impl Sandboxes {
    /// Returns the destination for a copy to a path: an existing folder, or a new name in one.
    ///
    /// # Errors
    /// The container has no `test`, or the connection ends.
    pub async fn destination(&self, target: &Target, path: &str) -> Result<Destination, Error> {
        let member = Member::new(path);
        let whole = if path.is_empty() { ".".to_owned() } else { not_a_flag(path) };
        let is_folder = path.ends_with('/')
            || member.name.as_os_str().is_empty()
            || self
                .tool(target, &["test", "-d", &whole], None::<tokio::io::Empty>, tokio::io::sink())
                .await?
                .0
                == 0;
        Ok(match is_folder {
            true => Destination { folder: whole, name: None },
            false => Destination { folder: member.folder, name: Some(member.name) },
        })
    }

    /// Extracts an archive in a folder of a container. A read error ends the copy; what was extracted before stays.
    ///
    /// # Errors
    /// The archive cannot be read, or `tar` fails in the container.
    pub async fn copy_in(
        &self,
        target: &Target,
        folder: &str,
        archive: impl AsyncRead + Send,
    ) -> Result<(), Error> {
        let argv = ["tar", "-x", "-m", "-o", "-f", "-", "-C", folder];
        let (status, stderr) = self.tool(target, &argv, Some(archive), tokio::io::sink()).await?;
        succeeded(target, status, stderr)
    }

    /// Writes an archive of a file or folder of a container. The archive is untrusted input.
    ///
    /// # Errors
    /// The archive cannot be written, or `tar` fails in the container.
    pub async fn copy_out(
        &self,
        target: &Target,
        member: &Member,
        archive: impl AsyncWrite + Send,
    ) -> Result<(), Error> {
        let name = match member.name.to_str() {
            Some("") => ".".to_owned(),
            name => format!("./{}", name.unwrap_or_default()),
        };
        let argv = ["tar", "-c", "-f", "-", "-C", &member.folder, &name];
        let (status, stderr) = self.tool(target, &argv, None::<tokio::io::Empty>, archive).await?;
        succeeded(target, status, stderr)
    }

    /// Runs a program of the container; returns its exit status and the start of its standard error.
    async fn tool(
        &self,
        target: &Target,
        argv: &[&str],
        stdin: Option<impl AsyncRead + Send>,
        stdout: impl AsyncWrite + Send,
    ) -> Result<(u8, String), Error> {
        let words = argv.iter().map(|&word| word.to_owned()).collect();
        let command = Command { argv: words, stdin: stdin.is_some(), tty: false };
        let session = self.exec(target, command).await?;
        let (to, input) = mpsc::channel(QUEUE);
        let (output, pieces) = mpsc::channel(QUEUE);
        let work = async { tokio::join!(session.run(input, output), receive(pieces, stdout)) };
        let (ended, stderr) = tokio::select! {
            (ended, stderr) = work => (ended?, stderr?),
            error = send(stdin, to) => return Err(Error::Archive(error)),
        };
        match ended {
            Ended::Exited(status) => Ok((status, stderr)),
            Ended::NotStarted(NOT_FOUND, _) => {
                Err(Error::NoProgram { container: target.container.clone(), program: argv[0].to_owned() })
            }
            Ended::NotStarted(_, reason) => Err(Error::NotStarted(reason)),
            // The receiver has failed then, which is reported above.
            Ended::OutputClosed => Ok((0, stderr)),
        }
    }
}

fn succeeded(target: &Target, status: u8, stderr: String) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        _ => {
            let (sandbox, program) = (target.sandbox.clone(), "tar".to_owned());
            Err(Error::Failed { sandbox, program, status, stderr: first_complaint(&stderr) })
        }
    }
}

/// Returns the first line of standard error, which has the cause, and the number of those that follow from it.
fn first_complaint(stderr: &str) -> String {
    let is_summary = |line: &&str| line.ends_with("Exiting with failure status due to previous errors");
    let mut lines = stderr.lines().filter(|line| !is_summary(line));
    let first = lines.next().unwrap_or_default();
    match lines.filter(|line| *line != first).count() {
        0 => first.to_owned(),
        more => format!("{first}, and {more} more"),
    }
}

/// Sends standard input; returns only if it cannot be read.
async fn send(stdin: Option<impl AsyncRead>, to: mpsc::Sender<Input>) -> io::Error {
    if let Some(stdin) = stdin {
        let mut stdin = std::pin::pin!(stdin);
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            let piece = match stdin.read_buf(&mut chunk).await {
                Ok(0) => Input::End,
                Ok(_) => Input::Bytes(chunk.freeze()),
                Err(error) => return error,
            };
            let is_end = matches!(piece, Input::End);
            if to.send(piece).await.is_err() || is_end {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Writes standard output until its end; returns the start of standard error.
async fn receive(mut pieces: mpsc::Receiver<Output>, stdout: impl AsyncWrite) -> Result<String, Error> {
    let mut stdout = std::pin::pin!(stdout);
    let mut stderr = Vec::new();
    while let Some(piece) = pieces.recv().await {
        match piece {
            Output::Stdout(bytes) => stdout.write_all(&bytes).await.map_err(Error::Archive)?,
            Output::Stderr(bytes) => {
                let room = STDERR_MAX.saturating_sub(stderr.len());
                stderr.extend_from_slice(&bytes[..room.min(bytes.len())]);
            }
        }
    }
    stdout.shutdown().await.map_err(Error::Archive)?;
    Ok(String::from_utf8_lossy(&stderr).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_complaint_is_the_cause() {
        let text = "tar: a: Cannot mkdir: Read-only file system\ntar: a/b: Cannot open: No such file or directory\n\
            tar: a: Cannot mkdir: Read-only file system\ntar: Exiting with failure status due to previous errors";
        assert_eq!(first_complaint(text), "tar: a: Cannot mkdir: Read-only file system, and 1 more");
        assert_eq!(first_complaint("killed"), "killed");
        assert_eq!(first_complaint(""), "");
    }

    #[test]
    fn path_is_split_into_folder_and_name() {
        for (path, folder, name) in [
            ("/a/b", "/a", "b"),
            ("/a/b/", "/a", "b"),
            ("/a", "/", "a"),
            ("a", ".", "a"),
            ("-a", ".", "-a"),
            ("-a/b", "./-a", "b"),
            ("", ".", ""),
            ("/", "/", ""),
            ("a/.", "a/.", ""),
            ("..", "..", ""),
        ] {
            let member = Member::new(path);
            assert_eq!((member.folder.as_str(), member.name.to_str()), (folder, Some(name)), "{path}");
        }
    }
}
