//! `hutch run`: makes one jail from flags, and an exit status from its outcome.
//!
//! No thread exists when this is called: the jail crate forks this very process.

mod caches;
mod config;
mod egress;
mod files;
mod guard;
mod gvisor;
mod hide;
mod mounts;
mod printed;
mod process;
mod report;
mod screened;
mod settings;
mod tools;
mod trust;
mod without_root;
mod workspace;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use hutch_egress::AuthorityKeys;
use hutch_image::{HostMount, Resolved};
use hutch_jail::run::{Outcome, RunOptions, Serve, run_with_listeners};
use hutch_jail::{
    Capabilities, CheckedFolder, Error, IdRange, IdRanges, Ids, Limits, Mount, MountSource, Network,
    NetworkPlan, Profile, Root, Spec, Upper, User,
};
use hutch_policy::Level;
use rustix::io::Errno;

use crate::cli::{Isolation, RunArguments};
use crate::client::plain;
use crate::image::ImageFolders;
use crate::mount::MountArgument;
use crate::paths::absolute;
use crate::place::mounted;
use crate::protect::Protection;
use report::print_error;
use screened::Screened;
use workspace::Workspace;

pub(crate) use egress::{Policies, all_observe, open_private, warn_of_observers, warn_without_effect};

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
    let configured = match (arguments.config.clone(), arguments.settings.clone()) {
        (Some(file), _) => config::apply(&file, &mut arguments),
        (None, Some(file)) => settings::apply(&file, &mut arguments),
        (None, None) => Ok(()),
    };
    let status = configured.and_then(|()| start(&mut arguments)).unwrap_or_else(|error| {
        // It may name files of the workspace.
        print_error(format_args!("{}", plain(&format!("{error:#}"))));
        CANNOT_START
    });
    hutch_jail::run::leave(status)
}

fn start(arguments: &mut RunArguments) -> anyhow::Result<u8> {
    let Policies { levels, files, mut unenforced } = Policies::read(&arguments.policy)?;
    unenforced.extend(files::apply(&files, arguments)?);
    egress::report_unenforced(&unenforced);
    let image = image(arguments)?;
    let folder = process::complete(arguments, &image)?;
    run(arguments, image, folder, levels)
}

/// `folder` is the working directory if that is not the workspace.
fn run(
    arguments: &RunArguments,
    mut image: Resolved,
    folder: Option<PathBuf>,
    policies: Vec<Level>,
) -> anyhow::Result<u8> {
    // Nothing removes its layers until the command has ended.
    let _hold = image.hold.clone();
    let of_image: Vec<Mount> = image.mounts.iter().map(host).collect();
    let workspace = Workspace::open(arguments, &of_image)?;
    let user = user(&image, workspace.folder.as_ref())?;
    let shown = Shown::of(arguments, &workspace, &image, user.uid)?;
    let further = [&shown.toolchains[..], &arguments.mount].concat();
    let mut network = egress::Network::of(arguments, policies)?;
    let trusted = network.prepare(&image, &further)?;
    if let Some(trust) = &trusted {
        image.config.env = trust.environment(&image.config.env);
    }
    let env = [shown.env, network.environment()].concat();
    let process = process::process(arguments, &image, &workspace, folder, &env, user)?;
    // Held until the command has ended: no other jail on the machine gets one of these ids.
    let ids = match rustix::process::geteuid().is_root() {
        true => Some(IdRanges::open(std::process::id())?.take()?),
        false => None,
    };
    let fixed = [of_image, workspace.mounts(arguments.read_only), shown.caches].concat();
    let mut spec = spec(arguments, image.layers, fixed, &further, ids.as_ref(), network.plan())?;
    spec.links = workspace.links();
    if let Some(trust) = &trusted {
        spec.mounts.extend(trust.mounts()?);
    }
    let matching = arguments.listed.as_deref().map_or(&[][..], |listed| &listed.deny_matching);
    let denied = [&arguments.deny_read[..], &shown.secrets].concat();
    let hidden = hide::mounts(&denied, matching, &spec, &workspace.path)?;
    network.check_sources(&spec, &hidden.mounts)?;
    let protections = guard::protect(arguments, &workspace, &hidden.named, &mut spec)?;
    spec.mounts.extend(hidden.mounts);
    let options = RunOptions {
        timeout: arguments.timeout,
        capture: arguments.json.then_some(CAPTURE_BYTES),
        ..RunOptions::default()
    };
    let (screens, placeholders) = (arguments.scans && !arguments.json, network.placeholders());
    let mut screened = if screens { Screened::open(&placeholders)? } else { Screened::default() };
    let (mut differs, authority) = (Some(&spec), trusted.as_ref().map(|trust| &trust.authority));
    let mut start = |spec: &Spec, screened: &mut Screened| {
        let mut beside = Beside { differs: &mut differs, screened, network: &mut network, authority };
        match arguments.isolation {
            Isolation::Hutch => Ok(run_with_listeners(spec, &process, &options, &mut beside)),
            Isolation::Gvisor => gvisor::run(spec, &process, &options, &mut beside),
        }
    };
    let mut outcome = start(&spec, &mut screened)?;
    if let Err(error) = &outcome
        && let Some(spec) = caches::read_only(&spec, error)
    {
        // Its threads have no place beside the fork of another jail.
        screened.finish()?;
        screened = if screens { Screened::open(&placeholders)? } else { Screened::default() };
        print_error(format_args!("{error}; the caches of --tools are read-only"));
        outcome = start(&spec, &mut screened)?;
    }
    let mut shown = screened.finish();
    if let (true, Ok(_), Ok(outcome)) = (arguments.scans, &shown, &outcome) {
        shown = screened::check(outcome, &placeholders);
    }
    ended(arguments, (shown, outcome), protections, &workspace.path)
}

/// Reports how a run ended, and what changed of what programs of this machine run. `shown` is an error if the output could not be
/// shown.
fn ended(
    arguments: &RunArguments,
    (shown, outcome): (anyhow::Result<()>, Ran),
    protections: Vec<Protection>,
    workspace: &Path,
) -> anyhow::Result<u8> {
    let change = Protection::finish(protections);
    if shown.is_err() || outcome.is_err() {
        // The command may have run nevertheless.
        change.line().into_iter().for_each(|line| print_error(format_args!("{line}")));
    }
    shown?;
    match outcome {
        Ok(outcome) => report::ended(arguments, &outcome, &change),
        Err(error) => not_started(arguments, &error, workspace),
    }
}

/// Threads and processes beside the jail.
struct Beside<'a, 'b> {
    /// Until what differs without root is printed: once, although a second jail may take the place of the first.
    differs: &'a mut Option<&'b Spec>,
    screened: &'a mut Screened,
    network: &'a mut egress::Network,
    authority: Option<&'a AuthorityKeys>,
}

impl Serve for Beside<'_, '_> {
    fn prepare(&mut self) -> Result<(), Error> {
        self.network.begin()
    }

    fn serve(&mut self, listeners: Vec<OwnedFd>) -> Result<(), Error> {
        self.differs.take().into_iter().for_each(without_root::print);
        self.screened
            .begin()
            .map_err(|error| Error::Stream { name: "output".into(), errno: error.into() })?;
        self.network.serve(&listeners, self.authority)
    }

    fn end(&mut self) {
        self.network.end();
    }
}

/// Toolchains and caches of `--tools`.
#[derive(Default)]
struct Shown {
    toolchains: Vec<MountArgument>,
    caches: Vec<Mount>,
    /// Files in toolchains that stay hidden.
    secrets: Vec<PathBuf>,
    env: Vec<(String, String)>,
}

impl Shown {
    /// `uid` is that of the command, inside.
    ///
    /// # Errors
    /// The toolchains of the caller are in the workspace, where they could be written.
    fn of(
        arguments: &RunArguments,
        workspace: &Workspace,
        image: &Resolved,
        uid: u32,
    ) -> anyhow::Result<Shown> {
        if !arguments.tools {
            return Ok(Shown::default());
        }
        let variable = |name: &str| std::env::var_os(name);
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        if let Some(folder) = workspace.folder.as_ref().filter(|_| !arguments.read_only) {
            let home_is_in = |home: PathBuf| mounted().is_within(&home, folder.path());
            let is_within = home.canonicalize().is_ok_and(home_is_in);
            ensure!(
                !is_within,
                "--tools: the workspace has your home folder {} in it, so the command could write the toolchains there; name the \
                 folder of a project with --workspace, or use --read-only",
                home.display()
            );
        }
        let tools = tools::Tools::find(variable, &workspace.path);
        if tools::out_of_reach(&tools.mounts, &home, uid) && rustix::process::geteuid().is_root() {
            print_error(format_args!(
                "--tools: the command runs as uid {uid}, the owner of the workspace, and cannot use the toolchains in \
                 {}; run hutch as that user",
                home.display()
            ));
        }
        let caller = rustix::process::geteuid();
        let owner = if caller.is_root() { uid } else { caller.as_raw() };
        let caches = caches::Caches::find(variable, &workspace.path, owner);
        let mut env = [tools.env, caches.env].concat();
        if image.config.env.iter().any(|(name, _)| ["GOPATH", caches::MODULES.0].contains(&name.as_str())) {
            // The image has modules of its own.
            env.retain(|(name, value)| (name.as_str(), value.as_str()) != caches::MODULES);
        }
        let secrets = tools::secrets(&tools.mounts);
        Ok(Shown { toolchains: tools.mounts, caches: caches.mounts, secrets, env })
    }
}

/// Returns a path as it is named, as it is without links, and by each bind mount: a mount has one of these names.
fn every_name(path: PathBuf) -> impl Iterator<Item = PathBuf> {
    let named = below_root(&path);
    let plain = without_links(&named);
    let others = mounted().names(&plain);
    let others: Vec<PathBuf> = others.into_iter().filter(|other| *other != named).collect();
    std::iter::once(named).chain(others)
}

/// Returns true for the error of a path at which there is nothing. Others say that it cannot be found out, for example because
/// the path is in a folder that cannot be entered.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns a path of which the part that exists has no links.
fn without_links(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    let Some((part, plain)) = found else { return path.to_owned() };
    match path.strip_prefix(part) {
        Ok(rest) if rest != Path::new("") => plain.join(rest),
        _ => plain,
    }
}

/// Returns 126 and 127 as a shell does, else the status of Hutch.
fn not_started(arguments: &RunArguments, error: &Error, workspace: &Path) -> anyhow::Result<u8> {
    let Error::NotStarted { errno, .. } = error else {
        return Err(hint(error));
    };
    let is_missing = errno.0 == Errno::NOENT.raw_os_error();
    if arguments.json {
        report::not_started(error);
    } else {
        let remedy = || tools::remedy(|name| std::env::var_os(name), workspace, &arguments.command[0]);
        match remedy().filter(|_| is_missing && !arguments.tools) {
            // It may name paths of an image.
            Some(remedy) => print_error(format_args!("{}; {remedy}", plain(&error.to_string()))),
            None => print_error(format_args!("{}", plain(&error.to_string()))),
        }
    }
    Ok(if is_missing { 127 } else { 126 })
}

/// Adds a remedy, if there is one.
fn hint(error: &Error) -> anyhow::Error {
    match error {
        Error::Namespaces { .. } => anyhow::anyhow!("{error}; `hutch doctor` says what is missing"),
        // Without nftables there is not even its socket.
        Error::Network { step, .. } if step.starts_with("nftables") || step == "netlink socket" => {
            anyhow::anyhow!(
                "the network cannot be opened by name: the kernel must have nftables with `tproxy` ({error}); \
             `hutch doctor` says what is missing"
            )
        }
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
            hold: hutch_image::Hold::default(),
        });
    }
    let places = ImageFolders::of_user()?;
    places.find(&arguments.image).with_context(|| format!("--image {}", arguments.image))
}

/// Returns an absolute path without a link right below `/`, such as `/home`, where only root can create any.
fn below_root(path: &Path) -> PathBuf {
    let mut parts = path.components();
    let top: PathBuf = parts.by_ref().take(2).collect();
    let mut plain = top.canonicalize().unwrap_or(top);
    plain.extend(parts);
    plain
}

/// Opens a folder that a flag names.
///
/// A link on the way is refused: code of an earlier run may have made it. Only those right below `/` are followed, such
/// as `/home`, where only root can create any.
fn named_folder(flag: &str, folder: &Path) -> anyhow::Result<CheckedFolder> {
    let named = || format!("{flag} {}", folder.display());
    let path = below_root(&absolute(folder).with_context(named)?);
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
    layers: Vec<PathBuf>,
    mut mounts: Vec<Mount>,
    further: &[MountArgument],
    ids: Option<&IdRange>,
    network: NetworkPlan,
) -> anyhow::Result<Spec> {
    let more = mounts::mounts(further, &mounts)?;
    mounts.extend(more);
    if let Some(listed) = &arguments.listed {
        mounts.extend(mounts::within(&listed.write_within)?);
    }
    let writable = |mount: &Mount| !mount.read_only && matches!(mount.source, MountSource::Beneath { .. });
    let deny_set_id_bits = mounts.iter().any(writable);
    Ok(Spec {
        id: format!("run-{}", std::process::id()),
        hostname: "sandbox".to_owned(),
        profile: Profile::Native,
        root: Root { layers, upper: Upper::ReadOnly },
        mounts,
        links: Vec::new(),
        files: hutch_jail::FileRules::default(),
        runtime_root: None,
        ids: ids.map_or(Ids::Caller, |ids| Ids::Range { base: ids.base() }),
        network: Network::New(network),
        capabilities: Capabilities::NONE,
        limits: Limits { cpu_millis: arguments.cpus, memory_bytes: arguments.memory, pids: arguments.pids },
        deny_set_id_bits,
        freezable: false,
    })
}

/// Returns a mount of a folder of this machine that every jail has.
fn host(mount: &HostMount) -> Mount {
    let source = MountSource::Host { folder: mount.source.clone(), file: None };
    Mount { source, target: mount.target.clone(), read_only: true }
}

/// Result of [`gvisor::run`] and of the native jail.
type Ran = Result<Outcome, Error>;
