//! Placeholders of credentials in the memory of a fork: those of the Sandbox from which it was forked. They stand for its own
//! credentials if it inherits them, and are refused and reported otherwise.

use std::collections::BTreeMap;

use super::ForkCredentials;
use crate::{Sandbox, annotation};

/// Maximum bytes of the uid of a Sandbox.
const UID: usize = 64;

/// Placeholders in the memory of a Sandbox of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialsOfFork {
    /// Their worth.
    pub credentials: ForkCredentials,
    /// UID of the Sandbox of which they are; empty if it is not known.
    pub holder: String,
}

impl CredentialsOfFork {
    /// Returns those of a new fork of a Sandbox. One that has inherited its placeholders passes these on.
    pub fn new(source: &Sandbox, credentials: ForkCredentials) -> CredentialsOfFork {
        let earlier = source.metadata.annotations.as_ref().and_then(credentials_of);
        let holder = earlier.and_then(|earlier| earlier.inherited().map(str::to_owned));
        let holder = holder.or_else(|| source.metadata.uid.clone()).unwrap_or_default();
        CredentialsOfFork { credentials, holder }
    }

    /// Returns the UID of the Sandbox whose placeholders the fork has as its own.
    pub fn inherited(&self) -> Option<&str> {
        (self.credentials == ForkCredentials::Inherit).then_some(self.holder.as_str())
    }

    /// Returns the UID of the Sandbox whose placeholders are refused.
    pub fn refused(&self) -> Option<&str> {
        (self.credentials == ForkCredentials::None && !self.holder.is_empty()).then_some(self.holder.as_str())
    }

    /// Returns the value of the annotation [`annotation::FORK_CREDENTIALS`].
    pub fn text(&self) -> String {
        let word = match self.credentials {
            ForkCredentials::None => "None",
            ForkCredentials::Inherit => "Inherit",
        };
        format!("{word}/{}", self.holder)
    }
}

/// Returns the placeholders in the memory of a Sandbox with these annotations, if it belongs to a fork. With an annotation that
/// cannot be read they are worth nothing.
pub fn credentials_of(annotations: &BTreeMap<String, String>) -> Option<CredentialsOfFork> {
    let text = annotations.get(annotation::FORK_CREDENTIALS)?;
    let (word, holder) = text.split_once('/').unwrap_or((text, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_valid = !holder.is_empty() && holder.len() <= UID && holder.bytes().all(plain);
    let credentials = match word {
        "Inherit" if is_valid => ForkCredentials::Inherit,
        _ => ForkCredentials::None,
    };
    Some(CredentialsOfFork { credentials, holder: if is_valid { holder.to_owned() } else { String::new() } })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sandbox(annotations: serde_json::Value) -> Sandbox {
        serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "a", "uid": "u-1", "annotations": annotations},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        }))
        .unwrap()
    }

    #[test]
    fn fork_of_a_fork_has_the_placeholders_of_the_one_from_which_they_were_inherited() {
        for (annotations, inherited) in [
            (json!({}), "Inherit/u-1"),
            (json!({annotation::FORK_CREDENTIALS: "None/u-0"}), "Inherit/u-1"),
            (json!({annotation::FORK_CREDENTIALS: "Inherit/u-0"}), "Inherit/u-0"),
        ] {
            let source = sandbox(annotations);
            let new = CredentialsOfFork::new(&source, ForkCredentials::Inherit);
            assert_eq!(new.text(), inherited);
            assert_eq!((new.inherited(), new.refused()), (Some(&inherited[8..]), None));
            let none = CredentialsOfFork::new(&source, ForkCredentials::None);
            assert_eq!((none.inherited(), none.refused()), (None, Some(&inherited[8..])));
        }
    }

    #[test]
    fn annotation_that_cannot_be_read_inherits_nothing() {
        let read =
            |text: &str| credentials_of(&[(annotation::FORK_CREDENTIALS.to_owned(), text.to_owned())].into());
        assert_eq!(credentials_of(&BTreeMap::new()), None);
        let inherit = CredentialsOfFork { credentials: ForkCredentials::Inherit, holder: "u-1".into() };
        assert_eq!(read("Inherit/u-1"), Some(inherit));
        for bad in
            ["", "Inherit", "Inherit/", "Inherit/../x", "inherit/u-1", &format!("Inherit/{}", "a".repeat(65))]
        {
            assert_eq!(read(bad).map(|found| found.credentials), Some(ForkCredentials::None), "{bad}");
        }
    }
}
