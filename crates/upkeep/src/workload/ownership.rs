//! Controller references and selectors of objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use kube::core::{Selector, SelectorExt};

use crate::Error;

/// A reference by which `owner` controls what it creates.
pub(crate) fn controlled_by<K: Resource<DynamicType = ()>>(owner: &K) -> Result<OwnerReference, Error> {
    let reference = owner.controller_owner_ref(&());
    let reference = reference.ok_or_else(|| Error::Malformed("an owner has no name or UID".into()))?;
    Ok(OwnerReference { block_owner_deletion: Some(true), ..reference })
}

/// The label selector of a workload; `None` if it cannot be read or selects everything.
pub(super) fn selector(selector: LabelSelector) -> Option<Selector> {
    Selector::try_from(selector).ok().filter(|selector| !selector.matches(&BTreeMap::new()))
}

/// The same, or an error about the workload.
pub(super) fn usable(selector: Option<Selector>, what: &str) -> Result<Selector, Error> {
    selector.ok_or_else(|| Error::Malformed(format!("{what} has no usable selector")))
}
