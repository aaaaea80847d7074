//! Report of a run: at most one line, or one JSON object.

use std::fmt::Arguments;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_jail::Error;
use hutch_jail::run::{Captured, Ended, Outcome};
use serde_json::{Value, json};

use crate::cli::RunArguments;
use crate::protect::Change;

/// Reports how the command ended; returns its exit status.
pub(super) fn ended(arguments: &RunArguments, outcome: &Outcome, change: &Change) -> anyhow::Result<u8> {
    let status = u8::try_from(outcome.ended.status()).unwrap_or(u8::MAX);
    if arguments.json {
        say(&object(arguments, outcome, change));
        return Ok(status);
    }
    if let Some(line) = change.line() {
        print_error(format_args!("{line}"));
    }
    match outcome.ended {
        Ended::TimedOut => {
            let after = arguments.timeout.unwrap_or_default();
            print_error(format_args!(
                "timed out after {after:?} and was ended; a longer {} gives it more time",
                named(arguments, "--timeout", "`resources.timeout_seconds`")
            ));
        }
        Ended::OutOfMemory => {
            let limit = arguments.memory.unwrap_or_default() >> 20;
            print_error(format_args!(
                "killed for memory: it wanted more than {} allows ({limit} MiB)",
                named(arguments, "--memory", "`resources.memory_limit`")
            ));
        }
        Ended::Exited(_) | Ended::Signaled(_) => {}
    }
    Ok(status)
}

/// Prints the JSON object of a command that could not be executed.
pub(super) fn not_started(error: &Error) {
    say(&json!({"reason": "notStarted", "message": error.to_string()}));
}

/// Prints a line on standard error. One that cannot be written, for example because its reader has gone, changes nothing.
pub(crate) fn print_error(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "hutch: {line}");
}

/// Returns how a limit is named: by its flag, or by its field of `--config`.
fn named(arguments: &RunArguments, flag: &'static str, field: &'static str) -> &'static str {
    if arguments.config.is_some() { field } else { flag }
}

/// Prints it on a line. A closed output does not change the exit status.
fn say(object: &Value) {
    let _ = writeln!(std::io::stdout(), "{object}");
}

fn object(arguments: &RunArguments, outcome: &Outcome, change: &Change) -> Value {
    let (reason, signal) = match outcome.ended {
        Ended::Exited(_) => ("exited", None),
        Ended::Signaled(signal) => ("signaled", Some(signal)),
        Ended::TimedOut => ("timedOut", None),
        Ended::OutOfMemory => ("outOfMemory", None),
    };
    let handler = match arguments.isolation {
        crate::cli::Isolation::Hutch => "hutch",
        crate::cli::Isolation::Gvisor => "gvisor",
    };
    json!({
        "status": {"code": outcome.ended.status(), "signal": signal},
        "reason": reason,
        "stdout": outcome.stdout.as_ref().map(stream),
        "stderr": outcome.stderr.as_ref().map(stream),
        "wallMillis": outcome.wall.as_secs_f64() * 1000.0,
        "cpuMillis": outcome.cpu.as_secs_f64() * 1000.0,
        "peakMemoryBytes": outcome.memory_peak_bytes,
        "changedOnHost": {"names": change.names, "more": change.more, "unchecked": change.unchecked},
        "isolation": {
            "handler": handler,
            "idRange": outcome.isolation.id_range,
            "landlock": outcome.isolation.landlock,
            "cgroup": outcome.isolation.cgroup,
        },
    })
}

/// Returns UTF-8 as text, else base64, with the number of all bytes and a mark for truncated output.
fn stream(captured: &Captured) -> Value {
    let bytes = captured.bytes.len() as u64 + captured.dropped;
    let truncated = captured.dropped > 0;
    match std::str::from_utf8(whole_characters(captured)) {
        Ok(text) => json!({"text": text, "bytes": bytes, "truncated": truncated}),
        Err(_) => json!({"base64": STANDARD.encode(&captured.bytes), "bytes": bytes, "truncated": truncated}),
    }
}

/// Text with a truncated character at its end is still text.
fn whole_characters(captured: &Captured) -> &[u8] {
    let bytes = &captured.bytes;
    match std::str::from_utf8(bytes) {
        Err(error) if captured.dropped > 0 && error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_binary_and_cut_text() {
        let stream_of = |bytes: &[u8], dropped| stream(&Captured { bytes: bytes.to_vec(), dropped });
        assert_eq!(stream_of(b"a\n", 0), json!({"text": "a\n", "bytes": 2, "truncated": false}));
        assert_eq!(stream_of(&[0xff, 0], 0), json!({"base64": "/wA=", "bytes": 2, "truncated": false}));
        assert_eq!(stream_of(&[b'a', 0xc3], 9), json!({"text": "a", "bytes": 11, "truncated": true}));
        assert_eq!(stream_of(&[b'a', 0xc3], 0)["base64"], json!("YcM="));
    }
}
