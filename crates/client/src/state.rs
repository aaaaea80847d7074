//! Snapshots of Sandboxes, and forks.

use std::time::Duration;

use hutch_api::state::{
    self, Content, ForkCredentials, ForkSource, SandboxFork, SandboxForkSpec, SandboxSnapshot,
    SandboxSnapshotSpec, SnapshotSource, SnapshotVolumes, reason,
};
use hutch_api::{Sandbox, condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::sandboxes::UNOBSERVED;
use crate::wait::Step;
use crate::{Error, Name, Obstacle, Sandboxes, Wait};

/// A new snapshot.
#[derive(Debug, Clone)]
pub struct NewSnapshot {
    /// Name; that of the Sandbox with a random end, if absent.
    pub name: Option<String>,
    /// Content.
    pub content: Content,
    /// Volumes of claims; all that the Sandbox made, if absent.
    pub volumes: Option<SnapshotVolumes>,
    /// Time after its completion at which it is deleted.
    pub ttl: Option<Duration>,
}

/// New forks.
#[derive(Debug, Clone)]
pub struct NewFork {
    /// Name of the object, and start of the names of the Sandboxes; that of the source with a random end, if absent.
    pub name: Option<String>,
    /// Number of Sandboxes.
    pub replicas: i32,
    /// Content of the snapshot of a Sandbox.
    pub content: Content,
    /// Credentials.
    pub credentials: ForkCredentials,
}

/// Source of forks.
#[derive(Debug, Clone)]
pub enum Source {
    /// A Sandbox, of which a snapshot is made.
    Sandbox(Name),
    /// A snapshot, by its name.
    Snapshot(String),
}

impl Sandboxes {
    /// Makes a snapshot of a Sandbox. Waits until it is complete, unless the time limit is zero.
    ///
    /// # Errors
    /// The Sandbox does not exist, or the snapshot fails or is not complete in time.
    pub async fn snapshot(
        &self,
        name: &Name,
        new: &NewSnapshot,
        wait: &mut Wait<'_>,
    ) -> Result<SandboxSnapshot, Error> {
        let sandbox = self.find(name, wait).await?;
        let source = SnapshotSource { sandbox: sandbox.name_any(), uid: sandbox.uid() };
        let ttl = new.ttl.map(|ttl| format!("{}s", ttl.as_secs()));
        let (content, afterwards) = (new.content, state::Afterwards::Run);
        let spec = SandboxSnapshotSpec { source, content, afterwards, volumes: new.volumes.clone(), ttl };
        let mut object = SandboxSnapshot::new("", spec);
        named(&mut object.metadata, new.name.as_deref(), &sandbox.name_any());
        let made = self.snapshot_api().create(&PostParams::default(), &object).await?;
        if wait.is_zero() { Ok(made) } else { self.completed(&made.name_any(), wait).await }
    }

    /// Returns the snapshots of the namespace.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn snapshots(&self) -> Result<Vec<SandboxSnapshot>, Error> {
        Ok(self.snapshot_api().list(&ListParams::default()).await?.items)
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// It does not exist, or the API server refuses.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Error> {
        self.snapshot_api().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a Sandbox with the spec of the one of which a snapshot is, and starts it from the snapshot. Waits until the
    /// snapshot is complete and the Sandbox ready; with a time limit of zero, for neither.
    ///
    /// # Errors
    /// There is a Sandbox of the new name, or the one of the snapshot is gone; the snapshot is not complete, or the new
    /// Sandbox not ready in time.
    pub async fn restore(&self, snapshot: &str, new: &str, wait: &mut Wait<'_>) -> Result<Sandbox, Error> {
        let snapshot = self.completed(snapshot, wait).await?;
        let source = &snapshot.spec.source.sandbox;
        let uid = snapshot.status.as_ref().and_then(|status| status.sandbox_uid.clone());
        let uid = uid.or_else(|| snapshot.spec.source.uid.clone());
        let found = self.sandbox_api().get_opt(source).await?;
        let found = found.filter(|found| uid.is_none() || found.uid() == uid);
        let Some(found) = found else {
            return Err(Error::NoSource { snapshot: snapshot.name_any(), sandbox: source.clone() });
        };
        let copy = state::restored(&found, new, &snapshot.name_any());
        let made = self.sandbox_api().create(&PostParams::default(), &copy).await?;
        if wait.is_zero() { Ok(made) } else { self.ready(&made, wait).await }
    }

    /// Makes forks. Waits until all of them are ready, unless the time limit is zero.
    ///
    /// # Errors
    /// The source does not exist, or a fork fails or is not ready in time. [`Sandboxes::forked`] then has the others.
    pub async fn fork(
        &self,
        source: &Source,
        new: &NewFork,
        made: &mut Option<String>,
        wait: &mut Wait<'_>,
    ) -> Result<SandboxFork, Error> {
        let (source, base, content) = match source {
            Source::Sandbox(name) => {
                let sandbox = self.find(name, wait).await?.name_any();
                (ForkSource { sandbox: Some(sandbox.clone()), snapshot: None }, sandbox, Some(new.content))
            }
            Source::Snapshot(name) => {
                (ForkSource { sandbox: None, snapshot: Some(name.clone()) }, name.clone(), None)
            }
        };
        let spec = SandboxForkSpec {
            source,
            replicas: new.replicas,
            name_template: None,
            content,
            credentials: new.credentials,
        };
        let mut object = SandboxFork::new("", spec);
        named(&mut object.metadata, new.name.as_deref(), &base);
        let fork = self.fork_api().create(&PostParams::default(), &object).await?;
        let name = made.insert(fork.name_any());
        if wait.is_zero() {
            return Ok(fork);
        }
        wait.until(&self.fork_api(), ("fork", name, "ready"), forked, async || None).await
    }

    /// Returns the forks of that name, in any state.
    ///
    /// # Errors
    /// They do not exist, or the API server refuses.
    pub async fn forked(&self, name: &str) -> Result<SandboxFork, Error> {
        Ok(self.fork_api().get(name).await?)
    }

    /// Returns true if the API server has snapshots.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn has_snapshots(&self) -> Result<bool, Error> {
        let version = format!("{}/{}", state::GROUP, state::VERSION);
        match self.client.list_api_group_resources(&version).await {
            Ok(served) => {
                Ok(served.resources.iter().any(|resource| resource.name == state::SANDBOX_SNAPSHOTS))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn completed(&self, name: &str, wait: &mut Wait<'_>) -> Result<SandboxSnapshot, Error> {
        wait.until(&self.snapshot_api(), ("snapshot", name, "complete"), complete, async || None).await
    }

    fn snapshot_api(&self) -> Api<SandboxSnapshot> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn fork_api(&self) -> Api<SandboxFork> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Maximum bytes of a name whose end the API server chooses, without `-` and that end.
const BASE_MAX: usize = 50;

/// Sets a name, or the start of one.
fn named(metadata: &mut kube::core::ObjectMeta, name: Option<&str>, base: &str) {
    match name {
        Some(name) => metadata.name = Some(name.to_owned()),
        None => {
            // Forks name Sandboxes after themselves, which have no dots.
            let base = base.get(..BASE_MAX).unwrap_or(base).replace('.', "-");
            metadata.name = None;
            metadata.generate_name = Some(format!("{base}-"));
        }
    }
}

fn complete(snapshot: &SandboxSnapshot) -> Step<SandboxSnapshot> {
    let conditions = snapshot.status.as_ref().and_then(|status| status.conditions.as_deref());
    step(snapshot, conditions, "its node has not observed it yet")
}

fn forked(fork: &SandboxFork) -> Step<SandboxFork> {
    let conditions = fork.status.as_ref().and_then(|status| status.conditions.as_deref());
    step(fork, conditions, UNOBSERVED)
}

fn step<K: kube::Resource + Clone>(
    object: &K,
    conditions: Option<&[Condition]>,
    unobserved: &str,
) -> Step<K> {
    if object.meta().deletion_timestamp.is_some() {
        return Step::Never(Obstacle::Deleting);
    }
    match conditions.unwrap_or_default().iter().find(|found| found.type_ == condition::READY) {
        None => Step::Wait(unobserved.to_owned()),
        Some(ready) if ready.status == condition::TRUE => Step::Done(object.clone()),
        Some(ready) => {
            let text = match ready.message.as_str() {
                "" => ready.reason.clone(),
                message => message.to_owned(),
            };
            match reason::is_final(&ready.reason) {
                true => Step::Never(Obstacle::Rejected(text)),
                false => Step::Wait(text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn final_reason_ends_the_wait_with_the_message() {
        let state = |status: &str, reason: &str, message: &str| {
            let snapshot: SandboxSnapshot = serde_json::from_value(json!({
                "apiVersion": "hutch.dev/v1alpha1", "kind": "SandboxSnapshot", "metadata": {"name": "s"},
                "spec": {"source": {"sandbox": "a"}, "content": "Full"},
                "status": {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap();
            match complete(&snapshot) {
                Step::Done(_) => "done".to_owned(),
                Step::Wait(text) => format!("wait: {text}"),
                Step::Never(obstacle) => format!("never: {obstacle}"),
            }
        };
        assert_eq!(state("True", reason::COMPLETED, ""), "done");
        assert_eq!(state("False", reason::IN_PROGRESS, ""), "wait: InProgress");
        assert_eq!(state("False", reason::PENDING, "m"), "wait: m");
        assert_eq!(state("False", reason::LOST, "m"), "never: m");
    }

    #[test]
    fn long_name_has_room_for_its_end() {
        let mut metadata = kube::core::ObjectMeta::default();
        named(&mut metadata, None, &"a".repeat(63));
        assert_eq!(metadata.generate_name.map(|name| name.len()), Some(BASE_MAX + 1));
    }
}
