//! Ephemeral containers: added to a Pod that exists, started once, and never changed or removed.

use hutch_api::EPHEMERAL_CONTAINERS_MAX;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec, ResourceRequirements};

use super::restore::restore_ephemeral;
use super::state::{Life, Role, State};
use super::{Slot, Worker};
use crate::admission::{self, Choice};
use crate::limits;

/// Why a container cannot be added to a Pod for which a service of this process answers.
const NO_SANDBOX: &str =
    "hutch itself answers for this Pod: it has no sandbox in which a container could run";

/// Returns an ephemeral container as a container, without the fields that it cannot have, and with the limits that its Pod gives
/// it.
fn container(ephemeral: &EphemeralContainer, resources: ResourceRequirements) -> Container {
    let EphemeralContainer { name, image, command, args, working_dir, env, env_from, .. } = ephemeral.clone();
    let EphemeralContainer { image_pull_policy, security_context, volume_mounts, volume_devices, .. } =
        ephemeral.clone();
    Container {
        name,
        image,
        command,
        args,
        working_dir,
        env,
        env_from,
        image_pull_policy,
        security_context,
        volume_mounts,
        volume_devices,
        resources: Some(resources),
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        tty: ephemeral.tty,
        termination_message_path: ephemeral.termination_message_path.clone(),
        termination_message_policy: ephemeral.termination_message_policy.clone(),
        ..Container::default()
    }
}

/// Returns the ephemeral containers of a Pod.
fn containers(spec: &PodSpec) -> impl Iterator<Item = Container> {
    let all = spec.ephemeral_containers.iter().flatten().take(EPHEMERAL_CONTAINERS_MAX);
    all.map(|ephemeral| container(ephemeral, limits::of_ephemeral(spec)))
}

impl Worker {
    /// Takes the ephemeral containers that were added to the spec of the Pod. One that cannot run waits with the reason, which
    /// clients show.
    pub(super) fn take_ephemeral(&mut self) {
        let pod = self.pod.clone();
        for container in pod.spec.iter().flat_map(containers) {
            if self.states.iter().any(|state| state.name == container.name) {
                continue;
            }
            let image = container.image.as_deref().unwrap_or("");
            let mut state = State::new(&container.name, Role::Ephemeral, image);
            let places = self.node.places.pod(&self.live.uid);
            restore_ephemeral(&mut state, &pod, &places, Timestamp::now());
            match (&state.life, self.refusal(&container)) {
                (Life::Waiting { .. }, Some(message)) => {
                    let text = format!("Error: {message}");
                    self.node.events.container(&pod, &container.name, true, "Failed", text);
                    state.refuse(message);
                }
                (Life::Ended(_), _) => self.live.set_life(&container.name, state.restarts),
                _ => {}
            }
            self.states.push(state);
            self.containers.push(container);
            self.slots.push(Slot::default());
        }
    }

    /// Returns why an ephemeral container cannot run.
    fn refusal(&self, container: &Container) -> Option<String> {
        match self.choice {
            Choice::Embedded(_) => Some(NO_SANDBOX.to_owned()),
            Choice::Jail(_) => {
                admission::check_ephemeral(&self.spec, container).err().map(|refusal| refusal.message)
            }
        }
    }
}
