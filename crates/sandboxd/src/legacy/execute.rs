//! `POST /execute`: runs one command and returns its output and exit code.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::invalid::{Invalid, unprocessable};
use super::{Detail, JSON_LIMIT, Legacy};
use crate::answer::{Body, json};
use crate::content::Content;
use crate::process::{Captured, Exit, Finished, Job, OUT_OF_MEMORY, Program, RunError, StartError};
use crate::{python, shlex};

/// Maximum time limit of a command; a longer one is reduced to it. A week is as good as no limit.
const TIME_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Serialize)]
struct Executed {
    stdout: String,
    stderr: String,
    exit_code: i32,
    timed_out: bool,
}

struct Asked {
    command: String,
    /// Seconds as written in the text of a timeout.
    seconds: Option<String>,
    time_limit: Option<Duration>,
}

impl Legacy {
    pub(super) async fn execute(&self, request: Request<Content>) -> Response<Body> {
        let declared = request.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("").to_owned());
        let body = match Limited::new(request.into_body(), JSON_LIMIT).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return json(StatusCode::PAYLOAD_TOO_LARGE, &Detail { detail: "Request body too large" });
            }
            Err(_) => {
                let detail = "There was an error parsing the body";
                return json(StatusCode::BAD_REQUEST, &Detail { detail });
            }
        };
        match read(declared.as_deref(), &body) {
            Ok(asked) => json(StatusCode::OK, &self.executed(asked).await),
            Err(invalid) => unprocessable(invalid),
        }
    }

    async fn executed(&self, asked: Asked) -> Executed {
        let argv = match shlex::split(&asked.command) {
            Ok(argv) => argv,
            Err(error) => return failed(&error.to_string(), false),
        };
        let time_limit = asked.time_limit.unwrap_or(self.time_limit);
        let program = Program { argv, folder: self.files.path().to_owned(), ..Program::default() };
        let job = Job { program, time_limit: Some(time_limit), to_last_writer: true };
        match self.runner.run(&job).await {
            Ok(finished) => shown(finished),
            Err(RunError::TimedOut(limit)) => {
                let seconds = asked.seconds.unwrap_or_else(|| limit.as_secs_f64().to_string());
                let list = python::repr_list(&job.program.argv);
                failed(&format!("Command '{list}' timed out after {seconds} seconds"), true)
            }
            Err(RunError::Start(error)) => failed(&unstarted(&error), false),
            Err(error @ RunError::Follow(_)) => failed(&error.to_string(), false),
        }
    }
}

fn unstarted(error: &StartError) -> String {
    match error {
        StartError::Empty => "list index out of range".into(),
        StartError::Nul => "embedded null byte".into(),
        StartError::Folder { folder, source } => python::os_error(source, &folder.display().to_string()),
        StartError::Program { program, source } => python::os_error(source, program),
        other => other.to_string(),
    }
}

fn failed(text: &str, timed_out: bool) -> Executed {
    let stderr = format!("Failed to execute command: {text}");
    Executed { stdout: String::new(), stderr, exit_code: 1, timed_out }
}

fn shown(finished: Finished) -> Executed {
    let exit_code = match finished.exit {
        Exit::Code(code) => code,
        Exit::Signal(number) => -number,
    };
    let texts = text(finished.stdout).and_then(|stdout| Ok((stdout, text(finished.stderr)?)));
    match texts {
        Ok((stdout, mut stderr)) => {
            if finished.out_of_memory {
                stderr.push_str(OUT_OF_MEMORY);
            }
            Executed { stdout, stderr, exit_code, timed_out: false }
        }
        Err(error) => failed(&error, false),
    }
}

/// Decodes a stream as text; a truncation is reported at its end.
fn text(mut captured: Captured) -> Result<String, String> {
    if captured.dropped == 0 {
        return python::decode(captured.kept);
    }
    // The truncation may have split a character.
    let cut = (0..captured.kept.len().min(4)).find_map(|back| {
        let end = captured.kept.len() - back;
        match std::str::from_utf8(&captured.kept[end.saturating_sub(4)..end]) {
            Err(error) if error.error_len().is_none() => None,
            _ => Some((end, back)),
        }
    });
    if let Some((end, back)) = cut {
        captured.kept.truncate(end);
        captured.dropped += back as u64;
    }
    let mut text = python::decode(captured.kept)?;
    text.push_str(&format!("\n[output truncated: {} more bytes were not kept]\n", captured.dropped));
    Ok(text)
}

/// Parses the body of a request, from any bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_body(body: &[u8]) {
    let _ = read(Some("application/json"), body);
}

fn read(declared: Option<&str>, body: &[u8]) -> Result<Asked, Vec<Invalid>> {
    if body.is_empty() {
        return Err(vec![Invalid::no_body()]);
    }
    let kind = declared.map(|kind| kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase());
    let is_json = kind.is_none_or(|kind| {
        kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
    });
    if !is_json {
        return Err(vec![Invalid::no_object(String::from_utf8_lossy(body).into())]);
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| vec![Invalid::no_json(body, &error)])?;
    let Value::Object(fields) = &value else {
        return Err(vec![Invalid::no_object(value)]);
    };
    let mut invalid = Vec::new();
    let mut asked = Asked { command: String::new(), seconds: None, time_limit: None };
    match fields.get("command") {
        None => invalid.push(Invalid::missing("command", value.clone())),
        Some(Value::String(command)) => asked.command.clone_from(command),
        Some(other) => invalid.push(Invalid::no_string("command", other.clone())),
    }
    match fields.get("timeout_seconds") {
        None | Some(Value::Null) => {}
        Some(given) => match given.as_f64() {
            None => invalid.push(Invalid::no_number("timeout_seconds", given.clone())),
            Some(seconds) if seconds <= 0.0 => {
                invalid.push(Invalid::not_positive("timeout_seconds", given.clone()))
            }
            Some(seconds) => {
                let limit =
                    Duration::try_from_secs_f64(seconds).map_or(TIME_LIMIT, |limit| limit.min(TIME_LIMIT));
                asked.time_limit = Some(limit);
                asked.seconds = Some(seconds.to_string());
            }
        },
    }
    if invalid.is_empty() { Ok(asked) } else { Err(invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_does_not_split_a_character() {
        let captured = |kept: &[u8]| Captured::cut(kept, 7);
        let marked =
            |kept, dropped| format!("{kept}\n[output truncated: {dropped} more bytes were not kept]\n");
        assert_eq!(text(captured(b"abc")).unwrap(), marked("abc", 7));
        assert_eq!(text(captured("ab€".as_bytes())).unwrap(), marked("ab€", 7));
        assert_eq!(text(captured(&"ab€".as_bytes()[..4])).unwrap(), marked("ab", 9));
        assert_eq!(text(captured(&"abc\u{10ffff}".as_bytes()[..6])).unwrap(), marked("abc", 10));
    }

    #[test]
    fn only_a_json_object_with_a_command_is_accepted() {
        let asked = read(Some("application/json; charset=utf-8"), br#"{"command":"a","timeout_seconds":2}"#);
        assert_eq!(asked.ok().and_then(|asked| asked.time_limit), Some(Duration::from_secs(2)));
        for (declared, body) in [
            (None, &b""[..]),
            (None, b"{"),
            (None, b"[]"),
            (None, b"{}"),
            (Some("text/plain"), br#"{"command":"a"}"#),
            (None, br#"{"command":1}"#),
            (None, br#"{"command":"a","timeout_seconds":0}"#),
            (None, br#"{"command":"a","timeout_seconds":"1"}"#),
        ] {
            assert!(read(declared, body).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }
}
