//! Owner references: who controls an object.

pub(crate) use hutch_api::owner::{controller, extension, is_controlled_by, is_of_extensions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

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
