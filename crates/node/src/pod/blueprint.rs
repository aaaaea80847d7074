//! From a container of a Pod and its image to what a jail needs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use hutch_image::{Resolved, SANDBOXD_PATH, StopSignal};
use hutch_jail::{Limits, Mount, MountSource, Root, Upper};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeMount};

use crate::blueprint::Blueprint;
use crate::container::{late_env, message};
use crate::environment;
use crate::files::{Files, VolumePart, below};
use crate::saved::generation;
use crate::security;
use crate::subpath::{self, Held};
use crate::volumes::Prepared;

/// Search path of a container whose image names none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Parts from which a blueprint is made.
pub(crate) struct Parts<'a> {
    pub(crate) spec: &'a PodSpec,
    pub(crate) container: &'a Container,
    pub(crate) image: &'a Resolved,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) volumes: &'a BTreeMap<String, Prepared>,
    pub(crate) sandboxd: &'a Path,
    /// The Pod's `/etc/hosts`.
    pub(crate) hosts: &'a Path,
    /// The Pod's `/etc/resolv.conf`.
    pub(crate) resolv_conf: &'a Path,
    /// The Pod's certificates.
    pub(crate) bundle: &'a Path,
    /// Where the certificates are mounted.
    pub(crate) trusted: &'a [PathBuf],
    /// Where the container's writes go.
    pub(crate) upper: PathBuf,
    /// Where variables go that come while it runs.
    pub(crate) late_env: PathBuf,
    /// Where its termination message is.
    pub(crate) message: PathBuf,
    /// The number of its restore, if it may be restored.
    pub(crate) generation: Option<PathBuf>,
    /// Rules for files.
    pub(crate) files: &'a Files,
    /// The container was added to its Pod, which holds it to what its own containers may do with their volumes.
    pub(crate) ephemeral: bool,
}

/// Makes the blueprint, and gives what must be held open until the container was started. The error is for the
/// author of the Pod.
pub(crate) fn blueprint(parts: Parts<'_>) -> Result<(Blueprint, Vec<Held>), String> {
    let Parts { spec, container, image, mut env, limits, .. } = parts;
    let (user, home) = security::user(spec, container, image)?;
    // As container runtimes do.
    for (name, value) in [("HOME", home.as_str()), ("PATH", DEFAULT_PATH)] {
        if !env.iter().any(|(set, _)| set == name) {
            env.push((name.into(), value.into()));
        }
    }
    let argv = environment::command_line(&image.config, container, &env)?;
    let cwd = container.working_dir.as_deref().filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cwd = cwd.or_else(|| image.config.working_dir.clone()).unwrap_or_else(|| "/".into());
    if !cwd.is_absolute() {
        return Err(format!("workingDir {cwd:?} is not an absolute path"));
    }
    let mut mounts: Vec<Mount> =
        image.mounts.iter().map(|mount| host(&mount.source, None, &mount.target)).collect();
    if image.wants_sandboxd {
        let (folder, file) = (parts.sandboxd.parent(), parts.sandboxd.file_name().and_then(OsStr::to_str));
        let (Some(folder), Some(file)) = (folder, file) else {
            return Err("the path of the sandbox runtime has no file name".into());
        };
        mounts.push(host(folder, Some(file.to_owned()), Path::new(SANDBOXD_PATH)));
    }
    let late_env = (argv == [SANDBOXD_PATH]).then_some(parts.late_env);
    mounts.extend(late_env.iter().map(|folder| bind(folder, Path::new(late_env::FOLDER), true)));
    let wanted = container.volume_mounts.as_deref().unwrap_or(&[]);
    for (file, path) in [(parts.hosts, "/etc/hosts"), (parts.resolv_conf, "/etc/resolv.conf")] {
        if !wanted.iter().any(|mount| mount.mount_path == path) {
            mounts.push(bind(file, Path::new(path), true));
        }
    }
    // Not where a volume would hide it.
    let generation = parts
        .generation
        .iter()
        .filter(|_| !wanted.iter().any(|mount| Path::new(generation::FILE).starts_with(&mount.mount_path)));
    mounts.extend(generation.map(|file| bind(file, Path::new(generation::FILE), true)));
    mounts.extend(parts.trusted.iter().map(|target| bind(parts.bundle, target, true)));
    let mut held = Vec::new();
    let beside = if parts.ephemeral { beside(wanted, spec, parts.volumes)? } else { Vec::new() };
    let (of_volumes, shown) = volume_mounts(wanted, &beside, spec, parts.volumes, &env, &mut held)?;
    mounts.extend(of_volumes);
    let beside: Vec<VolumePart> = beside.into_iter().map(|(part, _)| part).collect();
    let message = message_mount(container, &parts.message);
    let has_message = message.is_some();
    mounts.extend(message);
    let own = container.security_context.as_ref();
    let read_only = own.and_then(|s| s.read_only_root_filesystem) == Some(true);
    let upper = if read_only { Upper::ReadOnly } else { Upper::Dir(parts.upper) };
    let blueprint = Blueprint {
        name: container.name.clone(),
        argv,
        env,
        cwd,
        user,
        terminal: container.tty == Some(true),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        mounts,
        root: Root { layers: image.layers.clone(), upper },
        files: parts.files.rules(&shown, &beside)?,
        limits,
        stop_signal: stop_signal(container).unwrap_or(image.config.stop_signal),
        capabilities: security::capabilities(container, image),
        message: has_message.then_some(parts.message),
        late_env,
    };
    Ok((blueprint, held))
}

/// Returns the signal by which a container wants to be ended; `None` if it names none, and that of its image counts.
fn stop_signal(container: &Container) -> Option<StopSignal> {
    StopSignal::parse(container.lifecycle.as_ref()?.stop_signal.as_deref()?)
}

/// Returns the mount of the termination message of a container, which is in this folder.
fn message_mount(container: &Container, folder: &Path) -> Option<Mount> {
    let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty())?;
    let target: PathBuf = Path::new(path).components().collect();
    Some(bind(&message::FILE.below(folder), &target, false))
}

/// Something that all Pods share.
fn host(folder: &Path, file: Option<String>, target: &Path) -> Mount {
    Mount {
        source: MountSource::Host { folder: folder.into(), file },
        target: target.into(),
        read_only: true,
    }
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Mount {
    Mount { source: MountSource::Bind(source.into()), target: target.into(), read_only }
}

/// Returns the mounts of volumes, and the parts of volumes that they show.
fn volume_mounts(
    wanted: &[VolumeMount],
    beside: &[(VolumePart, bool)],
    spec: &PodSpec,
    volumes: &BTreeMap<String, Prepared>,
    env: &[(String, String)],
    held: &mut Vec<Held>,
) -> Result<(Vec<Mount>, Vec<VolumePart>), String> {
    let (mut mounts, mut shown) = (Vec::new(), Vec::new());
    for mount in wanted {
        if let Some((mut mount, part)) = volume_mount(mount, spec, volumes, env, held)? {
            let mut same = beside.iter().filter(|(other, _)| part.overlaps(other)).peekable();
            mount.read_only |= same.peek().is_some() && same.all(|(_, read_only)| *read_only);
            mounts.push(mount);
            shown.push(part);
        }
    }
    // Outer ones first, so that none hides another.
    mounts.sort_by_key(|mount| mount.target.components().count());
    Ok((mounts, shown))
}

fn volume_mount(
    mount: &VolumeMount,
    spec: &PodSpec,
    volumes: &BTreeMap<String, Prepared>,
    env: &[(String, String)],
    held: &mut Vec<Held>,
) -> Result<Option<(Mount, VolumePart)>, String> {
    let prepared = volumes.get(&mount.name).ok_or_else(|| format!("volume {:?} is not there", mount.name))?;
    let value = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let sub = match (&mount.sub_path, &mount.sub_path_expr) {
        (Some(sub), _) => sub.clone(),
        (None, Some(expression)) => environment::expand(expression, value),
        (None, None) => String::new(),
    };
    let Some((part, read_only)) = volume_part(mount, spec, prepared, &sub) else { return Ok(None) };
    let target = part.target.clone();
    let source = match prepared {
        Prepared::Nothing => return Ok(None),
        // It is looked up when it is mounted, without links.
        Prepared::OnHost(on_host) => {
            let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !Path::new(&sub).components().all(plain) {
                return Err(format!("subPath {sub:?} must lie within the volume"));
            }
            let path = below(&on_host.path, &inner(&sub));
            MountSource::Beneath { folder: on_host.folder.clone(), path }
        }
        Prepared::Folder { path, .. } if sub.is_empty() => MountSource::Bind(path.clone()),
        Prepared::Folder { path, .. } => {
            let opened =
                if part.changes { subpath::open(path, &sub) } else { subpath::open_given(path, &sub) };
            let opened = opened
                .map_err(|e| format!("failed to prepare subPath for volumeMount {:?}: {e}", mount.name))?;
            held.push(opened.clone());
            MountSource::Bind(opened.path())
        }
    };
    Ok(Some((Mount { source, target, read_only }, part)))
}

/// Returns the part of a volume that a mount shows, and whether it can only be read; `None` if there is nothing to mount.
fn volume_part(
    mount: &VolumeMount,
    spec: &PodSpec,
    prepared: &Prepared,
    sub: &str,
) -> Option<(VolumePart, bool)> {
    let target = Path::new(&mount.mount_path).components().collect();
    let (volume, part, changes, read_only) = match prepared {
        Prepared::Nothing => return None,
        Prepared::Folder { path, read_only } => {
            let own =
                spec.volumes.iter().flatten().any(|volume| volume.name == mount.name && changes(volume));
            (path.clone(), inner(sub), own, *read_only)
        }
        Prepared::OnHost(on_host) => {
            // Two volumes may show the same folder of the machine.
            let path = below(&on_host.path, &inner(sub));
            let absolute = below(on_host.folder.path(), &path);
            let part = absolute.strip_prefix("/").unwrap_or(&absolute).to_owned();
            ("/".into(), part, true, on_host.read_only)
        }
    };
    Some((VolumePart { target, volume, part, changes }, read_only || mount.read_only == Some(true)))
}

/// Returns the path in a volume that `subPath` names.
fn inner(sub: &str) -> PathBuf {
    Path::new(sub).components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Returns what the Pod's own containers have of the volumes that an ephemeral container mounts, and whether they only read it.
fn beside(
    wanted: &[VolumeMount],
    spec: &PodSpec,
    volumes: &BTreeMap<String, Prepared>,
) -> Result<Vec<(VolumePart, bool)>, String> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut found = Vec::new();
    for mount in containers.flat_map(|container| container.volume_mounts.iter().flatten()) {
        if let Some(expression) = &mount.sub_path_expr {
            // Its value is known only inside the other container.
            if wanted.iter().any(|own| own.name == mount.name) {
                return Err(format!(
                    "volume {:?} is mounted with subPathExpr {expression:?} in the Pod: an ephemeral container cannot have it",
                    mount.name
                ));
            }
            continue;
        }
        let sub = mount.sub_path.as_deref().unwrap_or_default();
        let prepared = volumes.get(&mount.name);
        found.extend(prepared.and_then(|prepared| volume_part(mount, spec, prepared, sub)));
    }
    Ok(found)
}

/// Returns true if code inside writes the volume.
fn changes(volume: &Volume) -> bool {
    volume.empty_dir.is_some() || volume.persistent_volume_claim.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image() -> Resolved {
        Resolved {
            id: "i".into(),
            layers: vec!["/layer".into()],
            mounts: vec![hutch_image::HostMount { source: "/usr".into(), target: "/usr".into() }],
            config: hutch_image::ImageConfig { cmd: vec!["/bin/sh".into()], ..Default::default() },
            substituted: None,
            wants_sandboxd: true,
            hold: hutch_image::Hold::default(),
        }
    }

    fn make(pod: serde_json::Value, container: serde_json::Value) -> Result<Blueprint, String> {
        made(pod, container, false)
    }

    fn made(
        pod: serde_json::Value,
        container: serde_json::Value,
        ephemeral: bool,
    ) -> Result<Blueprint, String> {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
        let mut full = json!({"name": "c"});
        full.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let volume = |path: &str, read_only| Prepared::Folder { path: path.into(), read_only };
        let volumes = BTreeMap::from([
            ("v".to_owned(), volume("/data/v", false)),
            ("r".to_owned(), volume("/data/r", true)),
            ("token".to_owned(), Prepared::Nothing),
        ]);
        let parts = Parts {
            spec: &serde_json::from_value(spec).unwrap(),
            container: &serde_json::from_value(full).unwrap(),
            image: &image(),
            env: vec![("A".into(), "1".into())],
            limits: Limits::default(),
            volumes: &volumes,
            sandboxd: Path::new("/run/sandboxd"),
            hosts: Path::new("/run/hosts"),
            resolv_conf: Path::new("/run/resolv.conf"),
            bundle: Path::new("/run/ca-bundle.crt"),
            trusted: &["/etc/ssl/cert.pem".into()],
            upper: "/data/upper".into(),
            late_env: "/data/env".into(),
            message: "/data/message".into(),
            generation: Some("/data/generation".into()),
            files: &Files::default(),
            ephemeral,
        };
        blueprint(parts).map(|(blueprint, _)| blueprint)
    }

    #[test]
    fn mounts_are_in_order_and_as_readable_as_they_should_be() {
        let mounts = json!({"volumeMounts": [
            {"name": "v", "mountPath": "/work/deep/er"}, {"name": "r", "mountPath": "/work/"},
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ]});
        let made = make(json!({}), mounts).unwrap();
        let targets: Vec<(String, bool)> =
            made.mounts.iter().map(|m| (m.target.display().to_string(), m.read_only)).collect();
        let expected = [
            ("/usr", true),
            ("/.hutch/sandboxd", true),
            ("/etc/hosts", true),
            ("/etc/resolv.conf", true),
            ("/run/hutch/generation", true),
            ("/etc/ssl/cert.pem", true),
            ("/work", true),
            ("/work/deep/er", false),
        ];
        assert_eq!(targets, expected.map(|(path, read_only)| (path.to_owned(), read_only)));
        assert!(matches!(made.root.upper, Upper::Dir(_)));
        let path = made.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
        assert_eq!(path, Some(DEFAULT_PATH), "the image names none");
        let told = make(json!({}), json!({"terminationMessagePath": "/dev/./termination-log"})).unwrap();
        let last = told.mounts.last().map(|mount| (mount.target.display().to_string(), mount.read_only));
        assert_eq!(last, Some(("/dev/termination-log".to_owned(), false)));
        let over = make(json!({}), json!({"volumeMounts": [{"name": "v", "mountPath": "/run/"}]})).unwrap();
        assert!(
            over.mounts.iter().all(|mount| mount.target != Path::new(generation::FILE)),
            "a volume hides it"
        );
        let locked = make(json!({}), json!({"securityContext": {"readOnlyRootFilesystem": true}})).unwrap();
        assert!(matches!(locked.root.upper, Upper::ReadOnly));
    }

    #[test]
    fn ephemeral_container_writes_no_volume_that_its_pod_only_reads() {
        let pod =
            |mounts: serde_json::Value| json!({"containers": [{"name": "own", "volumeMounts": mounts}]});
        let own = json!({"volumeMounts": [{"name": "v", "mountPath": "/mnt"}]});
        let only_reads = |mounts: serde_json::Value| {
            let made = made(pod(mounts), own.clone(), true).unwrap();
            made.mounts.iter().find(|mount| mount.target == Path::new("/mnt")).map(|mount| mount.read_only)
        };
        let read = json!({"name": "v", "mountPath": "/data", "readOnly": true});
        assert_eq!(only_reads(json!([read])), Some(true));
        assert_eq!(only_reads(json!([read, {"name": "v", "mountPath": "/also"}])), Some(false));
        assert_eq!(only_reads(json!([])), Some(false));
        let usual = make(pod(json!([read])), own.clone()).unwrap();
        assert!(usual.mounts.iter().any(|mount| mount.target == Path::new("/mnt") && !mount.read_only));
        let unknown = json!([{"name": "v", "mountPath": "/data", "subPathExpr": "$(A)"}]);
        let Err(message) = made(pod(unknown), own, true) else { panic!("it was made") };
        assert!(message.contains("\"v\"") && message.contains("subPathExpr"), "{message}");
    }
}
