//! Differences of a command that an ordinary user runs, each printed once. `docs/cli.md` has all of them.

use std::path::Path;

use hutch_jail::{Ids, Mount, MountSource, Network, Spec};

use super::printed::Printed;
use super::report::print_error;

/// A difference: its name, and its text.
type Difference = (&'static str, &'static str);

const IDS: Difference =
    ("without-root-ids", "outside of the sandbox, the command has your user id, not one of its own");
const MOUNTS: Difference =
    ("without-root-mounts", "what is mounted below a folder that the command sees is shown too");
const PROXY: Difference = ("without-root-proxy", "the proxy of its network has your user id too");

/// Prints which parts of a jail differ because root did not start it, unless this user has read them before.
pub(super) fn print(spec: &Spec) {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let printed = Printed::of_caller();
    let new: Vec<&str> =
        differences(spec).filter(|(name, _)| printed.is_new(name)).map(|(_, text)| text).collect();
    if !new.is_empty() {
        print_error(format_args!("without root: {} (\"Without root\" in docs/cli.md)", new.join("; ")));
    }
}

fn differences(spec: &Spec) -> impl Iterator<Item = Difference> {
    let is_folder =
        |mount: &Mount| matches!(&mount.source, MountSource::Beneath { path, .. } if path == Path::new(""));
    let shows = spec.mounts.iter().any(is_folder);
    let connects = matches!(&spec.network, Network::New(plan) if !plan.captures.is_empty());
    let all = [(matches!(spec.ids, Ids::Caller), IDS), (shows, MOUNTS), (connects, PROXY)];
    all.into_iter().filter_map(|(applies, difference)| applies.then_some(difference))
}
