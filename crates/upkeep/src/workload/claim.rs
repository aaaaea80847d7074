//! Adoption and release: which objects a workload controls, by Kubernetes' rules.
//!
//! An object without a controller that the selector matches is adopted. One that the selector no longer matches is released.
//! An object with another controller, such as the Pod of a Sandbox, is never touched. Every change holds only for the state
//! of the object that was read, and before an adoption the owner is read once more.

use hutch_api::{Read, owner};
use hutch_reconcile::controller::Object;
use hutch_reconcile::key::Key;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::family::{Family, Selecting};
use super::ownership;
use crate::Error;
use crate::error::{NOT_FOUND, has_code};
use crate::reader::Reader;

/// Relation of an object to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Controlled and matched.
    Keep,
    /// Matched, without a controller.
    Adopt,
    /// Controlled, and no longer matched.
    Release,
    /// Not concerned.
    Ignore,
}

fn decide(object: &impl Resource, owner: &impl Resource, matches: bool) -> Claim {
    let is_deleting = |meta: &kube::core::ObjectMeta| meta.deletion_timestamp.is_some();
    let owner_goes = is_deleting(owner.meta());
    match owner::controller(object) {
        Some(reference) if Some(&reference.uid) != owner.meta().uid.as_ref() => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner_goes => Claim::Ignore,
        Some(_) => Claim::Release,
        None if matches && !owner_goes && !is_deleting(object.meta()) => Claim::Adopt,
        None => Claim::Ignore,
    }
}

/// An owner that adopts and releases, its API, and the name of its objects in messages.
pub(super) struct Claimant<'a, O> {
    pub(super) reader: &'a Reader,
    pub(super) owner: &'a O,
    pub(super) owners: &'a Api<Read<O>>,
    pub(super) what: &'a str,
}

impl<O: Object> Claimant<'_, O> {
    /// Returns the objects that the owner controls after adoption and release. [`Error::Held`] when a controlled one cannot
    /// be read.
    pub(super) async fn claim<K>(
        &self,
        objects: &Api<K>,
        found: Vec<Read<K>>,
        matches: impl Fn(&Read<K>) -> bool,
    ) -> Result<Vec<K>, Error>
    where
        K: Object,
    {
        let (mut all, mut may_adopt) = (Vec::with_capacity(found.len()), None);
        for object in found {
            let claim = decide(&object, self.owner, matches(&object));
            if claim == Claim::Ignore {
                continue;
            }
            let name = object.name_any();
            let Some(object) = self.reader.readable(object) else {
                if claim != Claim::Adopt {
                    return Err(Error::Held { what: self.what.to_owned(), name });
                }
                continue;
            };
            match claim {
                Claim::Keep => all.push(object),
                Claim::Release => {
                    self.write(objects, &object, self.without(&object)).await?;
                }
                _ => {
                    let allowed = match may_adopt {
                        Some(allowed) => allowed,
                        None => *may_adopt.insert(self.is_unchanged().await?),
                    };
                    if allowed {
                        let mut owners = object.owner_references().to_vec();
                        owners.push(ownership::controlled_by(self.owner)?);
                        all.extend(self.write(objects, &object, owners).await?);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns the Pods that the owner controls after adoption and release, of those for which `is_candidate` holds. `fits`
    /// is a condition besides the selector.
    pub(super) async fn pods(
        &self,
        family: &Family<O>,
        key: &Key,
        selector: &Selector,
        is_candidate: impl Fn(&Read<Pod>) -> bool,
        fits: impl Fn(&Read<Pod>) -> bool,
    ) -> Result<Vec<Pod>, Error>
    where
        O: Selecting,
    {
        let client = self.reader.client();
        let strays = family.strays(key);
        let claimed = async {
            let pods: Api<Read<Pod>> = Api::namespaced(client.clone(), &key.namespace);
            let selected = ListParams::default().labels_from(selector);
            let mut found = pods.list(&selected).await.map_err(Error::read(self.what))?.items;
            for name in &strays {
                let stray = pods.get_opt(name).await.map_err(Error::read(self.what))?;
                let is_missing =
                    |pod: &Read<Pod>| found.iter().all(|known| known.name_any() != pod.name_any());
                found.extend(stray.filter(is_missing));
            }
            found.retain(is_candidate);
            let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
            self.claim(&pods, found, |pod| selector.matches(pod.labels()) && fits(pod)).await
        };
        let claimed = claimed.await;
        if claimed.is_err() {
            family.put_back(key, strays);
        }
        claimed
    }

    /// Returns whether the owner still exists and is not being deleted.
    async fn is_unchanged(&self) -> Result<bool, Error> {
        let now = self.owners.get_metadata_opt(&self.owner.name_any()).await;
        let now = now.map_err(Error::read(format!("owner of {}", self.what)))?;
        Ok(now.is_some_and(|now| {
            now.metadata.uid == self.owner.meta().uid && now.metadata.deletion_timestamp.is_none()
        }))
    }

    fn without(&self, object: &impl ResourceExt) -> Vec<OwnerReference> {
        let own = self.owner.meta().uid.as_deref().unwrap_or_default();
        object.owner_references().iter().filter(|owner| owner.uid != own).cloned().collect()
    }

    /// Writes the owners of the object in the state that was read; `None` when it is gone.
    async fn write<K: Object>(
        &self,
        objects: &Api<K>,
        object: &K,
        owners: Vec<OwnerReference>,
    ) -> Result<Option<K>, Error> {
        let patch = json!({"metadata": {
            "uid": object.uid(), "resourceVersion": object.resource_version(), "ownerReferences": owners,
        }});
        match objects.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if has_code(&error, NOT_FOUND) => Ok(None),
            Err(error) => {
                Err(Error::write(format!("owner of {:?}, one of the {}", object.name_any(), self.what))(
                    error,
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::Value;

    fn pod(owner: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "ownerReferences": owner}})).unwrap()
    }

    fn set() -> ReplicaSet {
        serde_json::from_value(json!({"metadata": {"name": "s", "uid": "u"}})).unwrap()
    }

    fn controlled(kind: &str, uid: &str) -> Value {
        json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": kind, "name": "s", "uid": uid, "controller": true}])
    }

    #[test]
    fn pod_without_controller_is_adopted_and_one_that_no_longer_matches_released() {
        let set = set();
        assert_eq!(decide(&pod(json!([])), &set, true), Claim::Adopt);
        assert_eq!(decide(&pod(json!([])), &set, false), Claim::Ignore);
        assert_eq!(decide(&pod(controlled("ReplicaSet", "u")), &set, true), Claim::Keep);
        assert_eq!(decide(&pod(controlled("ReplicaSet", "u")), &set, false), Claim::Release);
        // A reference that is not the controller's does not keep a Pod from being adopted.
        let mut other = controlled("ConfigMap", "x");
        other[0]["controller"] = json!(false);
        assert_eq!(decide(&pod(other), &set, true), Claim::Adopt);
    }

    #[test]
    fn pod_of_a_sandbox_is_never_adopted() {
        for matches in [true, false] {
            assert_eq!(decide(&pod(controlled("Sandbox", "other")), &set(), matches), Claim::Ignore);
        }
    }

    #[test]
    fn nothing_that_is_being_deleted_adopts_or_is_adopted() {
        let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let (mut going, mut gone) = (set(), pod(json!([])));
        going.metadata.deletion_timestamp = Some(time);
        gone.metadata.deletion_timestamp = going.metadata.deletion_timestamp.clone();
        assert_eq!(decide(&pod(json!([])), &going, true), Claim::Ignore);
        assert_eq!(decide(&gone, &set(), true), Claim::Ignore);
        assert_eq!(decide(&pod(controlled("ReplicaSet", "u")), &going, false), Claim::Ignore);
    }
}
