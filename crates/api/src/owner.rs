//! Owner references: the controller of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::Resource;

use crate::{EXTENSIONS_GROUP, GROUP};

/// Returns the controller reference of `object`, if any.
pub fn controller(object: &impl Resource) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Returns `true` when `object` is controlled by exactly that owner, by UID.
pub fn is_controlled_by(object: &impl Resource, owner: &impl Resource) -> bool {
    controller(object).is_some_and(|reference| Some(&reference.uid) == owner.meta().uid.as_ref())
}

/// Returns the controller of `object` when it is a Sandbox, in any version.
pub fn sandbox(object: &impl Resource) -> Option<&OwnerReference> {
    controller(object).filter(|owner| owner.kind == "Sandbox" && group(owner) == GROUP)
}

/// Returns the controller of `object` when it is of that kind, in any version of the extensions group.
pub fn extension<'a>(object: &'a impl Resource, kind: &str) -> Option<&'a OwnerReference> {
    controller(object).filter(|owner| owner.kind == kind && is_of_extensions(owner))
}

/// Returns `true` for an owner of the extensions group, in any version.
pub fn is_of_extensions(owner: &OwnerReference) -> bool {
    group(owner) == EXTENSIONS_GROUP
}

/// Returns the API group; empty for the core group.
fn group(owner: &OwnerReference) -> &str {
    owner.api_version.split_once('/').map_or("", |(group, _)| group)
}
