//! Starting one container of a Pod.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hutch_api::annotation;
use hutch_image::PathSegment;
use hutch_screen::Origin;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use super::blueprint::{Parts, blueprint};
use super::plan::Start;
use super::probe::{self, Kind, Target};
use super::state::{Ended, Role};
use super::{Happening, What, Worker, late_env};
use crate::blueprint::Blueprint;
use crate::config::{ContainerChange, Journal};
use crate::container::{Running, Screened, code_of, start};
use crate::environment::{self, References};
use crate::limits;
use crate::runtime::{Beginning, ContainerPlan, StartError};
use crate::saved::generation;
use crate::shared::PolicyNews;
use crate::subpath::Held;
use crate::{disk, trust, volumes};

/// Wait before a container whose configuration is incomplete is tried again.
const CONFIG_RETRY: SignedDuration = SignedDuration::from_secs(2);
/// Reason of a container that waits for the audit log, as a kubelet names what is not about its configuration.
const NOT_CREATED: &str = "CreateContainerError";
/// Exit code of a container that did not start, as a kubelet gives it.
const NOT_STARTED: i32 = 128;

/// Why a container cannot be made now.
pub(super) struct Setback {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) retry: SignedDuration,
}

/// The name of a container as a part of paths. Admission refuses others, so an error is not expected.
pub(super) fn segment(name: &str) -> Result<PathSegment, String> {
    PathSegment::label(name)
        .ok_or_else(|| format!("container name {name:?} is not a lowercase RFC 1123 label"))
}

impl Worker {
    /// Starts a container, or takes note of why it did not start.
    pub(super) async fn start(&mut self, Start { index, keep_root }: Start) {
        // A frozen Pod admits no caller. If it cannot be thawed, all of it is killed and begins anew.
        let _busy = self.live.enter().await.ok();
        if self.node.snapshots.has_ended(&self.live.id.uid) {
            return;
        }
        let made = self.make(index).await;
        let name = self.states[index].name.clone();
        let (blueprint, held) = match made {
            Ok(made) => made,
            Err(setback) => {
                self.set_back(index, setback);
                return;
            }
        };
        let restoring = self.restoring.clone();
        let restoring = restoring.filter(|_| matches!(self.states[index].role, Role::Main | Role::Sidecar));
        let change =
            ContainerChange::Started { snapshot: restoring.as_deref().map(|from| from.name.as_str()) };
        let permitted = self.live.permitted(std::slice::from_ref(&name), change).await;
        if let Err(message) = permitted {
            self.set_back(index, Setback { reason: NOT_CREATED, message, retry: CONFIG_RETRY });
            return;
        }
        self.states[index].begin();
        let life = self.states[index].restarts;
        self.live.set_life(&name, life);
        self.node.events.container(&self.pod, &name, false, "Created", format!("Container created: {name}"));
        if let Some(restoring) = restoring {
            let started = self.start_restored(&restoring, index, blueprint).await;
            drop(held);
            return match started {
                Ok(running) => self.began(index, running, Some(&restoring.name)).await,
                Err(problem) => self.unrestored(index, problem).await,
            };
        }
        let beginning = if keep_root { Beginning::Kept } else { Beginning::Fresh };
        let started = self.run(index, blueprint, beginning).await;
        // What a mount was made from may go once the mount is there.
        drop(held);
        match started {
            Ok(running) => self.began(index, running, None).await,
            Err(StartError { message, of_policy }) => {
                if of_policy {
                    self.report_files(&name, Some(format!("{message}: no egress")));
                }
                let text = format!("Error: failed to start container {name:?}: {message}");
                self.node.events.container(&self.pod, &name, true, "Failed", text);
                let at = Timestamp::now();
                let reason = "StartError".to_owned();
                let ended = Ended {
                    code: NOT_STARTED,
                    signal: None,
                    reason,
                    message: Some(message),
                    started: None,
                    at,
                };
                self.states[index].end(ended);
            }
        }
    }

    /// Returns that the volumes in memory are full before a container starts: what a container that has ended wrote there is
    /// charged to no other.
    pub(super) async fn memory_exceeded(&self) -> Option<String> {
        if !disk::has_memory(&self.spec) {
            return None;
        }
        let allocatable = self.node.capacity.total().memory_bytes;
        let most = volumes::memory_bytes(&self.spec, &self.node.config.defaults, allocatable).ok()?;
        let (spec, places) = (self.spec.clone(), self.node.places.pod(&self.live.uid));
        let exceeded = tokio::task::spawn_blocking(move || disk::memory_exceeded(&spec, &places, most));
        exceeded.await.ok().flatten()
    }

    /// Reports why a container cannot be started with the rules for files of its Pod, or that it runs with them.
    fn report_files(&self, container: &str, problem: Option<String>) {
        self.live.set_file_problem(container, problem);
        self.node.tell_policies(PolicyNews::Starts(self.live.clone()));
    }

    /// Looks up everything that the container refers to.
    async fn make(&mut self, index: usize) -> Result<(Blueprint, Vec<Held>), Setback> {
        let config =
            |message: String| Setback { reason: "CreateContainerConfigError", message, retry: CONFIG_RETRY };
        let (image, trusted) = self.image(index).await?;
        let image_env = trust::environment(&image.config.env, &trusted);
        let references = self.references(index).await.map_err(config)?;
        let late = self.sources();
        let env = self.environment(index, &image_env, &late, &references).await.map_err(config)?;
        let container = &self.containers[index];
        let limits = limits::of(container, &self.node.config.defaults).map_err(config)?;
        let name = segment(&container.name).map_err(config)?;
        let places = self.node.places.pod(&self.live.uid);
        let (spec, owned, volumes) = (self.spec.clone(), container.clone(), self.volumes.clone());
        let sandboxd = self.node.config.sandboxd_program.clone();
        let (image_id, files) = (image.id.clone(), self.live.files());
        let ephemeral = self.states[index].role == Role::Ephemeral;
        let generation = self.has_generation(index).then(|| places.generation(&name));
        self.slots[index].files = files.clone();
        self.slots[index].image = image.hold.clone();
        let made = tokio::task::spawn_blocking(move || {
            if let Some(file) = &generation {
                generation::prepare(file).map_err(|error| format!("{}: {error}", file.display()))?;
            }
            blueprint(Parts {
                spec: &spec,
                container: &owned,
                image: &image,
                env,
                limits,
                volumes: &volumes,
                sandboxd: &sandboxd,
                hosts: &places.hosts(),
                resolv_conf: &places.resolv_conf(),
                bundle: &places.bundle(),
                trusted: &trusted,
                upper: places.root(&name),
                late_env: places.late_env(&name),
                message: places.message(&name),
                generation,
                files: &files,
                ephemeral,
            })
        });
        let made = made.await.map_err(|e| config(e.to_string()))?.map_err(config)?;
        self.slots[index].late = late_env::Late::new(container, &made.0, late, image_env);
        self.live.set_image(&self.states[index].name, &image_id);
        self.states[index].image_id = image_id;
        Ok(made)
    }

    /// Fetches the ConfigMaps and Secrets of the environment. Missing ones are simply absent.
    pub(super) async fn references(&self, index: usize) -> Result<References, String> {
        let (maps, secrets) = environment::names(&self.containers[index]);
        let mut found = References::default();
        let (client, namespace) = (&self.node.client, self.live.id.namespace.as_str());
        for name in BTreeSet::from_iter(maps) {
            let map: Option<ConfigMap> = volumes::find(client, namespace, name).await?;
            found.config_maps.extend(map.map(|map| (name.to_owned(), map)));
        }
        for name in BTreeSet::from_iter(secrets) {
            let secret: Option<Secret> = volumes::find(client, namespace, name).await?;
            found.secrets.extend(secret.map(|secret| (name.to_owned(), secret)));
        }
        Ok(found)
    }

    /// Starts a container in the Pod's sandbox.
    pub(super) async fn run(
        &self,
        index: usize,
        blueprint: Blueprint,
        beginning: Beginning,
    ) -> Result<Arc<Running>, StartError> {
        let sandbox = self.sandbox.as_ref().ok_or("the pod has no sandbox")?;
        let restarts = self.states[index].restarts;
        let (places, name) = (self.node.places.pod(&self.live.uid), segment(&blueprint.name)?);
        let plan = ContainerPlan {
            id: format!("pod-{}-{index}-{restarts}", self.live.id.uid),
            folder: places.root(&name),
            beginning,
            disk_bytes: disk::of_container(&self.containers[index]),
            // Also what is suspended when idle: its CPU time is counted in the same group.
            freezable: [annotation::IDLE_AFTER, annotation::SUSPEND_AFTER]
                .iter()
                .any(|key| self.pod.annotations().contains_key(*key)),
            blueprint: Arc::new(blueprint),
        };
        let pod = format!("{}/{}", self.live.id.namespace, self.live.id.name);
        let origin = Origin { pod: pod.into(), part: plan.blueprint.name.as_str().into() };
        let screened = Screened::new(self.live.log_screen.clone(), origin);
        start(&**sandbox, plan, places.logs(&name), restarts, screened).await
    }

    /// A container runs, from this snapshot if one is given: others may reach it, and its probes begin.
    async fn began(&mut self, index: usize, running: Arc<Running>, snapshot: Option<&str>) {
        if snapshot.is_some() {
            self.slots[index].restored = true;
            self.note_restored();
        } else {
            self.report_without(index);
        }
        let name = self.states[index].name.clone();
        self.node.events.container(&self.pod, &name, false, "Started", format!("Container started: {name}"));
        if let Some(sandbox) = &self.sandbox {
            self.live.set_network(sandbox.network().clone());
        }
        self.live.set_files(self.slots[index].files.clone());
        self.report_files(&name, None);
        self.live.began(&name, running.clone());
        self.live.begun();
        let life = self.states[index].restarts;
        self.states[index].run(Timestamp::now());
        let slot = &mut self.slots[index];
        slot.tasks.abort_all();
        slot.killed_for = None;
        slot.running = Some(running.clone());
        let (report, mut ended) = (self.report.clone(), running.ended.clone());
        slot.tasks.spawn(async move {
            // The sender is dropped only with the runtime.
            let Ok(exit) = ended.wait_for(Option::is_some).await.map(|exit| exit.clone()) else { return };
            if let Some(exit) = exit {
                // A worker that is over does not want to know.
                let _ = report.send(Happening { index, life, what: What::Ended(exit) }).await;
            }
        });
        if let Some(journal) = self.live.journal.get() {
            record_life(journal.clone(), self.live.id.uid.clone(), &running, snapshot);
        }
        if !(snapshot.is_some() && self.restoring.as_ref().is_some_and(|restoring| restoring.has_memory())) {
            self.post_start(index, &running);
        }
        match self.states[index].has_startup_probe {
            true => self.begin_probes(index, &[Kind::Startup]),
            false => self.begin_probes(index, &[Kind::Readiness, Kind::Liveness]),
        }
    }

    fn target(&self, index: usize, running: &Arc<Running>) -> Option<Target> {
        let (network, address): (Arc<OwnedFd>, _) = self.live.network()?;
        let container = self.containers[index].clone();
        Some(Target { live: self.live.clone(), running: running.clone(), network, address, container })
    }

    pub(super) fn begin_probes(&mut self, index: usize, kinds: &[Kind]) {
        let Some(running) = self.slots[index].running.clone() else { return };
        let life = self.states[index].restarts;
        for &kind in kinds {
            let container = &self.containers[index];
            let probe = match kind {
                Kind::Startup => &container.startup_probe,
                Kind::Readiness => &container.readiness_probe,
                Kind::Liveness => &container.liveness_probe,
            };
            let (Some(probe), Some(target)) = (probe.clone(), self.target(index, &running)) else { continue };
            let report = self.report.clone();
            self.slots[index].tasks.spawn(probe::run(kind, probe, target, move |finding| {
                // When the queue is full the worker is behind; a lost attempt is repeated by the next one.
                let happening = Happening { index, life, what: What::Probed(kind, finding) };
                !matches!(report.try_send(happening), Err(tokio::sync::mpsc::error::TrySendError::Closed(_)))
            }));
        }
    }

    /// Runs the `postStart` hook beside the container; when it fails the container is killed.
    fn post_start(&mut self, index: usize, running: &Arc<Running>) {
        let hook = self.containers[index].lifecycle.as_ref().and_then(|l| l.post_start.clone());
        let (Some(hook), Some(target)) = (hook, self.target(index, running)) else { return };
        let (events, pod, name) =
            (self.node.events.clone(), self.pod.clone(), self.states[index].name.clone());
        let running = running.clone();
        self.slots[index].tasks.spawn(async move {
            let _busy = target.live.enter().await;
            if let Err(why) = super::finish::hook(&hook, &target).await {
                events.container(
                    &pod,
                    &name,
                    true,
                    "FailedPostStartHook",
                    format!("PostStartHook failed: {why}"),
                );
                running.container.kill();
            }
        });
    }
}

/// Records start and end of a container.
fn record_life(journal: Arc<dyn Journal>, pod: String, running: &Arc<Running>, snapshot: Option<&str>) {
    let (name, mut ended) = (running.blueprint.name.clone(), running.ended.clone());
    journal.happened(&pod, &name, ContainerChange::Started { snapshot });
    tokio::spawn(async move {
        let Ok(exit) = ended.wait_for(Option::is_some).await.map(|exit| exit.clone()) else { return };
        if let Some(exit) = exit {
            let code = code_of(&exit.exit);
            let change = ContainerChange::Ended { code, out_of_memory: exit.out_of_memory };
            journal.happened(&pod, &name, change);
        }
    });
}
