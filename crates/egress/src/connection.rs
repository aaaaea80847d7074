//! One connection of a sandbox: it is decided, then joined with its server or read.

pub(crate) mod peer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::{Decision, Destination, Mode, Traffic, Verdict, closes_addresses, decide, has_conditions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::check::{Spoken, first_bytes};
use crate::dial::may_stay;
use crate::dns::QUERY;
use crate::first::First;
use crate::ground::Ground;
use crate::inspect::inspect;
use crate::plan::DNS;
use crate::records::Open;
use crate::refusal::{Denial, Reason, Refusal, answer, close, first_of_refused, reset};
use crate::relay;
use crate::sandbox::{RECHECK, Sandbox};
use crate::tls_refusal::refuse_tls;

/// Maximum time without a query on a connection to the DNS server.
const DNS_IDLE: Duration = Duration::from_secs(10);

/// An open connection whose bytes are only passed on, and the decision about it.
struct Connection {
    destination: Destination,
    /// Permitted traffic when it began.
    traffic: Traffic,
    server: TcpStream,
}

/// Verdict of the levels about a connection that they allow.
pub(crate) struct Permit {
    /// Permitted traffic.
    pub(crate) traffic: Traffic,
    /// Its requests are read.
    pub(crate) inspect: bool,
    /// Denial of a level that only observes. Where requests are read, each of them is judged for it.
    observed: Option<Denial>,
    /// For records.
    ground: Option<Ground>,
}

impl Permit {
    /// Returns what is spoken if its requests are read. HTTP without TLS names its host in each request, so each is.
    fn reads(&self, spoken: Option<Spoken>) -> Option<Spoken> {
        spoken.filter(|spoken| self.inspect || *spoken == Spoken::Http)
    }
}

/// Way in which a client names a destination, and is answered.
pub(crate) trait Door: Send {
    /// Reports that the connection is open. Returns false if the client has gone.
    fn accept(&self, client: &mut TcpStream) -> impl Future<Output = bool> + Send;
    /// Reports why it is refused, with advice.
    fn refuse(self, client: TcpStream, refusal: &Refusal, advice: &str) -> impl Future<Output = ()> + Send;
}

/// Treatment of a connection that is allowed.
enum Allowed {
    Join(Connection),
    /// Its requests are read.
    Inspect(Destination, Spoken),
}

/// Reason why bytes are no longer passed on.
enum Ended {
    /// A side failed, such as by a reset, which the other side then gets too.
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

impl Sandbox {
    /// Serves a captured connection until its end.
    pub(crate) async fn serve(self: &Arc<Self>, client: TcpStream) {
        // The address at which it was captured is that to which the program connected.
        let Ok(target) = client.local_addr() else { return };
        let Some(_place) = self.place() else {
            self.refused(Refusal { destination: target.to_string(), reason: Reason::TooMany });
            return reset(&client);
        };
        let _open = self.counters().open();
        // What most connections do not need, or not for long, is on the heap.
        if target.port() == DNS {
            return Box::pin(self.serve_dns(client)).await;
        }
        let Some(destination) = self.destination(target) else {
            let reason = Reason::Denied(Denial::default());
            let refusal = Refusal { destination: target.to_string(), reason };
            return Box::pin(self.refuse(client, &mut Vec::new(), refusal)).await;
        };
        if let Some(client) = Box::pin(self.serve_peer(client, &destination)).await {
            self.serve_to(client, destination).await;
        }
    }

    /// Serves a connection to a destination until its end.
    pub(crate) async fn serve_to(self: &Arc<Self>, client: TcpStream, destination: Destination) {
        let mut first = Vec::new();
        match Box::pin(self.connect(&client, destination, &mut first)).await {
            Ok(Allowed::Join(connection)) => self.join(client, connection, first).await,
            Ok(Allowed::Inspect(destination, spoken)) => {
                // A joined connection should not take the memory of this.
                Box::pin(self.inspect(client, destination, (spoken, false), first)).await;
            }
            Err(refusal) => Box::pin(self.refuse(client, &mut first, refusal)).await,
        }
    }

    /// Reports a refusal, and sends its reason to a client that speaks HTTP: also within TLS if the sandbox trusts an
    /// authority of the proxy and the levels deny the destination. Resets any other connection.
    async fn refuse(&self, mut client: TcpStream, first: &mut Vec<u8>, refusal: Refusal) {
        self.refused(refusal.clone());
        match first_of_refused(&mut client, first).await {
            First::Http(_) => {
                Box::pin(answer(client, refusal.status(), &refusal, &self.advice(&refusal))).await;
            }
            // A server that fails ends a connection without an answer too.
            First::Tls(name) if refusal.status() == 403 => {
                let (Some(authority), Ok(_place)) = (self.authority(), self.refusing.try_acquire()) else {
                    return reset(&client);
                };
                let first = (name, std::mem::take(first));
                // What needs much memory for a while is on the heap.
                Box::pin(refuse_tls(authority, client, first, &refusal, &self.advice(&refusal))).await;
            }
            _ => reset(&client),
        }
    }

    /// Returns why the levels do not allow a connection.
    fn denial(verdict: &Verdict<'_>) -> Reason {
        if verdict.conflict {
            let why = "a rule or a scanner reads requests, and another rule has `tls: Passthrough`";
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
        if let Some(spoken) = permit.reads(spoken) {
            return Ok(Allowed::Inspect(destination, spoken));
        }
        self.observed(&destination, permit.observed.clone());
        let server = self.open(&destination, &permit).await?;
        Ok(Allowed::Join(Connection { traffic: permit.traffic, server, destination }))
    }

    /// Decides about a connection.
    pub(crate) fn permit(&self, destination: &Destination) -> Result<Permit, Refusal> {
        let rules = self.rules();
        let moment = self.moment(&rules.facts);
        let verdict = decide(&rules.levels, destination, &moment);
        let observed = Denial::first(&verdict.opinions, Mode::Observe);
        if verdict.decision != Decision::Allow {
            self.observed(destination, observed);
            let reason = Sandbox::denial(&verdict);
            return Err(Refusal { destination: destination.to_string(), reason });
        }
        self.scan_host(&rules, destination)
            .map_err(|reason| Refusal { destination: destination.to_string(), reason })?;
        // What cannot be read is not allowed where requests are decided or scanned.
        // A server that had a value may still send it.
        let inspect = verdict.inspect || verdict.scan || rules.credentials.redacts(destination);
        let traffic = if inspect { verdict.traffic.min(Traffic::Web) } else { verdict.traffic };
        let ground = self.records.ground(&verdict.opinions);
        Ok(Permit { traffic, inspect, observed, ground })
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

    /// Counts a connection whose bytes are only passed on, and makes it. It is recorded as allowed once its address is.
    async fn open(&self, destination: &Destination, permit: &Permit) -> Result<TcpStream, Refusal> {
        let rules = self.rules();
        // By the counters before this connection is among them.
        let moment = self.moment(&rules.facts);
        let refused = |reason| Refusal { destination: destination.to_string(), reason };
        // Again: it may have waited for what the client says.
        let verdict = decide(&rules.levels, destination, &moment);
        if verdict.decision != Decision::Allow || verdict.traffic < permit.traffic {
            return Err(refused(Sandbox::denial(&verdict)));
        }
        self.usage.request(&rules.levels, destination).map_err(refused)?;
        let recorded = self.allowed(destination, None, permit.ground.as_ref());
        self.dial(destination, &rules.levels, &moment, recorded).await.map_err(refused)
    }

    /// Serves a connection whose client has named its destination, until its end. `door` answers it.
    pub(crate) async fn serve_named(
        self: &Arc<Self>,
        mut client: TcpStream,
        destination: Destination,
        door: impl Door,
        mut first: Vec<u8>,
    ) {
        if let Some(peer) = self.peer(&destination) {
            return self.serve_named_peer(client, &peer, destination, door, first).await;
        }
        let opened = async {
            let permit = self.permit(&destination)?;
            // Before it is answered, so that the answer says whether the destination can be reached.
            let server = match permit.inspect {
                true => None,
                false => Some(self.open(&destination, &permit).await?),
            };
            Ok::<_, Refusal>((permit, server))
        };
        let (permit, server) = match opened.await {
            Ok(opened) => opened,
            Err(refusal) => {
                self.refused(refusal.clone());
                return door.refuse(client, &refusal, &self.advice(&refusal)).await;
            }
        };
        if !door.accept(&mut client).await {
            return;
        }
        let spoken = match self.spoken(&client, &destination, &permit, &mut first).await {
            Ok(spoken) => spoken,
            Err(refusal) => return self.refuse(client, &mut first, refusal).await,
        };
        match (permit.reads(spoken), server) {
            (Some(spoken), server) => {
                // Requests have connections of their own. This one was counted, so the first request is not.
                let counted = server.is_some();
                drop(server);
                Box::pin(self.inspect(client, destination, (spoken, counted), first)).await;
            }
            (None, Some(server)) => {
                self.observed(&destination, permit.observed);
                self.join(client, Connection { traffic: permit.traffic, server, destination }, first).await;
            }
            (None, None) => reset(&client),
        }
    }

    /// Passes bytes on until both sides have ended, or the levels no longer allow it.
    async fn join(&self, mut client: TcpStream, connection: Connection, first: Vec<u8>) {
        let Connection { destination, traffic, mut server } = connection;
        let open = Open::new(&self.records, &destination);
        let Ok(address) = server.peer_addr() else { return reset(&client) };
        // From now on, so that the end of this process is an error too.
        reset(&client);
        reset(&server);
        let sent = |bytes| {
            self.counters().sent(bytes);
            open.sent(bytes);
            self.usage.sent(&self.rules().levels, bytes).map_err(Ended::Refused)
        };
        let received = |bytes| {
            self.counters().received(bytes);
            open.received(bytes);
        };
        let ended = tokio::select! {
            // First, since the connection may have waited: no byte passes that the levels no longer allow.
            biased;
            denial = self.revoked(&destination, traffic, address) => Some(Ended::Revoked(denial)),
            ended = relay::join(&self.descriptors, &mut client, &mut server, first, sent, received) => ended.err(),
        };
        let reason = match ended {
            None => {
                open.closed();
                return [client, server].iter().for_each(close);
            }
            Some(Ended::Failed | Ended::Revoked(None)) => None,
            Some(Ended::Revoked(Some(reason)) | Ended::Refused(reason)) => Some(reason),
        };
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
            let conditional = has_conditions(&rules.levels, destination)
                || closes_addresses(&rules.levels)
                || self.way.knows_sandboxes();
            let reason = {
                let moment = self.moment_of_allowed(&rules.facts);
                let verdict = decide(&rules.levels, destination, &moment);
                let allowed = verdict.decision == Decision::Allow
                    && verdict.traffic >= traffic
                    && !(verdict.inspect || verdict.scan);
                let dials = || may_stay(&self.way, &rules.levels, destination, address, &moment);
                (!allowed || !dials()).then(|| Sandbox::denial(&verdict))
            };
            if reason.is_some() {
                return reason;
            }
            let changed = changes.changed();
            match conditional {
                // Conditions, and what has an address, can change by themselves.
                true => timeout(RECHECK, changed).await.unwrap_or(Ok(())).ok()?,
                false => changed.await.ok()?,
            }
        }
    }

    /// Reads the requests of a connection, as many as may be read at once. `counted` says that the connection is in the budgets.
    async fn inspect(
        self: &Arc<Self>,
        client: TcpStream,
        destination: Destination,
        (spoken, counted): (Spoken, bool),
        mut first: Vec<u8>,
    ) {
        let Ok(_place) = self.inspected.try_acquire() else {
            let refusal = Refusal { destination: destination.to_string(), reason: Reason::TooMany };
            return self.refuse(client, &mut first, refusal).await;
        };
        inspect(self, client, &destination, (spoken, counted), first).await;
    }

    /// Answers queries, each after two bytes with its length.
    async fn serve_dns(&self, mut client: TcpStream) {
        loop {
            let Ok(Ok(length)) = timeout(DNS_IDLE, client.read_u16()).await else { return };
            // No query is longer, also over UDP.
            if usize::from(length) > QUERY {
                return;
            }
            let mut message = vec![0; length.into()];
            let Ok(Ok(_)) = timeout(DNS_IDLE, client.read_exact(&mut message)).await else { return };
            let Some(answer) = self.answer(&message) else { return };
            let Some(answer) = self.recorded(answer, &message).await else { return };
            let Ok(length) = u16::try_from(answer.len()) else { return };
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            let Ok(Ok(())) = timeout(DNS_IDLE, client.write_all(&framed)).await else { return };
        }
    }
}
#[cfg(test)]
mod tests {
    use hutch_policy::Level;

    use super::*;
    use crate::sandbox::{Levels, Report};

    /// Levels with one rule for addresses of loopback, at this port.
    fn loopback(port: u16, decision: &str, protocol: &str) -> Levels {
        let rule = serde_json::json!({
            "name": "test", "cidrs": ["127.0.0.0/8"], "ports": [port], "decision": decision, "protocol": protocol,
            "private": ["127.0.0.0/8"],
        });
        let egress = serde_json::from_value(serde_json::json!({ "rules": [rule] })).unwrap();
        let authority = hutch_policy::Authority::Invocation;
        let level = Level::new(authority, "test", Some(egress));
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

    /// Returns a sandbox, and its records: outcome, policy and rule of each.
    fn recorded(levels: Levels, durable: bool) -> (Arc<Sandbox>, Arc<std::sync::Mutex<Vec<String>>>) {
        let sandbox = Sandbox::new(levels, Arc::default(), Box::new(|_| ()), Box::new(|_| ()));
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (records, of) = (seen.clone(), Arc::downgrade(&sandbox));
        let sink: crate::records::Sink = Box::new(move |entry, wait| {
            if let crate::records::Entry::Decided(record) = entry {
                let (level, rule) = (record.level.unwrap_or("-"), record.rule.unwrap_or("-"));
                records.lock().unwrap().push(format!("{:?} {level} {rule}", record.outcome));
            }
            if let (Some(number), Some(sandbox)) = (wait, of.upgrade()) {
                tokio::spawn(async move { sandbox.records.answer(number, true) });
            }
        });
        sandbox.records.set(sink, durable);
        (sandbox, seen)
    }

    /// It was recorded as allowed first.
    #[tokio::test]
    async fn connection_to_a_closed_address_has_one_record() {
        for (private, expected) in [(true, "Allowed test test"), (false, "Denied - -")] {
            let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = server.local_addr().unwrap();
            let mut level = Level::clone(&loopback(address.port(), "Allow", "TCP")[0]);
            if !private {
                level.egress.as_mut().unwrap().rules[0].private.clear();
            }
            let (sandbox, seen) = recorded([Arc::new(level)].into(), false);
            let destination: Destination = address.to_string().parse().unwrap();
            let permit = sandbox.permit(&destination).unwrap();
            match sandbox.open(&destination, &permit).await {
                Ok(_) => assert!(private),
                Err(refusal) => sandbox.refused(refusal),
            }
            assert_eq!(*seen.lock().unwrap(), [expected]);
        }
    }

    /// A connection to another sandbox was recorded as allowed, without a rule, before it was refused.
    #[tokio::test]
    async fn connection_to_a_peer_has_one_record_with_its_rule() {
        let peer = hutch_policy::Peer { service: "db".into(), namespace: "a".into(), ports: Vec::new() };
        for (durable, allowed) in [(false, true), (true, true), (false, false), (true, false)] {
            let (sandbox, seen) = recorded([].into(), durable);
            let (of, records) = (Arc::downgrade(&sandbox), seen.clone());
            sandbox.peers.set_request(Box::new(move |number, _, _, connects| {
                let by = crate::ground::Ground { level: "app".into(), rule: Some("db".into()) };
                if connects {
                    records.lock().unwrap().push("connected".to_owned());
                }
                let answer = match allowed {
                    true => Ok((by, connects.then(connected))),
                    false => Err(Reason::Closed("no".to_owned(), by)),
                };
                let sandbox = of.upgrade().unwrap();
                tokio::spawn(async move { sandbox.peers.answer(number, answer) });
            }));
            let destination: Destination = "db:5432".parse().unwrap();
            if let Err(refusal) = sandbox.connect_peer(&peer, &destination).await {
                sandbox.refused(refusal);
            }
            let expected: &[&str] = match (durable, allowed) {
                (false, true) => &["connected", "Allowed app db"],
                (true, true) => &["Allowed app db", "connected"],
                (false, false) => &["connected", "Denied app db"],
                (true, false) => &["Denied app db"],
            };
            assert_eq!(*seen.lock().unwrap(), expected, "durable: {durable}");
        }
    }

    /// Returns a connection as another process makes it.
    fn connected() -> crate::peers::Connected {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (kept, _) = std::os::unix::net::UnixStream::pair().unwrap();
        (TcpStream::from_std(client).unwrap(), kept.into())
    }

    /// The request itself was counted before its address was judged, so the refusal named a flag that opens nothing.
    #[tokio::test]
    async fn condition_on_the_number_of_requests_does_not_count_the_request_itself() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let mut level = Level::clone(&loopback(address.port(), "Allow", "Auto")[0]);
        let rule = &mut level.egress.as_mut().unwrap().rules[0];
        (rule.plaintext, rule.when) = (true, Some("session.requests < 1".to_owned().try_into().unwrap()));
        let sandbox =
            Sandbox::new([Arc::new(level)].into(), Arc::default(), Box::new(|_| ()), Box::new(|_| ()));
        tokio::spawn(async move {
            loop {
                let mut client = server.accept().await.unwrap().0;
                let _ = client.read(&mut [0; 1024]).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                client.write_all(answer).await.unwrap();
            }
        });
        let request = async || {
            let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(door.local_addr().unwrap()).await.unwrap();
            let (accepted, _) = door.accept().await.unwrap();
            let served = sandbox.clone();
            tokio::spawn(async move { crate::explicit::serve_client(&served, accepted).await });
            let text =
                format!("GET http://{address}/ HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            client.write_all(text.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let first = request().await;
        assert!(first.ends_with("ok"), "{first}");
        let second = request().await;
        let condition = r#"the condition \"session.requests < 1\" of rule \"test\" is false"#;
        assert!(second.contains(condition) && !second.contains("--allow-private"), "{second}");
    }

    #[tokio::test]
    async fn request_to_a_proxy_ends_when_its_rule_is_taken_away() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(door.local_addr().unwrap()).await.unwrap();
        let accepted = door.accept().await.unwrap().0;
        let allows = || loopback(address.port(), "Allow", "TCP");
        let sandbox = Sandbox::new(allows(), Arc::default(), Box::new(|_| ()), Box::new(|_| ()));
        let served = sandbox.clone();
        let task = tokio::spawn(async move { crate::explicit::serve_client(&served, accepted).await });
        let request = format!("GET http://{address}/ HTTP/1.1\r\nhost: {address}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut server = server.accept().await.unwrap().0;
        let mut head = [0; 16];
        server.read_exact(&mut head).await.unwrap();
        server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"part") {
            sandbox.set_levels(allows());
            answer.push(client.read_u8().await.unwrap());
        }
        sandbox.set_levels(loopback(address.port(), "Deny", "TCP"));
        assert!(matches!(client.read(&mut head).await, Ok(0) | Err(_)), "no more of it arrives");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn connections_to_a_proxy_that_are_read_are_bounded() {
        let sandbox =
            Sandbox::new(loopback(1, "Allow", "TCP"), Arc::default(), Box::new(|_| ()), Box::new(|_| ()));
        let places: Vec<_> = (0..1000).map_while(|_| sandbox.read_place().ok()).collect();
        assert_eq!(places.len(), 1000, "it is no sandbox");
        sandbox.bound_clients();
        let places: Vec<_> = (0..1000).map_while(|_| sandbox.read_place().ok()).collect();
        assert_eq!(places.len(), 64);
        let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(door.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = door.accept().await.unwrap();
        let served = sandbox.clone();
        tokio::spawn(async move { crate::explicit::serve_client(&served, accepted).await });
        client.write_all(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("too many connections are open"), "{answer}");
    }
}
