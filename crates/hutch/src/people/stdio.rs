//! This program's own standard streams: as they are, nothing held back.
//!
//! Each has a thread of its own, so that the descriptors stay blocking for whoever shares them.

use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

use super::remote::Input;

/// Pieces that wait, in each direction; with [`CHUNK`] it bounds what is kept in memory.
const QUEUE: usize = 8;
/// Bytes read at a time.
const CHUNK: usize = 32 * 1024;
/// What a terminal's user types at the end.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Something to print.
#[derive(Debug)]
pub(super) enum Piece {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// Prints pieces in the order in which they came.
pub(super) struct Printer {
    /// Closed when nobody reads any more.
    pub(super) pieces: mpsc::Sender<Piece>,
    printed: oneshot::Receiver<bool>,
}

impl Printer {
    pub(super) fn start() -> Printer {
        let (pieces, mut queued) = mpsc::channel(QUEUE);
        let (done, printed) = oneshot::channel();
        std::thread::spawn(move || {
            let mut all = true;
            while let Some(piece) = queued.blocking_recv() {
                let written = match &piece {
                    Piece::Stdout(bytes) => write_all(rustix::stdio::stdout(), bytes),
                    Piece::Stderr(bytes) => write_all(rustix::stdio::stderr(), bytes),
                };
                if written.is_err() {
                    all = false;
                    break;
                }
            }
            // Without a receiver nobody waits for it.
            let _ = done.send(all);
        });
        Printer { pieces, printed }
    }

    /// Waits until all is printed; false when it could not be.
    pub(super) async fn finish(self) -> bool {
        drop(self.pieces);
        self.printed.await.unwrap_or(false)
    }
}

fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Somebody who shares it made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None)?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sends standard input until it ends. A terminal inside has no end of its own, so there the end is typed.
pub(super) fn send_stdin(to: mpsc::Sender<Input>, tty: bool) {
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let stdin = rustix::stdio::stdin();
                    // What fails here fails again, and for good, when it is read.
                    let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None);
                }
                Ok(count) if count > 0 => {
                    if to.blocking_send(Input::Bytes(Bytes::copy_from_slice(&chunk[..count]))).is_err() {
                        return;
                    }
                }
                // Input that cannot be read is at its end.
                Ok(_) | Err(_) => break,
            }
        }
        let end = if tty { Input::Bytes(Bytes::from_static(END_OF_TRANSMISSION)) } else { Input::End };
        // Without a receiver the command has ended.
        let _ = to.blocking_send(end);
    });
}
