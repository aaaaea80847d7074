//! State of a Pod from an earlier run of the node, read from its status in the API.

use std::path::Path;

use hutch_image::PathSegment;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use super::plan::RestartPolicy;
use super::state::{Ended, Life, Role, State};
use crate::live::Live;
use crate::places::PodPlaces;

/// Exit code of a container that ended while no node ran.
const UNSEEN: i32 = 137;

/// Puts the facts of the status into fresh states.
pub(crate) fn restore(states: &mut [State], pod: &Pod, policy: RestartPolicy, now: Timestamp) {
    let Some(status) = &pod.status else { return };
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let all: Vec<&ContainerStatus> = all.collect();
    for state in states.iter_mut() {
        if let Some(old) = all.iter().find(|old| old.name == state.name) {
            restore_one(state, old, now);
        }
    }
    // The main containers decide whether such a Pod continues. If so, the first steps are made again,
    // as after a reboot of the machine.
    let main_began = states.iter().any(|s| s.role == Role::Main && matches!(s.life, Life::Ended(_)));
    if !(main_began && policy == RestartPolicy::Never) {
        for state in states.iter_mut().filter(|s| s.role == Role::Init) {
            state.life = Life::Waiting { reason: "PodInitializing", message: None };
        }
    }
}

/// Takes note that the init containers of a Pod that begins with a snapshot have ended before that was made.
pub(crate) fn skip_init(states: &mut [State], now: Timestamp) {
    for state in states.iter_mut().filter(|state| state.role == Role::Init) {
        let reason = "Completed".to_owned();
        let message = Some("it ended before the snapshot".to_owned());
        state.life = Life::Ended(Ended { code: 0, signal: None, reason, message, started: None, at: now });
    }
}

/// Puts the facts of the status into the fresh state of an ephemeral container. One that an earlier life of the node has started
/// has had its life, even if that node was killed before it wrote the status.
pub(crate) fn restore_ephemeral(state: &mut State, pod: &Pod, places: &PodPlaces, now: Timestamp) {
    let statuses = pod.status.iter().flat_map(|status| status.ephemeral_container_statuses.iter().flatten());
    if let Some(old) = statuses.into_iter().find(|old| old.name == state.name) {
        restore_one(state, old, now);
    }
    if matches!(state.life, Life::Waiting { .. }) && has_begun(places, &state.name) {
        state.life = Life::Ended(unseen(None, now));
    }
}

/// Returns true if a container has a folder that is made when it starts.
fn has_begun(places: &PodPlaces, container: &str) -> bool {
    let folders = PathSegment::label(container).map(|name| [places.logs(&name), places.message(&name)]);
    folders.into_iter().flatten().any(|folder| Path::exists(&folder))
}

/// Returns the end of a container that no node saw.
fn unseen(started: Option<Timestamp>, at: Timestamp) -> Ended {
    Ended {
        code: UNSEEN,
        signal: None,
        reason: "ContainerStatusUnknown".to_owned(),
        message: Some("The container ended with an earlier life of the node".to_owned()),
        started,
        at,
    }
}

fn restore_one(state: &mut State, old: &ContainerStatus, now: Timestamp) {
    state.restarts = u32::try_from(old.restart_count).unwrap_or(0);
    state.image_id.clone_from(&old.image_id);
    let terminated = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        state.and_then(|s| s.terminated.as_ref()).map(ended)
    };
    state.last = terminated(old.last_state.as_ref());
    let Some(current) = &old.state else { return };
    if let Some(running) = &current.running {
        let started = running.started_at.as_ref().map(|time| time.0);
        state.life = Life::Ended(unseen(started, now));
    } else if let Some(ended) = terminated(Some(current)) {
        state.life = Life::Ended(ended);
    } else if let Some(last) = state.last.take() {
        // It was waiting for its back-off; the new life of the node begins without.
        state.life = Life::Ended(last);
    }
}

fn ended(old: &ContainerStateTerminated) -> Ended {
    Ended {
        code: old.exit_code,
        signal: old.signal,
        reason: old.reason.clone().unwrap_or_default(),
        message: old.message.clone(),
        started: old.started_at.as_ref().map(|time| time.0),
        at: old.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    }
}

/// Publishes the logs that a Pod that has ended has.
pub(crate) fn lives(live: &Live, pod: &Pod) {
    let status = pod.status.as_ref();
    let all = status
        .into_iter()
        .flat_map(|s| {
            let of_spec = s.container_statuses.iter().chain(&s.init_container_statuses);
            of_spec.chain(&s.ephemeral_container_statuses)
        })
        .flatten();
    for old in all {
        live.set_life(&old.name, u32::try_from(old.restart_count).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::{Phase, plan};
    use super::*;

    #[test]
    fn policies_decide_what_happens_after_a_restart_of_the_node() {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let done = json!({"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z"}});
        for (policy, state, starts, phase) in [
            (RestartPolicy::Always, &running, true, Phase::Running),
            (RestartPolicy::OnFailure, &running, true, Phase::Running),
            (RestartPolicy::Never, &running, false, Phase::Failed),
            (RestartPolicy::OnFailure, &done, false, Phase::Succeeded),
            (RestartPolicy::Never, &done, false, Phase::Succeeded),
        ] {
            let pod: Pod = serde_json::from_value(json!({"status": {"phase": "Running", "containerStatuses": [
                {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 4, "state": state}]}}))
            .unwrap();
            let mut states = vec![State::new("c", Role::Main, "i")];
            restore(&mut states, &pod, policy, Timestamp::now());
            let plan = plan(&states, policy, Timestamp::now());
            assert_eq!((!plan.start.is_empty(), plan.phase), (starts, phase), "{policy:?} {state}");
            states[0].begin();
            assert_eq!(states[0].restarts, 5);
        }
    }

    #[test]
    fn ephemeral_container_that_has_begun_is_not_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().to_owned();
        let places = PodPlaces { disk: dir.path().to_owned(), memory: memory.clone(), all_memory: memory };
        let pod: Pod = serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap();
        let restored = |name: &str| {
            let mut state = State::new(name, Role::Ephemeral, "i");
            restore_ephemeral(&mut state, &pod, &places, Timestamp::now());
            state.life
        };
        for folder in [PodPlaces::logs, PodPlaces::message] {
            assert!(matches!(restored("e"), Life::Waiting { .. }));
            let folder = folder(&places, &PathSegment::label("e").unwrap());
            std::fs::create_dir_all(&folder).unwrap();
            let Life::Ended(ended) = restored("e") else { panic!("it starts again") };
            assert_eq!((ended.code, ended.reason.as_str()), (137, "ContainerStatusUnknown"));
            assert!(matches!(restored("other"), Life::Waiting { .. }));
            std::fs::remove_dir(folder).unwrap();
        }
    }
}
