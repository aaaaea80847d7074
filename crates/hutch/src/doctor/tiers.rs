//! Tiers of idle Sandboxes that this machine has: frozen, paged out, memory on disk, disk only.

use hutch_jail::facts::{Facts, Runsc};
use serde::Serialize;

/// A tier of idle Sandboxes.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tier {
    /// Its name, as in `docs/state.md`.
    pub(super) name: &'static str,
    /// Handler of the Sandboxes that have it: `native`, `gvisor` or `any`.
    pub(super) handler: &'static str,
    /// Reason why this machine does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<String>,
}

/// Returns all tiers, in the order in which idle Sandboxes reach them.
pub(super) fn tiers(facts: &Facts) -> [Tier; 4] {
    let server = (!facts.root).then(|| "`hutch up` needs root".to_owned());
    let freezer = facts.cgroups.freezer.as_ref().map(|reason| format!("no freezer of cgroups: {reason}"));
    let frozen = server.clone().or(freezer);
    let swap = (facts.swap_bytes == 0).then(|| "no swap: idle memory stays in RAM".to_owned());
    let checkpoint = without_checkpoint(facts.runsc.as_ref()).map(str::to_owned);
    [
        Tier { name: "frozen", handler: "any", missing: frozen.clone() },
        Tier { name: "paged out", handler: "native", missing: frozen.or(swap) },
        Tier { name: "memory on disk", handler: "gvisor", missing: server.clone().or(checkpoint) },
        Tier { name: "disk only", handler: "any", missing: server },
    ]
}

/// Returns why the memory of Sandboxes in gVisor cannot be kept on the disk.
fn without_checkpoint(runsc: Option<&Runsc>) -> Option<&'static str> {
    match runsc {
        None => Some("it needs gVisor"),
        Some(Runsc { problem: Some(_), .. }) => Some("it needs gVisor, which cannot be used here"),
        Some(runsc) if !runsc.checkpoint => Some("this runsc makes no checkpoints"),
        Some(_) => None,
    }
}

impl Tier {
    /// Returns `yes`, or why not.
    pub(super) fn text(&self) -> String {
        match (&self.missing, self.handler) {
            (Some(missing), _) => format!("no: {missing}"),
            (None, "native") => "yes, in native jails".to_owned(),
            (None, "gvisor") => "yes, in gVisor".to_owned(),
            (None, _) => "yes".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts of a machine that has everything.
    fn complete() -> Facts {
        let mut facts = Facts::collect();
        facts.root = true;
        facts.cgroups.freezer = None;
        facts.swap_bytes = 1 << 30;
        facts.runsc = Some(Runsc {
            path: "/usr/bin/runsc".into(),
            version: None,
            platforms: Vec::new(),
            networks: Vec::new(),
            checkpoint: true,
            problem: None,
        });
        facts
    }

    #[test]
    fn each_tier_says_what_it_lacks() {
        type Change = fn(&mut Facts);
        let complete = complete();
        let texts = |facts: &Facts| tiers(facts).map(|tier| tier.text());
        let all = ["yes", "yes, in native jails", "yes, in gVisor", "yes"];
        assert_eq!(texts(&complete), all);
        let no_root = "no: `hutch up` needs root";
        let no_freezer = "no: no freezer of cgroups: it is read-only";
        let table: [(Change, [&str; 4]); 6] = [
            (|facts| facts.root = false, [no_root; 4]),
            (
                |facts| facts.cgroups.freezer = Some("it is read-only".into()),
                [no_freezer, no_freezer, all[2], all[3]],
            ),
            (|facts| facts.swap_bytes = 0, [all[0], "no: no swap: idle memory stays in RAM", all[2], all[3]]),
            (|facts| facts.runsc = None, [all[0], all[1], "no: it needs gVisor", all[3]]),
            (
                |facts| facts.runsc.as_mut().unwrap().problem = Some("old".into()),
                [all[0], all[1], "no: it needs gVisor, which cannot be used here", all[3]],
            ),
            (
                |facts| facts.runsc.as_mut().unwrap().checkpoint = false,
                [all[0], all[1], "no: this runsc makes no checkpoints", all[3]],
            ),
        ];
        for (change, expected) in table {
            let mut facts = complete.clone();
            change(&mut facts);
            assert_eq!(texts(&facts), expected);
        }
    }
}
