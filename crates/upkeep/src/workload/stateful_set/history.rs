//! Templates of a StatefulSet: a ControllerRevision for each, as in Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use hutch_api::Read;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::super::claim::Claimant;
use super::super::ownership;
use super::super::template::fingerprint;
use crate::Error;
use crate::error::{CONFLICT, gone_is_fine, has_code};

/// Label with the fingerprint of the template.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// A template and the name of its revision.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// The templates that matter to a set.
#[derive(Debug)]
pub(super) struct History {
    /// Of Pods below the partition of an update.
    pub(super) current: Version,
    /// Of the set as it is.
    pub(super) update: Version,
    pub(super) collisions: i32,
    /// Oldest first, without the one of `update`.
    earlier: Vec<ControllerRevision>,
}

#[cfg(test)]
impl History {
    /// A history of two templates, which is stored nowhere.
    pub(super) fn of(current: Version, update: Version) -> Self {
        History { current, update, collisions: 0, earlier: Vec::new() }
    }
}

/// Name of the revision of a set's template.
pub(super) fn name(set: &StatefulSet, collisions: i32) -> String {
    let template = set.spec.clone().unwrap_or_default().template;
    format!("{}-{}", set.name_any(), fingerprint(&template, collisions))
}

/// The stored form: a strategic merge patch that puts the template back, as `kubectl rollout undo` sends it.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = json!(template);
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// Reads the revisions of a set, and stores one for its template unless it exists.
pub(super) async fn read(
    claimant: &Claimant<'_, StatefulSet>,
    namespace: &str,
    selector: &Selector,
) -> Result<History, Error> {
    let (client, set) = (claimant.reader.client(), claimant.owner);
    let all: Api<Read<ControllerRevision>> = Api::namespaced(client.clone(), namespace);
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let what = format!("ControllerRevisions of StatefulSet {namespace}/{}", set.name_any());
    let selected = ListParams::default().labels_from(selector);
    let found = all.list(&selected).await.map_err(Error::read(&what))?.items;
    let claimant = Claimant { what: &what, ..*claimant };
    let mut owned = claimant.claim(&revisions, found, |revision| selector.matches(revision.labels())).await?;
    owned.sort_by_key(|revision| {
        (revision.revision, revision.creation_timestamp().map(|time| time.0), revision.name_any())
    });

    let template = set.spec.clone().unwrap_or_default().template;
    let mut collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let next = owned.last().map_or(0, |last| last.revision).saturating_add(1);
    let wanted = data(&template);
    let same = owned.iter().rposition(|revision| revision.data.as_ref().is_some_and(|data| data.0 == wanted));
    let update = match same {
        Some(at) => {
            let revision = owned.remove(at);
            if at < owned.len() {
                // An earlier template is the current one again.
                let patch = Patch::Merge(json!({"revision": next}));
                let answer = revisions.patch(&revision.name_any(), &PatchParams::default(), &patch).await;
                gone_is_fine(answer).map_err(Error::write(&what))?;
            }
            revision.name_any()
        }
        None => store(&revisions, set, next, &mut collisions, &what).await?,
    };
    let update = Version { name: update, template };
    let known = set.status.as_ref().and_then(|status| status.current_revision.as_ref());
    let known = owned.iter().find(|revision| Some(&revision.name_any()) == known);
    let current =
        known.and_then(|known| Some(Version { name: known.name_any(), template: template_of(known)? }));
    Ok(History { current: current.unwrap_or_else(|| update.clone()), update, collisions, earlier: owned })
}

/// Stores the set's template; returns the name. A name that another template has counts as a collision.
async fn store(
    revisions: &Api<ControllerRevision>,
    set: &StatefulSet,
    number: i64,
    collisions: &mut i32,
    what: &str,
) -> Result<String, Error> {
    for _ in 0..8 {
        let revision = revision(set, number, *collisions)?;
        match revisions.create(&PostParams::default(), &revision).await {
            Ok(created) => return Ok(created.name_any()),
            Err(error) if has_code(&error, CONFLICT) => {}
            Err(error) => return Err(Error::write(what)(error)),
        }
        let name = revision.name_any();
        match revisions.get_opt(&name).await.map_err(Error::read(what))? {
            // Stored by an earlier reconcile, or left by an earlier set.
            Some(existing) if existing.data == revision.data => return Ok(name),
            Some(_) => *collisions = collisions.saturating_add(1),
            // Deleted meanwhile.
            None => {}
        }
    }
    Err(Error::Malformed(format!("the names of the {what} are taken")))
}

pub(super) fn revision(set: &StatefulSet, number: i64, collisions: i32) -> Result<ControllerRevision, Error> {
    let template = set.spec.clone().unwrap_or_default().template;
    let mut labels: BTreeMap<_, _> =
        template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    labels.insert(HASH_LABEL.to_owned(), fingerprint(&template, collisions));
    Ok(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(set, collisions)),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![ownership::controlled_by(set)?]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data(&template))),
        revision: number,
    })
}

impl History {
    /// Deletes the oldest revisions beyond the limit that no Pod has.
    pub(super) async fn truncate(
        &self,
        revisions: &Api<ControllerRevision>,
        limit: usize,
        live: &BTreeSet<String>,
        what: &str,
    ) -> Result<(), Error> {
        let is_live = |name: &String| *name == self.current.name || live.contains(name);
        let idle: Vec<_> =
            self.earlier.iter().map(ResourceExt::name_any).filter(|name| !is_live(name)).collect();
        for name in &idle[..idle.len().saturating_sub(limit)] {
            let answer = revisions.delete(name, &DeleteParams::background()).await;
            gone_is_fine(answer).map_err(Error::write(format!("ControllerRevisions of {what}")))?;
        }
        Ok(())
    }
}
