use std::fmt;

use kube::ResourceExt;

/// Namespace and name of an object: what a reconciler is asked to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn of(object: &impl ResourceExt) -> Self {
        Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// Another object of the same namespace.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Key::new(&self.namespace, name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
