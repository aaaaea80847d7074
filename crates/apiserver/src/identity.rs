//! Identity of a caller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Group whose members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Group of all authenticated callers.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// Group of callers without a credential.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Start of the name of every ServiceAccount's identity.
pub(crate) const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// Name of callers without a credential.
pub(crate) const ANONYMOUS: &str = "system:anonymous";

/// The name of a ServiceAccount's identity.
pub(crate) fn service_account_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT}{namespace}:{name}")
}

/// Splits an identity's name into the namespace and the name of its ServiceAccount.
pub(crate) fn split_service_account(identity: &str) -> Option<(&str, &str)> {
    let (namespace, name) = identity.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let valid =
        hutch_api::syntax::label(namespace).is_empty() && hutch_api::syntax::subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

/// An authenticated caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Such as `admin` or `system:serviceaccount:default:builder`.
    pub name: String,
    /// UID of the ServiceAccount; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Such as `system:masters`.
    pub groups: Vec<String>,
    /// Further facts about the caller, such as the Pod of a ServiceAccount's token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// An identity with these groups and `system:authenticated`.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Identity {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push(AUTHENTICATED.into());
        Identity { name: name.into(), groups, ..Identity::default() }
    }

    /// The owner of the machine.
    pub fn admin() -> Identity {
        Identity::new("admin", &[MASTERS])
    }

    /// A ServiceAccount.
    pub fn service_account(namespace: &str, name: &str) -> Identity {
        let all = format!("system:serviceaccounts:{namespace}");
        Identity::new(service_account_name(namespace, name), &["system:serviceaccounts", &all])
    }

    /// A caller without a credential.
    pub(crate) fn anonymous() -> Identity {
        Identity { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Identity::default() }
    }

    /// Returns true for a caller without a credential.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Returns true if the identity may do everything.
    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
