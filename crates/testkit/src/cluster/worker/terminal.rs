//! A process on a pseudo-terminal.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use hutch_kubelet::{ByteReader, ByteWriter, TerminalSize};
use rustix::fs::{Mode, OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::container::Container;
use super::process::Process;

/// Sizes that wait to be set.
const SIZES: usize = 4;

pub(super) struct Streams {
    pub(super) keys: ByteWriter,
    pub(super) screen: ByteReader,
    pub(super) resize: mpsc::Sender<TerminalSize>,
}

/// Starts a program as the leader of the terminal's session.
pub(super) fn start(
    container: &Container,
    program: &str,
    arguments: &[String],
) -> io::Result<(Process, Streams)> {
    let (ours, theirs) = pair()?;
    // Without a group of its own `setsid` makes itself the leader, and not a child.
    let words: Vec<String> = std::iter::once(program.to_owned()).chain(arguments.iter().cloned()).collect();
    let mut command = container.command("setsid", &[&["--ctty".to_owned()], &words[..]].concat());
    command
        .stdin(Stdio::from(theirs.try_clone()?))
        .stdout(Stdio::from(theirs.try_clone()?))
        .stderr(Stdio::from(theirs));
    let process = Process::start(&mut command, container.minder())?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    let (keys, size) = (ours.try_clone()?, ours.try_clone()?);
    let (resize, mut sizes) = mpsc::channel::<TerminalSize>(SIZES);
    tokio::spawn(async move {
        while let Some(TerminalSize { columns, rows }) = sizes.recv().await {
            // A terminal whose process has ended needs no size.
            let _ =
                tcsetwinsize(&size, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 });
        }
    });
    let streams = Streams {
        // A terminal is no pipe, and is waited for like one.
        keys: Box::pin(pipe::Sender::from_file_unchecked(File::from(keys))?),
        screen: Box::pin(pipe::Receiver::from_file_unchecked(File::from(ours))?),
        resize,
    };
    Ok((process, streams))
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok((ours, rustix::fs::open(name, flags, Mode::empty())?))
}
