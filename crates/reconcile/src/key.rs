//! Namespace and name of an object.

use std::fmt;

use kube::ResourceExt;

/// Namespace and name of the object that a reconcile is about. The namespace of a cluster-wide object is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace, or empty.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// Returns the key of an object by its namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the key of `object`.
    pub fn of(object: &impl ResourceExt) -> Self {
        Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// Returns the key of another object of the same namespace.
    #[must_use]
    pub fn beside(&self, name: &str) -> Self {
        Key::new(&self.namespace, name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
