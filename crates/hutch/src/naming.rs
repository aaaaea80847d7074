//! How commands name a Sandbox, and a file in one.

use std::path::PathBuf;
use std::str::FromStr;

use hutch_api::syntax;

/// Name of a Sandbox on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// `sandbox/NAME`.
    Sandbox(String),
    /// `claim/NAME`: the Sandbox that the claim got.
    Claim(String),
    /// `NAME`: the Sandbox, else the claim of that name.
    Either(String),
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("", text));
        let is_name = syntax::is_subdomain(name);
        match kind {
            "" if is_name && !text.contains('/') => Ok(Named::Either(name.to_owned())),
            "claim" | "sandboxclaim" if is_name => Ok(Named::Claim(name.to_owned())),
            "sandbox" if is_name => Ok(Named::Sandbox(name.to_owned())),
            _ => Err(format!("`{text}` names no Sandbox; write NAME, claim/NAME or sandbox/NAME")),
        }
    }
}

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// On this machine.
    Here(PathBuf),
    /// In a Sandbox. A relative path starts at the container's working directory.
    There(Named, String),
}

impl FromStr for Side {
    type Err = String;

    /// What stands before the first colon names a Sandbox, unless it looks like a path: `./a:b` is one.
    fn from_str(text: &str) -> Result<Side, String> {
        if let Some((name, path)) = text.split_once(':')
            && !name.starts_with(['.', '/'])
        {
            return Ok(Side::There(name.parse()?, path.to_owned()));
        }
        if text.is_empty() { Err("an empty path".to_owned()) } else { Ok(Side::Here(text.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_named_in_three_ways() {
        let named = |text: &str| text.parse::<Named>();
        assert_eq!(named("a.b-1"), Ok(Named::Either("a.b-1".to_owned())));
        assert_eq!(named("claim/mine"), Ok(Named::Claim("mine".to_owned())));
        assert_eq!(named("sandbox/mine"), Ok(Named::Sandbox("mine".to_owned())));
        for wrong in ["", "/a", "A", "a/b", "claim/", "claim/a/b", "../x", "-a", "a..b", "a b", "a%2f"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_side_is_here_or_in_a_sandbox() {
        let side = |text: &str| text.parse::<Side>();
        assert_eq!(side("a/b"), Ok(Side::Here("a/b".into())));
        assert_eq!(side("./a:b"), Ok(Side::Here("./a:b".into())));
        assert_eq!(side("/a:b"), Ok(Side::Here("/a:b".into())));
        assert_eq!(side("a:"), Ok(Side::There(Named::Either("a".into()), String::new())));
        assert_eq!(side("claim/a:/x:y"), Ok(Side::There(Named::Claim("a".into()), "/x:y".into())));
        for wrong in ["", ":x", "A:x", "a/b:c"] {
            assert!(side(wrong).is_err(), "{wrong}");
        }
    }
}
