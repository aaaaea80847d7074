//! `hutch cp`: files and folders as a tar stream of the `tar` inside. What comes out of a sandbox is hostile.

mod left_out;
mod pack;
mod pipe;
mod unpack;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::progress::Progress;
use super::remote::{self, Command, Ended, Input};
use super::sandbox::{Cluster, Target};
use super::stdio::Piece;
use super::{finish, plain};
use crate::cli::CopyArguments;
use crate::naming::{Named, Side};
use left_out::LeftOut;
use pack::pack;
use pipe::{Incoming, Outgoing};
use unpack::{Destination, unpack};

/// Pieces of the stream that wait, in each direction.
const QUEUE: usize = 8;
/// What is kept of what `tar` says, in bytes.
const SAID_MAX: usize = 4096;
/// What may follow the end of a stream, in bytes.
const PADDING_MAX: u64 = 1 << 20;
/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(500);

/// Copies, and says what was left out.
pub(crate) fn main(arguments: &CopyArguments) -> ExitCode {
    finish("cp", 1, copy(arguments))
}

async fn copy(arguments: &CopyArguments) -> anyhow::Result<u8> {
    match (&arguments.from, &arguments.to) {
        (Side::Here(from), Side::There(named, to)) => {
            // Before anything is waited for.
            std::fs::metadata(from).with_context(|| from.display().to_string())?;
            let inside = Inside::connect(arguments, named).await?;
            upload(&inside, from, to).await
        }
        (Side::There(named, from), Side::Here(to)) => {
            let member = Member::of(from);
            let destination = Destination::open(to, &member.name)?;
            let inside = Inside::connect(arguments, named).await?;
            download(&inside, member, destination).await
        }
        (Side::Here(_), Side::Here(_)) => bail!("SRC or DST has to be SANDBOX:PATH"),
        (Side::There(..), Side::There(..)) => {
            bail!("only one of SRC and DST can be SANDBOX:PATH; copy to here first")
        }
    }
}

/// What is asked of `tar`: a folder to start in, and a name in it (empty: the folder itself).
struct Member {
    folder: String,
    name: PathBuf,
}

impl Member {
    fn of(path: &str) -> Member {
        let path = if path.is_empty() { "." } else { path };
        let trimmed = path.trim_end_matches('/');
        let (folder, name) = match trimmed.rsplit_once('/') {
            _ if trimmed.is_empty() => ("/", ""),
            Some(("", name)) => ("/", name),
            Some((folder, name)) => (folder, name),
            None => (".", trimmed),
        };
        match name {
            "" | "." | ".." => Member { folder: shielded(path), name: PathBuf::new() },
            name => Member { folder: shielded(folder), name: name.into() },
        }
    }
}

/// A path that `tar` does not take for a flag.
fn shielded(path: &str) -> String {
    if path.starts_with('-') { format!("./{path}") } else { path.to_owned() }
}

/// A container to copy into or out of.
struct Inside {
    cluster: Cluster,
    target: Target,
}

impl Inside {
    async fn connect(arguments: &CopyArguments, named: &Named) -> anyhow::Result<Inside> {
        let cluster = Cluster::connect(&arguments.place).await?;
        let target = cluster.target(named, arguments.container.name.as_deref(), &arguments.readiness).await?;
        Ok(Inside { cluster, target })
    }

    /// Runs a command; its standard output goes where `pieces` goes. Its exit status and what it said on standard error.
    async fn run(
        &self,
        argv: &[&str],
        input: Option<mpsc::Receiver<Input>>,
        stdout: Option<mpsc::Sender<Bytes>>,
    ) -> anyhow::Result<(u8, String)> {
        let words = argv.iter().map(|&word| word.to_owned()).collect();
        let command = Command { argv: words, stdin: input.is_some(), tty: false };
        let session = remote::start(&self.cluster, &self.target, command).await?;
        let (pieces, mut queued) = mpsc::channel(QUEUE);
        let input = input.unwrap_or_else(|| mpsc::channel(1).1);
        let sort = async {
            let mut said = Vec::new();
            while let Some(piece) = queued.recv().await {
                match piece {
                    Piece::Stdout(bytes) => {
                        if let Some(stdout) = &stdout
                            && stdout.send(bytes).await.is_err()
                        {
                            break;
                        }
                    }
                    Piece::Stderr(bytes) => {
                        let room = SAID_MAX.saturating_sub(said.len());
                        said.extend_from_slice(&bytes[..room.min(bytes.len())]);
                    }
                }
            }
            drop(stdout);
            queued.close();
            plain(&String::from_utf8_lossy(&said))
        };
        let (ended, said) = tokio::join!(session.run(input, pieces), sort);
        match ended? {
            Ended::Exited(status) => Ok((status, said)),
            Ended::NotStarted(127, _) => {
                bail!("container {} has no `{}`, which cp needs inside", self.target.container, argv[0])
            }
            Ended::NotStarted(_, why) => bail!("{why}"),
            Ended::Unread => Ok((0, said)),
        }
    }

    /// Whether a folder of that path is there.
    async fn has_folder(&self, path: &str) -> anyhow::Result<bool> {
        let (status, _) = self.run(&["test", "-d", path], None, None).await?;
        Ok(status == 0)
    }
}

async fn upload(inside: &Inside, from: &Path, to: &str) -> anyhow::Result<u8> {
    let member = Member::of(to);
    let into = to.ends_with('/') || member.name.as_os_str().is_empty();
    let whole = if to.is_empty() { ".".to_owned() } else { shielded(to) };
    let (folder, name) = if into || inside.has_folder(&whole).await? {
        let from = std::fs::canonicalize(from).with_context(|| from.display().to_string())?;
        let name = from.file_name().context("the whole machine cannot be copied; name a folder")?;
        (whole, PathBuf::from(name))
    } else {
        (member.folder, member.name)
    };
    let (to, input) = mpsc::channel(QUEUE);
    let count = Arc::new(AtomicU64::new(0));
    let outgoing = Outgoing::new(to, count.clone());
    let source = from.to_owned();
    let packing = spawn_blocking(move || pack(&source, &name, outgoing));
    let argv = ["tar", "-x", "-m", "-o", "-f", "-", "-C", &folder];
    let unpacking = inside.run(&argv, Some(input), None);
    let packing = async { packing.await.context("packing")? };
    // Whichever fails ends the other: without its end, the stream would be waited for inside.
    let work = async { tokio::try_join!(packing, unpacking) };
    let (left_out, (status, said)) = shown(&inside.target.sandbox, &count, work).await?;
    ensure!(status == 0, "tar in sandbox {} ended with status {status}: {said}", inside.target.sandbox);
    Ok(tell(&left_out.0, left_out.1))
}

async fn download(inside: &Inside, member: Member, destination: Destination) -> anyhow::Result<u8> {
    let name = match member.name.to_str() {
        Some("") => ".".to_owned(),
        name => format!("./{}", name.unwrap_or_default()),
    };
    let argv = ["tar", "-c", "-f", "-", "-C", &member.folder, &name];
    let (stdout, pieces) = mpsc::channel(QUEUE);
    let count = Arc::new(AtomicU64::new(0));
    let mut incoming = Incoming::new(pieces, count.clone());
    let unpacking = spawn_blocking(move || {
        let left_out = unpack(&mut incoming, &member.name, &destination)?;
        // `tar` fills its last record, and its exit status comes after that.
        let rest = io::copy(&mut incoming.take(PADDING_MAX), &mut io::sink())?;
        ensure!(rest < PADDING_MAX, "it goes on after its end");
        anyhow::Ok(left_out)
    });
    let work = async { tokio::join!(inside.run(&argv, None, Some(stdout)), unpacking) };
    let (packed, unpacked) = shown(&inside.target.sandbox, &count, work).await;
    let sandbox = &inside.target.sandbox;
    let unpacked = unpacked.context("unpacking")?;
    let broke_off = unpacked.as_ref().is_err_and(is_broken_off);
    // A stream that was refused here ends the other side too; one that broke off has its cause there.
    if broke_off || unpacked.is_ok() {
        let (status, said) = packed?;
        ensure!(status == 0, "tar in sandbox {sandbox} ended with status {status}: {said}");
    }
    let left_out = unpacked.with_context(|| format!("what sandbox {sandbox} sent"))?;
    Ok(tell(&left_out.0, left_out.1))
}

/// Returns true if a stream ended before it was complete.
fn is_broken_off(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

/// Shows on a terminal how much has gone over while it works.
async fn shown<T>(sandbox: &str, count: &AtomicU64, work: impl Future<Output = T>) -> T {
    let mut progress = Progress::new();
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(TICK, &mut work).await {
            Ok(done) => return done,
            Err(_) if progress.is_live() => {
                let mebibytes = count.load(Ordering::Relaxed) as f64 / f64::from(1 << 20);
                progress.say(&format!("sandbox {sandbox}: {mebibytes:.1} MiB"));
            }
            Err(_) => {}
        }
    }
}

/// Says what was left out; the exit status.
fn tell(named: &[String], count: usize) -> u8 {
    for text in named {
        eprintln!("hutch cp: left out: {}", plain(text));
    }
    if count > named.len() {
        eprintln!("hutch cp: left out: {} more", count - named.len());
    }
    u8::from(count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_is_asked_for_a_name_in_a_folder() {
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
            let member = Member::of(path);
            assert_eq!((member.folder.as_str(), member.name.to_str()), (folder, Some(name)), "{path}");
        }
    }
}
