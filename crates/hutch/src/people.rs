//! What people do with a Sandbox, as a client of any API server: a command, a shell, files, the log, sleep.

mod copy;
mod exec;
mod logs;
mod mode;
mod progress;
mod remote;
mod sandbox;
mod stdio;
mod terminal;
mod wait;

use std::process::ExitCode;

pub(crate) use copy::main as copy;
pub(crate) use exec::{main as exec, shell};
pub(crate) use logs::main as logs;
pub(crate) use mode::{resume, suspend};

/// Exit status of a program that writes where nobody reads: 128 and SIGPIPE.
const NOBODY_READS: u8 = 141;

/// Runs it and says on one line why it failed; what it answers is the exit status, `failed` that of a failure.
pub(crate) fn finish(command: &str, failed: u8, work: impl Future<Output = anyhow::Result<u8>>) -> ExitCode {
    let outcome = crate::runtime::runtime().and_then(|runtime| {
        let outcome = runtime.block_on(work);
        // Nothing that is still under way may keep the program.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("hutch {command}: {}", plain(&format!("{error:#}")));
            ExitCode::from(failed)
        }
    }
}

/// Text from elsewhere as one line that no terminal takes for a command.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_control()).map(str::trim).filter(|part| !part.is_empty());
    words.collect::<Vec<_>>().join("; ")
}

/// What the API server said, without the library's dump of the object.
pub(crate) fn api_error(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow::anyhow!("{}", status.message),
        error => anyhow::Error::new(error).context("the API server"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_says_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\r\nc\n"), "a; [2Jb; c");
        assert_eq!(plain("one line"), "one line");
    }
}
