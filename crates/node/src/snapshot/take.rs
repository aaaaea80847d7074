//! Taking one snapshot.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hutch_api::sleep::{Act, Input};
use hutch_api::state::{Afterwards, Content, SandboxSnapshot, is_suspend, reason};
use hutch_image::PathSegment;
use hutch_jail::Usage;
use hutch_policy::HostName;
use hutch_snapshot::{Image, Partial, TreeName};
use kube::ResourceExt;
use tokio::task::spawn_blocking;

use super::claims::{self, Kept};
use super::{retention, template};
use crate::container::Running;
use crate::live::Live;
use crate::saved::facts::{Container, Facts, Machine, shape};
use crate::saved::{Needed, Turn};
use crate::shared::Shared;

/// Why a snapshot ends without a result.
const DELETED: &str = "it was deleted, or the Pod of its Sandbox was deleted or evicted, meanwhile";
/// Why a snapshot fails whose source is no longer the one of its request.
pub(super) const STARTED_ANEW: &str = "the source was started anew since the snapshot was requested";
/// Maximum time until the containers of a Pod run again in a new life of the node.
const SOURCE_TIME: Duration = Duration::from_secs(30);
/// Interval at which they are looked for.
const SOURCE_INTERVAL: Duration = Duration::from_millis(100);

/// A snapshot that is complete.
pub(super) struct Taken {
    pub(super) image: Image,
    pub(super) facts: Facts,
    pub(super) paused: Duration,
}

/// Why a snapshot failed for good.
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl<E: ToString> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { reason: reason::FAILED, message: error.to_string() }
    }
}

/// A container and the names by which its image has it.
struct Part {
    name: PathSegment,
    running: Arc<Running>,
}

/// The containers of a Sandbox that run at one moment.
pub(super) struct Life {
    pod: String,
    containers: Vec<Weak<Running>>,
}

impl Life {
    /// Returns that of the source of a snapshot, which must be the same when it is taken. `None` if not all containers run, and
    /// for a suspend: its memory is that of the processes that run when it is made.
    pub(super) fn of(node: &Shared, snapshot: &SandboxSnapshot) -> Option<Life> {
        if is_suspend(&snapshot.name_any()) {
            return None;
        }
        let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
        let (live, _) = source(node, namespace, snapshot).ok()?;
        let parts = parts(&live, snapshot.spec.content).ok()?;
        let containers = parts.iter().map(|part| Arc::downgrade(&part.running)).collect();
        Some(Life { pod: live.id.uid.clone(), containers })
    }

    fn has(&self, live: &Live, parts: &[Part]) -> bool {
        let same =
            |(then, now): (&Weak<Running>, &Part)| std::ptr::eq(then.as_ptr(), Arc::as_ptr(&now.running));
        self.pod == live.id.uid
            && self.containers.len() == parts.len()
            && self.containers.iter().zip(parts).all(same)
    }
}

/// Takes a snapshot. If it fails, the Sandbox runs as before.
pub(super) async fn take(
    node: &Arc<Shared>,
    snapshot: &SandboxSnapshot,
    id: &PathSegment,
    requested: Option<Life>,
) -> Result<Taken, Failure> {
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    let (live, sandbox_uid) = source(node, namespace, snapshot)?;
    let template = template::of(node, namespace, (&snapshot.spec.source.sandbox, &sandbox_uid)).await?;
    // First, so that a Pod which ends does not wait for the snapshots of others.
    let mut turn = node.snapshots.turns.wait(namespace).await;
    let _turn_of_pod = live.snapshots.lock().await;
    if live.is_ending() || !node.snapshots.is_wanted(id.as_str()) {
        return Err(DELETED.into());
    }
    let (spec, stops) = (&snapshot.spec, snapshot.spec.afterwards == Afterwards::Stop);
    // Thaws it. No visitor of its own prevents what follows.
    let busy = live.pass().await.map_err(|error| format!("{error}"))?;
    let parts = parts(&live, spec.content)?;
    if requested.is_some_and(|life| !life.has(&live, &parts)) {
        return Err(STARTED_ANEW.into());
    }
    let claims = claims::kept(node, &live, spec, &sandbox_uid).await?;
    let own = own_volumes(&live, (spec.content, stops));
    let needed = check_room(node, &parts, (&own, &claims), spec.content, &mut turn).await?;
    retention::admit(node, snapshot, needed).await?;
    let machine = match spec.content {
        Content::Full => Some(spawn_blocking(Machine::here).await??),
        Content::Filesystem => None,
    };
    if stops && live.gate.step(Input::Save) != Act::Save {
        return Err("the Pod is being frozen or ended".into());
    }
    let began = Instant::now();
    let written = write(node, &live, id, &parts, (own, &claims), spec.content).await;
    let (partial, volumes) = match written {
        Ok(written) => written,
        Err(error) => {
            give_up(&live).await;
            return Err(error.into());
        }
    };
    let mut paused = began.elapsed();
    if !stops {
        resume(&live).await;
        paused = began.elapsed();
    }
    drop(busy);
    let claims = claims.iter().map(|one| one.name.to_string()).collect();
    let names = match (spec.content, &node.config.egress) {
        (Content::Full, Some(egress)) => egress.names(&live.id.uid).await,
        _ => Vec::new(),
    };
    let facts = facts(&live, &parts, snapshot, (sandbox_uid, template, machine), (volumes, claims, names));
    let image = match finish(node, snapshot, partial, &facts).await {
        Ok(image) => image,
        Err(failure) => {
            if stops {
                give_up(&live).await;
            }
            return Err(failure);
        }
    };
    if stops {
        node.snapshots.set_ended(id, &live.id.uid, facts.suspend);
        live.gate.step(Input::Saved(true));
    }
    Ok(Taken { image, facts, paused })
}

/// Returns what an image says about itself.
fn facts(
    live: &Live,
    parts: &[Part],
    snapshot: &SandboxSnapshot,
    (sandbox_uid, template, machine): (String, Option<String>, Option<Machine>),
    (volumes, claims, names): (Vec<String>, Vec<String>, Vec<HostName>),
) -> Facts {
    let spec = &snapshot.spec;
    let containers = parts.iter().map(|part| {
        let image = live.image_id(part.name.as_str()).unwrap_or_default();
        (part.name.as_str().to_owned(), Container { image, shape: shape(&part.running.blueprint) })
    });
    Facts {
        namespace: live.id.namespace.clone(),
        sandbox: spec.source.sandbox.clone(),
        sandbox_uid,
        template,
        pod_uid: live.id.uid.clone(),
        content: spec.content,
        ends_pod: spec.afterwards == Afterwards::Stop,
        suspend: is_suspend(&snapshot.name_any()),
        generation: live.generation(),
        handler: Some(live.handler_name().to_owned()),
        machine,
        containers: containers.collect::<BTreeMap<_, _>>(),
        volumes,
        claims,
        names,
    }
}

/// Makes an image durable, unless the namespace may not keep so many bytes.
async fn finish(
    node: &Arc<Shared>,
    snapshot: &SandboxSnapshot,
    partial: Partial,
    facts: &Facts,
) -> Result<Image, Failure> {
    let facts = serde_json::to_value(facts)?;
    let image = spawn_blocking(move || partial.finish(facts)).await??;
    // What was needed was an estimate.
    let sizes = image.sizes();
    if let Err(failure) =
        retention::check_bytes(node, snapshot, sizes.memory.saturating_add(sizes.files)).await
    {
        let (shared, id) = (node.clone(), image.id().clone());
        spawn_blocking(move || shared.snapshots.images.remove(&id)).await??;
        return Err(failure);
    }
    Ok(image)
}

/// Lets a Sandbox run as before whose snapshot failed.
async fn give_up(live: &Live) {
    resume(live).await;
    live.gate.step(Input::Saved(false));
}

/// Finds the Pod of the Sandbox, and the uid of the Sandbox.
fn source(
    node: &Shared,
    namespace: &str,
    snapshot: &SandboxSnapshot,
) -> Result<(Arc<Live>, String), Failure> {
    let wanted = &snapshot.spec.source;
    let mut replaced = None;
    for live in node.all().into_iter().filter(|live| live.id.namespace == namespace) {
        let pod = live.pod();
        let Some(owner) = hutch_api::owner::sandbox(pod.as_ref()) else { continue };
        if owner.name != wanted.sandbox || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if wanted.uid.as_ref().is_some_and(|uid| *uid != owner.uid) {
            replaced = Some(owner.uid.clone());
            continue;
        }
        return Ok((live.clone(), owner.uid.clone()));
    }
    Err(match replaced {
        Some(uid) => Failure {
            reason: reason::SOURCE_REPLACED,
            message: format!("Sandbox {:?} has the uid {uid} now", wanted.sandbox),
        },
        None => format!("Sandbox {:?} has no Pod on this node; resume it if it is suspended", wanted.sandbox)
            .into(),
    })
}

/// Returns the containers of a Pod, all of which run.
fn parts(live: &Live, content: Content) -> Result<Vec<Part>, Failure> {
    let pod = live.pod();
    let Some(spec) = &pod.spec else { return Err("the Pod has no containers".into()) };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let mut parts = Vec::new();
    for container in spec.containers.iter().chain(sidecars) {
        let running = live.container(&container.name).filter(|running| running.ended.borrow().is_none());
        let running = running.ok_or_else(|| format!("container {} does not run", container.name))?;
        if content == Content::Full
            && let Some(why) = running.container.without_checkpoint()
        {
            return Err(why.into());
        }
        let name = PathSegment::label(&container.name).ok_or("a container has no valid name")?;
        parts.push(Part { name, running });
    }
    Ok(parts)
}

/// A volume that ends with its Pod: name and folder.
type Own = (PathSegment, PathBuf);

/// Returns the volumes of a Pod that end with it and that belong in its image.
fn own_volumes(live: &Live, (content, stops): (Content, bool)) -> Vec<Own> {
    if stops || content == Content::Full { live.own_volumes() } else { Vec::new() }
}

/// Returns the bytes of the memory of processes in an image. Their cgroups also count cached files, and volumes in memory, which
/// are copied as files.
fn memory_bytes(used: &[Usage], volumes: u64) -> u64 {
    let each = used.iter().map(|used| used.memory_bytes.saturating_sub(used.memory_cache_bytes));
    each.fold(0, u64::saturating_add).saturating_sub(volumes)
}

/// Refuses a snapshot that does not fit on the disk, before anything is stopped for it. Returns the bytes that are needed.
async fn check_room(
    node: &Shared,
    parts: &[Part],
    (own, claims): (&[Own], &[Kept]),
    content: Content,
    turn: &mut Turn<'_>,
) -> Result<Needed, Failure> {
    let own = own.iter().map(|(_, folder)| folder.clone());
    let (in_memory, mut folders): (Vec<PathBuf>, Vec<PathBuf>) =
        own.partition(|folder| folder.starts_with(&node.places.memory));
    folders.extend(claims.iter().map(|one| one.folder.clone()));
    folders.extend(parts.iter().map(|part| part.running.container.changes()));
    let running: Vec<Arc<Running>> = parts.iter().map(|part| part.running.clone()).collect();
    let measured = spawn_blocking(move || {
        let all = |folders: &[PathBuf]| {
            folders.iter().map(|folder| crate::measure(folder).bytes).fold(0, u64::saturating_add)
        };
        let (files, in_memory) = (all(&folders), all(&in_memory));
        let used = running.iter().filter_map(|running| running.container.stats());
        let memory = match content {
            Content::Full => memory_bytes(&used.collect::<Vec<_>>(), in_memory),
            Content::Filesystem => 0,
        };
        memory.saturating_add(files).saturating_add(in_memory)
    });
    let needed = turn.reserve(measured.await?);
    let folder = node.places.snapshots.clone();
    let checked = spawn_blocking(move || hutch_image::check_room(&folder, needed.all)).await?;
    checked.map_err(|error| format!("{} bytes are needed: {error}", needed.own))?;
    Ok(needed)
}

/// Pauses the processes and copies what belongs to the image.
async fn write(
    node: &Arc<Shared>,
    live: &Arc<Live>,
    id: &PathSegment,
    parts: &[Part],
    (volumes, claims): (Vec<Own>, &[Kept]),
    content: Content,
) -> Result<(Partial, Vec<String>), String> {
    live.set_paused(true);
    // Also those that are in no image, such as ephemeral ones: they may write volumes.
    let all = live.containers();
    let others = all.iter().filter(|one| !parts.iter().any(|part| Arc::ptr_eq(&part.running, one)));
    each(parts.iter().map(|part| &part.running).chain(others).map(|running| running.container.pause()))
        .await?;
    let memory: Vec<PathBuf> = match content {
        Content::Full => each(parts.iter().map(|part| part.running.container.checkpoint())).await?,
        Content::Filesystem => Vec::new(),
    };
    let uppers: Vec<_> =
        parts.iter().map(|part| (part.name.clone(), part.running.container.changes())).collect();
    let of_claims: Vec<_> = claims.iter().map(|one| (one.name.clone(), one.folder.clone())).collect();
    let (shared, id) = (node.clone(), id.clone());
    let copied = spawn_blocking(move || -> Result<_, hutch_snapshot::Error> {
        let mut partial = shared.snapshots.images.begin(&id)?;
        for ((name, _), memory) in uppers.iter().zip(&memory) {
            partial.take_memory(name, memory)?;
        }
        for (name, upper) in uppers.into_iter().filter(|(_, upper)| upper.is_dir()) {
            partial.copy_tree(&TreeName::Upper(name), &upper)?;
        }
        let mut names = Vec::new();
        for (name, folder) in volumes {
            names.push(name.as_str().to_owned());
            partial.copy_tree(&TreeName::Volume(name), &folder)?;
        }
        for (name, folder) in of_claims {
            partial.copy_tree(&TreeName::Volume(name), &folder)?;
        }
        Ok((partial, names))
    });
    let copied = copied.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    // A Pod may have begun to write one of them meanwhile.
    claims::alone(node, live, claims)?;
    Ok(copied)
}

/// Waits for all of these, also after one has failed: what is under way must have ended before the processes are resumed.
async fn each<T>(
    all: impl Iterator<Item = impl Future<Output = Result<T, String>>>,
) -> Result<Vec<T>, String> {
    join_all(all).await.into_iter().collect()
}

/// Waits until the containers of a Sandbox run, if they are about to: an earlier life of the node may have begun its suspend.
pub(super) async fn wait_for_source(node: &Shared, snapshot: &SandboxSnapshot) {
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    let until = Instant::now() + SOURCE_TIME;
    while Instant::now() < until {
        if let Ok((live, _)) = source(node, namespace, snapshot) {
            let pod = live.pod();
            let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let runs =
                |name: &str| live.container(name).is_some_and(|running| running.ended.borrow().is_none());
            if containers.all(|container| runs(&container.name)) {
                return;
            }
        }
        tokio::select! {
            () = node.shutdown.wait() => return,
            () = tokio::time::sleep(SOURCE_INTERVAL) => {}
        }
    }
}

/// Resumes the processes. A container that cannot be resumed is killed.
pub(super) async fn resume(live: &Live) {
    let containers = live.containers();
    let each = containers.iter().map(async |running| {
        if let Err(error) = running.container.resume().await {
            let (pod, container) = (&live.id.name, &running.blueprint.name);
            tracing::error!(pod, container, error, "a container cannot be resumed and is killed");
            running.container.kill();
        }
    });
    join_all(each).await;
    live.set_paused(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_files_and_volumes_in_memory_are_no_memory_of_processes() {
        let used =
            |memory_bytes, memory_cache_bytes| Usage { memory_bytes, memory_cache_bytes, ..Usage::default() };
        assert_eq!(memory_bytes(&[], 7), 0);
        assert_eq!(memory_bytes(&[used(100, 30), used(50, 0)], 0), 120);
        assert_eq!(memory_bytes(&[used(100, 30), used(50, 0)], 20), 100);
        assert_eq!(memory_bytes(&[used(10, 30)], 20), 0);
    }
}
