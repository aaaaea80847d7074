//! Deployments: one ReplicaSet for each state of the template, and the way from one to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{Selector, SelectorExt};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::claim::Claimant;
use super::family::{Family, Selecting};
use super::progress::{Counts, progress};
use super::rollout::{self, Replicas, Strategy};
use super::template::{HASH_LABEL, fingerprint};
use super::{drive, ownership};
use crate::Error;
use crate::error::{CONFLICT, gone_is_fine, has_code};
use crate::reader::Reader;

const REVISION: &str = "deployment.kubernetes.io/revision";

/// Reconciles Deployments until dropped.
pub(crate) async fn run(reader: Arc<Reader>) -> Result<(), Error> {
    let deployments: Api<Read<Deployment>> = Api::all(reader.client().clone());
    let sets: Api<Read<ReplicaSet>> = Api::all(reader.client().clone());
    let controller = Controller::new(deployments);
    let family = Family::new(controller.objects());
    let controller = controller.watches(sets, watcher::Config::default(), move |set| family.of(set));
    drive(controller, reconcile, reader).await
}

impl Selecting for Deployment {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref()?.selector.clone())
    }
}

/// A Deployment with its ReplicaSets.
struct View {
    deployment: Deployment,
    new: Option<ReplicaSet>,
    /// Oldest first.
    old: Vec<ReplicaSet>,
    hash: String,
}

impl View {
    fn of(deployment: Deployment, mut sets: Vec<ReplicaSet>) -> Self {
        let number = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
        let template = deployment.spec.clone().unwrap_or_default().template;
        let hash = fingerprint(&template, number);
        sets.sort_by_key(|set| (set.creation_timestamp().map(|time| time.0), set.name_any()));
        // An adopted ReplicaSet may have another label.
        let current = sets.iter().position(|set| set.labels().get(HASH_LABEL) == Some(&hash));
        let current = current.or_else(|| sets.iter().position(|set| is_of_template(set, &template)));
        let new = current.map(|at| sets.remove(at));
        Self { deployment, new, old: sets, hash }
    }

    fn wanted(&self) -> i32 {
        self.deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn revision(&self) -> i64 {
        let of = |set: &ReplicaSet| set.annotations().get(REVISION)?.parse().ok();
        let last: i64 = self.old.iter().filter_map(of).max().unwrap_or(0);
        self.new.as_ref().and_then(of).filter(|own| *own > last).unwrap_or(last.saturating_add(1))
    }
}

fn replicas(set: &ReplicaSet) -> Replicas {
    let status = set.status.clone().unwrap_or_default();
    Replicas {
        wanted: set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        there: status.replicas,
        available: status.available_replicas.unwrap_or(0),
    }
}

/// Actions for a Deployment whose ReplicaSet of the current template exists.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    resize: Vec<(String, i32)>,
    remove: Vec<String>,
    status: DeploymentStatus,
    /// Time until the deadline of the rollout.
    deadline: Option<Duration>,
}

fn plan(view: &View, now: Timestamp) -> Plan {
    let spec = view.deployment.spec.clone().unwrap_or_default();
    let new = view.new.as_ref().map_or(Replicas { wanted: 0, there: 0, available: 0 }, replicas);
    let old: Vec<Replicas> = view.old.iter().map(replicas).collect();
    let (status, deadline) = status(view, new, &old, now);
    let mut plan = Plan { status, deadline, ..Plan::default() };
    if view.deployment.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let (size, sizes) = if spec.paused == Some(true) && old.iter().any(|set| set.wanted > 0) {
        (new.wanted, old.iter().map(|set| set.wanted).collect())
    } else {
        rollout::sizes(view.wanted(), Strategy::of(&view.deployment), new, &old)
    };
    let all =
        view.new.iter().zip([(size, new)]).chain(view.old.iter().zip(sizes.into_iter().zip(old.clone())));
    let changed = all.filter(|(_, (size, set))| *size != set.wanted);
    plan.resize = changed.map(|(set, (size, _))| (set.name_any(), size)).collect();
    let idle = |(set, replicas): &(&ReplicaSet, &Replicas)| {
        replicas.wanted == 0 && replicas.there == 0 && set.metadata.deletion_timestamp.is_none()
    };
    let idle: Vec<_> = view.old.iter().zip(&old).filter(idle).collect();
    let kept = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    let surplus = idle.len().saturating_sub(kept);
    plan.remove = idle[..surplus].iter().map(|(set, _)| set.name_any()).collect();
    plan
}

/// Returns the status, and the time until the deadline of the rollout.
fn status(
    view: &View,
    new: Replicas,
    old: &[Replicas],
    now: Timestamp,
) -> (DeploymentStatus, Option<Duration>) {
    let before = view.deployment.status.clone().unwrap_or_default();
    let wanted = view.wanted();
    let all = || old.iter().chain([&new]);
    let there = rollout::sum(all().map(|set| set.there));
    let available = rollout::sum(all().map(|set| set.available));
    let ready = |set: &ReplicaSet| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let ready = rollout::sum(view.new.iter().chain(&view.old).map(ready));
    let least = match Strategy::of(&view.deployment) {
        Strategy::Recreate => wanted,
        Strategy::Rolling { unavailable, .. } => wanted.saturating_sub(unavailable),
    };
    let complete = new.there == wanted && there == wanted && available >= wanted;
    let name = view.new.as_ref().map(ResourceExt::name_any).unwrap_or_default();
    let available_now = if available >= least {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.".to_owned())
    };
    let counts = Counts { all: there, updated: new.there, ready, available };
    let (progress, left) = progress(&view.deployment, &name, (counts, complete), now);
    let (state, reason, message) = available_now;
    let conditions = before.conditions.unwrap_or_default();
    let available_now = condition(&conditions, "Available", state, reason, message, now);
    let status = DeploymentStatus {
        observed_generation: view.deployment.metadata.generation,
        replicas: Some(there),
        updated_replicas: Some(new.there),
        ready_replicas: Some(ready),
        available_replicas: Some(available),
        unavailable_replicas: Some(wanted.saturating_sub(available).max(0)),
        collision_count: before.collision_count,
        conditions: Some(vec![available_now, progress]),
        ..DeploymentStatus::default()
    };
    (status, left)
}

pub(super) fn condition(
    before: &[DeploymentCondition],
    kind: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    let old = before.iter().find(|condition| condition.type_ == kind);
    let same = |c: &&DeploymentCondition| c.status == status && c.reason.as_deref() == Some(reason);
    if let Some(old) = old.filter(same).filter(|old| old.message.as_ref() == Some(&message)) {
        return old.clone();
    }
    let moved = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time.clone());
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: moved.or(Some(Time(now))),
    }
}

async fn reconcile(Key { namespace, name }: Key, reader: Arc<Reader>) -> Result<Outcome, Error> {
    let what = format!("Deployment {namespace}/{name}");
    let deployments: Api<Read<Deployment>> = Api::namespaced(reader.client().clone(), &namespace);
    let sets: Api<ReplicaSet> = Api::namespaced(reader.client().clone(), &namespace);
    let Some(deployment) = reader.get(&deployments, &name, &what).await? else {
        return Ok(Outcome::Settled);
    };
    let owned = owned_sets(&reader, &namespace, &deployments, &deployment).await?;
    let mut view = View::of(deployment, owned);
    if view.new.is_none() && view.deployment.metadata.deletion_timestamp.is_none() {
        let set = first_set(&view, &namespace)?;
        match sets.create(&PostParams::default(), &set).await {
            Ok(created) => view.new = Some(created),
            Err(error) if has_code(&error, CONFLICT) => return collide(&deployments, &view, &what).await,
            Err(error) => return Err(Error::write(format!("ReplicaSet of {what}"))(error)),
        }
    }
    let plan = plan(&view, Timestamp::now());
    for (set, size) in &plan.resize {
        let patch = Patch::Merge(json!({"spec": {"replicas": size}}));
        let answer = sets.patch(set, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("ReplicaSet {namespace}/{set}")))?;
    }
    for set in &plan.remove {
        let answer = sets.delete(set, &DeleteParams::background()).await;
        gone_is_fine(answer).map_err(Error::write(format!("ReplicaSet {namespace}/{set}")))?;
    }
    mark_revision(&deployments, &sets, &view, &what).await?;
    if view.deployment.status.as_ref() != Some(&plan.status) {
        let patch = Patch::Merge(json!({"status": plan.status}));
        let answer = deployments.patch_status(&name, &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    }
    Ok(plan.deadline.map_or(Outcome::Settled, Outcome::Again))
}

/// The ReplicaSets of a Deployment after adoption and release.
async fn owned_sets(
    reader: &Reader,
    namespace: &str,
    deployments: &Api<Read<Deployment>>,
    deployment: &Deployment,
) -> Result<Vec<ReplicaSet>, Error> {
    let what = format!("ReplicaSets of Deployment {namespace}/{}", deployment.name_any());
    let selector = ownership::usable(deployment.selector(), &what)?;
    let all: Api<Read<ReplicaSet>> = Api::namespaced(reader.client().clone(), namespace);
    let found = all.list(&ListParams::default()).await.map_err(Error::read(&what))?.items;
    let sets: Api<ReplicaSet> = Api::namespaced(reader.client().clone(), namespace);
    let claimant = Claimant { reader, owner: deployment, owners: deployments, what: &what };
    claimant.claim(&sets, found, |set| selector.matches(set.labels())).await
}

/// Returns whether the ReplicaSet has this template, apart from the label of the template's state.
fn is_of_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let plain = |mut template: PodTemplateSpec| {
        let metadata = template.metadata.get_or_insert_default();
        let labels = metadata.labels.get_or_insert_default();
        labels.remove(HASH_LABEL);
        template
    };
    let own = set.spec.as_ref().and_then(|spec| spec.template.clone());
    own.is_some_and(|own| plain(own) == plain(template.clone()))
}

/// The ReplicaSet of the current template, with no replicas yet: the plan gives it some.
fn first_set(view: &View, namespace: &str) -> Result<ReplicaSet, Error> {
    let deployment = &view.deployment;
    let spec = deployment.spec.clone().unwrap_or_default();
    let label = BTreeMap::from([(HASH_LABEL.to_owned(), view.hash.clone())]);
    let mut template = spec.template;
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().extend(label.clone());
    let labels = metadata.labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().extend(label);
    let annotations = BTreeMap::from([(REVISION.to_owned(), view.revision().to_string())]);
    Ok(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", deployment.name_any(), view.hash)),
            namespace: Some(namespace.to_owned()),
            labels,
            annotations: Some(annotations),
            owner_references: Some(vec![ownership::controlled_by(deployment)?]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    })
}

/// The name is taken by a ReplicaSet that is not ours: another number gives another name.
async fn collide(deployments: &Api<Read<Deployment>>, view: &View, what: &str) -> Result<Outcome, Error> {
    let count = view.deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let patch = Patch::Merge(json!({"status": {"collisionCount": count.saturating_add(1)}}));
    let answer = deployments.patch_status(&view.deployment.name_any(), &PatchParams::default(), &patch).await;
    gone_is_fine(answer).map_err(Error::write(format!("status of {what}")))?;
    Ok(Outcome::Again(super::PAUSE))
}

/// Numbers the current state, on the ReplicaSet and the Deployment.
async fn mark_revision(
    deployments: &Api<Read<Deployment>>,
    sets: &Api<ReplicaSet>,
    view: &View,
    what: &str,
) -> Result<(), Error> {
    let revision = view.revision().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {REVISION: revision}}}));
    if let Some(set) = view.new.as_ref().filter(|set| set.annotations().get(REVISION) != Some(&revision)) {
        let answer = sets.patch(&set.name_any(), &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(format!("ReplicaSet of {what}")))?;
    }
    if view.new.is_some() && view.deployment.annotations().get(REVISION) != Some(&revision) {
        let answer = deployments.patch(&view.deployment.name_any(), &PatchParams::default(), &patch).await;
        gone_is_fine(answer).map_err(Error::write(what))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "d", "uid": "u", "generation": 2},
            "spec": {"replicas": replicas, "selector": {}, "template": {}, "revisionHistoryLimit": 1},
        }))
        .unwrap()
    }

    fn set(name: &str, hash: &str, wanted: i32, available: i32, revision: &str) -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {HASH_LABEL: hash}, "annotations": {REVISION: revision}},
            "spec": {"replicas": wanted, "selector": {}},
            "status": {"replicas": wanted, "availableReplicas": available, "readyReplicas": available},
        }))
        .unwrap()
    }

    #[test]
    fn a_finished_rollout_says_so_and_stays_as_it_is() {
        let hash = View::of(deployment(2), vec![]).hash;
        let view = View::of(deployment(2), vec![set("a", &hash, 2, 2, "3")]);
        assert_eq!(view.revision(), 3);
        let first = plan(&view, Timestamp::UNIX_EPOCH);
        assert!(first.resize.is_empty() && first.remove.is_empty());
        let conditions = first.status.conditions.clone().unwrap();
        assert_eq!(conditions[1].reason.as_deref(), Some("NewReplicaSetAvailable"));
        assert_eq!(first.status.observed_generation, Some(2));
        // Once written, the status is not written again with another time.
        let written = Deployment { status: Some(first.status.clone()), ..deployment(2) };
        let view = View::of(written, vec![set("a", &hash, 2, 2, "3")]);
        assert_eq!(plan(&view, Timestamp::MAX).status, first.status);
    }

    #[test]
    fn a_new_template_rolls_and_old_sets_are_forgotten() {
        let hash = View::of(deployment(2), vec![]).hash;
        let sets = vec![set("a", "x", 0, 0, "1"), set("b", "y", 0, 0, "2"), set("c", "z", 2, 2, "3")];
        let view = View::of(deployment(2), [sets.clone(), vec![set("d", &hash, 0, 0, "4")]].concat());
        let rolling = plan(&view, Timestamp::UNIX_EPOCH);
        assert_eq!(rolling.resize, [("d".to_owned(), 1)]);
        assert_eq!(rolling.remove, ["a"]);
        assert_eq!(rolling.status.conditions.unwrap()[1].reason.as_deref(), Some("ReplicaSetUpdated"));
        // Going back to an earlier template gives it the next number.
        let back = View::of(deployment(2), vec![set("a", &hash, 0, 0, "1"), set("b", "y", 2, 2, "2")]);
        assert_eq!(back.revision(), 3);
    }

    #[test]
    fn a_paused_rollout_moves_nothing() {
        let mut paused = deployment(2);
        paused.spec.as_mut().unwrap().paused = Some(true);
        let hash = View::of(paused.clone(), vec![]).hash;
        let view = View::of(paused, vec![set("a", "x", 2, 2, "1"), set("b", &hash, 0, 0, "2")]);
        assert!(plan(&view, Timestamp::UNIX_EPOCH).resize.is_empty());
    }
}
