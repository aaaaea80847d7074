//! `hutch run`: makes one jail from flags, and an exit status from its outcome.
//!
//! No thread exists when this is called: the jail crate forks this very process.

mod config;
mod egress;
mod gvisor;
mod mounts;
mod report;
mod tools;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use hutch_image::{HostMount, Resolved};
use hutch_jail::run::{Outcome, RunOptions, run_with_listeners};
use hutch_jail::{
    CheckedFolder, Error, IdRange, IdRanges, Ids, Limits, Mount, MountSource, Network, NetworkPlan, Process,
    Profile, Root, Spec, Upper, User,
};
use rustix::io::Errno;

use crate::cli::{Isolation, RunArguments};
use crate::mount::MountArgument;
use crate::protect::{Change, Protection, WORKSPACE};

pub(crate) use egress::from_files;

/// Exit status if Hutch or the machine could not start the command.
const CANNOT_START: u8 = 125;
/// Maximum bytes of an empty workspace and of /tmp, each. They are in memory and not kept.
const SCRATCH_BYTES: u64 = 1 << 30;
/// Maximum bytes kept of each output stream with `--json`.
const CAPTURE_BYTES: usize = 8 << 20;
/// Ids of one jail.
const IDS_INSIDE: u32 = 65_536;

/// Runs the command.
pub(crate) fn main(mut arguments: RunArguments) -> ! {
    let configured = match arguments.config.clone() {
        Some(file) => config::apply(&file, &mut arguments),
        None => Ok(()),
    };
    let status = configured.and_then(|()| run(&arguments)).unwrap_or_else(|error| {
        eprintln!("hutch: {error:#}");
        CANNOT_START
    });
    hutch_jail::run::leave(status)
}

fn run(arguments: &RunArguments) -> anyhow::Result<u8> {
    let image = image(arguments)?;
    let folder = arguments.workspace.as_deref().map(workspace).transpose()?;
    let tools = match arguments.tools {
        true => tools::Tools::find(|name| std::env::var_os(name)),
        false => tools::Tools::default(),
    };
    let process = process(arguments, &image, folder.as_ref(), &tools.env)?;
    // Held until the command has ended: no other jail on the machine gets one of these ids.
    let ids = match rustix::process::geteuid().is_root() {
        true => Some(IdRanges::open(std::process::id())?.take()?),
        false => None,
    };
    let mut network = egress::Network::of(arguments)?;
    let mounts = [&tools.mounts[..], &arguments.mount].concat();
    let mut spec = spec(arguments, image, folder, &mounts, ids.as_ref(), network.plan())?;
    let protections = protect(arguments, &mut spec)?;
    let options = RunOptions {
        timeout: arguments.timeout,
        capture: arguments.json.then_some(CAPTURE_BYTES),
        ..RunOptions::default()
    };
    let mut serve = |listeners: Vec<_>| network.serve(&listeners);
    let outcome = match arguments.isolation {
        Isolation::Hutch => run_with_listeners(&spec, &process, &options, &mut serve),
        Isolation::Gvisor => gvisor::run(&spec, &process, &options, &mut serve)?,
    };
    let change = Change::all(protections.into_iter().map(Protection::finish));
    match outcome {
        Ok(outcome) => report::ended(arguments, &outcome, &change),
        Err(error) => not_started(arguments, &error),
    }
}

/// Adds mounts over the files of a writable folder that programs of this machine run.
fn protect(arguments: &RunArguments, spec: &mut Spec) -> anyhow::Result<Vec<Protection>> {
    let (mut mounts, mut protections) = (Vec::new(), Vec::new());
    for mount in spec.mounts.iter().filter(|mount| !mount.read_only) {
        let MountSource::Beneath { folder, path } = &mount.source else { continue };
        if path != Path::new("") {
            continue; // a file
        }
        let allowed: &[_] = if mount.target == Path::new(WORKSPACE) { &arguments.allow_write } else { &[] };
        let (over, protection) = Protection::prepare(folder, &mount.target, allowed)?;
        mounts.extend(over);
        protections.push(protection);
    }
    spec.mounts.extend(mounts);
    Ok(protections)
}

/// Returns 126 and 127 as a shell does, else the status of Hutch.
fn not_started(arguments: &RunArguments, error: &Error) -> anyhow::Result<u8> {
    let Error::NotStarted { errno, .. } = error else {
        return Err(hint(error));
    };
    if arguments.json {
        report::not_started(error);
    } else {
        eprintln!("hutch: {error}");
    }
    Ok(if errno.0 == rustix::io::Errno::NOENT.raw_os_error() { 127 } else { 126 })
}

/// Adds a remedy, if there is one.
fn hint(error: &Error) -> anyhow::Error {
    match error {
        Error::Namespaces { .. } => anyhow::anyhow!("{error}; `hutch doctor` says what is missing"),
        _ => anyhow::anyhow!("{error}"),
    }
}

fn image(arguments: &RunArguments) -> anyhow::Result<Resolved> {
    if let Some(rootfs) = &arguments.rootfs {
        let folder = named_folder("--rootfs", rootfs)?;
        ensure!(
            !is_root(&folder)?,
            "--rootfs {}: this machine's own root holds its secrets; --image hutch/host shows its programs without them",
            rootfs.display()
        );
        return Ok(Resolved {
            id: String::new(),
            layers: vec![folder.path().to_owned()],
            mounts: Vec::new(),
            config: hutch_image::ImageConfig::default(),
            substituted: None,
            wants_sandboxd: false,
        });
    }
    let images = hutch_image::Store::open(&image_folder()?).context("the folder for images")?;
    images.resolve(&arguments.image).with_context(|| format!("--image {}", arguments.image))
}

/// Opens a folder that a flag names.
///
/// A link on the way is refused: code of an earlier run may have made it. Only those right below `/` are followed, such
/// as `/home`, where only root can create any.
fn named_folder(flag: &str, folder: &Path) -> anyhow::Result<CheckedFolder> {
    let named = || format!("{flag} {}", folder.display());
    let absolute = std::path::absolute(folder).with_context(named)?;
    let mut parts = absolute.components();
    let top: PathBuf = parts.by_ref().take(2).collect();
    let path = top.canonicalize().with_context(named)?.join(parts.as_path());
    CheckedFolder::look(&path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR) => anyhow!("{}: not a folder", named()),
        Some(Errno::LOOP) => match folder.canonicalize() {
            Ok(target) => anyhow!(
                "{}: a symbolic link is on its path, which code of an earlier run may have made; name {} if that is meant",
                named(),
                target.display()
            ),
            Err(error) => anyhow!("{}: {error}", named()),
        },
        _ => anyhow!("{}: {error}", named()),
    })
}

/// Returns true if a folder is the root of this machine, by any name.
fn is_root(folder: &CheckedFolder) -> anyhow::Result<bool> {
    let (folder, root) = (folder.metadata()?, std::fs::metadata("/")?);
    Ok((folder.st_dev, folder.st_ino) == (root.dev(), root.ino()))
}

/// Returns the folder of unpacked images: that of the machine for root, else the user's cache.
fn image_folder() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/hutch/images"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    Ok(cache
        .context("neither XDG_CACHE_HOME nor HOME is set: set one, images are kept there")?
        .join("hutch/images"))
}

fn process(
    arguments: &RunArguments,
    image: &Resolved,
    workspace: Option<&CheckedFolder>,
    tools: &[(String, String)],
) -> anyhow::Result<Process> {
    let config = &image.config;
    let mut env =
        vec![("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())];
    env.push(("HOME".to_owned(), WORKSPACE.to_owned()));
    if let Some(term) = std::env::var_os("TERM").and_then(|term| term.into_string().ok()) {
        env.push(("TERM".to_owned(), term));
    }
    for (name, value) in config.env.iter().chain(tools).chain(&arguments.env) {
        env.retain(|(other, _)| other != name);
        env.push((name.clone(), value.clone()));
    }
    let user = user(image, workspace)?;
    // The jail detects a terminal by itself.
    Ok(Process { argv: arguments.command.clone(), env, cwd: WORKSPACE.into(), terminal: false, user })
}

/// Returns the image's user; if that is root, the owner of the workspace, because processes inside cannot write files of
/// other users.
fn user(image: &Resolved, workspace: Option<&CheckedFolder>) -> anyhow::Result<User> {
    let named = &image.config.user;
    let account = image.account(named).with_context(|| format!("the image's user {named:?}"))?;
    let (mut uid, mut gid) = (account.uid, account.gid);
    if !rustix::process::geteuid().is_root() {
        ensure!(
            (uid, gid) == (0, 0),
            "the image wants uid {uid}; an ordinary user's jail has uid 0 only: run as root"
        );
        return Ok(User::default());
    }
    if let Some(folder) = workspace.filter(|_| (uid, gid) == (0, 0)) {
        let stat = folder.metadata().with_context(|| format!("--workspace {}", folder.path().display()))?;
        (uid, gid) = (stat.st_uid, stat.st_gid);
        ensure!(
            uid.max(gid) < IDS_INSIDE,
            "--workspace {}: its owner {uid}:{gid} has no id inside (those are below {IDS_INSIDE}); run as that user",
            folder.path().display()
        );
    }
    Ok(User { uid, gid, groups: Vec::new() })
}

fn spec(
    arguments: &RunArguments,
    image: Resolved,
    workspace: Option<CheckedFolder>,
    further: &[MountArgument],
    ids: Option<&IdRange>,
    network: NetworkPlan,
) -> anyhow::Result<Spec> {
    let mut mounts: Vec<Mount> = image.mounts.into_iter().map(host).collect();
    mounts.push(tmpfs("/tmp", 0o1777));
    let mut mount = tmpfs(WORKSPACE, 0o777);
    if let Some(folder) = workspace {
        mount.source = MountSource::Beneath { folder, path: PathBuf::new() };
    }
    mounts.push(Mount { read_only: arguments.read_only, ..mount });
    let more = mounts::mounts(further, &mounts)?;
    mounts.extend(more);
    let writable = |mount: &Mount| !mount.read_only && matches!(mount.source, MountSource::Beneath { .. });
    let deny_set_id_bits = mounts.iter().any(writable);
    Ok(Spec {
        id: format!("run-{}", std::process::id()),
        hostname: "sandbox".to_owned(),
        profile: Profile::Native,
        root: Root { layers: image.layers, upper: Upper::ReadOnly },
        mounts,
        ids: ids.map_or(Ids::Caller, |ids| Ids::Range { base: ids.base() }),
        network: Network::New(network),
        limits: Limits { cpu_millis: arguments.cpus, memory_bytes: arguments.memory, pids: arguments.pids },
        deny_set_id_bits,
        freezable: false,
    })
}

/// Opens the folder of the workspace.
fn workspace(folder: &Path) -> anyhow::Result<CheckedFolder> {
    let checked = named_folder("--workspace", folder)?;
    ensure!(
        !is_root(&checked)?,
        "--workspace {}: the whole machine cannot be a workspace; name a folder",
        folder.display()
    );
    Ok(checked)
}

/// Returns a mount of a folder of this machine that every jail has.
fn host(mount: HostMount) -> Mount {
    let source = MountSource::Host { folder: mount.source, file: None };
    Mount { source, target: mount.target, read_only: true }
}

fn tmpfs(target: &str, mode: u32) -> Mount {
    Mount {
        source: MountSource::Tmpfs { bytes: SCRATCH_BYTES, mode },
        target: target.into(),
        read_only: false,
    }
}

/// Result of [`gvisor::run`] and of the native jail.
type Ran = Result<Outcome, Error>;
