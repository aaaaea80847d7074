//! Which image a name means.

use std::path::Path;

use crate::Error;

/// Maximum bytes of an image name.
const MAX_NAME_BYTES: usize = 4096;

/// An image that is made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// `hutch/host`: this machine's programs.
    Host,
    /// `hutch/python-runtime`: the same, with the sandbox runtime as its program.
    PythonRuntime,
    /// `hutch/pause`: nothing but a program that waits to be ended. The least that a container can hold.
    Pause,
}

impl BuiltIn {
    /// The name under which users ask for it.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Host => "hutch/host",
            BuiltIn::PythonRuntime => "hutch/python-runtime",
            BuiltIn::Pause => "hutch/pause",
        }
    }
}

/// Meaning of an image name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// An image that is made here.
    BuiltIn(BuiltIn),
    /// A published image for which one that is made here can stand in.
    Published(BuiltIn),
    /// An OCI layout folder: `PATH`, or `PATH:TAG` where no folder has the whole text as its name.
    Layout(String),
}

/// Repositories of published images, and what can stand in for them; any tag counts, a digest does not.
const PUBLISHED: [(&str, BuiltIn); 2] = [
    ("registry.k8s.io/agent-sandbox/python-runtime-sandbox", BuiltIn::PythonRuntime),
    ("registry.k8s.io/pause", BuiltIn::Pause),
];

impl Reference {
    /// Reads an image name.
    ///
    /// # Errors
    /// When the text is empty, too long, or names an image that would have to be pulled.
    pub fn parse(name: &str) -> Result<Reference, Error> {
        let invalid = |reason| Error::InvalidReference { name: shorten(name), reason };
        if name.is_empty() {
            return Err(invalid("it is empty"));
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(invalid("it is too long"));
        }
        if name.chars().any(|c| c.is_control()) {
            return Err(invalid("it holds a control character"));
        }
        if let Some(rest) = name.strip_prefix("oci:") {
            return match rest.is_empty() {
                true => Err(invalid("oci: needs a path to an OCI layout folder")),
                false => Ok(Reference::Layout(rest.to_owned())),
            };
        }
        if name.starts_with('/') || name.starts_with("./") || name.starts_with("../") {
            return Ok(Reference::Layout(name.to_owned()));
        }
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let built_in = [BuiltIn::Host, BuiltIn::PythonRuntime, BuiltIn::Pause];
        if let Some(found) = built_in.into_iter().find(|image| image.name() == plain) {
            return Ok(Reference::BuiltIn(found));
        }
        match PUBLISHED.iter().find(|(repository, _)| is_tag_of(name, repository)) {
            Some((_, stands_in)) => Ok(Reference::Published(*stands_in)),
            None => Err(Error::NotPullable(shorten(name))),
        }
    }
}

/// Splits `PATH:TAG`; `None` when the text names no tag.
pub(crate) fn split_tag(text: &str) -> Option<(&Path, &str)> {
    let (path, tag) = text.rsplit_once(':')?;
    (!path.is_empty() && !tag.is_empty() && !tag.contains('/')).then_some((Path::new(path), tag))
}

/// Returns `true` when `name` is `repository:tag` with a well-formed tag.
fn is_tag_of(name: &str, repository: &str) -> bool {
    let Some(tag) = name.strip_prefix(repository).and_then(|rest| rest.strip_prefix(':')) else {
        return false;
    };
    let first = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=128).contains(&tag.len())
        && tag.starts_with(first)
        && tag.chars().all(|c| first(c) || c == '.' || c == '-')
}

/// Keeps messages short whatever was given.
fn shorten(name: &str) -> String {
    name.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_say() {
        for (name, expected) in [
            ("hutch/host", Reference::BuiltIn(BuiltIn::Host)),
            ("hutch/host:latest", Reference::BuiltIn(BuiltIn::Host)),
            ("hutch/python-runtime", Reference::BuiltIn(BuiltIn::PythonRuntime)),
            ("hutch/pause", Reference::BuiltIn(BuiltIn::Pause)),
            ("registry.k8s.io/pause:3.10", Reference::Published(BuiltIn::Pause)),
            (
                "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0",
                Reference::Published(BuiltIn::PythonRuntime),
            ),
            ("oci:/no/such", Reference::Layout("/no/such".into())),
            ("oci:/no/such:v1", Reference::Layout("/no/such:v1".into())),
            ("./layout", Reference::Layout("./layout".into())),
        ] {
            assert_eq!(Reference::parse(name).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn tag_follows_the_last_colon() {
        assert_eq!(split_tag("/no/such:v1"), Some((Path::new("/no/such"), "v1")));
        assert_eq!(split_tag("a:b:v1"), Some((Path::new("a:b"), "v1")));
        for text in ["/no/such", "/no:such/x", "/x:", ":v1"] {
            assert_eq!(split_tag(text), None, "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_a_known_image_is_not_one() {
        for name in [
            "",
            "python:3.12",
            "hutch/hosts",
            "evil.example/hutch/host",
            "registry.k8s.io/agent-sandbox/python-runtime-sandbox",
            "registry.k8s.io/agent-sandbox/python-runtime-sandbox:",
            "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v1/x",
            "registry.k8s.io/agent-sandbox/python-runtime-sandbox-2:v1",
            "registry.k8s.io/agent-sandbox/python-runtime-sandbox@sha256:00",
            "oci:",
            "a\nb",
        ] {
            assert!(Reference::parse(name).is_err(), "{name}");
        }
        let text = Reference::parse("python:3.12").unwrap_err().to_string();
        assert!(text.contains("python:3.12") && text.contains("not on this machine"), "{text}");
    }
}
