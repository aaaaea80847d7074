//! Configuration of pulls: which images are allowed, from which hosts they come, and whom to trust.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::names::{DOCKER, ImageName, check_repository, read_registry};
use crate::prefix::Prefix;
use crate::{Error, Proxy};

/// Maximum bytes of `images.yaml`.
const MAX_FILE: u64 = 1 << 20;
/// Maximum mirrors of one registry.
const MAX_MIRRORS: usize = 16;
/// Host that serves `docker.io`.
const DOCKER_HOST: &str = "registry-1.docker.io";

/// Which images may be pulled, and how. The default allows none.
#[derive(Debug, Clone, Default)]
pub struct Config {
    allow: Vec<Prefix>,
    mirrors: BTreeMap<String, Vec<Place>>,
    plain_http: BTreeSet<String>,
    ca_files: Vec<PathBuf>,
    credentials: Vec<PathBuf>,
    signatures: Vec<SignatureRule>,
    proxy: Proxy,
}

/// Keys of which one must have signed the images below a prefix. Without keys, no signature is needed.
#[derive(Debug, Clone)]
pub(crate) struct SignatureRule {
    pub(crate) prefix: Prefix,
    pub(crate) keys: Vec<PathBuf>,
}

/// A place that serves repositories of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Host and port.
    pub(crate) host: String,
    /// Path before that of the repository, or empty.
    path: String,
    pub(crate) plain_http: bool,
}

impl Place {
    /// Returns the path of a repository at this place.
    pub(crate) fn repository(&self, repository: &str) -> String {
        if self.path.is_empty() { repository.to_owned() } else { format!("{}/{repository}", self.path) }
    }
}

/// The file `images.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    mirrors: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    plain_http: Vec<String>,
    #[serde(default)]
    ca_files: Vec<PathBuf>,
    #[serde(default)]
    credentials: Vec<PathBuf>,
    #[serde(default)]
    signatures: Vec<SignatureText>,
}

/// A rule about signatures in `images.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureText {
    prefix: String,
    #[serde(default)]
    keys: Vec<PathBuf>,
    required: Option<bool>,
}

impl SignatureText {
    /// Reads a rule whose field in the file is `field`.
    fn read(&self, field: &str) -> Result<SignatureRule, Error> {
        let invalid =
            |part: &str, reason: String| Error::InvalidConfig { field: format!("{field}.{part}"), reason };
        let prefix = Prefix::parse(&self.prefix).map_err(|reason| invalid("prefix", reason))?;
        let required = self.required.unwrap_or(true);
        if required && self.keys.is_empty() {
            let reason = "names no key: write the files of public keys, or required: false".to_owned();
            return Err(invalid("keys", reason));
        }
        if !required && !self.keys.is_empty() {
            let reason =
                "must be empty with required: false, because no signature is checked then".to_owned();
            return Err(invalid("keys", reason));
        }
        check_absolute(&format!("{field}.keys"), &self.keys)?;
        Ok(SignatureRule { prefix, keys: self.keys.clone() })
    }
}

impl Config {
    /// Reads the file `images.yaml`.
    ///
    /// # Errors
    /// When it cannot be read, or a field is invalid or unknown.
    pub fn read(path: &Path) -> Result<Config, Error> {
        Config::parse(&read_text(path, MAX_FILE)?)
    }

    /// Reads the text of `images.yaml`.
    ///
    /// # Errors
    /// When a field is invalid or unknown.
    pub fn parse(yaml: &str) -> Result<Config, Error> {
        let invalid = |field: &str, reason: String| Error::InvalidConfig { field: field.into(), reason };
        let file: File = serde_saphyr::from_str(yaml).map_err(|e| {
            invalid("images.yaml", e.to_string().lines().next().unwrap_or_default().to_owned())
        })?;
        let mut config = Config::allowing("allow", file.allow.iter().map(String::as_str))?;
        for (i, host) in file.plain_http.iter().enumerate() {
            let host = read_registry(host).map_err(|reason| invalid(&format!("plainHttp[{i}]"), reason))?;
            config.plain_http.insert(host);
        }
        for (registry, mirrors) in &file.mirrors {
            let field = format!("mirrors.{registry}");
            let registry = read_registry(registry).map_err(|reason| invalid(&field, reason))?;
            if mirrors.len() > MAX_MIRRORS {
                return Err(invalid(&field, format!("has more than {MAX_MIRRORS} mirrors")));
            }
            let mut places = Vec::new();
            for (i, mirror) in mirrors.iter().enumerate() {
                let place =
                    config.place(mirror).map_err(|reason| invalid(&format!("{field}[{i}]"), reason))?;
                places.push(place);
            }
            config.mirrors.insert(registry, places);
        }
        for (field, paths) in [("caFiles", &file.ca_files), ("credentials", &file.credentials)] {
            check_absolute(field, paths)?;
        }
        for (i, text) in file.signatures.iter().enumerate() {
            let field = format!("signatures[{i}]");
            let rule = text.read(&field)?;
            if config.signatures.iter().any(|other| other.prefix == rule.prefix) {
                return Err(invalid(
                    &format!("{field}.prefix"),
                    "occurs twice: write one rule with all keys".into(),
                ));
            }
            config.signatures.push(rule);
        }
        config.ca_files = file.ca_files;
        config.credentials = file.credentials;
        Ok(config)
    }

    /// Reads the value of `--pull-from`: prefixes separated by commas, or `*`.
    ///
    /// # Errors
    /// When a prefix is invalid.
    pub fn pull_from(text: &str) -> Result<Config, Error> {
        Config::allowing("--pull-from", text.split(',').map(str::trim))
    }

    /// Allows besides what a value of `--pull-from` allows.
    ///
    /// # Errors
    /// When a prefix is invalid.
    pub fn with_pull_from(mut self, text: &str) -> Result<Config, Error> {
        self.allow.extend(Config::pull_from(text)?.allow);
        Ok(self)
    }

    /// Allows all images, if the configuration has no field `allow`.
    pub fn or_all(mut self) -> Config {
        if self.allow.is_empty() {
            self.allow.push(Prefix::All);
        }
        self
    }

    /// Returns true if no image is allowed.
    pub fn allows_none(&self) -> bool {
        self.allow.is_empty()
    }

    /// Requests images of a registry without TLS.
    pub fn with_plain_http(mut self, registry: &str) -> Config {
        self.plain_http.insert(registry.to_owned());
        self
    }

    /// Connects to registries with TLS through a proxy.
    pub fn with_proxy(mut self, proxy: Proxy) -> Config {
        self.proxy = proxy;
        self
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Returns `true` if signatures are needed for any image.
    pub fn has_signature_rules(&self) -> bool {
        !self.signatures.is_empty()
    }

    /// Takes the files with credentials out, for a puller that cannot read them.
    pub fn take_credentials(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.credentials)
    }

    fn allowing<'a>(field: &str, prefixes: impl Iterator<Item = &'a str>) -> Result<Config, Error> {
        let parse = |(i, text): (usize, &str)| {
            Prefix::parse(text)
                .map_err(|reason| Error::InvalidConfig { field: format!("{field}[{i}]"), reason })
        };
        let allow = prefixes.enumerate().map(parse).collect::<Result<_, _>>()?;
        Ok(Config { allow, ..Config::default() })
    }

    /// Adds a `config.json` of Docker; later files count after earlier ones.
    pub fn with_credentials(mut self, path: PathBuf) -> Config {
        self.credentials.push(path);
        self
    }

    /// Checks that a prefix allows the image.
    ///
    /// # Errors
    /// [`Error::NotAllowed`], with the allowed prefixes.
    pub fn check(&self, name: &ImageName) -> Result<(), Error> {
        if name.is_imported() {
            let allowed = "names below hutch.local are those of hutch image import".to_owned();
            return Err(Error::NotAllowed { name: name.to_string(), allowed });
        }
        if self.allow.iter().any(|prefix| prefix.allows(name)) {
            return Ok(());
        }
        let prefixes: Vec<String> = self.allow.iter().map(ToString::to_string).collect();
        let allowed = match prefixes.is_empty() {
            true => "no registry is allowed".to_owned(),
            false => format!("allowed are images of {}", prefixes.join(", ")),
        };
        Err(Error::NotAllowed { name: name.to_string(), allowed })
    }

    /// Returns where images of a registry come from: its mirrors in order, then the registry itself.
    pub(crate) fn places(&self, registry: &str) -> Vec<Place> {
        let mut places = self.mirrors.get(registry).cloned().unwrap_or_default();
        let host = if registry == DOCKER { DOCKER_HOST } else { registry };
        let plain_http = self.allows_plain_http(registry);
        places.push(Place { host: host.into(), path: String::new(), plain_http });
        places
    }

    /// Returns `true` for hosts that are named as serving without TLS.
    pub(crate) fn allows_plain_http(&self, host: &str) -> bool {
        self.plain_http.contains(host)
    }

    pub(crate) fn ca_files(&self) -> &[PathBuf] {
        &self.ca_files
    }

    pub(crate) fn signatures(&self) -> &[SignatureRule] {
        &self.signatures
    }

    pub(crate) fn credentials(&self) -> &[PathBuf] {
        &self.credentials
    }

    /// Reads `HOST`, `HOST:PORT` or either with a path.
    fn place(&self, text: &str) -> Result<Place, String> {
        if text.contains("://") {
            return Err("write HOST:PORT/PATH without a scheme; plainHttp names hosts without TLS".into());
        }
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        if !path.is_empty() {
            check_repository(path)?;
        }
        let host = read_registry(host)?;
        let plain_http = self.allows_plain_http(&host);
        let host = if host == DOCKER { DOCKER_HOST.into() } else { host };
        Ok(Place { host, path: path.into(), plain_http })
    }
}

/// Checks that the paths of a field do not depend on a working directory.
fn check_absolute(field: &str, paths: &[PathBuf]) -> Result<(), Error> {
    match paths.iter().position(|path| !path.is_absolute()) {
        Some(i) => {
            let reason = "must be an absolute path".into();
            Err(Error::InvalidConfig { field: format!("{field}[{i}]"), reason })
        }
        None => Ok(()),
    }
}

/// Reads a small file of this machine's administrator.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, Error> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(Error::file("open", path))?;
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(Error::file("read", path))?;
    if text.len() as u64 > limit {
        return Err(Error::TooLarge { what: path.display().to_string(), limit: format!("{limit} bytes") });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ImageName {
        ImageName::parse(text).unwrap()
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        for config in [Config::default(), Config::parse("{}").unwrap()] {
            let error = config.check(&name("python")).unwrap_err().to_string();
            assert_eq!(
                error,
                "image docker.io/library/python:latest may not be pulled: no registry is allowed"
            );
        }
    }

    #[test]
    fn pull_from_lists_prefixes() {
        let config = Config::pull_from("docker.io/library, ghcr.io").unwrap();
        config.check(&name("python")).unwrap();
        config.check(&name("ghcr.io/x/y")).unwrap();
        let error = config.check(&name("quay.io/x/y")).unwrap_err().to_string();
        assert!(error.contains("allowed are images of docker.io/library, ghcr.io"), "{error}");
        Config::pull_from("*").unwrap().check(&name("quay.io/x/y")).unwrap();
        for text in ["", "docker.io,", "python"] {
            assert!(Config::pull_from(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn mirrors_come_first_and_in_order() {
        let yaml = "allow: ['*']\nplainHttp: ['localhost:5000']\nmirrors:\n  docker.io: ['localhost:5000', 'mirror.example/hub/x']\n";
        let places = Config::parse(yaml).unwrap().places("docker.io");
        let shown: Vec<_> =
            places.iter().map(|p| (p.host.as_str(), p.repository("library/a"), p.plain_http)).collect();
        assert_eq!(
            shown,
            [
                ("localhost:5000", "library/a".to_owned(), true),
                ("mirror.example", "hub/x/library/a".to_owned(), false),
                ("registry-1.docker.io", "library/a".to_owned(), false),
            ]
        );
    }

    #[test]
    fn invalid_field_is_named() {
        for (yaml, part) in [
            ("allow: [python]", "allow[0]: "),
            ("allow: ['*']\nmirror: {}", "mirror"),
            ("plainHttp: ['http://x']", "plainHttp[0]: "),
            ("mirrors: {docker.io: ['https://x']}", "mirrors.docker.io[0]: "),
            ("caFiles: [ca.pem]", "caFiles[0]: must be an absolute path"),
            ("credentials: [a.json]", "credentials[0]: must be"),
        ] {
            let error = Config::parse(yaml).unwrap_err().to_string();
            assert!(error.contains(part), "{yaml}: {error}");
        }
    }
}
