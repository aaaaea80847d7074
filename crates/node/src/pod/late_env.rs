//! Variables for a Pod that runs already: those of its claim, from an annotation, and the placeholders of credentials. A
//! container that starts has them from the beginning, one that runs gets them for every process that starts from then on.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::{ClaimEnvVar, annotation, late_env};
use hutch_image::{PAUSE, SANDBOXD_PATH};
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use tokio::time::Instant;

use super::Worker;
use super::state::Role;
use crate::blueprint::{Blueprint, Variables};
use crate::config::Offer;
use crate::environment::{self, Facts, References};
use crate::shared::HOST_IP;

/// Wait before variables that could not be given are tried again.
const RETRY: Duration = Duration::from_secs(2);

/// The annotation, if the Pod has it.
pub(super) fn of(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(annotation::LATE_ENV).map(String::as_str)
}

/// Which variables a container has beside those of the Pod's spec.
#[derive(Default)]
pub(super) struct Late {
    /// `true` if it can receive more variables, and is then as if it had been started with them.
    able: bool,
    /// Sources of its variables.
    has: Has,
    /// The environment of its image.
    image: Variables,
}

/// Sources of the variables that a container has beside those of the Pod's spec.
#[derive(Default, Clone, PartialEq)]
pub(super) struct Has {
    /// The annotation.
    annotation: Option<String>,
    /// Credentials of which it has the placeholders.
    offers: Arc<Vec<Offer>>,
}

impl Late {
    pub(super) fn new(container: &Container, made: &Blueprint, has: Has, image: Variables) -> Late {
        Late { able: is_able(container, made), has, image }
    }
}

/// Returns true if everything that has read the environment of the container reads it anew for each process.
fn is_able(container: &Container, made: &Blueprint) -> bool {
    let words = container.command.iter().chain(&container.args).flatten();
    let mounts = container.volume_mounts.iter().flatten();
    (made.argv == [SANDBOXD_PATH] || made.argv == PAUSE)
        && !words.into_iter().any(|word| word.contains("$("))
        && !mounts.into_iter().any(|mount| mount.sub_path_expr.is_some())
        && container.lifecycle.as_ref().is_none_or(|hooks| hooks.post_start.is_none())
}

/// Adds those of the annotation that are meant for the container to its `env`. The error never holds a value.
fn add(container: &mut Container, is_first: bool, annotation: &str) -> Result<(), String> {
    let wanted: Vec<ClaimEnvVar> = serde_json::from_str(annotation)
        .map_err(|_| format!("annotation {} is not a list of variables", annotation::LATE_ENV))?;
    for ClaimEnvVar { name, value, container_name } in wanted {
        // The annotation is no part of the spec that the API server checks.
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!(
                "annotation {}: {name:?} is no environment variable: its name must not be empty and must not contain \
                 '=', and neither its name nor its value may contain a NUL character",
                annotation::LATE_ENV
            ));
        }
        let target = container_name.as_deref().unwrap_or_default();
        if target != container.name && !(target.is_empty() && is_first) {
            continue;
        }
        let variable = EnvVar { name, value: Some(value), value_from: None };
        let list = container.env.get_or_insert_default();
        match list.iter_mut().find(|known| known.name == variable.name) {
            Some(known) => *known = variable,
            None => list.push(variable),
        }
    }
    Ok(())
}

/// Puts placeholders in place of variables with the same names.
fn put(container: &mut Container, placeholders: Variables) {
    let list = container.env.get_or_insert_default();
    for (name, value) in placeholders {
        list.retain(|known| known.name != name);
        // Last, so that it also counts before one of `envFrom`. In a value, `$$` stands for `$`.
        let value = value.replace('$', "$$");
        list.push(EnvVar { name, value: Some(value), value_from: None });
    }
}

impl Worker {
    /// Returns the sources of variables as they are now.
    pub(super) fn sources(&self) -> Has {
        Has { annotation: of(&self.pod).map(str::to_owned), offers: self.live.offers() }
    }

    /// The whole environment of a container.
    pub(super) async fn environment(
        &self,
        index: usize,
        image: &[(String, String)],
        sources: &Has,
        references: &References,
    ) -> Result<Variables, String> {
        let mut container = self.containers[index].clone();
        if let Some(late) = &sources.annotation {
            let first = self.states.iter().position(|state| state.role == Role::Main);
            add(&mut container, first == Some(index), late)?;
        }
        put(&mut container, self.placeholders(&sources.offers).await?);
        let address = self.address.to_string();
        let facts = Facts {
            pod: &self.pod,
            pod_ip: &address,
            host_ip: HOST_IP,
            node_name: &self.node.config.node_name,
            defaults: self.node.config.defaults,
            allocatable: self.node.capacity.total(),
        };
        environment::environment(image, &container, &facts, references)
    }

    /// Returns the variables that have the placeholders of credentials.
    async fn placeholders(&self, offers: &[Offer]) -> Result<Variables, String> {
        let named: Vec<Offer> =
            offers.iter().filter(|offer| offer.credential.env.is_some()).cloned().collect();
        let Some(egress) = self.node.config.egress.as_ref().filter(|_| !named.is_empty()) else {
            return Ok(Vec::new());
        };
        let placeholders = egress.placeholders(&self.live.placeholders(), &named).await?;
        let names = named.into_iter().filter_map(|offer| offer.credential.env);
        Ok(names.zip(placeholders).collect())
    }

    /// Gives the containers that run the variables that are new.
    pub(super) async fn give_late_env(&mut self) {
        if self.late_env_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.late_env_at = None;
        let wanted = self.sources();
        for index in 0..self.slots.len() {
            let Late { able, has, .. } = &self.slots[index].late;
            // Processes that others start in a container can have placeholders, whatever its main process is.
            let possible = *able || has.annotation == wanted.annotation;
            if !possible || self.slots[index].running.is_none() || *has == wanted {
                continue;
            }
            match self.give(index, &wanted).await {
                Ok(()) => self.slots[index].late.has = wanted.clone(),
                Err(why) => {
                    let (name, text) = (&self.states[index].name, format!("Error: {why}"));
                    self.node.events.container(&self.pod, name, true, "Failed", text);
                    self.late_env_at = Some(Instant::now() + RETRY);
                }
            }
        }
    }

    async fn give(&self, index: usize, wanted: &Has) -> Result<(), String> {
        let slot = &self.slots[index];
        let Some(running) = slot.running.clone() else { return Ok(()) };
        let references = self.references(index).await?;
        let mut env = self.environment(index, &slot.late.image, wanted, &references).await?;
        if let (false, Some(home)) = (
            env.iter().any(|(name, _)| name == "HOME"),
            running.blueprint.env.iter().find(|(name, _)| name == "HOME"),
        ) {
            env.push(home.clone());
        }
        let given = tokio::task::spawn_blocking(move || running.set_env(env)).await;
        given
            .map_err(|e| e.to_string())?
            .map_err(|e| format!("cannot give variables to the running container: {e}"))
    }

    /// Returns the value for the Pod's condition; `None` where no late env is expected.
    pub(super) fn late_env(&self) -> Option<&'static str> {
        let all = || {
            self.slots
                .iter()
                .zip(&self.states)
                .filter(|(_, state)| matches!(state.role, Role::Sidecar | Role::Main))
                .map(|(slot, _)| slot)
        };
        match of(&self.pod) {
            Some(wanted) if all().all(|slot| slot.late.has.annotation.as_deref() == Some(wanted)) => {
                Some(late_env::IN_FORCE)
            }
            Some(_) => Some(late_env::PENDING),
            None => all().all(|slot| slot.late.able).then_some(late_env::POSSIBLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn env(container: &Container) -> serde_json::Value {
        json!(container.env)
    }

    #[test]
    fn placeholder_takes_the_place_of_a_variable_and_is_not_expanded() {
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "B", "value": "1"}]);
        let mut container: Container = serde_json::from_value(json!({"name": "main", "env": env})).unwrap();
        put(&mut container, vec![("A".to_owned(), "x$(B)".to_owned())]);
        assert_eq!(
            json!(container.env),
            json!([{"name": "B", "value": "1"}, {"name": "A", "value": "x$$(B)"}])
        );
    }

    #[test]
    fn variables_go_to_the_container_that_they_name_and_take_the_place_of_others() {
        let wanted = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2", "containerName": "side"},
            {"name": "A", "value": "3", "containerName": ""}]);
        let made = |name: &str, is_first| {
            let mut container: Container =
                serde_json::from_value(json!({"name": name, "env": [{"name": "A", "value": "0"}]})).unwrap();
            add(&mut container, is_first, &wanted.to_string()).unwrap();
            env(&container)
        };
        assert_eq!(made("main", true), json!([{"name": "A", "value": "3"}]));
        assert_eq!(made("side", false), json!([{"name": "A", "value": "0"}, {"name": "B", "value": "2"}]));
        assert_eq!(made("other", false), json!([{"name": "A", "value": "0"}]));
        for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A", "5417\0")] {
            let wanted = json!([{"name": name, "value": value}]).to_string();
            let mut container = Container::default();
            let refused = add(&mut container, true, &wanted).unwrap_err();
            assert!(refused.contains(&format!("{name:?}")) && !refused.contains("5417"), "{refused}");
            assert_eq!(container.env, None);
        }
        let refused = add(&mut Container::default(), true, r#"[{"name": "A", "value": 5417}]"#).unwrap_err();
        assert!(!refused.contains("5417"), "{refused}");
    }
}
