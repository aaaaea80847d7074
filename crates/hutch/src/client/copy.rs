//! `hutch cp`: packs and unpacks local files. Archives from a sandbox are untrusted input.

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
use hutch_archive::ReadError;
use hutch_client::{Member, Name, Progress as _, Sandboxes, Target};
use tokio::task::spawn_blocking;

use super::progress::Progress;
use super::{connect, finish, plain, with_hint};
use crate::cli::{CopyArguments, Side};
use left_out::LeftOut;
use pack::pack;
use pipe::{Incoming, Outgoing};
use unpack::{Destination, unpack};

/// Maximum bytes after the end of an archive.
const PADDING_MAX: u64 = 1 << 20;
/// Interval of the progress.
const TICK: Duration = Duration::from_millis(500);

/// Copies, and prints what was left out.
pub(crate) fn main(arguments: &CopyArguments) -> ExitCode {
    finish("cp", 1, copy(arguments))
}

async fn copy(arguments: &CopyArguments) -> anyhow::Result<u8> {
    match (&arguments.from, &arguments.to) {
        (Side::Here(from), Side::There(name, to)) => {
            // Checked before a wait.
            std::fs::metadata(from).with_context(|| from.display().to_string())?;
            let (sandboxes, target) = target(arguments, name).await?;
            upload(&sandboxes, &target, from, to).await
        }
        (Side::There(name, from), Side::Here(to)) => {
            let member = Member::new(from);
            let destination = Destination::open(to, &member.name)?;
            let (sandboxes, target) = target(arguments, name).await?;
            download(&sandboxes, &target, member, destination).await
        }
        (Side::Here(_), Side::Here(_)) => bail!("SRC or DST has to be SANDBOX:PATH"),
        (Side::There(..), Side::There(..)) => {
            bail!("only one of SRC and DST can be SANDBOX:PATH; copy to here first")
        }
    }
}

async fn target(arguments: &CopyArguments, name: &Name) -> anyhow::Result<(Sandboxes, Target)> {
    let sandboxes = connect(&arguments.place).await?;
    let target = super::target(&sandboxes, name, &arguments.container, &arguments.readiness).await?;
    Ok((sandboxes, target))
}

async fn upload(sandboxes: &Sandboxes, target: &Target, from: &Path, to: &str) -> anyhow::Result<u8> {
    let destination = sandboxes.destination(target, to).await.map_err(with_hint)?;
    let name = match destination.name {
        Some(name) => name,
        None => {
            let from = std::fs::canonicalize(from).with_context(|| from.display().to_string())?;
            PathBuf::from(from.file_name().context("the whole machine cannot be copied; name a folder")?)
        }
    };
    let count = Arc::new(AtomicU64::new(0));
    let (outgoing, archive) = Outgoing::new(count.clone());
    let source = from.to_owned();
    let packing = spawn_blocking(move || pack(&source, &name, outgoing));
    // A failure of one side closes the stream, which ends the other side.
    let work = async { tokio::join!(packing, sandboxes.copy_in(target, &destination.folder, archive)) };
    let (packed, copied) = shown(&target.sandbox, &count, work).await;
    let left_out = packed.context("packing")??;
    copied.map_err(with_hint)?;
    Ok(report(&left_out))
}

async fn download(
    sandboxes: &Sandboxes,
    target: &Target,
    member: Member,
    destination: Destination,
) -> anyhow::Result<u8> {
    let count = Arc::new(AtomicU64::new(0));
    let (mut incoming, archive) = Incoming::new(count.clone());
    let prefix = member.name.clone();
    let unpacking = spawn_blocking(move || {
        let left_out = unpack(&mut incoming, &prefix, &destination)?;
        // `tar` fills its last record before it exits.
        let rest = io::copy(&mut incoming.take(PADDING_MAX), &mut io::sink())?;
        ensure!(rest < PADDING_MAX, "it continues after its end");
        anyhow::Ok(left_out)
    });
    let work = async { tokio::join!(sandboxes.copy_out(target, &member, archive), unpacking) };
    let (copied, unpacked) = shown(&target.sandbox, &count, work).await;
    let unpacked = unpacked.context("unpacking")?;
    // An archive that is rejected here ends the other side too. An archive that broke off has its cause there.
    if unpacked.is_ok() || unpacked.as_ref().is_err_and(is_broken_off) {
        copied.map_err(with_hint)?;
    }
    Ok(report(&unpacked.with_context(|| format!("what sandbox {} sent", target.sandbox))?))
}

/// Returns true if a stream ended before it was complete.
fn is_broken_off(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<ReadError>();
    cause.is_some_and(
        |cause| matches!(cause, ReadError::Stream(e) if e.kind() == io::ErrorKind::UnexpectedEof),
    )
}

/// Shows the transferred bytes on a terminal during the work.
async fn shown<T>(sandbox: &str, count: &AtomicU64, work: impl Future<Output = T>) -> T {
    let mut progress = Progress::new();
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(TICK, &mut work).await {
            Ok(done) => return done,
            Err(_) if progress.is_live() => {
                let mebibytes = count.load(Ordering::Relaxed) as f64 / f64::from(1 << 20);
                progress.waiting(&format!("sandbox {sandbox}: {mebibytes:.1} MiB"));
            }
            Err(_) => {}
        }
    }
}

/// Prints what was left out; returns the exit status.
fn report(LeftOut(named, count): &LeftOut) -> u8 {
    for text in named {
        eprintln!("hutch cp: left out: {}", plain(text));
    }
    if *count > named.len() {
        eprintln!("hutch cp: left out: {} more", count - named.len());
    }
    u8::from(*count > 0)
}
