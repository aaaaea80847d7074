//! Commands for a Sandbox behind any API server. [`hutch_client`] does the work; here are progress, output, terminals
//! and exit statuses.

mod copy;
mod exec;
mod logs;
mod mode;
mod progress;
mod snapshot;
mod stdio;
mod terminal;

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hutch_client::{Error, Name, Obstacle, Sandboxes, Target, Wait};
use kube::Client;

use crate::cli::{Container, Place, Readiness};
pub(crate) use copy::main as copy;
pub(crate) use exec::{main as exec, shell};
pub(crate) use logs::main as logs;
pub(crate) use mode::{resume, suspend};
use progress::Progress;
pub(crate) use snapshot::{fork, main as snapshot};

/// Exit status when the reader of the output has gone: 128 and SIGPIPE.
const OUTPUT_CLOSED: u8 = 141;

/// Runs a command. A failure is printed on one line and ends with the status `failed`.
pub(crate) fn finish(command: &str, failed: u8, work: impl Future<Output = anyhow::Result<u8>>) -> ExitCode {
    let outcome = crate::runtime::runtime().and_then(|runtime| {
        let outcome = runtime.block_on(work);
        // Tasks that still run must not keep the process.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("hutch {command}: {}", line_of(&error));
            ExitCode::from(failed)
        }
    }
}

/// Returns an error on one line.
pub(crate) fn line_of(error: &anyhow::Error) -> String {
    plain(&unreachable_server(error).unwrap_or_else(|| text_of(error)))
}

/// Returns the text of an error of a connection that the API server does not accept.
pub(crate) fn unreachable_server(error: &anyhow::Error) -> Option<String> {
    let reason = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>())?;
    let refused = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
    let server = crate::cluster::server().filter(|_| refused.contains(&reason.kind()))?;
    Some(format!("the API server {server}: {reason}; is it running? `hutch up` starts one on this machine"))
}

/// Returns the text of an error with its causes. Those that a text already contains are not repeated.
fn text_of(error: &anyhow::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in error.chain().map(ToString::to_string) {
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// Returns untrusted text as one line without control characters.
pub(crate) fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_control()).map(str::trim).filter(|part| !part.is_empty());
    words.collect::<Vec<_>>().join("; ")
}

pub(crate) async fn connect(place: &Place) -> anyhow::Result<Sandboxes> {
    let mut config = crate::cluster::config(place.kubeconfig.as_deref()).await?;
    // Reports a container that is not running, a 503, at once.
    config.default_retry = false;
    let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let url = config.cluster_url.clone();
    let client = Client::try_from(config).with_context(|| format!("the API server {url}"))?;
    Ok(Sandboxes::new(client, &namespace))
}

async fn target(
    sandboxes: &Sandboxes,
    name: &Name,
    container: &Container,
    readiness: &Readiness,
) -> anyhow::Result<Target> {
    let mut progress = Progress::new();
    let mut wait = Wait::new(readiness.wait, &mut progress);
    let target = sandboxes.target(name, container.name.as_deref(), readiness.resume, &mut wait).await;
    target.map_err(with_hint)
}

/// Adds the flag or command that helps.
pub(crate) fn with_hint(error: Error) -> anyhow::Error {
    let hint = match &error {
        Error::NotFound { namespace, .. } => {
            format!(": `kubectl get sandboxes,sandboxclaims -n {namespace}` lists them")
        }
        Error::NoPod { sandbox, namespace, .. } => {
            format!(": `kubectl describe sandbox {sandbox} -n {namespace}` shows why")
        }
        Error::NoLog(sandbox) => format!("; `hutch resume {sandbox}` starts it again"),
        Error::NoContainer { .. } => return anyhow!("--{error}"),
        Error::NoProgram { .. } => ", which cp needs inside".to_owned(),
        Error::TimedOut { limit, .. } if !limit.is_zero() => {
            "; a longer --wait gives it more time".to_owned()
        }
        Error::Blocked { name, obstacle: Obstacle::Suspended, .. } => {
            format!("; --resume or `hutch resume {name}` starts it again")
        }
        Error::Blocked { obstacle: Obstacle::PodEnded(_), .. } => {
            "; `hutch suspend` and `hutch resume` start it anew".to_owned()
        }
        _ => return error.into(),
    };
    anyhow!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_that_is_in_the_text_already_is_not_repeated() {
        let io = std::io::Error::other("the peer closed the connection");
        let error = anyhow::Error::new(io).context("I/O: the peer closed the connection").context("it ended");
        assert_eq!(text_of(&error), "it ended: I/O: the peer closed the connection");
    }

    #[test]
    fn stopped_server_is_named_once() {
        crate::cluster::name_server(&"https://127.0.0.1:6443/");
        let error = |kind| anyhow::Error::new(std::io::Error::from(kind)).context("client error (Connect)");
        let text = unreachable_server(&error(ErrorKind::ConnectionRefused)).unwrap();
        assert_eq!(
            text,
            "the API server https://127.0.0.1:6443/: connection refused; is it running? `hutch up` starts one on this machine"
        );
        assert_eq!(unreachable_server(&error(ErrorKind::InvalidData)), None);
    }

    #[test]
    fn untrusted_text_has_no_control_characters() {
        assert_eq!(plain("a\u{1b}[2Jb\r\nc\n"), "a; [2Jb; c");
        assert_eq!(plain("one line"), "one line");
    }
}
