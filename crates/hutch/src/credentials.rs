//! Credentials of a command: placeholders for its environment, and the values, which only the proxy reads.
//!
//! The process that starts the command never has a value: every jail is a fork of it.

use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use hutch_egress::{Issued, Secret};
use hutch_policy::{Binding, Level, Source, is_opened, offered, placeholder};
use hutch_scan::Fingerprint;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Maximum bytes of a value.
const VALUE: usize = 8 << 10;
/// Minimum bytes of a value: a shorter one would be removed from answers where it stands by chance.
const SHORTEST: usize = 8;
/// Maximum bytes of the environment of a process.
const ENVIRONMENT: u64 = 8 << 20;

/// Credential whose value the proxy is to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    name: String,
    policy: String,
    env: Option<String>,
    placeholder: String,
    source: Source,
    binding: Binding,
    /// Seconds for which the value is used.
    seconds: Option<u64>,
}

impl Wanted {
    /// Returns the credentials that policies offer, with new placeholders.
    pub(crate) fn all(levels: &[Level]) -> anyhow::Result<Vec<Wanted>> {
        let mut all: Vec<Wanted> = Vec::new();
        for (level, credential) in offered(levels) {
            let (name, policy) = (credential.name.clone(), level.name.clone());
            let twice =
                |other: &&Wanted| other.name == name || (other.env.is_some() && other.env == credential.env);
            if let Some(other) = all.iter().find(twice) {
                bail!(
                    "--policy: credentials {:?} of policy {:?} and {name:?} of policy {policy:?} have the same name or variable",
                    other.name,
                    other.policy
                );
            }
            let source = credential.source.clone().context("a credential without a source")?;
            let source = match source {
                Source::File(path) => Source::File(std::path::absolute(path).context("--policy")?),
                source => source,
            };
            let (env, binding) = (credential.env.clone(), credential.binding.clone());
            let seconds = credential.expires.map(|expires| expires.duration().as_secs());
            let placeholder = placeholder(credential.shape(), &mut |below| rand::random_range(0..below));
            all.push(Wanted { name, policy, env, placeholder, source, binding, seconds });
        }
        for level in levels {
            for rule in level.egress.iter().flat_map(|egress| egress.rules.iter()) {
                let mut names = rule.credentials.iter().flatten();
                if let Some(name) = names.find(|name| all.iter().all(|one| one.name != **name)) {
                    bail!(
                        "--policy: rule {:?} of policy {:?}: credentials: no policy offers {name:?}",
                        rule.name,
                        level.name
                    );
                }
            }
        }
        Ok(all)
    }

    /// Prints which credentials no rule opens, so that no request can use them.
    pub(crate) fn warn_of_closed(all: &[Wanted], levels: &[Level]) {
        for one in all.iter().filter(|one| !is_opened(levels, &one.binding)) {
            eprintln!("hutch: {}: no rule opens its hosts, so no request can use it", one.named());
        }
    }

    /// Returns the file that has the value.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) => Some(path),
            Source::Env(_) => None,
        }
    }

    /// Returns how messages name the credential.
    pub(crate) fn named(&self) -> String {
        format!("credential {:?} of policy {:?}", self.name, self.policy)
    }

    /// Returns the fingerprint of the placeholder.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.placeholder.as_bytes())
    }

    /// Returns the variable that has the placeholder.
    pub(crate) fn variable(&self) -> Option<(String, String)> {
        Some((self.env.clone()?, self.placeholder.clone()))
    }

    /// Returns the variable of the caller that has the value.
    pub(crate) fn caller_variable(&self) -> Option<&str> {
        match &self.source {
            Source::Env(name) => Some(name),
            Source::File(_) => None,
        }
    }

    /// Reads the value. `environment` is that of the process that has started this one.
    fn read(&self, environment: &[u8], now: u64) -> anyhow::Result<Issued> {
        let text = match &self.source {
            Source::File(path) => file(path).with_context(|| format!("source.file: {}", path.display()))?,
            Source::Env(name) => {
                variable(environment, name).ok_or_else(|| anyhow!("source.env: {name} is not set"))?
            }
        };
        let value = checked(&text).map_err(anyhow::Error::msg)?;
        Ok(Issued {
            name: self.name.clone(),
            placeholder: self.placeholder.clone(),
            value,
            binding: self.binding.clone(),
            bounds: None,
            ends: self.seconds.map(|seconds| now.saturating_add(seconds).cast_signed()),
            missing: false,
        })
    }
}

/// Reads all values. To be called by the proxy before it is confined.
pub(crate) fn read(wanted: &[Wanted]) -> Result<Vec<Issued>, String> {
    let environment = match wanted.iter().any(|one| one.caller_variable().is_some()) {
        true => of_parent().map_err(|error| format!("the environment of the caller: {error}"))?,
        false => Zeroizing::default(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let read = |one: &Wanted| {
        let failed = |error| format!("{}: {error:#}", one.named());
        one.read(&environment, now).map_err(failed)
    };
    wanted.iter().map(read).collect()
}

fn of_parent() -> std::io::Result<Zeroizing<Vec<u8>>> {
    let parent = rustix::process::getppid().ok_or(std::io::ErrorKind::NotFound)?;
    bytes(std::fs::File::open(format!("/proc/{}/environ", parent.as_raw_nonzero()))?, ENVIRONMENT)
}

/// Returns a value without white space at its end.
pub(crate) fn checked(text: &str) -> Result<Secret, String> {
    let value = text.trim_end();
    match (SHORTEST..=VALUE).contains(&value.len()) {
        true => Ok(Secret::new(value.to_owned())),
        false => Err(format!("the value has {} bytes; a credential has {SHORTEST} to {VALUE}", value.len())),
    }
}

/// Reads a file with a value.
pub(crate) fn file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    text(std::fs::File::open(path)?)
}

/// Reads an open file with a value.
pub(crate) fn text(file: std::fs::File) -> anyhow::Result<Zeroizing<String>> {
    let bytes = bytes(file, VALUE as u64 + 1)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| anyhow!("is not text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Reads up to this number of bytes into memory that is not moved.
fn bytes(file: std::fs::File, most: u64) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut found = Zeroizing::new(Vec::with_capacity(usize::try_from(most).unwrap_or(VALUE) + 1));
    file.take(most).read_to_end(&mut found)?;
    Ok(found)
}

fn variable(environment: &[u8], name: &str) -> Option<Zeroizing<String>> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")))?;
    Some(Zeroizing::new(std::str::from_utf8(value).ok()?.to_owned()))
}

/// Maximum bytes of all values of a Pod: they go to the proxy in one message.
const VALUES: usize = 48 << 10;

/// Returns the place of the first credential whose value no longer fits.
pub(crate) fn first_too_many(issued: &[Issued]) -> Option<usize> {
    let mut left = VALUES;
    let fits = |one: &Issued| {
        let rest = left.checked_sub(one.value.expose().len());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    let fitting = issued.iter().map(fits).take_while(|fits| *fits).count();
    (fitting < issued.len()).then_some(fitting)
}

/// Returns the value of a key of a Secret.
pub(crate) fn of_secret(secret: Option<&SecretObject>, key: &str) -> Result<Secret, String> {
    let secret = secret.ok_or("it does not exist")?;
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    let value = value.ok_or_else(|| format!("it has no key {key:?}"))?;
    checked(std::str::from_utf8(&value.0).map_err(|_| format!("the value of {key:?} is not text"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_fit_into_one_message_are_left_out() {
        let issued = |bytes: usize| Issued {
            name: "a".into(),
            placeholder: "p".into(),
            value: Secret::new("v".repeat(bytes)),
            binding: Binding::default(),
            bounds: None,
            ends: None,
            missing: false,
        };
        assert_eq!(first_too_many(&[issued(VALUES), issued(0)]), None);
        assert_eq!(first_too_many(&[issued(8), issued(VALUES), issued(1)]), Some(1));
        assert_eq!(first_too_many(&[]), None);
    }

    #[test]
    fn value_is_read_from_a_variable_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "from-a-file\n").unwrap();
        let wanted = |source| Wanted {
            name: "a".into(),
            policy: "p".into(),
            env: None,
            placeholder: "x".into(),
            source,
            binding: Binding::default(),
            seconds: Some(5),
        };
        let environment = b"TOKENS=other\0TOKEN=from-a-variable\0";
        let read = |source| wanted(source).read(environment, 10);
        let issued = read(Source::Env("TOKEN".into())).unwrap();
        assert_eq!((issued.value, issued.ends), (Secret::new("from-a-variable".into()), Some(15)));
        assert_eq!(read(Source::File(path.clone())).unwrap().value, Secret::new("from-a-file".into()));
        std::fs::write(&path, "short\n").unwrap();
        for (source, expected) in [
            (Source::File(path), "has 5 bytes"),
            (Source::Env("NONE".into()), "source.env: NONE is not set"),
            (Source::File("/nonexistent".into()), "source.file: /nonexistent"),
        ] {
            let error = format!("{:#}", read(source).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
