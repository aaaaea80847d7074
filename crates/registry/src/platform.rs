//! Platforms of images, and the rule by which their programs run on a machine.

use std::fmt;

use serde::Deserialize;

use crate::Error;
use crate::error::shorten;

/// For which machines an image is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    pub(crate) os: String,
    pub(crate) architecture: String,
    pub(crate) variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine.
    pub(crate) fn of_this_machine() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// Returns how well programs for `self` run on `machine`: lower is better, `None` means not at all.
    pub(crate) fn rank_on(&self, machine: &Platform) -> Option<u8> {
        if self.os != machine.os || self.architecture != machine.architecture {
            return None;
        }
        match (self.architecture.as_str(), self.variant.as_deref().unwrap_or_default()) {
            (_, "") => Some(0),
            ("amd64", "v1") | ("arm64", "v8") => Some(1),
            // Later variants have instructions that the machine may lack.
            _ => None,
        }
    }

    /// Returns an error unless programs for `self` run on `machine`.
    pub(crate) fn check_on(&self, machine: &Platform) -> Result<(), Error> {
        match self.rank_on(machine) {
            Some(_) => Ok(()),
            None => Err(Error::Platform { wanted: machine.to_string(), has: self.to_string() }),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", shorten(&self.os), shorten(&self.architecture))?;
        match self.variant.as_deref() {
            Some(variant) if !variant.is_empty() => write!(f, "/{}", shorten(variant)),
            _ => Ok(()),
        }
    }
}
