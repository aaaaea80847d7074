//! Owner references: who controls an object.

use hutch_api::EXTENSIONS_GROUP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// The reference by which `object` is controlled, if it is.
pub(crate) fn controller(object: &impl Resource) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Whether `object` is controlled by exactly that owner, by uid.
pub(crate) fn is_controlled_by(object: &impl Resource, owner: &impl Resource) -> bool {
    controller(object).is_some_and(|reference| Some(&reference.uid) == owner.meta().uid.as_ref())
}

/// The controller of `object` when it is of that kind, in any version of the extensions group.
pub(crate) fn extension_controller<'a>(object: &'a impl Resource, kind: &str) -> Option<&'a OwnerReference> {
    controller(object).filter(|owner| is_extension(owner) && owner.kind == kind)
}

/// Whether the owner is of the extensions group, in any version.
pub(crate) fn is_extension(owner: &OwnerReference) -> bool {
    owner.api_version.split_once('/').is_some_and(|(group, _)| group == EXTENSIONS_GROUP)
}

/// A reference by which `owner` controls something, and without which its foreground deletion waits.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// How an owner is named in messages.
pub(crate) fn described(owner: &OwnerReference) -> String {
    format!("{}/{} (UID: {})", owner.kind, owner.name, owner.uid)
}
