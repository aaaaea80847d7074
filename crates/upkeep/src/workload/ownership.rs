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

/// The label selector of a workload, which must not select everything.
pub(super) fn selector(selector: Option<LabelSelector>, what: &str) -> Result<Selector, Error> {
    let usable = selector.and_then(|selector| Selector::try_from(selector).ok());
    let usable = usable.filter(|selector| !selector.matches(&BTreeMap::new()));
    usable.ok_or_else(|| Error::Malformed(format!("{what} has no usable selector")))
}
