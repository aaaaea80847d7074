//! Terminal of this program: raw while a command uses it, and restored afterwards in every case.

use std::sync::Mutex;

use hutch_client::Input;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Original settings of the terminal. Static, because a panic ends the program without dropping values; its hook reads
/// this.
static ORIGINAL: Mutex<Option<Termios>> = Mutex::new(None);

/// Guard of raw mode, in which each key goes to the command at once.
pub(super) struct Raw;

impl Raw {
    /// Sets raw mode if standard input is a terminal.
    pub(super) fn enter() -> std::io::Result<Raw> {
        let stdin = rustix::stdio::stdin();
        let Ok(original) = tcgetattr(stdin) else { return Ok(Raw) };
        let mut raw = original.clone();
        raw.make_raw();
        if let Ok(mut kept) = ORIGINAL.lock() {
            *kept = Some(original);
        }
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Ok(mut kept) = ORIGINAL.lock()
        && let Some(original) = kept.take()
    {
        // A closed terminal has nothing to restore.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &original);
    }
}

/// Sends the size of this terminal, now and after each change. Needs a tokio runtime.
pub(super) fn send_sizes(to: mpsc::Sender<Input>) -> std::io::Result<()> {
    let mut changed = signal(SignalKind::window_change())?;
    tokio::spawn(async move {
        loop {
            if let Some(size) = size()
                && to.send(size).await.is_err()
            {
                return;
            }
            changed.recv().await;
        }
    });
    Ok(())
}

fn size() -> Option<Input> {
    let size =
        tcgetwinsize(rustix::stdio::stdin()).or_else(|_| tcgetwinsize(rustix::stdio::stdout())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some(Input::Size { columns: size.ws_col, rows: size.ws_row })
}
