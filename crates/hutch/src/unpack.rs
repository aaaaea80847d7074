//! The process that unpacks a layer of an image. It has an id of its own, no capabilities and no network, starts nothing, and
//! can write only the folder of the layer. The archive is its standard input, and its report is its standard output.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, ensure};
use hutch_image::{MAX_LAYER_BYTES, Unpacker};
use hutch_jail::IdRanges;
use hutch_jail::service::{Confinement, confine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::dup;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getgid, getrlimit, getuid, pidfd_open, pidfd_send_signal,
    setrlimit,
};

/// Name of the program as other programs of Hutch start it. Not a command for users.
pub(crate) const NAME: &str = "hutch-unpack";

/// Address space of the process: its program, the largest window of Zstandard (128 MiB), and the paths of folders.
const MEMORY_BYTES: u64 = 1 << 30;
/// Processor time of the process, for a layer of the maximum size on a slow machine.
const CPU_SECONDS: u64 = 3600;
/// Time after which it is killed: one that was taken over could sleep.
const TIME: Timespec = Timespec { tv_sec: 30 * 60, tv_nsec: 0 };
/// Maximum bytes of its messages.
const MAX_MESSAGES: u64 = 4 << 10;

/// Returns the means to unpack layers in a process of its own.
pub(crate) fn unpacker() -> Arc<dyn Unpacker> {
    Arc::new(Confined)
}

#[derive(Debug)]
struct Confined;

impl Unpacker for Confined {
    fn run(
        &self,
        target: &Path,
        packing: &str,
        (blob, size): (File, u64),
        report: File,
    ) -> io::Result<Option<u32>> {
        hutch_jail::close_inherited_on_exec()?;
        // Held until the process has ended: no other process of the machine has its id.
        let ids = match getuid().is_root() {
            true => Some(IdRanges::open(rand::random()).and_then(|ranges| ranges.take())),
            false => None,
        };
        let ids = ids.transpose().map_err(io::Error::other)?;
        let id = ids.as_ref().map(|ids| ids.base());
        if let Some(id) = id {
            std::os::unix::fs::lchown(target, Some(id), Some(id))?;
        }
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(NAME)
            .args([packing, &size.to_string()])
            .env_clear()
            .current_dir(target)
            .stdin(blob)
            .stdout(report);
        command.arg(id.unwrap_or(getuid().as_raw()).to_string());
        command.arg(id.unwrap_or(getgid().as_raw()).to_string());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let child_ends = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        std::thread::spawn(move || kill_after(&child_ends, TIME));
        let messages = child.stderr.take().map(messages).unwrap_or_default();
        let status = child.wait()?;
        match status.success() {
            // Whether the layer is unpacked is in the report.
            true => Ok(id),
            false if messages.is_empty() => Err(io::Error::other(format!("its process ended: {status}"))),
            false => Err(io::Error::other(messages)),
        }
    }
}

/// Kills a process that has not ended by then: others wait for its turn.
fn kill_after(process: &OwnedFd, time: Timespec) {
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&time));
    if ended.is_ok_and(|count| count == 0) {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// Reads the messages of the process to their end, and returns their beginning without control characters.
fn messages(mut from: impl Read) -> String {
    let mut text = Vec::new();
    // What cannot be read is left out of a message.
    let _ = from.by_ref().take(MAX_MESSAGES).read_to_end(&mut text);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&text).trim().chars().filter(|c| !c.is_control()).collect()
}

/// Unpacks the archive, after it has confined itself.
pub(crate) fn main() -> ExitCode {
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    ensure!(words.len() == 5, "started by hutch alone");
    let id = |word: &str| word.parse().context("started by hutch alone");
    let size: u64 = words[2].parse().context("started by hutch alone")?;
    let (packing, uid, gid) = (&words[1], id(&words[3])?, id(&words[4])?);
    hutch_serve::forbid_core_files();
    limit()?;
    let blob = File::from(dup(rustix::stdio::stdin()).context("the archive")?);
    let report = File::from(dup(rustix::stdio::stdout()).context("the report")?);
    let writable = [Path::new(".")];
    confine(&Confinement { uid, gid, writable: &writable, readable: &[], connects: false })
        .context("cannot be confined")?;
    hutch_image::unpack_and_report(packing, (blob, size), report).context("the report")
}

/// Bounds what the process can use, even if an archive takes it over.
fn limit() -> anyhow::Result<()> {
    let limits =
        [(Resource::Fsize, MAX_LAYER_BYTES), (Resource::As, MEMORY_BYTES), (Resource::Cpu, CPU_SECONDS)];
    for (resource, value) in limits {
        // One can only lower what the caller has.
        let value = getrlimit(resource).maximum.map_or(value, |maximum| maximum.min(value));
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).context("limits of the process")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_does_not_end_is_killed() {
        let status = |program: &str, time| {
            let mut child = Command::new("sh").args(["-c", program]).spawn().unwrap();
            let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            kill_after(&process, time);
            child.wait().unwrap()
        };
        let short = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status("exec sleep 1000", short)), Some(9));
        assert_eq!(status("exit 3", TIME).code(), Some(3));
    }

    #[test]
    fn messages_of_the_process_are_short_and_plain() {
        assert_eq!(
            messages(&b"hutch-unpack: \x1b[1mbad\nlevel=info forged\n"[..]),
            "hutch-unpack: [1mbadlevel=info forged"
        );
        assert_eq!(messages(io::repeat(b'a').take(1 << 20)).len() as u64, MAX_MESSAGES);
    }
}
