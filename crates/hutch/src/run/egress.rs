//! `hutch run --allow`: the proxy beside a jail.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use hutch_egress::{AuthorityKeys, FLAGS};
use hutch_image::Resolved;
use hutch_jail::{Error, IdRange, IdRanges, Mount, NetworkPlan, Spec};
use hutch_policy::{
    Authority, Cidr, Credential, Decision, Egress, EgressRule, Level, Mode, PolicyFiles, PolicyObject,
    ScanRules, ScannerRules, blind_observers, check_given, closed_ranges, useless_requests,
};
use hutch_scan::Fingerprint;
use serde_json::Value;

use super::hide;
use super::report::print_error;
use super::trust::Trust;
use crate::allow::without_effect;
use crate::cli::RunArguments;
use crate::credentials::Wanted;
use crate::mount::MountArgument;
use crate::paths::absolute;
use crate::policy::import::{in_one_line, object, read_file};
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
    /// The proxy may take processor time while it waits: the command has no limit of it.
    awake: bool,
    outside: egress::Outside,
    /// Certificates of authorities that programs inside trust beside those of the machine and of the sandbox, PEM.
    authorities: Vec<u8>,
    /// The proxy before its listeners exist.
    spawned: Option<egress::Spawned>,
    proxy: Option<egress::Egress>,
    /// Held as long as the proxy runs.
    ids: Option<IdRange>,
}

impl Network {
    /// Returns the network that the flags open: none without `--allow` and `--policy`.
    pub(super) fn of(arguments: &RunArguments, policies: Vec<Level>) -> anyhow::Result<Network> {
        let mut levels = Vec::new();
        // A policy alone would open what `--config` does not list.
        let closes = arguments.config.is_some() && !arguments.policy.is_empty();
        if !arguments.allow.is_empty() || closes {
            levels.push(from_flags(arguments));
        }
        if let Some(listed) = arguments.listed.as_ref()
            && let Some(rules) = listed.rules.as_ref()
            // A policy alone would open what is not listed.
            && !(rules.is_empty() && arguments.policy.is_empty())
        {
            levels.push(from_settings(rules, &listed.credentials));
        }
        let own = levels.len();
        levels.extend(policies);
        let opens = levels.iter().any(|level| level.egress.is_some());
        let why = match levels.is_empty() {
            true => "has no effect without --allow, --policy, --config or --settings",
            false => "has no effect, because no policy has `egress`",
        };
        ensure!(opens || arguments.allow_private.is_empty(), "--allow-private: {why}");
        ensure!(opens || arguments.upstream_proxy.is_none(), "--upstream-proxy: {why}");
        open_private(&mut levels, &arguments.allow_private);
        let upstream = match levels.is_empty() {
            false => upstream_proxy::of(arguments.upstream_proxy.as_ref())?,
            true => None,
        };
        warn_of_observers(&levels);
        warn_of_closed(arguments);
        warn_without_effect(&levels[own..]);
        let credentials = Wanted::all(&levels)?;
        for (name, _) in credentials.iter().filter_map(Wanted::variable) {
            let twice = arguments.env.iter().any(|(other, _)| *other == name);
            ensure!(!twice, "--env {name}: a credential of --policy sets this variable; remove one of them");
        }
        Wanted::warn_of_closed(&credentials, &levels);
        let outside = egress::Outside { credentials, ..egress::Outside::new(upstream) };
        let authorities = arguments.listed.as_ref().map(|listed| listed.authorities.clone());
        let authorities = authorities.unwrap_or_default();
        let awake = arguments.cpus.is_none();
        Ok(Network { levels, awake, outside, authorities, spawned: None, proxy: None, ids: None })
    }

    /// Returns the placeholders of credentials.
    pub(super) fn placeholders(&self) -> Arc<HashSet<Fingerprint>> {
        Arc::new(self.outside.credentials.iter().map(Wanted::fingerprint).collect())
    }

    /// Refuses files with values that the jail shows.
    pub(super) fn check_sources(&self, spec: &Spec, hidden: &[Mount]) -> anyhow::Result<()> {
        for one in &self.outside.credentials {
            if let Some(link) = one.file().and_then(|file| hide::replaceable(&absolute(file).ok()?, spec)) {
                bail!(
                    "{}: source.file: {} is a symbolic link that the command could replace; name the path of what it leads to",
                    one.named(),
                    link.display()
                );
            }
            if let Some(shown) = one.file().and_then(|file| hide::shown(file, spec, hidden)) {
                bail!(
                    "{}: source.file: the sandbox could read it as {}, which --workspace, --mount, --tools or the image \
                     shows; move it elsewhere, or hide it with --deny-read",
                    one.named(),
                    shown.display()
                );
            }
        }
        Ok(())
    }

    /// Returns the variables that have placeholders.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        self.outside.credentials.iter().filter_map(Wanted::variable).collect()
    }

    /// Returns the plan of the jail's network namespace.
    pub(super) fn plan(&self) -> NetworkPlan {
        match self.levels.as_slice() {
            [] => NetworkPlan::closed(Vec::new()),
            _ => hutch_egress::plan(vec![ADDRESS]),
        }
    }

    /// Starts a proxy that reads requests, which takes as long as the certificates for an image, and makes these. Any other
    /// proxy starts in [`Network::begin`].
    pub(super) fn prepare(
        &mut self,
        image: &Resolved,
        mounts: &[MountArgument],
    ) -> anyhow::Result<Option<Trust>> {
        if self.levels.is_empty() {
            return Ok(None);
        }
        // It may have a password, and was read.
        hutch_jail::erase_variables(&[upstream_proxy::VARIABLE]);
        if rustix::process::geteuid().is_root() {
            self.ids = Some(IdRanges::open(std::process::id())?.take()?);
        }
        let reads = egress::reads_requests(&self.levels);
        if reads {
            self.spawned = Some(self.spawn(reads)?);
        }
        if !reads && self.authorities.is_empty() {
            return Ok(None);
        }
        // The proxy has read them. The jail is a fork of this process.
        let names: Vec<&str> = self.outside.credentials.iter().filter_map(Wanted::caller_variable).collect();
        hutch_jail::erase_variables(&names);
        Trust::create(&self.outside, &self.authorities, image, mounts).map(Some)
    }

    fn spawn(&self, reads: bool) -> std::io::Result<egress::Spawned> {
        let id = self.ids.as_ref().map(IdRange::base);
        egress::spawn(id, egress::Audience::User, self.outside.clone(), (reads, self.awake))
    }

    /// Starts the proxy of a jail that is being made, unless there is one: [`Network::prepare`] has started it, or it has
    /// served an earlier jail.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        if !self.levels.is_empty() && self.spawned.is_none() && self.proxy.is_none() {
            self.spawned = Some(self.spawn(false).map_err(failed)?);
        }
        Ok(())
    }

    /// Serves the listeners of the plan, before the command starts.
    pub(super) fn serve(
        &mut self,
        listeners: &[OwnedFd],
        authority: Option<&AuthorityKeys>,
    ) -> Result<(), Error> {
        if let Some(spawned) = self.spawned.take() {
            self.proxy = Some(egress::start(spawned, &self.levels, authority).map_err(failed)?);
        }
        match &self.proxy {
            Some(proxy) => proxy.serve(listeners).map_err(failed),
            None => Ok(()),
        }
    }

    /// Lets the proxy end by itself. It is waited for when this is dropped.
    pub(super) fn end(&mut self) {
        self.proxy.iter_mut().for_each(egress::Egress::end);
    }
}

/// Prints which of the hosts that are allowed stay closed.
fn warn_of_closed(arguments: &RunArguments) {
    let named = if arguments.config.is_some() { CONFIGURED } else { FLAGS };
    for rule in &arguments.allow {
        if let Some(why) = without_effect(&rule.name, &arguments.allow_private) {
            print_error(format_args!("{named} {} opens nothing: {why}", rule.name));
        }
    }
}

/// Returns what has no effect in these policies.
fn without_effect_in(policies: &[Level]) -> Vec<String> {
    let mut lines = Vec::new();
    for Level { name, egress, .. } in policies {
        let rules = egress.as_ref().map_or(&[][..], |egress| egress.rules.as_slice());
        let closed = closed_ranges(rules);
        lines.extend(closed.iter().map(|closed| format!("policy {name:?}: {closed}, or --allow-private")));
        let useless = egress.iter().flat_map(useless_requests);
        lines.extend(useless.map(|useless| format!("policy {name:?}: {useless}")));
    }
    lines
}

/// Prints what policies say without effect.
pub(crate) fn warn_without_effect(policies: &[Level]) {
    without_effect_in(policies).iter().for_each(|line| print_error(format_args!("--policy: {line}")));
}

/// Prints that nothing is reachable because no policy has rules or all of these only observe, or that no requests are read for
/// one that observes.
pub(crate) fn warn_of_observers(levels: &[Level]) {
    for Level { name, .. } in blind_observers(levels) {
        print_error(format_args!(
            "--policy: policy {name:?} observes no requests within TLS: they are read only if a policy that enforces has \
             rules about requests, such as `http: [{{}}]`, or a scanner"
        ));
    }
    if all_observe(levels) {
        print_error(format_args!("--policy: all policies only observe, so nothing opens the network"));
    }
    let is_closed = levels.iter().all(|level| level.egress.is_none());
    if let Some(level) = levels.iter().find(|level| is_closed && level.scanner.is_some()) {
        let name = &level.name;
        print_error(format_args!(
            "--policy: no policy has `egress`, so the network is closed, and the scanner of policy {name:?} reads nothing"
        ));
    }
}

/// Returns true if some policies have rules, and all of these only observe.
pub(crate) fn all_observe(levels: &[Level]) -> bool {
    let mut with_rules = levels.iter().filter(|level| level.egress.is_some()).peekable();
    with_rules.peek().is_some() && with_rules.all(|level| level.mode == Mode::Observe)
}

fn failed(error: std::io::Error) -> Error {
    Error::Channel { step: "start the proxy".into(), errno: error.into() }
}

/// Returns the rules of a scanner that lets no secret out.
pub(super) fn secrets() -> ScannerRules {
    ScannerRules { rules: vec![ScanRules::Secrets], ..ScannerRules::default() }
}

/// Returns the level of `--allow`, or of the list that `--config` has put in its place.
fn from_flags(arguments: &RunArguments) -> Level {
    let egress = Some(Egress { rules: arguments.allow.clone().into(), budget: None });
    let name = if arguments.config.is_some() { CONFIGURED } else { FLAGS };
    Level { scanner: arguments.scans.then(secrets), ..Level::new(Authority::Invocation, name, egress) }
}

/// Policies of the files of `--policy`. Each file is read once: it may be a pipe.
#[derive(Default)]
pub(crate) struct Policies {
    pub(crate) levels: Vec<Level>,
    /// Rules for files of each policy that has some.
    pub(super) files: Vec<PolicyFiles>,
    /// Parts of policies with `onUnsupported: Report` that are not enforced.
    pub(super) unenforced: Vec<String>,
}

impl Policies {
    /// Reads the files: YAML or JSON, each with one or more documents.
    pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Policies> {
        let mut all = Policies::default();
        for file in files {
            all.add(file).with_context(|| format!("--policy {}", file.display()))?;
        }
        let mut names = BTreeSet::new();
        if let Some(level) = all.levels.iter().find(|level| !names.insert(&level.name)) {
            // Budgets are counted by the name.
            bail!("--policy: metadata.name: two policies are named {:?}", level.name);
        }
        let count = all.levels.len();
        ensure!(count <= POLICIES, "--policy: {count} policies; at most {POLICIES}");
        let bytes = serde_json::to_vec(&all.levels).context("--policy")?.len();
        ensure!(
            bytes <= POLICY_BYTES,
            "--policy: the policies are too large: {bytes} bytes; at most {POLICY_BYTES}"
        );
        Ok(all)
    }

    /// Reads the files of a command that has no files to protect.
    pub(crate) fn without_files(files: &[PathBuf]) -> anyhow::Result<Vec<Level>> {
        let mut all = Policies::read(files)?;
        for policy in &all.files {
            let why = "spec.files: is enforced by `hutch run` and `hutch up` alone";
            ensure!(policy.reports, "--policy: {why}");
            all.unenforced.push(format!("policy {:?}: {why}", policy.policy));
        }
        report_unenforced(&all.unenforced);
        Ok(all.levels)
    }

    fn add(&mut self, file: &Path) -> anyhow::Result<()> {
        let text = read_file(file)?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(in_one_line)?;
        let is_test = |document: &Value| document["kind"] == "PolicyTest";
        ensure!(
            !documents.iter().any(is_test),
            "kind: a PolicyTest is for `hutch policy test`, in a file of its own"
        );
        documents.iter().try_for_each(check_given)?;
        let policies: Vec<PolicyObject> = documents.into_iter().map(object).collect::<anyhow::Result<_>>()?;
        ensure!(!policies.is_empty(), "it contains no policy");
        for policy in policies {
            policy.check_for_command()?;
            let (name, reports) = (policy.name().to_owned(), policy.reports_unsupported());
            let rules = policy.files().to_vec();
            let doors: Vec<_> = policy.scanned_doors().collect();
            self.levels.push(policy.into_level(Authority::Invocation)?);
            self.unenforced.extend(doors.iter().map(|door| {
                format!("policy {name:?}: spec.scanner.{}: has an effect only in `hutch up`", door.name())
            }));
            if !rules.is_empty() {
                self.files.push(PolicyFiles { policy: name, reports, rules });
            }
        }
        Ok(())
    }
}

/// Prints what is not enforced of policies with `onUnsupported: Report`.
pub(super) fn report_unenforced(lines: &[String]) {
    lines.iter().for_each(|line| print_error(format_args!("not enforced: {line}")));
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
fn from_settings(rules: &[EgressRule], credentials: &[Credential]) -> Level {
    let egress = Some(Egress { rules: rules.to_vec().into(), ..Egress::default() });
    Level { credentials: credentials.to_vec(), ..Level::new(Authority::Invocation, LISTED, egress) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_of_a_policy_without_effect_is_named() {
        let rules = serde_json::json!({"rules": [
            {"name": "db", "cidrs": ["8.8.8.8", "10.0.0.0/8"], "ports": [5432]},
        ]});
        let level =
            Level::new(Authority::Invocation, "p", Some(serde_json::from_value(rules).expect("rules")));
        let mut levels = vec![level];
        let found = without_effect_in(&levels);
        let closed = "policy \"p\": spec.egress.rules[0].cidrs[1]: 10.0.0.0/8 opens nothing: `private` must have it too, \
                      or --allow-private";
        assert_eq!(found, [closed]);
        open_private(&mut levels, &["10.0.0.0/8".parse().expect("a range")]);
        assert!(without_effect_in(&levels).is_empty());
    }
}
