//! One sandbox: its policy, its names and its connections.

mod naming;
mod rules;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hutch_policy::{Destination, Facts, Host, HostName, Moment, closes_addresses};
use hutch_scan::At;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError, watch};

use crate::authority::{Authority, AuthorityKeys};
use crate::credentials::Issued;
use crate::descriptors::{CONNECTION, Descriptors, Places, Shortage};
use crate::dial::{closed_now, dial};
use crate::ground::Ground;
use crate::names::{Names, is_synthetic};
use crate::peers::Peers;
use crate::record::{Asked, Counters, Outcome, outcome};
use crate::records::Records;
use crate::refusal::{Denial, Reason, Refusal, reset};
use crate::resolve::Resolver;
use crate::room::Room;
use crate::scan::{Memory, Scan, scanner};
use crate::upstream::{Dial, Server, Stays, Upstream};
use crate::usage::Usage;
use crate::used::Used;
use crate::way::{Unreachable, Way};
pub(crate) use rules::{Levels, Rules};

/// How often the conditions of the rules of an open connection, and of a request whose answer lasts, are evaluated.
pub(crate) const RECHECK: Duration = Duration::from_secs(1);
/// Maximum open connections.
const CONNECTIONS: usize = 512;
/// Maximum open connections whose requests are read. Each has buffers of some 100 KiB.
const INSPECTED: usize = 64;
/// Maximum refused clients of TLS that are answered at once. Each has buffers of TLS; others are reset.
pub(crate) const REFUSING: usize = 16;

/// Port for which the reason is given why a name has no address.
const HTTPS: NonZeroU16 = NonZeroU16::new(443).unwrap();
/// Maximum requests at once. Each has buffers of some 200 KiB if neither side reads.
const REQUESTS: usize = 128;
/// Maximum large bodies that are scanned at the same time: their values need some times their bytes.
const LARGE: usize = 2;

/// Receives refusals.
pub(crate) type Report = Box<dyn Fn(Refusal) + Send + Sync>;
/// Receives each name that has got an address.
pub(crate) type Named = Box<dyn Fn(&HostName) + Send + Sync>;
/// Authority that a sandbox trusts.
#[derive(Default)]
enum Trusted {
    #[default]
    None,
    /// Most sandboxes never need it.
    Keys(AuthorityKeys),
    Made(Arc<Authority>),
}

/// A sandbox.
pub(crate) struct Sandbox {
    /// None once it has ended.
    pub(crate) rules: watch::Sender<Option<Rules>>,
    names: Mutex<Names>,
    /// The bounds of one sandbox hold for the clients together. The host of a proxy has none.
    is_bounded: AtomicBool,
    /// The clients resolve names here, so a synthetic address means a name.
    resolves: AtomicBool,
    connections: Semaphore,
    pub(crate) inspected: Semaphore,
    /// Places of refused clients whose TLS ends here.
    pub(crate) refusing: Semaphore,
    pub(crate) requests: Arc<Semaphore>,
    resolver: Resolver,
    /// Memory for bodies that are held.
    pub(crate) room: Arc<Room>,
    /// Places of large bodies that are scanned.
    pub(crate) large: Arc<Semaphore>,
    pub(crate) usage: Arc<Usage>,
    authority: Mutex<Trusted>,
    /// Made for the first request that is read.
    upstream: OnceLock<Upstream>,
    pub(crate) way: Arc<Way>,
    pub(crate) descriptors: Descriptors,
    report: Report,
    named: Named,
    pub(crate) peers: Peers,
    /// Memory of the scanner.
    pub(crate) memory: Memory,
    pub(crate) records: Records,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sandbox").finish_non_exhaustive()
    }
}

impl Sandbox {
    #[cfg(test)]
    pub(crate) fn new(levels: Levels, way: Arc<Way>, report: Report, named: Named) -> Arc<Sandbox> {
        Sandbox::continuing(Used::default(), levels, way, report, named)
    }

    /// Returns a sandbox that has used its budgets as far as these counters say.
    pub(crate) fn continuing(
        used: Used,
        levels: Levels,
        way: Arc<Way>,
        report: Report,
        named: Named,
    ) -> Arc<Sandbox> {
        let rules = Rules { levels, ..Rules::default() };
        let sandbox = Arc::new(Sandbox {
            rules: watch::Sender::new(Some(rules)),
            names: Mutex::new(Names::continuing(used.hours)),
            is_bounded: AtomicBool::new(false),
            resolves: AtomicBool::new(false),
            connections: Semaphore::new(CONNECTIONS),
            inspected: Semaphore::new(INSPECTED),
            refusing: Semaphore::new(REFUSING),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            resolver: Resolver::default(),
            room: Arc::default(),
            large: Arc::new(Semaphore::new(LARGE)),
            usage: used.usage,
            authority: Mutex::default(),
            upstream: OnceLock::new(),
            descriptors: way.descriptors.of_sandbox(),
            way,
            report,
            named,
            peers: Peers::default(),
            memory: Memory::default(),
            records: Records::default(),
        });
        sandbox.prepare(&sandbox.rules().levels);
        sandbox
    }

    /// Returns the counters of this process.
    pub(crate) fn counters(&self) -> &Counters {
        &self.way.counters
    }

    /// Takes descriptors for a connection, at once when it was accepted. Resets the connection where that fails.
    pub(crate) fn descriptors(&self, client: &TcpStream, destination: &str) -> Option<Places> {
        let refused = |shortage: Shortage| {
            reset(client);
            self.refused(Refusal { destination: destination.to_owned(), reason: shortage.into() });
        };
        self.descriptors.take(CONNECTION).map_err(refused).ok()
    }

    /// Returns a place for one more connection, unless too many are open.
    pub(crate) fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.connections.try_acquire().ok()
    }

    /// Applies the bounds of one sandbox to the clients, also to names and requests that they name to a proxy.
    pub(crate) fn bound_clients(&self) {
        self.is_bounded.store(true, Ordering::Relaxed);
    }

    /// Lets the clients name destinations by synthetic addresses, since their queries are answered here.
    pub(crate) fn answer_names(&self) {
        self.resolves.store(true, Ordering::Relaxed);
    }

    /// Takes a place among the connections to an explicit proxy whose requests are read.
    ///
    /// # Errors
    /// All places are taken. Clients without bounds need none.
    pub(crate) fn read_place(&self) -> Result<Option<SemaphorePermit<'_>>, TryAcquireError> {
        let is_bounded = self.is_bounded.load(Ordering::Relaxed);
        is_bounded.then(|| self.inspected.try_acquire()).transpose()
    }

    /// Replaces the levels. Open connections that they do not allow end.
    pub(crate) fn set_levels(&self, levels: Levels) {
        self.prepare(&levels);
        self.rules.send_replace(Some(Rules { levels, ..self.rules() }));
        self.memory.forget_passed();
        self.forget_upstream();
    }

    /// Reads the rules of the scanner, so that the first message does not wait for them.
    fn prepare(&self, levels: &Levels) {
        if Scan::of(levels, None).is_some() && tokio::runtime::Handle::try_current().is_ok() {
            tokio::task::spawn_blocking(scanner);
        }
    }

    /// Scans the name of a host that the levels allow.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) fn scan_host(&self, rules: &Rules, destination: &Destination) -> Result<(), Reason> {
        match &destination.host {
            Host::Name(name) => self.scan_host_as(rules, destination, &name.to_string()),
            _ => Ok(()),
        }
    }

    /// Scans the name of a host as a client wrote it.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) fn scan_host_as(
        &self,
        rules: &Rules,
        destination: &Destination,
        text: &str,
    ) -> Result<(), Reason> {
        let Some(scan) = Scan::of(&rules.levels, None) else { return Ok(()) };
        let scan = scan.with_credentials(&rules.credentials, None);
        let judged = self.memory.host(&scan, text);
        for reason in judged.passed {
            self.refused(Refusal { destination: destination.to_string(), reason });
        }
        judged.blocked.map_or(Ok(()), |found| Err(Reason::Found(found.into())))
    }

    /// Replaces the facts, as [`Sandbox::set_levels`].
    pub(crate) fn set_facts(&self, facts: Facts) {
        self.rules.send_replace(Some(Rules { facts: Arc::new(facts), ..self.rules() }));
        self.forget_upstream();
    }

    /// Replaces the credentials. Open connections to hosts of which one has changed end.
    pub(crate) fn set_credentials(&self, credentials: Vec<Issued>) {
        let rules = self.rules();
        if rules.credentials.issued != credentials {
            let credentials = Arc::new(rules.credentials.followed_by(credentials));
            self.rules.send_replace(Some(Rules { credentials, ..rules }));
            self.memory.forget_passed();
            self.forget_upstream();
        }
    }

    /// Sets the authority by which TLS ends here.
    pub(crate) fn set_authority(&self, authority: Arc<Authority>) {
        *self.authority.lock().unwrap_or_else(PoisonError::into_inner) = Trusted::Made(authority);
    }

    /// Sets the authority by which TLS ends here. It is made on first use.
    pub(crate) fn set_authority_keys(&self, keys: AuthorityKeys) {
        *self.authority.lock().unwrap_or_else(PoisonError::into_inner) = Trusted::Keys(keys);
    }

    /// Returns the authority by which TLS ends here, if there is one.
    pub(crate) fn authority(&self) -> Option<Arc<Authority>> {
        let mut trusted = self.authority.lock().unwrap_or_else(PoisonError::into_inner);
        if let Trusted::Keys(keys) = &*trusted {
            let made =
                Authority::new(keys).inspect_err(|error| tracing::warn!(%error, "TLS cannot end here"));
            *trusted = made.map_or(Trusted::None, |made| Trusted::Made(Arc::new(made)));
        }
        match &*trusted {
            Trusted::Made(authority) => Some(authority.clone()),
            Trusted::None | Trusted::Keys(_) => None,
        }
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

    /// Connects to a destination that these levels allow, after `begin`.
    pub(crate) async fn dial<E: From<Unreachable>>(
        &self,
        destination: &Destination,
        levels: &Levels,
        moment: &Moment<'_>,
        begin: impl Future<Output = Result<(), E>> + Send,
    ) -> Result<TcpStream, E> {
        dial(&self.way, destination, levels, moment, (&self.resolver, &self.descriptors), begin).await
    }

    /// Returns the clients by which requests are sent.
    pub(crate) fn upstream(self: &Arc<Self>) -> &Upstream {
        self.upstream.get_or_init(|| {
            let sandbox = Arc::downgrade(self);
            let connect: Dial = Arc::new(move |destination, judged| {
                let sandbox = sandbox.upgrade();
                Box::pin(async move {
                    let sandbox =
                        sandbox.ok_or_else(|| Unreachable::Tls("the sandbox has ended".to_owned()))?;
                    let rules = sandbox.rules();
                    let moment = sandbox.moment(&rules.facts);
                    // Not with the request itself among those that were made.
                    let moment = Moment { session: judged.unwrap_or(moment.session), ..moment };
                    sandbox.dial(&destination, &rules.levels, &moment, async { Ok(()) }).await
                })
            });
            let sandbox = Arc::downgrade(self);
            let stays: Stays = Arc::new(move |destination, server, session| {
                let Some(sandbox) = sandbox.upgrade() else { return false };
                let rules = sandbox.rules();
                // Connections are closed when rules change. Conditions, and what has an address, change by themselves.
                if !closes_addresses(&rules.levels) && !sandbox.way.knows_sandboxes() {
                    return true;
                }
                let moment = Moment { session, ..sandbox.moment(&rules.facts) };
                sandbox.closed_server(destination, server, &rules, &moment).is_none()
            });
            Upstream::new(connect, stays, &self.way, &self.descriptors)
        })
    }

    /// Returns why the server to which a request was sent may not be connected now.
    pub(crate) fn closed_server(
        &self,
        destination: &Destination,
        server: Server,
        rules: &Rules,
        moment: &Moment<'_>,
    ) -> Option<Reason> {
        let closed = closed_now(&self.way, &rules.levels, destination, server.judged(), moment)?;
        Some(Reason::from(&closed))
    }

    /// Gives the next synthetic addresses to these names.
    pub(crate) fn add_names(&self, names: &[HostName]) {
        let mut known = self.names();
        for name in names {
            known.restore(name);
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

    /// Returns the moment, for decisions about a connection or a request that was allowed and so is counted itself.
    pub(crate) fn moment_of_allowed<'a>(&self, facts: &'a Facts) -> Moment<'a> {
        let mut moment = self.moment(facts);
        moment.session.requests = moment.session.requests.saturating_sub(1);
        moment
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how a refused destination can be allowed, as the end of a message.
    pub(crate) fn advice(&self, refusal: &Refusal) -> String {
        refusal.advice(&self.rules().facts.sandbox)
    }

    /// Reports a refusal of a connection and counts it.
    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refused_as(refusal, None);
    }

    /// Reports a refusal of a request and counts it.
    pub(crate) fn refused_request(&self, refusal: Refusal, asked: &Asked<'_>) {
        self.refused_as(refusal, Some(asked));
    }

    fn refused_as(&self, mut refusal: Refusal, asked: Option<&Asked<'_>>) {
        let outcome = outcome(&refusal.reason);
        let labels = hides_labels(&refusal.reason).then(|| asked.map(|asked| asked.destination.to_string()));
        let hidden =
            labels.map(|destination| without_labels(&destination.unwrap_or(refusal.destination.clone())));
        if let Some(hidden) = &hidden {
            refusal.destination.clone_from(hidden);
        }
        if !outcome.passes() {
            self.usage.denied();
        }
        self.counters().count(outcome, asked.is_some());
        if refusal.reason == Reason::Full {
            self.counters().full();
        }
        let destination = hidden.or_else(|| asked.map(|asked| asked.destination.to_string()));
        let destination = destination.as_deref().unwrap_or(&refusal.destination);
        self.records.refused(destination, asked, &refusal.reason);
        (self.report)(refusal);
    }

    /// Records a connection or a request that is allowed by these opinions, before it is made, and counts it.
    ///
    /// # Errors
    /// It must be written first, and cannot.
    pub(crate) async fn allowed(
        &self,
        destination: &Destination,
        asked: Option<&Asked<'_>>,
        ground: Option<&Ground>,
    ) -> Result<(), Reason> {
        self.records.allowed(destination, asked, ground).await?;
        self.counters().count(Outcome::Allowed, asked.is_some());
        Ok(())
    }

    /// Reports what a level would have refused that only observes.
    pub(crate) fn observed(&self, destination: &Destination, denial: Option<Denial>) {
        if let Some(denial) = denial {
            let reason = Reason::Observed(denial);
            self.refused(Refusal { destination: destination.to_string(), reason });
        }
    }

    /// Waits until other rules than `before` decide about a destination whose requests are read, or the sandbox has ended.
    /// What the other rules say then is decided when the client connects again.
    pub(crate) async fn changed(&self, destination: &Destination, mut before: Rules) {
        let mut changes = self.rules.subscribe();
        let ends = before.credentials.next_end(destination, self.moment(&before.facts).seconds);
        let ended = async {
            match ends {
                Some(ends) => until(ends).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(ended);
        // At first too: the rules may have changed since the decision.
        loop {
            match changes.borrow_and_update().clone() {
                // A connection keeps the latest ones, which all share, and no others.
                Some(now) if now.are_alike(&before, destination) => before = now,
                _ => return,
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = &mut ended => return,
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

/// Returns true if the labels of a host are what was found, which must not be shown.
fn hides_labels(reason: &Reason) -> bool {
    reason.found().is_some_and(|found| found.at == At::Host)
}

/// Returns a destination with its registrable domain alone.
fn without_labels(destination: &str) -> String {
    let (host, port) = destination.split_once(':').unwrap_or((destination, ""));
    let separator = if port.is_empty() { "" } else { ":" };
    format!("*.{}{separator}{port}", hutch_scan::domain(host))
}

/// Waits until a time in seconds since 1970.
async fn until(seconds: i64) {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.max(0).cast_unsigned());
    while let Ok(left) = time.duration_since(SystemTime::now()) {
        if left.is_zero() {
            return;
        }
        // The clock of the machine may be set.
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::Level;

    use super::*;

    #[test]
    fn new_names_are_reported_once_in_the_order_of_their_addresses() {
        let (names, named) = std::sync::mpsc::channel();
        let report = move |name: &HostName| names.send(name.clone()).unwrap();
        let rule = serde_json::json!({ "rules": [{"name": "any", "any": true}] });
        let level = Level::new(
            hutch_policy::Authority::Invocation,
            "test",
            Some(serde_json::from_value(rule).unwrap()),
        );
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
