//! Starting a Pod from a snapshot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hutch_api::annotation;
use hutch_api::state::{
    Content, NOT_BEGUN, NOT_COMPLETE, RESTORE_FAILED, RUNTIME, RestorePolicy, SandboxSnapshot, after_restore,
    is_suspend, reason, restored_from, started_anew,
};
use hutch_api::syntax::is_path_segment;
use hutch_image::{PathSegment, SANDBOXD_PATH};
use hutch_jail::ProcessExit;
use hutch_policy::HostName;
use hutch_screen::Origin;
use hutch_snapshot::{Image, TreeName};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use tokio::io::AsyncReadExt;
use tokio::task::spawn_blocking;

use super::claims;
use super::follow::ready;
use super::machine_id::MachineId;
use super::template;
use crate::admission::Refusal;
use crate::blueprint::Blueprint;
use crate::config::Handler;
use crate::container::Running;
use crate::folders::{make_root, remove_limited};
use crate::live::{Live, Update};
use crate::runtime::{Beginning, upper};
use crate::saved::facts::{Facts, Machine, shape};
use crate::shared::Shared;
use crate::stdio::pipes;

/// Maximum time of the command after a restore.
const HOOK_TIME: Duration = Duration::from_secs(60);
/// Maximum time for its standard error after its end.
const HOOK_STDERR: Duration = Duration::from_secs(1);
/// Bytes of its standard error that are shown.
const HOOK_OUTPUT: u64 = 1 << 10;

/// Why a Pod cannot begin with its snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) why: String,
    /// `true` if a further attempt is of no use before something has been changed.
    pub(crate) lasts: bool,
}

impl Problem {
    fn lasting(why: impl Into<String>) -> Problem {
        Problem { why: why.into(), lasts: true }
    }
}

/// Of the system: a further attempt may succeed.
impl<E: ToString> From<E> for Problem {
    fn from(error: E) -> Problem {
        Problem { why: error.to_string(), lasts: false }
    }
}

fn of_image(error: &hutch_snapshot::Error) -> Problem {
    Problem { why: error.to_string(), lasts: error.lasts() }
}

/// Beginning of a Pod.
pub(crate) enum Begin {
    /// It names no snapshot, or has begun with it.
    Plain,
    /// With this image.
    Restored(Arc<Restoring>),
    /// Without its snapshot, for this reason.
    Anew(String),
}

/// The image with which a Pod begins.
pub(crate) struct Restoring {
    pub(super) image: Image,
    pub(super) facts: Facts,
    handler: Handler,
    /// Command that each container runs afterwards; may be empty.
    hook: Vec<String>,
    /// `true` for the memory of the Sandbox itself.
    own: bool,
    /// Machine id that the Pod gets, if the image is of another Sandbox.
    machine_id: Option<MachineId>,
    /// UID of the snapshot.
    pub(crate) uid: String,
    /// Its name.
    pub(crate) name: String,
}

/// Finds the image that a Pod names, if its containers have not begun with it already.
///
/// # Errors
/// It cannot be restored, and the Pod waits for it.
pub(crate) async fn find(
    node: &Arc<Shared>,
    live: &Live,
    pod: &Pod,
    handler: Handler,
) -> Result<Begin, Refusal> {
    // An empty name restores nothing.
    let name = pod.annotations().get(annotation::RESTORE_FROM).filter(|name| !name.is_empty());
    let Some(name) = name else { return Ok(Begin::Plain) };
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let conditions = conditions.unwrap_or_default();
    if restored_from(conditions).is_some() {
        // What starts after the Pod was Ready starts anew.
        return Ok(Begin::Plain);
    }
    if let Some(why) = started_anew(conditions) {
        return Ok(Begin::Anew(why.to_owned()));
    }
    let refuse = |message: String| Refusal { reason: RESTORE_FAILED, message };
    let policy = policy(pod).map_err(refuse)?;
    match search(node, live, pod, (name, handler)).await {
        Ok(found) => Ok(Begin::Restored(Arc::new(found))),
        Err(Problem { why, lasts }) => {
            let why = format!("snapshot {name:?}: {why}");
            match lasts && policy == RestorePolicy::BestEffort {
                true => Ok(Begin::Anew(why)),
                false => Err(refuse(why)),
            }
        }
    }
}

async fn search(
    node: &Arc<Shared>,
    live: &Live,
    pod: &Pod,
    (name, handler): (&str, Handler),
) -> Result<Restoring, Problem> {
    // It becomes a part of a path.
    if !is_path_segment(name) {
        return Err(Problem::lasting("it is not the name of a SandboxSnapshot"));
    }
    let api: Api<SandboxSnapshot> = Api::namespaced(node.client.clone(), &live.id.namespace);
    let snapshot = api.get_opt(name).await?.ok_or_else(|| Problem::lasting("it does not exist"))?;
    complete(&snapshot)?;
    let uid = snapshot.uid().unwrap_or_default();
    let id = PathSegment::label(&uid).ok_or_else(|| Problem::lasting("it has no valid uid"))?;
    let shared = node.clone();
    let (image, facts) = spawn_blocking(move || open(&shared, &id)).await??;
    if facts.namespace != live.id.namespace {
        return Err(Problem::lasting("its image is of another namespace"));
    }
    // The memory of a suspend is used by the Sandbox whose it is.
    let owner = hutch_api::owner::sandbox(pod).map(|owner| owner.uid.as_str());
    let own = is_suspend(name) && owner == Some(facts.sandbox_uid.as_str());
    if is_suspend(name) && !own {
        return Err(Problem::lasting("it is the memory of another Sandbox"));
    }
    if !own {
        // An image of an older version has none.
        let stamped = snapshot.annotations().get(annotation::TEMPLATE_REF);
        let template = facts.template.as_ref().or(stamped);
        check_template(node, live, pod, (&facts.sandbox, template)).await?;
    }
    check(&facts, pod, handler).map_err(Problem::lasting)?;
    let shares = pod.annotations().get(annotation::SHARES_GENERATORS).is_some_and(|said| said == "true");
    let hook = match hook(pod).map_err(Problem::lasting)? {
        None if facts.content == Content::Full && !own && !shares && is_runtime(pod) => check_of_runtime(),
        hook => hook.unwrap_or_default(),
    };
    if facts.content == Content::Full && !own && hook.is_empty() && !shares {
        return Err(Problem::lasting(format!(
            "its memory may be restored more than once, and random generators in it would repeat: set {} to a command \
             that renews them, or {} to \"true\"",
            annotation::AFTER_RESTORE,
            annotation::SHARES_GENERATORS
        )));
    }
    let machine_id = (owner != Some(facts.sandbox_uid.as_str()))
        .then(|| MachineId::of(&live.id.namespace, owner.unwrap_or(&live.id.uid)));
    let name = name.to_owned();
    Ok(Restoring { image, facts, handler, hook, own, machine_id, uid, name })
}

/// Checks that the Pod is of the template whose policies hold for what the image has. The API server checks it where an object
/// names a snapshot that exists; the snapshot can be made later, and a controller names the template of a claim.
async fn check_template(
    node: &Shared,
    live: &Live,
    pod: &Pod,
    (source, of_image): (&str, Option<&String>),
) -> Result<(), Problem> {
    let Some(of_image) = of_image else { return Ok(()) };
    let of_pod = match hutch_api::owner::sandbox(pod) {
        Some(owner) => template::of(node, &live.id.namespace, (&owner.name, &owner.uid)).await?,
        None => None,
    };
    match of_pod.as_ref() == Some(of_image) {
        true => Ok(()),
        false => Err(Problem::lasting(format!(
            "Sandbox {source:?}, from which it was taken, is of template {of_image:?}, whose policies would not hold: start it in a \
             Sandbox of that template, by `hutch snapshot restore` or a SandboxClaim"
        ))),
    }
}

/// Checks that a snapshot is complete.
fn complete(snapshot: &SandboxSnapshot) -> Result<(), Problem> {
    let Some(ready) = ready(snapshot) else { return Err(format!("{NOT_COMPLETE} ({NOT_BEGUN})").into()) };
    // One that was lost may be back, and is checked later.
    if [reason::COMPLETED, reason::LOST].contains(&ready.reason.as_str()) {
        return Ok(());
    }
    let why = format!("{NOT_COMPLETE} ({}: {})", ready.reason, ready.message);
    Err(Problem { why, lasts: reason::is_final(&ready.reason) })
}

/// Returns what becomes of a Pod whose image cannot be restored.
fn policy(pod: &Pod) -> Result<RestorePolicy, String> {
    RestorePolicy::read(pod.annotations().get(annotation::RESTORE_POLICY).map(String::as_str))
}

/// Returns true if a Pod begins without its image, should that not be restored.
pub(crate) fn is_optional(pod: &Pod) -> bool {
    policy(pod) == Ok(RestorePolicy::BestEffort)
}

/// Returns the command that the annotation of a Pod has run after a restore.
fn hook(pod: &Pod) -> Result<Option<Vec<String>>, String> {
    let Some(text) = pod.annotations().get(annotation::AFTER_RESTORE) else { return Ok(None) };
    let command = after_restore(text);
    command.map(Some).map_err(|why| format!("annotation {}: {why}", annotation::AFTER_RESTORE))
}

/// Returns true if the runtime is all that a Pod runs.
fn is_runtime(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(hutch_api::state::is_runtime)
}

/// Returns the command by which the runtime checks that it is alone.
fn check_of_runtime() -> Vec<String> {
    vec![SANDBOXD_PATH.to_owned(), "--after-restore".to_owned()]
}

/// Opens an image and checks that memory in it can be restored on this machine. Blocks.
fn open(node: &Shared, id: &PathSegment) -> Result<(Image, Facts), Problem> {
    let image = node.snapshots.images.find(id).map_err(|error| of_image(&error))?;
    let image = image.ok_or_else(|| Problem::lasting("its image is not on this node"))?;
    let facts = Facts::of(&image).map_err(Problem::lasting)?;
    if let Some(machine) = &facts.machine
        && let Some(difference) = machine.difference(&Machine::here()?)
    {
        return Err(Problem::lasting(difference));
    }
    Ok((image, facts))
}

/// Checks that the Pod has the containers of the image.
fn check(facts: &Facts, pod: &Pod, handler: Handler) -> Result<(), String> {
    if facts.content == Content::Full && handler != Handler::Gvisor {
        return Err("it holds memory, which only `runtimeClassName: gvisor` restores".into());
    }
    let spec = pod.spec.as_ref();
    let names: Vec<&str> =
        spec.iter().flat_map(|spec| &spec.containers).map(|one| one.name.as_str()).collect();
    for name in &names {
        if !facts.containers.contains_key(*name) {
            return Err(format!("it has no container {name:?}"));
        }
    }
    spec.map_or(Ok(()), |spec| claims::check(&facts.claims, spec))?;
    let sidecars = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let known: Vec<&str> = sidecars.map(|one| one.name.as_str()).chain(names).collect();
    match facts.containers.keys().find(|name| !known.contains(&name.as_str())) {
        Some(missing) => Err(format!("the Pod has no container {missing:?}")),
        None => Ok(()),
    }
}

/// Removes everything in a folder; the folder itself may be a mount. Blocks.
fn empty(folder: &Path) -> std::io::Result<()> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.into_iter().try_for_each(|entry| hutch_image::remove_tree(&entry?.path())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what a restore that failed has written to the volumes of a Pod.
pub(crate) async fn empty_volumes(live: &Live) -> Result<(), String> {
    let folders = live.own_volumes();
    let emptied = spawn_blocking(move || {
        folders.iter().try_for_each(|(name, folder)| {
            empty(folder).map_err(|error| format!("volume {}: {error}", name.as_str()))
        })
    });
    emptied.await.map_err(|error| error.to_string())?
}

/// Returns the standard error of a command for a message.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

impl Restoring {
    /// Returns true if processes are restored; otherwise new ones start with the files.
    pub(crate) fn has_memory(&self) -> bool {
        self.facts.content == Content::Full
    }

    /// Names whose addresses its memory may hold.
    pub(crate) fn names(&self) -> &[HostName] {
        &self.facts.names
    }

    /// Writes the volumes of the Pod that the image has.
    ///
    /// # Errors
    /// The Pod lacks one of them, or the image was changed.
    pub(crate) async fn volumes(self: &Arc<Self>, live: &Live) -> Result<(), Problem> {
        let folders = live.own_volumes();
        let restoring = self.clone();
        let copied = spawn_blocking(move || {
            for name in &restoring.facts.volumes {
                let Some((name, folder)) = folders.iter().find(|(own, _)| own.as_str() == name) else {
                    let why = format!("the Pod has no emptyDir {name:?}, and its snapshot has");
                    return Err(Problem::lasting(why));
                };
                // An attempt before this one may have written a part.
                empty(folder).map_err(|error| format!("volume {}: {error}", name.as_str()))?;
                let copied = restoring.image.copy_out(&TreeName::Volume(name.clone()), folder);
                copied.map_err(|error| of_image(&error))?;
            }
            Ok(())
        });
        copied.await?
    }

    /// Number of the last restore before the snapshot.
    pub(crate) fn generation(&self) -> u64 {
        self.facts.generation
    }

    /// Runs the command of the Pod in a restored container, whose restore has this number. The container
    /// is not Ready before the command has ended.
    ///
    /// # Errors
    /// It failed.
    pub(crate) async fn renew(&self, running: &Running, live: &Live, number: u64) -> Result<(), Problem> {
        if self.hook.is_empty() {
            return Ok(());
        }
        let kind = if self.own { "resume" } else { "fork" };
        let variables = vec![
            ("HUTCH_RESTORE".to_owned(), kind.to_owned()),
            ("HUTCH_GENERATION".to_owned(), number.to_string()),
        ];
        let (ends, stdio) = pipes(false, false, true)?;
        let pod = format!("{}/{}", live.id.namespace, live.id.name);
        let origin = || Origin { pod: pod.clone().into(), part: "after-restore".into() };
        // As what it prints to its log.
        let screened = |said: &[u8]| live.log_screen.text(origin(), said);
        let run = async {
            let mut exec = running.exec_with(self.hook.clone(), variables, false, stdio).await?;
            exec.started().await.map_err(|failed| failed.reason)?;
            let said = tokio::spawn(async move {
                let mut said = Vec::new();
                if let Some(stderr) = ends.stderr {
                    // What cannot be read is missing from the message only.
                    let _ = stderr.take(HOOK_OUTPUT).read_to_end(&mut said).await;
                }
                said
            });
            let exit = exec.exited().await;
            // A process that it has left behind may keep the stream open.
            let said = tokio::time::timeout(HOOK_STDERR, said).await;
            let said = said.ok().and_then(Result::ok).unwrap_or_default();
            match exit {
                ProcessExit::Code(0) => Ok(()),
                ProcessExit::Code(code) => {
                    Err(Problem::lasting(format!("exit status {code}: {}", shown(&screened(&said)))))
                }
                ProcessExit::Signal(signal) => {
                    Err(Problem::from(format!("killed by signal {signal}: {}", shown(&screened(&said)))))
                }
            }
        };
        let mut updates = live.updates.subscribe();
        let ends = updates.wait_for(|update| match update {
            Update::Gone => true,
            Update::Present(pod) => pod.metadata.deletion_timestamp.is_some(),
        });
        let ran = tokio::select! {
            ran = tokio::time::timeout(HOOK_TIME, run) => ran,
            _ = ends => Ok(Err("the Pod ends".into())),
        };
        let late = |_| Err(Problem::lasting(format!("it did not end within {} s", HOOK_TIME.as_secs())));
        ran.unwrap_or_else(late).map_err(|problem| {
            let of = annotation::AFTER_RESTORE;
            let why = match self.hook == check_of_runtime() {
                true => format!("{RUNTIME} without annotation {of}: {}", problem.why),
                false => format!("annotation {of}: {}", problem.why),
            };
            Problem { why, ..problem }
        })
    }

    /// Writes the root of a container and returns what it begins with. `image` is the identity of its image.
    ///
    /// # Errors
    /// The container differs from that of the snapshot, or the snapshot was changed.
    pub(crate) async fn container(
        self: &Arc<Self>,
        blueprint: &Blueprint,
        image: &str,
        folder: PathBuf,
        disk_bytes: Option<u64>,
    ) -> Result<Beginning, Problem> {
        let then = self.facts.containers.get(&blueprint.name);
        let then = then.ok_or_else(|| Problem::lasting("it is not in the snapshot"))?;
        if then.image != image {
            return Err(Problem::lasting(format!("its image was {} and is {image} now", then.image)));
        }
        let has_memory = self.has_memory();
        if has_memory && then.shape != shape(blueprint) {
            let parts = "its command, working directory, user, capabilities, terminal, mounts, or readOnlyRootFilesystem";
            return Err(Problem::lasting(format!("{parts} are not those of the snapshot")));
        }
        let name = PathSegment::label(&blueprint.name).ok_or("its name is not valid")?;
        let (restoring, layers) = (self.clone(), blueprint.root.layers.clone());
        let restored = spawn_blocking(move || -> Result<Beginning, Problem> {
            let target = upper(restoring.handler, &folder);
            remove_limited(&folder)?;
            make_root(&folder, disk_bytes)?;
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            let tree = TreeName::Upper(name.clone());
            if restoring.image.trees().any(|one| *one == tree) {
                restoring.image.copy_out(&tree, &target).map_err(|error| of_image(&error))?;
            }
            if let Some(id) = &restoring.machine_id {
                id.put(&target, &layers).map_err(|error| format!("/etc/machine-id: {error}"))?;
            }
            match has_memory {
                true => {
                    let memory = restoring.image.memory(&name).map_err(|error| of_image(&error))?;
                    Ok(Beginning::Restored(memory))
                }
                false => Ok(Beginning::Kept),
            }
        });
        restored.await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_a_volume_is_emptied_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let volume = PathSegment::fixed("volume").below(dir.path());
        empty(&volume).unwrap();
        let inner = |name| PathSegment::fixed(name).below(&volume);
        std::fs::create_dir_all(PathSegment::fixed("inner").below(&inner("folder"))).unwrap();
        std::fs::write(inner("file"), "x").unwrap();
        std::os::unix::fs::symlink(dir.path(), inner("link")).unwrap();
        empty(&volume).unwrap();
        assert_eq!(std::fs::read_dir(&volume).unwrap().count(), 0);
        assert!(dir.path().is_dir());
    }
}
