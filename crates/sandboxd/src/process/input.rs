//! Input of a process: its standard input, or its terminal.

use std::sync::Arc;

use rustix::termios::{LocalModes, SpecialCodeIndex, tcgetattr};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::process::ChildStdin;

use super::terminal::Terminal;

/// Reason why input was rejected.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The input was closed before.
    #[error("the standard input is closed")]
    Closed,
    /// The process has closed its side, or has ended.
    #[error("cannot write to the process: {0}")]
    Refused(std::io::Error),
}

/// Input of a process.
#[derive(Debug)]
pub(super) enum Input {
    /// Closed.
    None,
    Pipe(ChildStdin),
    Terminal {
        terminal: Arc<Terminal>,
        /// True if the last write ended a line, so that `^D` is the end of file.
        at_line_start: bool,
    },
}

impl Input {
    /// Writes all bytes; waits while the process does not read.
    pub(super) async fn write(&mut self, content: &[u8]) -> Result<(), InputError> {
        match self {
            Input::None => Err(InputError::Closed),
            Input::Pipe(pipe) => pipe.write_all(content).await.map_err(InputError::Refused),
            Input::Terminal { terminal, at_line_start } => {
                terminal.write_all(content).await.map_err(InputError::Refused)?;
                if let Some(last) = content.last() {
                    *at_line_start = matches!(last, b'\n' | b'\r');
                }
                Ok(())
            }
        }
    }

    /// Ends the input: closes a pipe, or sends `^D` to a terminal, which stays open.
    pub(super) async fn end(&mut self) -> Result<(), InputError> {
        match self {
            Input::None => Err(InputError::Closed),
            Input::Pipe(_) => {
                *self = Input::None;
                Ok(())
            }
            Input::Terminal { terminal, at_line_start } => {
                let modes =
                    tcgetattr(terminal.descriptor()).map_err(|errno| InputError::Refused(errno.into()))?;
                let end = modes.special_codes[SpecialCodeIndex::VEOF];
                // Within a line the first `^D` only submits the typed characters.
                let twice = modes.local_modes.contains(LocalModes::ICANON) && !*at_line_start;
                let keys = [end, end];
                let keys = if twice { &keys[..] } else { &keys[..1] };
                terminal.write_all(keys).await.map_err(InputError::Refused)?;
                *at_line_start = true;
                Ok(())
            }
        }
    }
}

impl Terminal {
    async fn write_all(&self, mut content: &[u8]) -> std::io::Result<()> {
        while !content.is_empty() {
            let written = self
                .readiness()
                .async_io(Interest::WRITABLE, |descriptor| Ok(rustix::io::write(descriptor, content)?))
                .await?;
            content = &content[written..];
        }
        Ok(())
    }
}
