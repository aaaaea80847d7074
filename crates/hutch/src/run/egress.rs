//! `hutch run --allow`: the proxy beside a jail.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use hutch_egress::{AuthorityKeys, FLAGS};
use hutch_image::Resolved;
use hutch_jail::{Error, IdRange, IdRanges, NetworkPlan};
use hutch_policy::{Authority, Cidr, Decision, Egress, EgressRule, FileRule, Level, Mode, PolicyObject};

use super::trust::Trust;
use crate::cli::RunArguments;
use crate::mount::MountArgument;
use crate::policy::import::{in_one_line, read_file};
use crate::{egress, upstream_proxy};

/// Address of the sandbox, beside loopback.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
/// Maximum bytes of all policies as they are sent to the proxy.
const POLICY_BYTES: usize = 128 << 10;
/// Name of the level that a file of `--config` makes.
const CONFIGURED: &str = "network.egress_allowlist";
/// Name of the level that a file of `--settings` makes.
const LISTED: &str = "network.allowedDomains";
/// Maximum policies.
const POLICIES: usize = 8;

/// The network of a command. Its proxy ends when this is dropped.
pub(super) struct Network {
    /// Without a level, there is no network.
    levels: Vec<Level>,
    outside: egress::Outside,
    /// Started before its listeners exist.
    early: Option<egress::Spawned>,
    proxy: Option<egress::Egress>,
    /// Held as long as the proxy runs.
    ids: Option<IdRange>,
}

impl Network {
    /// Returns the network that the flags open: none without `--allow` and `--policy`.
    pub(super) fn of(arguments: &RunArguments) -> anyhow::Result<Network> {
        let mut levels = Vec::new();
        if !arguments.allow.is_empty() {
            levels.push(from_flags(arguments));
        }
        if let Some(rules) = arguments.listed.as_ref().and_then(|listed| listed.rules.as_ref())
            // A policy alone would open what is not listed.
            && !(rules.is_empty() && arguments.policy.is_empty())
        {
            levels.push(from_settings(rules));
        }
        levels.extend(from_files(&arguments.policy)?);
        ensure!(
            !levels.is_empty() || arguments.allow_private.is_empty(),
            "--allow-private: has no effect without --allow, --policy or --settings"
        );
        open_private(&mut levels, &arguments.allow_private);
        let upstream = match levels.is_empty() {
            false => upstream_proxy::of(arguments.upstream_proxy.as_ref())?,
            true => None,
        };
        ensure!(
            !levels.is_empty() || arguments.upstream_proxy.is_none(),
            "--upstream-proxy: has no effect without --allow, --policy, --config or --settings"
        );
        let outside = egress::Outside::new(upstream);
        Ok(Network { levels, outside, early: None, proxy: None, ids: None })
    }

    /// Returns the plan of the jail's network namespace.
    pub(super) fn plan(&self) -> NetworkPlan {
        match self.levels.as_slice() {
            [] => NetworkPlan::closed(Vec::new()),
            _ => hutch_egress::plan(vec![ADDRESS]),
        }
    }

    /// Makes the certificates for an image, if a level reads requests. The proxy then starts at the same time.
    pub(super) fn trust(
        &mut self,
        image: &Resolved,
        mounts: &[MountArgument],
    ) -> anyhow::Result<Option<Trust>> {
        if !egress::reads_requests(&self.levels) {
            return Ok(None);
        }
        self.early = Some(self.spawn(true)?);
        Trust::create(&self.outside, image, mounts).map(Some)
    }

    fn spawn(&mut self, reads: bool) -> Result<egress::Spawned, Error> {
        if rustix::process::geteuid().is_root() {
            self.ids = Some(IdRanges::open(std::process::id())?.take()?);
        }
        let id = self.ids.as_ref().map(IdRange::base);
        egress::spawn(id, egress::Audience::User, self.outside.clone(), reads).map_err(failed)
    }

    /// Starts the proxy for the listeners of the plan, before the command starts.
    pub(super) fn serve(
        &mut self,
        listeners: &[OwnedFd],
        authority: Option<&AuthorityKeys>,
    ) -> Result<(), Error> {
        if self.levels.is_empty() {
            return Ok(());
        }
        let spawned = match self.early.take() {
            Some(spawned) => spawned,
            None => self.spawn(authority.is_some())?,
        };
        self.proxy = Some(egress::start(spawned, listeners, &self.levels, authority).map_err(failed)?);
        Ok(())
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::Channel { step: "start the proxy".into(), errno: error.into() }
}

/// Returns the level of `--allow`, or of the list that `--config` has put in its place.
fn from_flags(arguments: &RunArguments) -> Level {
    let egress = Some(Egress { rules: arguments.allow.clone(), budget: None });
    let name = if arguments.config.is_some() { CONFIGURED } else { FLAGS };
    Level { authority: Authority::Invocation, name: name.to_owned(), mode: Mode::Enforce, egress }
}

/// Reads the policies of the files of `--policy`.
pub(crate) fn from_files(files: &[PathBuf]) -> anyhow::Result<Vec<Level>> {
    let mut levels = Vec::new();
    for file in files {
        levels.extend(from_file(file).with_context(|| format!("--policy {}", file.display()))?);
    }
    ensure!(levels.len() <= POLICIES, "--policy: {} policies; at most {POLICIES}", levels.len());
    let bytes = serde_json::to_vec(&levels).context("--policy")?.len();
    ensure!(
        bytes <= POLICY_BYTES,
        "--policy: the policies are too large: {bytes} bytes; at most {POLICY_BYTES}"
    );
    Ok(levels)
}

/// Adds the ranges of `--allow-private` to each rule that allows something.
pub(crate) fn open_private(levels: &mut [Level], ranges: &[Cidr]) {
    let rules =
        levels.iter_mut().filter_map(|level| level.egress.as_mut()).flat_map(|egress| &mut egress.rules);
    for rule in rules.filter(|rule| rule.decision == Decision::Allow) {
        rule.private.extend(ranges);
    }
}

/// Returns the level of `--settings`.
fn from_settings(rules: &[EgressRule]) -> Level {
    let egress = Some(Egress { rules: rules.to_vec(), ..Egress::default() });
    Level { authority: Authority::Invocation, name: LISTED.to_owned(), mode: Mode::Enforce, egress }
}

/// Reads the objects of a file: YAML or JSON, one or more documents.
fn objects(file: &Path) -> anyhow::Result<Vec<PolicyObject>> {
    let objects: Vec<PolicyObject> = serde_saphyr::from_multiple(&read_file(file)?).map_err(in_one_line)?;
    ensure!(!objects.is_empty(), "it contains no policy");
    objects.iter().try_for_each(PolicyObject::check)?;
    Ok(objects)
}

/// Returns the rules for files of the policies of these files, a list for each policy that has some.
pub(super) fn file_rules(files: &[PathBuf]) -> anyhow::Result<Vec<Vec<FileRule>>> {
    let mut lists = Vec::new();
    for file in files {
        let objects = objects(file).with_context(|| format!("--policy {}", file.display()))?;
        lists.extend(objects.iter().map(|object| object.files().to_vec()).filter(|rules| !rules.is_empty()));
    }
    Ok(lists)
}

/// Refuses policies with rules for files.
pub(crate) fn refuse_file_rules(files: &[PathBuf]) -> anyhow::Result<()> {
    for file in files {
        let objects = objects(file).with_context(|| format!("--policy {}", file.display()))?;
        let checked = objects.iter().try_for_each(PolicyObject::check_without_files);
        checked.with_context(|| format!("--policy {}", file.display()))?;
    }
    Ok(())
}

/// Reads the policies of a file.
fn from_file(file: &Path) -> anyhow::Result<Vec<Level>> {
    let level = |object: PolicyObject| {
        object.check_for_command()?;
        Ok(object.into_level(Authority::Invocation)?)
    };
    objects(file)?.into_iter().map(level).collect()
}
