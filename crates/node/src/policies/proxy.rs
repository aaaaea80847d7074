//! Substitute for the proxy where the kernel cannot capture connections: nothing is reachable, and policies still close files.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_jail::NetworkPlan;
use hutch_policy::{Facts, HostName, Level, Peer};

use crate::config::{Bundle, Egress, EgressNews, Holder, Offer};

/// No proxy.
pub(crate) struct NoProxy;

impl Egress for NoProxy {
    fn plan(&self, address: IpAddr) -> NetworkPlan {
        NetworkPlan::closed(vec![address])
    }

    fn serve(&self, _: &str, _: &str, _: Vec<OwnedFd>) {}

    fn trust(&self, _: &str, _: &str) -> BoxFuture<'_, Result<Bundle, String>> {
        async { Err("there is no proxy".to_owned()) }.boxed()
    }

    fn forget(&self, _: &str) {}

    fn forget_others(&self, _: &HashSet<String>) {}

    fn set_facts(&self, _: &str, _: Facts) {}

    fn set_levels(&self, _: &str, _: Vec<Arc<Level>>) {}

    fn set_peers(&self, _: &str, _: &str, _: Vec<Peer>) {}

    fn placeholders(&self, _: &str, _: &[Offer]) -> BoxFuture<'_, Result<Vec<String>, String>> {
        async { Err("there is no proxy".to_owned()) }.boxed()
    }

    fn set_credentials(&self, _: Holder, _: Vec<Offer>) {}

    fn names(&self, _: &str) -> BoxFuture<'_, Vec<HostName>> {
        std::future::ready(Vec::new()).boxed()
    }

    fn set_names(&self, _: &str, _: Vec<HostName>) {}

    fn end(&self, _: &str) {}

    fn news(&self) -> BoxFuture<'_, EgressNews> {
        std::future::pending().boxed()
    }
}
