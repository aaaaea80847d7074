//! One sandbox: its policy, its names and its connections.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hutch_policy::{Destination, Facts, Host, HostName, Level, Moment, may_resolve};
use tokio::sync::{Semaphore, watch};

use crate::authority::{Authority, AuthorityError, AuthorityKeys};
use crate::dial::dial;
use crate::dns;
use crate::names::{Names, is_synthetic};
use crate::peers::Peers;
use crate::refusal::{Denial, Reason, Refusal};
use crate::upstream::{Dial, Upstream};
use crate::usage::Usage;
use crate::way::{Unreachable, Way};

/// Maximum open connections.
const CONNECTIONS: usize = 512;
/// Maximum open connections whose requests are read. Each has buffers of some 100 KiB.
const INSPECTED: usize = 128;

/// Maximum requests at once, and of these such whose bodies are read before they are decided.
const REQUESTS: usize = 256;
const READING: usize = 8;

/// Receives refusals.
pub(crate) type Report = Box<dyn Fn(Refusal) + Send + Sync>;
/// Receives each name that has got an address.
pub(crate) type Named = Box<dyn Fn(&HostName) + Send + Sync>;
/// Levels of a sandbox.
pub(crate) type Levels = Arc<[Arc<Level>]>;

/// Rules and facts by which a sandbox is decided.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(crate) levels: Levels,
    pub(crate) facts: Arc<Facts>,
}

/// A sandbox.
pub(crate) struct Sandbox {
    /// None once it has ended.
    pub(crate) rules: watch::Sender<Option<Rules>>,
    names: Mutex<Names>,
    pub(crate) connections: Semaphore,
    pub(crate) inspected: Semaphore,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) reading: Semaphore,
    pub(crate) usage: Usage,
    authority: Mutex<Option<Arc<Authority>>>,
    /// Made for the first request that is read.
    upstream: OnceLock<Upstream>,
    pub(crate) way: Arc<Way>,
    report: Report,
    named: Named,
    pub(crate) peers: Peers,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sandbox").finish_non_exhaustive()
    }
}

impl Sandbox {
    pub(crate) fn new(levels: Levels, way: Arc<Way>, report: Report, named: Named) -> Arc<Sandbox> {
        let rules = Rules { levels, facts: Arc::default() };
        Arc::new(Sandbox {
            rules: watch::Sender::new(Some(rules)),
            names: Mutex::default(),
            connections: Semaphore::new(CONNECTIONS),
            inspected: Semaphore::new(INSPECTED),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            reading: Semaphore::new(READING),
            usage: Usage::default(),
            authority: Mutex::default(),
            upstream: OnceLock::new(),
            way,
            report,
            named,
            peers: Peers::default(),
        })
    }

    /// Replaces the levels. Open connections that they do not allow end.
    pub(crate) fn set_levels(&self, levels: Levels) {
        let facts = self.rules().facts;
        self.rules.send_replace(Some(Rules { levels, facts }));
        self.forget_upstream();
    }

    /// Replaces the facts, as [`Sandbox::set_levels`].
    pub(crate) fn set_facts(&self, facts: Facts) {
        let levels = self.rules().levels;
        self.rules.send_replace(Some(Rules { levels, facts: Arc::new(facts) }));
        self.forget_upstream();
    }

    /// Sets the authority by which TLS ends here.
    pub(crate) fn set_authority(&self, keys: &AuthorityKeys) -> Result<(), AuthorityError> {
        let authority = Arc::new(Authority::new(keys)?);
        *self.authority.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority);
        Ok(())
    }

    pub(crate) fn authority(&self) -> Option<Arc<Authority>> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all connections.
    pub(crate) fn end(&self) {
        self.rules.send_replace(None);
        self.forget_upstream();
    }

    /// Closes idle connections to servers, which other rules have allowed.
    fn forget_upstream(&self) {
        if let Some(upstream) = self.upstream.get() {
            upstream.forget();
        }
    }

    /// Returns the clients by which requests are sent.
    pub(crate) fn upstream(self: &Arc<Self>) -> &Upstream {
        self.upstream.get_or_init(|| {
            let (sandbox, way) = (Arc::downgrade(self), self.way.clone());
            let connect: Dial = Arc::new(move |destination| {
                let (sandbox, way) = (sandbox.upgrade(), way.clone());
                Box::pin(async move {
                    let sandbox =
                        sandbox.ok_or_else(|| Unreachable::Tls("the sandbox has ended".to_owned()))?;
                    let rules = sandbox.rules();
                    dial(&way, &destination, &rules.levels, &sandbox.moment(&rules.facts)).await
                })
            });
            Upstream::new(connect, &self.way)
        })
    }

    /// Gives the next synthetic addresses to these names.
    pub(crate) fn add_names(&self, names: &[HostName]) {
        let mut known = self.names();
        for name in names {
            known.address_of(name);
        }
    }

    /// Returns what decides now; nothing is allowed once the sandbox has ended.
    pub(crate) fn rules(&self) -> Rules {
        self.rules.borrow().clone().unwrap_or_default()
    }

    /// Returns the moment, for decisions by these facts.
    pub(crate) fn moment<'a>(&self, facts: &'a Facts) -> Moment<'a> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        Moment { facts, session: self.usage.session(), seconds }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a refusal and counts it.
    pub(crate) fn refused(&self, refusal: Refusal) {
        if !matches!(refusal.reason, Reason::Observed(_)) {
            self.usage.denied();
        }
        (self.report)(refusal);
    }

    /// Reports what a level would have refused that only observes.
    pub(crate) fn observed(&self, destination: impl fmt::Display, denial: Option<Denial>) {
        if let Some(denial) = denial {
            let reason = Reason::Observed(denial);
            self.refused(Refusal { destination: destination.to_string(), reason });
        }
    }

    /// Returns the answer to a DNS message.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        let rules = self.rules();
        let mut names = self.names();
        let before = names.count();
        let exists = |name: &HostName| self.peers.contains(name) || may_resolve(&rules.levels, name);
        let answer = dns::answer(message, &mut names, exists);
        // With the lock, so that names are reported in the order of their addresses.
        names.since(before).for_each(|name| (self.named)(name));
        answer
    }

    /// Waits until something else decides about a destination whose requests are read, or the sandbox has ended. What the
    /// other rules say then is decided when the client connects again.
    pub(crate) async fn changed(&self, destination: &Destination) {
        let mut changes = self.rules.subscribe();
        let rules_of = |rules: &Rules| -> Vec<_> {
            let level = |level: &Arc<Level>| {
                let rules = level.egress.iter().flat_map(|egress| &egress.rules);
                let matching = rules.filter(|rule| rule.matches(destination)).cloned().collect::<Vec<_>>();
                (level.authority, level.name.clone(), level.mode, level.egress.is_some(), matching)
            };
            rules.levels.iter().map(level).collect()
        };
        let Some(before) = changes.borrow_and_update().clone() else { return };
        let (facts, before) = (before.facts.clone(), rules_of(&before));
        loop {
            if changes.changed().await.is_err() {
                return;
            }
            match changes.borrow_and_update().clone() {
                Some(now) if now.facts == facts && rules_of(&now) == before => {}
                _ => return,
            }
        }
    }

    /// Returns what an address means; `None` for one that means no name.
    pub(crate) fn destination(&self, target: SocketAddr) -> Option<Destination> {
        let port = NonZeroU16::new(target.port())?;
        let host = match target.ip().to_canonical() {
            IpAddr::V4(address) if is_synthetic(address) => Host::Name(self.name_of(address)?),
            address => Host::from(address),
        };
        Some(Destination { host, port })
    }

    fn name_of(&self, address: Ipv4Addr) -> Option<HostName> {
        self.names().name_of(address).cloned()
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::Mode;

    use super::*;

    #[test]
    fn new_names_are_reported_once_in_the_order_of_their_addresses() {
        let (names, named) = std::sync::mpsc::channel();
        let report = move |name: &HostName| names.send(name.clone()).unwrap();
        let rule = serde_json::json!({ "rules": [{"name": "any", "any": true}] });
        let level = Level {
            authority: hutch_policy::Authority::Invocation,
            name: "test".into(),
            mode: Mode::Enforce,
            egress: Some(serde_json::from_value(rule).unwrap()),
        };
        let sandbox =
            Sandbox::new([Arc::new(level)].into(), Arc::default(), Box::new(|_| ()), Box::new(report));
        let known: HostName = "known.example".parse().unwrap();
        sandbox.add_names(std::slice::from_ref(&known));
        for name in ["b.example.", "a.example.", "known.example.", "b.example."] {
            let query =
                hickory_proto::op::Query::query(name.parse().unwrap(), hickory_proto::rr::RecordType::A);
            let mut message = hickory_proto::op::Message::query();
            message.add_query(query);
            sandbox.answer(&message.to_vec().unwrap()).unwrap();
        }
        let found: Vec<_> = named.try_iter().map(|name| name.to_string()).collect();
        assert_eq!(found, ["b.example", "a.example"]);
        assert_eq!(sandbox.name_of(Ipv4Addr::new(198, 18, 1, 0)), Some(known));
    }
}
