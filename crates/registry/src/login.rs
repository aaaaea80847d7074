//! Stores credentials in a `config.json` of Docker.

use std::fs::DirBuilder;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::config::read_text;
use crate::keychain::{DOCKER_KEY, MAX_BYTES, wrong};
use crate::names::{DOCKER, read_registry};
use crate::{Error, Secret};

/// Stores user and password for a registry. Other fields of the file are kept, and it gets mode 0600. Returns the name of the
/// registry.
///
/// # Errors
/// When the name is invalid, the file is not of Docker or cannot be written, or it gives the registry to a credential helper.
pub fn log_in(file: &Path, registry: &str, user: &str, password: &Secret) -> Result<String, Error> {
    let origin = file.display().to_string();
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => DOCKER.to_owned(),
        other => read_registry(other).map_err(|reason| wrong("the command line", reason))?,
    };
    if user.is_empty() || user.contains(':') {
        return Err(wrong("the command line", "a user has at least one character and no colon".into()));
    }
    // A file that is a link is replaced where it leads to.
    let file = &file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mut config: Value = match std::fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => json!({}),
        _ => {
            let text = Secret::new(read_text(file, MAX_BYTES)?);
            // The parser's own message may repeat content.
            let parsed = serde_json::from_str(text.expose()).ok().filter(Value::is_object);
            parsed.ok_or_else(|| wrong(&origin, "not a config.json of Docker".into()))?
        }
    };
    let named = |value: &Value| value.as_str().is_some_and(|name| !name.is_empty());
    if named(&config["credsStore"]) || named(&config["credHelpers"][registry.as_str()]) {
        let reason = format!("a credential helper keeps the password for {registry}: use docker login");
        return Err(wrong(&origin, reason));
    }
    let key = if registry == DOCKER { DOCKER_KEY } else { registry.as_str() };
    let auth = STANDARD.encode(format!("{user}:{}", password.expose()));
    let not_docker = || wrong(&origin, "not a config.json of Docker".into());
    let auths = config.as_object_mut().ok_or_else(not_docker)?.entry("auths").or_insert_with(|| json!({}));
    auths.as_object_mut().ok_or_else(not_docker)?.insert(key.to_owned(), json!({"auth": auth}));
    write(file, format!("{config:#}\n").as_bytes())?;
    Ok(registry)
}

/// Replaces the file as a whole.
fn write(file: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::file("make", folder))?;
    let failed = || Error::file("write", file);
    // It has mode 0600.
    let mut new = tempfile::NamedTempFile::new_in(folder).map_err(failed())?;
    new.write_all(bytes).map_err(failed())?;
    new.as_file().sync_all().map_err(failed())?;
    new.persist(file).map_err(|error| failed()(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn login_is_stored_beside_others_in_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("docker/config.json");
        let secret = |text: &str| Secret::new(text.to_owned());
        assert_eq!(log_in(&file, "GHCR.io", "me", &secret("a:b")).unwrap(), "ghcr.io");
        log_in(&file, "docker.io", "you", &secret("p")).unwrap();
        log_in(&file, "ghcr.io", "me", &secret("new")).unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(
            config,
            json!({"auths": {"ghcr.io": {"auth": STANDARD.encode("me:new")},
                "https://index.docker.io/v1/": {"auth": STANDARD.encode("you:p")}}})
        );
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        crate::Keychain::read(&file).unwrap();
        for (user, registry) in [("", "ghcr.io"), ("a:b", "ghcr.io"), ("me", "not a host"), ("me", "")] {
            log_in(&file, registry, user, &secret("x")).unwrap_err();
        }
    }

    #[test]
    fn file_that_is_not_of_docker_or_names_a_helper_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let password = Secret::new("p".into());
        for text in
            ["[]", "{", r#"{"auths": 1}"#, r#"{"credsStore": "x"}"#, r#"{"credHelpers": {"ghcr.io": "x"}}"#]
        {
            std::fs::write(&file, text).unwrap();
            log_in(&file, "ghcr.io", "me", &password).unwrap_err();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
