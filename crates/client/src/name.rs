//! Names of Sandboxes, as clients write them.

use std::str::FromStr;

use hutch_api::syntax;

use crate::Error;

/// Name of a Sandbox or of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// `sandbox/NAME`.
    Sandbox(String),
    /// `claim/NAME`: the Sandbox of the claim.
    Claim(String),
    /// `NAME`: the Sandbox, else the claim of that name.
    Either(String),
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name, Error> {
        let (kind, name) = text.split_once('/').unwrap_or(("", text));
        let is_name = syntax::is_subdomain(name);
        match kind {
            "" if is_name && !text.contains('/') => Ok(Name::Either(name.to_owned())),
            "claim" | "sandboxclaim" if is_name => Ok(Name::Claim(name.to_owned())),
            "sandbox" if is_name => Ok(Name::Sandbox(name.to_owned())),
            _ => Err(Error::Name(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_three_forms() {
        let name = |text: &str| text.parse::<Name>().ok();
        assert_eq!(name("a.b-1"), Some(Name::Either("a.b-1".to_owned())));
        assert_eq!(name("claim/mine"), Some(Name::Claim("mine".to_owned())));
        assert_eq!(name("sandbox/mine"), Some(Name::Sandbox("mine".to_owned())));
        for wrong in ["", "/a", "A", "a/b", "claim/", "claim/a/b", "../x", "-a", "a..b", "a b", "a%2f"] {
            assert!(name(wrong).is_none(), "{wrong}");
        }
    }
}
