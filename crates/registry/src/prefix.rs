//! Allowed prefixes of image names.

use std::fmt;

use crate::error::shorten;
use crate::names::{DOCKER, ImageName, check_repository, read_registry, without_usual_port};

/// Images that may be pulled: all, those of a registry, or those below a path of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prefix {
    All,
    Below { registry: String, path: String },
}

impl Prefix {
    /// Reads `*`, `ghcr.io` or `docker.io/library`.
    pub(crate) fn parse(text: &str) -> Result<Prefix, String> {
        if text == "*" {
            return Ok(Prefix::All);
        }
        let shown = shorten(text);
        if text.contains('*') {
            return Err(format!("{shown:?} has a wildcard: write \"*\" for all, or a registry and a path"));
        }
        if text.contains('@') {
            return Err(format!("{shown:?} has a digest: a prefix ends with a part of the path"));
        }
        let text = text.strip_suffix('/').unwrap_or(text);
        let (registry, path) = text.split_once('/').unwrap_or((text, ""));
        if !registry.contains(['.', ':']) && registry != "localhost" {
            return Err(format!("{shown:?} names no registry: write docker.io/library/{shown} or the like"));
        }
        if path.contains(':') {
            return Err(format!("{shown:?} has a tag: a prefix ends with a part of the path"));
        }
        if !path.is_empty() {
            check_repository(path)?;
        }
        let registry = without_usual_port(&read_registry(registry)?).to_owned();
        Ok(Prefix::Below { registry, path: path.to_owned() })
    }

    /// Number of parts.
    fn depth(&self) -> usize {
        match self {
            Prefix::All => 0,
            Prefix::Below { path, .. } => 1 + path.split('/').filter(|part| !part.is_empty()).count(),
        }
    }

    /// Returns the rank of the prefix among those that cover a name, the closest having the highest; `None` if it does not
    /// cover it. `docker.io/python` is read as the organization and as the official image: a rule that requires something
    /// must hold for both.
    pub(crate) fn covers(&self, name: &ImageName) -> Option<usize> {
        if self.allows(name) {
            return Some(2 * self.depth());
        }
        let Prefix::Below { registry, path } = self else { return None };
        let is_official = registry == DOCKER && registry == name.registry();
        let official = name.repository().strip_prefix("library/");
        // Closer than docker.io/library, and less close than docker.io/library/python.
        (is_official && official == Some(path.as_str())).then_some(2 * self.depth() + 1)
    }

    /// Returns `true` when the name lies below the prefix, by whole parts of the path.
    pub(crate) fn allows(&self, name: &ImageName) -> bool {
        match self {
            Prefix::All => true,
            Prefix::Below { registry, path } => {
                registry == without_usual_port(name.registry()) && is_below(name.repository(), path)
            }
        }
    }
}

/// Returns `true` when `path` is `prefix`, or whole parts of a path follow it.
pub(crate) fn is_below(path: &str, prefix: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefix::All => f.write_str("*"),
            Prefix::Below { registry, path } if path.is_empty() => f.write_str(registry),
            Prefix::Below { registry, path } => write!(f, "{registry}/{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_matches_whole_parts_only() {
        for (prefix, image, allowed) in [
            ("docker.io/library", "python", true),
            (
                "docker.io/library/",
                "python:3@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                true,
            ),
            ("docker.io/library", "docker.io/librarything/x", false),
            ("docker.io/library/python", "python", true),
            ("docker.io/library/python", "python-evil", false),
            ("docker.io", "org/app", true),
            ("docker.io", "docker.io.evil.example/app", false),
            ("docker.io", "docker.io:444/app", false),
            ("index.docker.io", "python", true),
            ("ghcr.io/org", "GHCR.io/org/app", true),
            ("ghcr.io/org", "ghcr.io/organization/app", false),
            ("localhost:5000", "localhost:5000/app", true),
            ("ghcr.io", "ghcr.io:443/app", true),
            ("ghcr.io:443/org", "ghcr.io/org/app", true),
            ("ghcr.io", "ghcr.io:4430/app", false),
            ("[::1]", "[::1]:443/app", true),
            ("localhost", "localhost:5000/app", false),
            ("*", "anything.example/at/all", true),
        ] {
            let name = ImageName::parse(image).unwrap();
            assert_eq!(Prefix::parse(prefix).unwrap().allows(&name), allowed, "{prefix} {image}");
        }
    }

    #[test]
    fn prefix_that_would_surprise_is_refused() {
        for text in [
            "",
            "python",
            "library/python",
            "docker.io/*",
            "*.io",
            "ghcr.io/a:1",
            "ghcr.io/A",
            "ghcr.io//a",
            "ghcr.io/../a",
            "https://ghcr.io",
        ] {
            assert!(Prefix::parse(text).is_err(), "{text}");
        }
    }
}
