//! One sandbox: its policy, its names and its connections.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hutch_policy::{
    Decision, Destination, Facts, Host, HostName, Level, Mode, Moment, Opinion, Traffic, Verdict, decide,
    may_resolve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

use crate::authority::{Authority, AuthorityError, AuthorityKeys};
use crate::check::{Spoken, first_bytes};
use crate::dial::dial;
use crate::dns;
use crate::names::{Names, is_synthetic};
use crate::record::{Asked, Counters, Ground, Outcome, Record, Recorder, outcome};
use crate::refusal::{Denial, Reason, Refusal, refuse, reset};
use crate::relay;
use crate::upstream::{Upstream, Way};
use crate::usage::Usage;

/// Maximum open connections.
const CONNECTIONS: usize = 512;
/// Maximum open connections whose requests are read. Each has buffers of some 100 KiB.
const INSPECTED: usize = 128;
/// Maximum time without a query on a connection to the DNS server.
const DNS_IDLE: Duration = Duration::from_secs(10);
/// Port of DNS.
pub(crate) const DNS: u16 = 53;

/// Receives refusals.
pub(crate) type Report = Box<dyn Fn(Refusal) + Send + Sync>;
/// Receives each name that has got an address.
pub(crate) type Named = Box<dyn Fn(&HostName) + Send + Sync>;
/// Levels of a sandbox.
pub(crate) type Levels = Arc<[Arc<Level>]>;

/// What decides about a sandbox.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(crate) levels: Levels,
    pub(crate) facts: Arc<Facts>,
}

/// A sandbox.
pub(crate) struct Sandbox {
    /// None once it has ended.
    rules: watch::Sender<Option<Rules>>,
    names: Mutex<Names>,
    connections: Semaphore,
    inspected: Semaphore,
    pub(crate) usage: Usage,
    authority: Mutex<Option<Arc<Authority>>>,
    /// Made for the first request that is read.
    upstream: OnceLock<Upstream>,
    way: Arc<Way>,
    report: Report,
    named: Named,
    /// Receives each decision. Without it, no record is made.
    recorder: OnceLock<Recorder>,
}

/// What the levels say about a connection that they allow.
pub(crate) struct Permit {
    /// Permitted traffic.
    pub(crate) traffic: Traffic,
    /// Its requests are read.
    pub(crate) inspect: bool,
    /// For records.
    ground: Option<Ground>,
}

/// An open connection whose bytes are passed on unread: what was decided about it.
struct Connection {
    destination: Destination,
    /// Permitted traffic when it began.
    traffic: Traffic,
    server: TcpStream,
}

/// What happens to a connection that is allowed.
enum Allowed {
    Join(Connection),
    /// Its requests are read.
    Inspect(Destination, Spoken),
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
            usage: Usage::default(),
            authority: Mutex::default(),
            upstream: OnceLock::new(),
            way,
            report,
            named,
            recorder: OnceLock::new(),
        })
    }

    /// Sets the receiver of all decisions, once.
    pub(crate) fn record(&self, recorder: Recorder) {
        let _ = self.recorder.set(recorder);
    }

    /// Returns the counters of this process.
    pub(crate) fn counters(&self) -> &Counters {
        &self.way.counters
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
        self.upstream.get_or_init(|| Upstream::new(self, &self.way))
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

    /// Reports a refusal of a connection and counts it.
    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refused_as(refusal, None);
    }

    /// Reports a refusal of a request and counts it.
    pub(crate) fn refused_request(&self, refusal: Refusal, asked: &Asked<'_>) {
        self.refused_as(refusal, Some(asked));
    }

    fn refused_as(&self, refusal: Refusal, asked: Option<&Asked<'_>>) {
        let outcome = outcome(&refusal.reason);
        if outcome != Outcome::Observed {
            self.usage.denied();
        }
        self.counters().count(outcome, asked.is_some());
        if let Some(recorder) = self.recorder.get() {
            let destination = asked.map(|asked| asked.destination.to_string());
            let destination = destination.as_deref().unwrap_or(&refusal.destination);
            recorder(&Record::refused(destination, asked, &refusal.reason));
        }
        (self.report)(refusal);
    }

    /// Counts a connection or a request that is allowed, and records it by these opinions.
    pub(crate) fn allowed(
        &self,
        destination: &Destination,
        asked: Option<&Asked<'_>>,
        ground: Option<&Ground>,
    ) {
        self.counters().count(Outcome::Allowed, asked.is_some());
        if let Some(recorder) = self.recorder.get() {
            recorder(&Record::allowed(&destination.to_string(), asked, ground));
        }
    }

    /// Returns by which opinion something is allowed, if that is recorded.
    pub(crate) fn ground(&self, opinions: &[Opinion<'_>]) -> Option<Ground> {
        self.recorder.get().and_then(|_| Ground::first(opinions))
    }

    /// Reports what a level would have refused that only observes.
    fn observed(&self, destination: &Destination, denial: Option<Denial>) {
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
        let answer = dns::answer(message, &mut names, |name| may_resolve(&rules.levels, name));
        // With the lock, so that names are reported in the order of their addresses.
        names.since(before).for_each(|name| (self.named)(name));
        answer
    }

    /// Returns a place for one more connection, unless too many are open.
    pub(crate) fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.connections.try_acquire().ok()
    }

    /// Serves a captured connection until its end.
    pub(crate) async fn serve(self: &Arc<Self>, client: TcpStream) {
        // The address at which it was captured is that to which the program connected.
        let Ok(target) = client.local_addr() else { return };
        let Some(_place) = self.place() else {
            self.refused(Refusal { destination: target.to_string(), reason: Reason::TooMany });
            return reset(&client);
        };
        let _open = self.counters().open();
        if target.port() == DNS {
            return self.serve_dns(client).await;
        }
        let Some(destination) = self.destination(target) else {
            let reason = Reason::Denied(Denial::default());
            return self
                .refuse(client, &mut Vec::new(), Refusal { destination: target.to_string(), reason })
                .await;
        };
        self.serve_to(client, destination).await;
    }

    /// Serves a connection to a destination until its end.
    pub(crate) async fn serve_to(self: &Arc<Self>, client: TcpStream, destination: Destination) {
        let mut first = Vec::new();
        match self.connect(&client, destination, &mut first).await {
            Ok(Allowed::Join(connection)) => self.join(client, connection, &first).await,
            Ok(Allowed::Inspect(destination, spoken)) => {
                self.inspect(client, destination, spoken, first).await
            }
            Err(refusal) => self.refuse(client, &mut first, refusal).await,
        }
    }

    async fn refuse(&self, client: TcpStream, first: &mut Vec<u8>, refusal: Refusal) {
        self.refused(refusal.clone());
        refuse(client, first, &refusal).await;
    }

    /// Returns why the levels do not allow a connection.
    fn denial(verdict: &Verdict<'_>) -> Reason {
        if verdict.conflict {
            let why = "one rule reads requests, and another one has `tls: Passthrough`";
            return Reason::OtherName(why.to_owned());
        }
        Reason::Denied(Denial::first(&verdict.opinions, Mode::Enforce).unwrap_or_default())
    }

    /// Decides about a connection, and makes it if it is not read. Puts what it has read of the client into `first`.
    async fn connect(
        &self,
        client: &TcpStream,
        destination: Destination,
        first: &mut Vec<u8>,
    ) -> Result<Allowed, Refusal> {
        let permit = self.permit(&destination)?;
        let spoken = self.spoken(client, &destination, &permit, first).await?;
        if let (Some(spoken), true) = (spoken, permit.inspect) {
            return Ok(Allowed::Inspect(destination, spoken));
        }
        let server = self.open(&destination).await?;
        self.allowed(&destination, None, permit.ground.as_ref());
        Ok(Allowed::Join(Connection { traffic: permit.traffic, server, destination }))
    }

    /// Decides about a connection.
    pub(crate) fn permit(&self, destination: &Destination) -> Result<Permit, Refusal> {
        let rules = self.rules();
        let moment = self.moment(&rules.facts);
        let verdict = decide(&rules.levels, destination, &moment);
        self.observed(destination, Denial::first(&verdict.opinions, Mode::Observe));
        if verdict.decision != Decision::Allow {
            let reason = Sandbox::denial(&verdict);
            return Err(Refusal { destination: destination.to_string(), reason });
        }
        // What cannot be read is not allowed where requests are decided.
        let traffic = if verdict.inspect { verdict.traffic.min(Traffic::Web) } else { verdict.traffic };
        Ok(Permit { traffic, inspect: verdict.inspect, ground: self.ground(&verdict.opinions) })
    }

    /// Checks what the client speaks; `None` if it may speak anything.
    async fn spoken(
        &self,
        client: &TcpStream,
        destination: &Destination,
        permit: &Permit,
        first: &mut Vec<u8>,
    ) -> Result<Option<Spoken>, Refusal> {
        if permit.traffic == Traffic::Any {
            return Ok(None);
        }
        let spoken = first_bytes(client, destination, permit.traffic, first).await;
        let refused = |why| Refusal { destination: destination.to_string(), reason: Reason::OtherName(why) };
        spoken.map(Some).map_err(refused)
    }

    /// Counts a connection whose bytes are passed on unread, and makes it.
    async fn open(&self, destination: &Destination) -> Result<TcpStream, Refusal> {
        let rules = self.rules();
        let moment = self.moment(&rules.facts);
        let refused = |reason| Refusal { destination: destination.to_string(), reason };
        self.usage.request(&rules.levels, destination).map_err(refused)?;
        let dialed = dial(&self.way, destination, &rules.levels, &moment).await;
        dialed.map_err(|error| refused(error.into()))
    }

    /// Serves a connection whose client has named its destination, until its end. `door` answers it.
    pub(crate) async fn serve_named(
        self: &Arc<Self>,
        mut client: TcpStream,
        destination: Destination,
        door: impl Door,
        mut first: Vec<u8>,
    ) {
        let opened = async {
            let permit = self.permit(&destination)?;
            // Before it is answered, so that the answer says whether the destination can be reached.
            let server = match permit.inspect {
                true => None,
                false => Some(self.open(&destination).await?),
            };
            Ok::<_, Refusal>((permit, server))
        };
        let (permit, server) = match opened.await {
            Ok(opened) => opened,
            Err(refusal) => {
                self.refused(refusal.clone());
                return door.refuse(client, &refusal).await;
            }
        };
        if !door.accept(&mut client).await {
            return;
        }
        let spoken = match self.spoken(&client, &destination, &permit, &mut first).await {
            Ok(spoken) => spoken,
            Err(refusal) => return self.refuse(client, &mut first, refusal).await,
        };
        match (server, spoken) {
            (Some(server), _) => {
                self.allowed(&destination, None, permit.ground.as_ref());
                self.join(client, Connection { traffic: permit.traffic, server, destination }, &first).await;
            }
            (None, Some(spoken)) => self.inspect(client, destination, spoken, first).await,
            (None, None) => reset(&client),
        }
    }

    /// Passes bytes on until both sides have ended, or the levels no longer allow it.
    async fn join(&self, mut client: TcpStream, connection: Connection, first: &[u8]) {
        let Connection { destination, traffic, mut server } = connection;
        let Ok(address) = server.peer_addr() else { return reset(&client) };
        let sent = |bytes| {
            self.counters().sent(bytes);
            self.usage.sent(&self.rules().levels, bytes).map_err(Ended::Refused)
        };
        let received = |bytes| self.counters().received(bytes);
        let ended = tokio::select! {
            ended = relay::join(&mut client, &mut server, first, sent, received) => ended.err(),
            denial = self.revoked(&destination, traffic, address) => Some(Ended::Revoked(denial)),
        };
        let reason = match ended {
            None | Some(Ended::Failed) => return,
            Some(Ended::Revoked(None)) => None,
            Some(Ended::Revoked(Some(reason)) | Ended::Refused(reason)) => Some(reason),
        };
        reset(&client);
        reset(&server);
        if let Some(reason) = reason {
            self.refused(Refusal { destination: destination.to_string(), reason });
        }
    }

    /// Waits until the levels no longer allow what an open connection does. `None` if the sandbox has ended.
    async fn revoked(
        &self,
        destination: &Destination,
        traffic: Traffic,
        address: SocketAddr,
    ) -> Option<Reason> {
        // Changed at first: the levels may have changed since the decision.
        let mut changes = self.rules.subscribe();
        loop {
            let rules = changes.borrow_and_update().clone()?;
            let reason = {
                let moment = self.moment(&rules.facts);
                let verdict = decide(&rules.levels, destination, &moment);
                let allowed =
                    verdict.decision == Decision::Allow && verdict.traffic >= traffic && !verdict.inspect;
                let dials = || self.way.dialed(&rules.levels, destination, address, &moment);
                (!allowed || !dials()).then(|| Sandbox::denial(&verdict))
            };
            if reason.is_some() {
                return reason;
            }
            changes.changed().await.ok()?;
        }
    }

    /// Waits until other rules than `before` decide about a destination whose requests are read, or the sandbox has ended. What the
    /// other rules say then is decided when the client connects again.
    pub(crate) async fn changed(&self, destination: &Destination, before: &Rules) {
        let mut changes = self.rules.subscribe();
        let rules_of = |rules: &Rules| -> Vec<_> {
            let level = |level: &Arc<Level>| {
                let rules = level.egress.iter().flat_map(|egress| &egress.rules);
                let matching = rules.filter(|rule| rule.matches(destination)).cloned().collect::<Vec<_>>();
                (level.authority, level.name.clone(), level.mode, level.egress.is_some(), matching)
            };
            rules.levels.iter().map(level).collect()
        };
        let (facts, before) = (before.facts.clone(), rules_of(before));
        // At first too: the rules may have changed since the decision.
        loop {
            match changes.borrow_and_update().clone() {
                Some(now) if now.facts == facts && rules_of(&now) == before => {}
                _ => return,
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the requests of a connection, as many as may be read at once.
    async fn inspect(
        self: &Arc<Self>,
        client: TcpStream,
        destination: Destination,
        spoken: Spoken,
        mut first: Vec<u8>,
    ) {
        let Ok(_place) = self.inspected.try_acquire() else {
            let refusal = Refusal { destination: destination.to_string(), reason: Reason::TooMany };
            return self.refuse(client, &mut first, refusal).await;
        };
        crate::inspect::inspect(self, client, &destination, spoken, first).await;
    }

    /// Returns what an address means; `None` for one that means no name.
    fn destination(&self, target: SocketAddr) -> Option<Destination> {
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

    /// Answers queries, each after two bytes with its length.
    async fn serve_dns(&self, mut client: TcpStream) {
        loop {
            let Ok(Ok(length)) = timeout(DNS_IDLE, client.read_u16()).await else { return };
            let mut message = vec![0; length.into()];
            let Ok(Ok(_)) = timeout(DNS_IDLE, client.read_exact(&mut message)).await else { return };
            let Some(answer) = self.answer(&message) else { return };
            let Ok(length) = u16::try_from(answer.len()) else { return };
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            let Ok(Ok(())) = timeout(DNS_IDLE, client.write_all(&framed)).await else { return };
        }
    }
}

/// Way in which a client names a destination, and is answered.
pub(crate) trait Door: Send {
    /// Reports that the connection is open. Returns false if the client has gone.
    fn accept(&self, client: &mut TcpStream) -> impl Future<Output = bool> + Send;
    /// Reports why there is none.
    fn refuse(self, client: TcpStream, refusal: &Refusal) -> impl Future<Output = ()> + Send;
}

/// Reason why bytes are no longer passed on.
enum Ended {
    /// A side failed.
    Failed,
    /// A budget is used up.
    Refused(Reason),
    /// The levels have changed, or the sandbox has ended.
    Revoked(Option<Reason>),
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Ended {
        Ended::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels with one rule for addresses of loopback, at this port.
    fn loopback(port: u16, decision: &str, protocol: &str) -> Levels {
        let rule = serde_json::json!({
            "name": "test", "cidrs": ["127.0.0.0/8"], "ports": [port], "decision": decision, "protocol": protocol,
            "private": ["127.0.0.0/8"],
        });
        let egress = serde_json::from_value(serde_json::json!({ "rules": [rule] })).unwrap();
        let authority = hutch_policy::Authority::Invocation;
        let level = Level { authority, name: "test".into(), mode: Mode::Enforce, egress: Some(egress) };
        [Arc::new(level)].into()
    }

    #[tokio::test]
    async fn connection_ends_when_its_rule_is_taken_away() {
        for taken in [Some(("Deny", "TCP")), Some(("Allow", "Auto")), None] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            let captured = listener.accept().await.unwrap().0;
            // The destination has the address at which the connection was captured.
            drop(listener);
            let server = tokio::net::TcpListener::bind(address).await.unwrap();
            let (refusals, mut refused) = tokio::sync::mpsc::unbounded_channel();
            let report: Report = Box::new(move |refusal| refusals.send(refusal).unwrap());
            let allows = || loopback(address.port(), "Allow", "TCP");
            let sandbox = Sandbox::new(allows(), Arc::default(), report, Box::new(|_| ()));
            let served = sandbox.clone();
            let task = tokio::spawn(async move { served.serve(captured).await });
            let mut server = server.accept().await.unwrap().0;
            for _ in 0..2 {
                client.write_all(b"x").await.unwrap();
                assert_eq!(server.read_u8().await.unwrap(), b'x');
                sandbox.set_levels(allows());
            }
            match taken {
                Some((decision, protocol)) => {
                    sandbox.set_levels(loopback(address.port(), decision, protocol));
                }
                None => sandbox.end(),
            }
            let error = client.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{taken:?}");
            assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            task.await.unwrap();
            assert_eq!(refused.try_recv().is_ok(), taken.is_some());
        }
    }

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
