//! Credential helpers of Docker: programs `docker-credential-NAME`.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::Error;
use crate::error::shorten;
use crate::secret::Secret;

/// Maximum time of one call.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum bytes of output.
const MAX_OUTPUT: u64 = 64 << 10;
/// Output of a helper that has no credentials for the registry, with status 1.
const NOT_FOUND: &str = "credentials not found";

/// A helper. Its name is one part of a file name.
#[derive(Debug, Clone)]
pub(crate) struct Helper {
    program: String,
    limit: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

impl Helper {
    /// Takes the name that stands in the configuration.
    pub(crate) fn new(name: &str) -> Result<Helper, String> {
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(valid) {
            return Err(format!("{:?} is not the name of a credential helper", shorten(name)));
        }
        Ok(Helper { program: format!("docker-credential-{name}"), limit: LIMIT })
    }

    /// Requests user and secret of a registry; `None` when the helper has none.
    pub(crate) async fn get(&self, server: &str) -> Result<Option<(String, Secret)>, Error> {
        let failed = |reason: String| Error::Credentials { origin: self.program.clone(), reason };
        match tokio::time::timeout(self.limit, self.run(server)).await {
            Ok(outcome) => outcome.map_err(failed),
            Err(_) => Err(failed(format!("no answer within {} s", self.limit.as_secs()))),
        }
    }

    /// Runs the program. Its output is never shown, because it may hold a secret.
    async fn run(&self, server: &str) -> Result<Option<(String, Secret)>, String> {
        let mut command = Command::new(&self.program);
        // It is searched on this path too. Relative folders depend on the working directory, in which others may have written.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let absolute = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
        command.env("PATH", std::env::join_paths(absolute).map_err(|error| error.to_string())?);
        command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.process_group(0).kill_on_drop(true).spawn();
        let mut group = Group(child.map_err(|e| format!("cannot be started: {e}"))?);
        let child = &mut group.0;
        if let Some(mut input) = child.stdin.take() {
            // A helper that does not read its input answers without it, or fails.
            let _ = input.write_all(format!("{server}\n").as_bytes()).await;
        }
        let mut output = zeroize::Zeroizing::new(Vec::new());
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output).await.map_err(|e| e.to_string())?;
        }
        if output.len() as u64 > MAX_OUTPUT {
            return Err(format!("it wrote more than {MAX_OUTPUT} bytes"));
        }
        let status = child.wait().await.map_err(|e| e.to_string())?;
        if !status.success() {
            let none =
                std::str::from_utf8(&output).is_ok_and(|text| text.trim_start().starts_with(NOT_FOUND));
            return if none { Ok(None) } else { Err(format!("it failed ({status})")) };
        }
        let answer: Answer = serde_json::from_slice(&output).map_err(|_| "its output is not valid")?;
        Ok(Some((answer.username, Secret::new(answer.secret))))
    }
}

/// A program with what it started; killed on drop.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // After its end was observed there is no id, because another process may have it by then.
        if let Some(id) = self.0.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            // It may have ended just now.
            let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> (tempfile::TempDir, Helper) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("docker-credential-test");
        hutch_testkit::write_program(&format!("#!/bin/sh\n{text}\n"), &program);
        let helper = Helper { program: program.display().to_string(), limit: Duration::from_secs(20) };
        (folder, helper)
    }

    #[tokio::test]
    async fn helper_gets_the_server_and_answers() {
        let (_folder, helper) = script(
            r#"read server; echo "{\"ServerURL\":\"x\",\"Username\":\"$1-$server\",\"Secret\":\"s\"}""#,
        );
        let (user, secret) = helper.get("ghcr.io").await.unwrap().unwrap();
        assert_eq!((user.as_str(), secret.expose()), ("get-ghcr.io", "s"));
    }

    #[tokio::test]
    async fn missing_credentials_are_no_error() {
        let (_folder, helper) = script("echo 'credentials not found in native keychain'; exit 1");
        assert!(helper.get("x").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn failures_are_bounded_and_show_no_output() {
        for text in ["echo hunter2; exit 1", "echo hunter2", "yes hunter2"] {
            let (_folder, helper) = script(text);
            let error = helper.get("x").await.unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let (_folder, mut helper) = script("sleep 600");
        helper.limit = Duration::from_millis(50);
        assert!(helper.get("x").await.unwrap_err().to_string().contains("no answer"));
    }

    #[test]
    fn name_is_no_path() {
        for name in ["", "../x", "a/b", "a b", "a;b"] {
            assert!(Helper::new(name).is_err(), "{name}");
        }
    }
}
