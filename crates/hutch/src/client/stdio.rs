//! Standard streams of this program, without buffering.
//!
//! Each has a thread of its own, so that the descriptors stay blocking for the programs that share them.

use std::os::fd::AsFd;

use bytes::Bytes;
use hutch_client::{Input, Output};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

/// Maximum queued pieces in each direction; bounds the memory together with [`CHUNK`].
const QUEUE: usize = 8;
/// Maximum bytes read at a time.
const CHUNK: usize = 32 * 1024;
/// Key that ends the input of a terminal: Ctrl-D.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Prints pieces in their order.
pub(super) struct Printer {
    /// Closed when the reader of the output has gone.
    pub(super) pieces: mpsc::Sender<Output>,
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
                    Output::Stdout(bytes) => write_all(rustix::stdio::stdout(), bytes),
                    Output::Stderr(bytes) => write_all(rustix::stdio::stderr(), bytes),
                };
                if written.is_err() {
                    all = false;
                    break;
                }
            }
            // Without a receiver, no task waits for the result.
            let _ = done.send(all);
        });
        Printer { pieces, printed }
    }

    /// Waits until all is printed; returns false if that failed.
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
            // A program that shares the descriptor made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None)?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sends standard input until it ends. The end of a terminal's input is a key.
pub(super) fn send_stdin(to: mpsc::Sender<Input>, tty: bool) {
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let stdin = rustix::stdio::stdin();
                    // The next read reports a lasting error.
                    let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None);
                }
                Ok(count) if count > 0 => {
                    if to.blocking_send(Input::Bytes(Bytes::copy_from_slice(&chunk[..count]))).is_err() {
                        return;
                    }
                }
                // An error ends the input.
                Ok(_) | Err(_) => break,
            }
        }
        let end = if tty { Input::Bytes(Bytes::from_static(END_OF_TRANSMISSION)) } else { Input::End };
        // Without a receiver the command has ended.
        let _ = to.blocking_send(end);
    });
}
