//! Names of images, by the grammar of Docker: `python` means `docker.io/library/python:latest`.

use std::fmt;
use std::net::Ipv6Addr;

use crate::Error;
use crate::digest::{Digest, is_hex};
use crate::error::shorten;

/// Maximum bytes of a name, with tag and digest.
const MAX_NAME: usize = 1024;
/// Maximum bytes of registry and repository.
const MAX_REPOSITORY: usize = 255;
/// Maximum bytes of a tag.
const MAX_TAG: usize = 128;
/// Registry of names without one.
pub(crate) const DOCKER: &str = "docker.io";
/// Registry of imported images. It is reserved: nothing is pulled from it.
const IMPORTED: &str = "hutch.local";

/// A valid name of an image. Only [`ImageName::parse`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageName {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl ImageName {
    /// Reads a name such as `python:3.12`, `ghcr.io/org/app@sha256:...` or `localhost:5000/app`.
    ///
    /// # Errors
    /// [`Error::InvalidImageName`], with what would be valid.
    pub fn parse(text: &str) -> Result<ImageName, Error> {
        let invalid = |reason: String| Error::InvalidImageName { name: shorten(text), reason };
        if text.is_empty() {
            return Err(invalid("it is empty".into()));
        }
        if text.len() > MAX_NAME {
            return Err(invalid(format!("it has more than {MAX_NAME} bytes")));
        }
        if let Some(found) = ["http://", "https://", "docker://"].iter().find(|p| text.starts_with(**p)) {
            return Err(invalid(format!("write it without {found}")));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(read_digest(digest).map_err(&invalid)?)),
            None => (text, None),
        };
        // A colon before the last slash is that of a port.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(read_tag(tag).map_err(&invalid)?)),
            _ => (rest, None),
        };
        if is_hex(path) && tag.is_none() && digest.is_none() {
            return Err(invalid(
                "64 hexadecimal digits are the ID of an image, which no registry knows".into(),
            ));
        }
        let (registry, repository) = split(path).map_err(&invalid)?;
        if registry.len() + 1 + repository.len() > MAX_REPOSITORY {
            return Err(invalid(format!("registry and repository have more than {MAX_REPOSITORY} bytes")));
        }
        let tag = if tag.is_none() && digest.is_none() { Some("latest".to_owned()) } else { tag };
        Ok(ImageName { registry, repository, tag, digest })
    }

    /// Reads the name of an imported image: `app:v1` and `hutch.local/app:v1` are the same.
    ///
    /// # Errors
    /// [`Error::InvalidImageName`], also for a name with a digest.
    pub fn parse_imported(text: &str) -> Result<ImageName, Error> {
        let path = text.strip_prefix(IMPORTED).and_then(|rest| rest.strip_prefix('/')).unwrap_or(text);
        let name = ImageName::parse(&format!("{IMPORTED}/{path}"))?;
        match &name.digest {
            None => Ok(name),
            Some(_) => Err(Error::InvalidImageName {
                name: shorten(text),
                reason: "an imported image has a tag and no digest, such as app:v1".into(),
            }),
        }
    }

    /// Returns `true` for names of imported images, which no registry has.
    pub fn is_imported(&self) -> bool {
        self.registry == IMPORTED
    }

    /// Host and port of the registry, in lower case: `docker.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Path below the registry: `library/python`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Tag; where there is a digest too, the digest decides.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Digest of the manifest or the index.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the name of content of this repository: its digest alone.
    #[must_use]
    pub fn with_digest(&self, digest: &Digest) -> ImageName {
        ImageName { tag: None, digest: Some(digest.clone()), ..self.clone() }
    }

    /// Last part of the path of a manifest: the digest, else the tag.
    pub(crate) fn reference(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.clone().unwrap_or_else(|| "latest".into()),
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Splits registry and repository. A first part is a registry if it has a dot, a port or capitals, or is `localhost`.
fn split(path: &str) -> Result<(String, String), String> {
    let is_host =
        |first: &str| first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first;
    let (registry, repository) = match path.split_once('/') {
        Some((first, rest)) if is_host(first) => (read_registry(first)?, rest.to_owned()),
        _ => (DOCKER.to_owned(), path.to_owned()),
    };
    let repository = match registry == DOCKER && !repository.contains('/') {
        true => format!("library/{repository}"),
        false => repository,
    };
    check_repository(&repository)?;
    Ok((registry, repository))
}

/// Reads `HOST` or `HOST:PORT` of a registry, in lower case.
pub(crate) fn read_registry(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let wrong = || format!("{:?} is not HOST or HOST:PORT of a registry", shorten(&text));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
            address.parse::<Ipv6Addr>().map_err(|_| wrong())?;
            (None, port.strip_prefix(':').or(port.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => match text.split_once(':') {
            Some((_, "")) => return Err(wrong()),
            Some((host, port)) => (Some(host), port),
            None => (Some(text.as_str()), ""),
        },
    };
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    if !port.is_empty()
        && (!digits || port.parse::<u16>().is_ok_and(|n| n == 0) || port.parse::<u16>().is_err())
    {
        return Err(format!("port {:?} is not a number from 1 to 65535", shorten(port)));
    }
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    if host.is_some_and(|host| !host.split('.').all(label)) || text.len() > MAX_REPOSITORY {
        return Err(wrong());
    }
    // Its name would be read as a part of a path of Docker Hub.
    if host.is_some_and(|host| !host.contains('.') && host != "localhost") && port.is_empty() {
        return Err(format!("write the registry {:?} with its domain or a port", shorten(&text)));
    }
    let is_docker = [DOCKER, "index.docker.io", "registry-1.docker.io"].contains(&without_usual_port(&text));
    Ok(if is_docker { DOCKER.into() } else { text })
}

/// Returns a registry without the port of TLS. Rules for one with this port hold without it, and the other way round.
pub(crate) fn without_usual_port(registry: &str) -> &str {
    registry.strip_suffix(":443").unwrap_or(registry)
}

/// Checks the path of a repository: parts of lower-case letters and digits, separated inside by `.`, `_`, `__` or dashes.
pub(crate) fn check_repository(path: &str) -> Result<(), String> {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    for part in path.split('/') {
        if part.is_empty() {
            return Err("a part of its path is empty: write it as REGISTRY/REPOSITORY:TAG".into());
        }
        if part.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(format!("repositories are in lower case: {:?}", shorten(&part.to_lowercase())));
        }
        let separators = part.split(|c: char| c.is_ascii() && alphanumeric(c as u8));
        let known = |s: &str| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|b| b == b'-');
        let ends = [part.as_bytes().first(), part.as_bytes().last()];
        let bounded = ends.into_iter().flatten().all(|&b| alphanumeric(b));
        if !bounded || !{ separators }.all(known) {
            return Err(format!(
                "part {:?} of its path must be lower-case letters and digits, with single '.', '_', '__' or dashes between",
                shorten(part)
            ));
        }
    }
    Ok(())
}

fn read_tag(tag: &str) -> Result<String, String> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let valid = tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
        && tag.bytes().next().is_some_and(word)
        && tag.len() <= MAX_TAG;
    match valid {
        true => Ok(tag.to_owned()),
        false => Err(format!(
            "tag {:?} must be 1 to {MAX_TAG} letters, digits, '_', '.' and '-', and not start with '.' or '-'",
            shorten(tag)
        )),
    }
}

fn read_digest(digest: &str) -> Result<Digest, String> {
    Digest::parse(digest).ok_or_else(|| {
        format!("digest {:?} must be sha256: and 64 lower-case hexadecimal digits", shorten(digest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn names_are_completed_as_docker_does() {
        let digest = format!("sha256:{HEX}");
        for (text, full) in [
            ("python", "docker.io/library/python:latest".to_owned()),
            ("python:3.12", "docker.io/library/python:3.12".into()),
            ("org/app", "docker.io/org/app:latest".into()),
            ("docker.io/python", "docker.io/library/python:latest".into()),
            ("index.docker.io/library/python", "docker.io/library/python:latest".into()),
            ("localhost/app", "localhost/app:latest".into()),
            ("localhost:5000/app:v1", "localhost:5000/app:v1".into()),
            ("ghcr.io:443/org/app", "ghcr.io:443/org/app:latest".into()),
            ("docker.io:443/python", "docker.io/library/python:latest".into()),
            ("registry-1.docker.io:443/library/python", "docker.io/library/python:latest".into()),
            ("GHCR.io/org/a.b_c__d--e:V1", "ghcr.io/org/a.b_c__d--e:V1".into()),
            ("[::1]:5000/app", "[::1]:5000/app:latest".into()),
            ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest".into()),
            (&format!("python@{digest}"), format!("docker.io/library/python@{digest}")),
            (&format!("python:3@{digest}"), format!("docker.io/library/python:3@{digest}")),
        ] {
            let name = ImageName::parse(text).unwrap();
            assert_eq!(name.to_string(), full, "{text}");
            assert_eq!(ImageName::parse(&full).unwrap(), name, "{text}");
        }
    }

    #[test]
    fn digest_decides_over_a_tag() {
        let name = ImageName::parse(&format!("python:3@sha256:{HEX}")).unwrap();
        assert_eq!(name.reference(), format!("sha256:{HEX}"));
        assert_eq!(name.tag(), Some("3"));
    }

    #[test]
    fn invalid_names_are_refused_with_what_is_valid() {
        let long = "a".repeat(300);
        for (text, part) in [
            ("", "empty"),
            ("https://ghcr.io/x", "without https://"),
            ("Python", "lower case: \"python\""),
            ("docker.io/Org/app", "lower case"),
            ("python:", "tag"),
            ("python:-x", "tag"),
            ("python@sha512:00", "sha256: and 64"),
            ("python@sha256:00", "sha256: and 64"),
            (&format!("python@sha256:{}", HEX.to_uppercase()), "sha256: and 64"),
            (HEX, "ID of an image"),
            ("a//b", "empty"),
            ("/etc/passwd", "empty"),
            ("a/../b", "part \"..\""),
            ("a/-b", "part \"-b\""),
            ("a/b_", "part \"b_\""),
            ("a/b___c", "part"),
            ("a/b..c", "part"),
            ("localhost:0/x", "port"),
            ("localhost:99999/x", "port"),
            ("localhost:+80/x", "port"),
            ("-x.example/y", "HOST"),
            ("FOO/bar", "domain or a port"),
            ("x.example./y", "HOST"),
            ("user@host.example/x", "sha256"),
            ("[::1/x", "HOST"),
            ("[::1]5/x", "HOST"),
            ("a b", "part"),
            ("a\nb", "part"),
            ("ä", "part"),
            (&long, "255 bytes"),
        ] {
            let error = ImageName::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
