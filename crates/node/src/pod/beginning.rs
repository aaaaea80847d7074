//! Containers that begin with a snapshot, and what becomes of the Pod if one cannot.

use std::sync::Arc;

use hutch_api::annotation;
use hutch_api::state::{self, RESTORE_FAILED, STARTED_ANEW};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::start::segment;
use super::state::{Ended, Life, NEVER, Role};
use super::{Worker, prepare};
use crate::blueprint::Blueprint;
use crate::config::Handler;
use crate::container::{KILLED, Running};
use crate::disk;
use crate::saved::generation;
use crate::shared::Shared;
use crate::snapshot::{Problem, Restoring, empty_volumes, is_optional};

/// First wait before a restore that failed is tried again: it reads the whole image. It doubles.
const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// How often it doubles.
const MAX_DOUBLINGS: i32 = 6;
/// Failed attempts after which a Pod whose snapshot is optional begins without it.
const ATTEMPTS: i32 = 3;

/// Reports that a Pod begins without its snapshot.
pub(super) fn report_anew(node: &Shared, pod: &Pod, why: &str) {
    let policy = annotation::RESTORE_POLICY;
    let text = format!("{why}; annotation {policy} is BestEffort: the Pod begins without its snapshot");
    node.events.of_sandbox(pod, RESTORE_FAILED, text.clone());
    node.events.warning(pod, RESTORE_FAILED, text);
}

impl Worker {
    /// Reports that a container of a Pod that has begun with a snapshot begins without it. A Pod with the memory of a suspend
    /// does so like any other: that memory is used once.
    pub(super) fn report_without(&self, index: usize) {
        let is_later = matches!(self.states[index].role, Role::Main | Role::Sidecar);
        let snapshot = self.restored.as_deref().and_then(state::name_in_beginning);
        let Some(snapshot) = snapshot.filter(|name| is_later && !state::is_suspend(name)) else { return };
        let name = &self.states[index].name;
        let text = format!(
            "container {name:?} began anew, without the memory and the files of snapshot {snapshot:?}: it had ended after \
             the Pod was Ready"
        );
        self.node.events.of_sandbox(&self.pod, STARTED_ANEW, text.clone());
        self.node.events.container(&self.pod, name, true, STARTED_ANEW, text);
    }

    /// Returns true if a container may be restored, and has the file with the number of its restore: also one that was not, since
    /// gVisor restores it with the same mounts only.
    pub(super) fn has_generation(&self, index: usize) -> bool {
        let is_kept = self.live.handler.get() == Some(&Handler::Gvisor)
            && hutch_api::owner::sandbox(self.pod.as_ref()).is_some();
        let restores =
            self.pod.annotations().get(annotation::RESTORE_FROM).is_some_and(|name| !name.is_empty());
        (is_kept || restores) && matches!(self.states[index].role, Role::Main | Role::Sidecar)
    }

    /// Starts a container with what the snapshot has of it.
    pub(super) async fn start_restored(
        &mut self,
        restoring: &Arc<Restoring>,
        index: usize,
        blueprint: Blueprint,
    ) -> Result<Arc<Running>, Problem> {
        // Memory fits only volumes of its moment. Containers that still run keep what they have written.
        if self.slots[index].restored && self.slots.iter().all(|slot| slot.running.is_none()) {
            restoring.volumes(&self.live).await?;
        }
        let name = segment(&blueprint.name)?;
        let places = self.node.places.pod(&self.live.uid);
        let (image, disk_bytes) = (&self.states[index].image_id, disk::of_container(&self.containers[index]));
        let beginning = restoring.container(&blueprint, image, places.root(&name), disk_bytes).await?;
        let (node, above, file) = (self.node.clone(), restoring.generation(), places.generation(&name));
        let number = tokio::task::spawn_blocking(move || {
            let number = node.snapshots.generations.next(above, Timestamp::now())?;
            generation::set(&file, number).map(|()| number)
        });
        let number = number.await??;
        self.live.set_generation(number);
        let running = self.run(index, blueprint, beginning).await.map_err(|error| error.message)?;
        if let Err(problem) = restoring.renew(&running, &self.live, number).await {
            end(&running).await;
            self.states[index].end(killed("its command after the restore failed"));
            return Err(problem);
        }
        Ok(running)
    }

    /// Takes note that a container cannot begin with the snapshot: it waits, or the Pod begins without the snapshot.
    pub(super) async fn unrestored(&mut self, index: usize, problem: Problem) {
        let failures = &mut self.slots[index].failed_restores;
        let retry = RETRY * (1 << *failures);
        *failures = (*failures + 1).min(MAX_DOUBLINGS);
        let name = self.states[index].name.clone();
        let is_over = problem.lasts || *failures >= ATTEMPTS;
        if is_optional(&self.pod) && is_over {
            let why = format!("container {name:?}: {}", problem.why);
            match self.begin_anew(index, &why).await {
                Ok(()) => {
                    report_anew(&self.node, &self.pod, &why);
                    self.anew = Some(why);
                    return;
                }
                Err(error) => tracing::warn!(pod = self.live.id.name, error, "a Pod cannot begin anew yet"),
            }
        }
        let text = format!("Error: failed to restore container {name:?}: {}", problem.why);
        self.node.events.container(&self.pod, &name, true, RESTORE_FAILED, text);
        // Its cause may be repaired, or a process that helped was killed.
        let until = Timestamp::now().checked_add(retry).unwrap_or(NEVER);
        self.states[index].wait(RESTORE_FAILED, problem.why, until);
    }

    /// Ends the containers that have begun with the snapshot, and has all of them begin without it.
    async fn begin_anew(&mut self, index: usize, why: &str) -> Result<(), String> {
        for (slot, state) in self.slots.iter_mut().zip(&mut self.states) {
            slot.tasks.abort_all();
            slot.killed_for = None;
            let Some(running) = slot.running.take() else { continue };
            end(&running).await;
            self.live.ended(&state.name);
            state.end(killed("the Pod begins without its snapshot"));
        }
        empty_volumes(&self.live).await?;
        let (_, fresh) = prepare::states(&self.spec);
        for (at, (state, fresh)) in self.states.iter_mut().zip(fresh).enumerate() {
            let message = if at == index { why.to_owned() } else { String::new() };
            match (&state.life, state.role) {
                // It did not run in this Pod.
                (_, Role::Init) => *state = fresh,
                (Life::Ended(_), _) => state.begin_anew(Timestamp::now()),
                _ => state.wait("ContainerCreating", message, Timestamp::now()),
            }
        }
        for slot in &mut self.slots {
            (slot.restored, slot.failed_restores) = (false, 0);
        }
        (self.restoring, self.restored) = (None, None);
        Ok(())
    }

    /// Takes note of the snapshot once all containers have begun with it. One that ends before the Pod is Ready begins with it
    /// again.
    pub(super) fn note_restored(&mut self) {
        let all = self.states.iter().zip(&self.slots);
        let mut later = all.filter(|(state, _)| matches!(state.role, Role::Main | Role::Sidecar));
        if later.all(|(_, slot)| slot.restored) {
            let beginning = |restoring: &Arc<Restoring>| state::beginning(&restoring.uid, &restoring.name);
            self.restored = self.restoring.as_ref().map(beginning);
        }
    }
}

/// Kills a container and waits for its end: the next one has its folder.
async fn end(running: &Running) {
    running.container.kill();
    let mut ended = running.ended.clone();
    // The sender is dropped only with the runtime.
    let _ = ended.wait_for(Option::is_some).await;
}

fn killed(why: &str) -> Ended {
    let message = Some(why.to_owned());
    Ended {
        code: KILLED,
        signal: Some(9),
        reason: "Error".into(),
        message,
        started: None,
        at: Timestamp::now(),
    }
}
