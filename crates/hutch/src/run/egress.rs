//! `hutch run --allow`: the proxy beside a jail.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use hutch_egress::Policy;
use hutch_jail::{Error, IdRange, IdRanges, NetworkPlan};
use hutch_policy::{Authority, Egress, Level, Mode};

use crate::cli::RunArguments;
use crate::egress;

/// Address of the sandbox, beside loopback.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

/// The network of a command. Its proxy ends when this is dropped.
pub(super) struct Network {
    policy: Option<Policy>,
    proxy: Option<egress::Egress>,
    /// Held as long as the proxy runs.
    ids: Option<IdRange>,
}

impl Network {
    /// Returns the network that the flags open: none without `--allow`.
    pub(super) fn of(arguments: &RunArguments) -> Network {
        let level = || Level {
            authority: Authority::Invocation,
            name: "--allow".to_owned(),
            mode: Mode::Enforce,
            egress: Some(Egress { rules: arguments.allow.clone() }),
        };
        let policy = || Policy { levels: vec![level()], private: arguments.allow_private.clone() };
        Network { policy: (!arguments.allow.is_empty()).then(policy), proxy: None, ids: None }
    }

    /// Returns the plan of the jail's network namespace.
    pub(super) fn plan(&self) -> NetworkPlan {
        match self.policy {
            Some(_) => hutch_egress::plan(vec![ADDRESS]),
            None => NetworkPlan::closed(Vec::new()),
        }
    }

    /// Starts the proxy for the listeners of the plan, before the command starts.
    pub(super) fn serve(&mut self, listeners: &[OwnedFd]) -> Result<(), Error> {
        let Some(policy) = &self.policy else { return Ok(()) };
        if rustix::process::geteuid().is_root() {
            self.ids = Some(IdRanges::open(std::process::id())?.take()?);
        }
        let started = egress::start(listeners, policy, self.ids.as_ref().map(IdRange::base));
        let failed =
            |error: std::io::Error| Error::Channel { step: "start the proxy".into(), errno: error.into() };
        self.proxy = Some(started.map_err(failed)?);
        Ok(())
    }
}
