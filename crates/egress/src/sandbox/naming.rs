//! Names of a sandbox: those that its programs resolve, and those that they name to the proxy themselves.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use hutch_policy::{Destination, Host, HostName, Mode, Opinion, decide, may_resolve, wildcard};

use super::{HTTPS, Rules, Sandbox};
use crate::dns;
use crate::names::Allowed;
use crate::refusal::{Denial, Reason, Refusal};

/// Answer to a DNS message.
pub(crate) struct Answered {
    pub(crate) bytes: Vec<u8>,
    /// Name whose record the answer waits for.
    pub(crate) unwritten: Option<HostName>,
}

impl Sandbox {
    /// Reports a name that has no address because nothing allows it, and what levels that only observe have against it. It is
    /// not counted: programs try many names.
    fn no_address(&self, rules: &Rules, name: HostName) {
        let allows = |opinion: &Opinion<'_>| {
            opinion.level.egress.as_ref().is_some_and(|egress| egress.allows_name(&name))
        };
        let destination = Destination { port: HTTPS, host: Host::Name(name.clone()) };
        let mut verdict = decide(&rules.levels, &destination, &self.moment(&rules.facts));
        let report = |reason| (self.report)(Refusal { destination: name.to_string(), reason });
        report(Reason::Name(Denial::first(&verdict.opinions, Mode::Enforce).unwrap_or_default()));
        // Another port may be allowed, about which only a connection can tell.
        verdict.opinions.retain(|opinion| !allows(opinion));
        Denial::first(&verdict.opinions, Mode::Observe)
            .map(Reason::ObservedName)
            .into_iter()
            .for_each(report);
    }

    /// Returns a destination of a sandbox's client by its name, if the client has resolved it and names its synthetic address.
    pub(crate) fn by_name(&self, destination: Destination) -> Destination {
        let Host::Address(IpAddr::V4(address)) = destination.host else { return destination };
        match self.name_of(address).filter(|_| self.resolves.load(Ordering::Relaxed)) {
            Some(name) => Destination { host: Host::Name(name), ..destination },
            None => destination,
        }
    }

    /// Counts the name of a destination that a client has named itself, as if it had been resolved.
    ///
    /// # Errors
    /// There are too many names, or the scanner finds something in this one.
    pub(crate) fn take_name(&self, destination: &Destination) -> Result<(), Refusal> {
        let Host::Name(name) = &destination.host else { return Ok(()) };
        let rules = self.rules();
        let is_counted = self.is_bounded.load(Ordering::Relaxed)
            && !self.peers.contains(name)
            // What is not allowed is refused, and not resolved.
            && may_resolve(&rules.levels, name);
        if !is_counted {
            return Ok(());
        }
        let refusal = |reason| Refusal { destination: destination.to_string(), reason };
        self.scan_host(&rules, destination).map_err(refusal)?;
        let allowed = wildcard(&rules.levels, name).map_or(Allowed::Exactly, Allowed::By);
        let mut names = self.names();
        let before = names.count();
        let address = names.address_of(name, &allowed);
        for name in names.since(before) {
            (self.named)(name);
            self.records.named_by_client(name);
        }
        match (address, names.take_exhausted()) {
            (Some(_), _) => Ok(()),
            (None, Some((_, exhausted))) => Err(refusal(Reason::Exhausted(exhausted.to_string()))),
            // The first of an hour was reported as such.
            (None, None) => Err(refusal(Reason::Forbidden("there are too many names".to_owned()))),
        }
    }

    /// Returns the answer to a DNS message.
    pub(crate) fn answer(&self, message: &[u8]) -> Option<Answered> {
        let rules = self.rules();
        let mut names = self.names();
        let before = names.count();
        let (refused, allowed) = (RefCell::new(None), RefCell::new(None));
        let exists = |name: &HostName| {
            *allowed.borrow_mut() = Some(name.clone());
            if self.peers.contains(name) {
                return Some(Allowed::Exactly);
            }
            let found = match may_resolve(&rules.levels, name) {
                false => None,
                true => {
                    let destination = Destination { port: HTTPS, host: Host::Name(name.clone()) };
                    match self.scan_host(&rules, &destination) {
                        Ok(()) => {
                            return Some(wildcard(&rules.levels, name).map_or(Allowed::Exactly, Allowed::By));
                        }
                        Err(reason) => Some(reason),
                    }
                }
            };
            *refused.borrow_mut() = Some((name.clone(), found));
            None
        };
        let answer = dns::answer(message, &mut names, exists);
        if let Some((name, found)) = refused.into_inner() {
            match found {
                None => self.no_address(&rules, name),
                Some(reason) => self.refused(Refusal { destination: name.to_string(), reason }),
            }
        }
        if let Some((name, exhausted)) = names.take_exhausted() {
            let reason = Reason::Exhausted(exhausted.to_string());
            self.refused(Refusal { destination: name.to_string(), reason });
        }
        // With the lock, so that names are reported in the order of their addresses.
        for name in names.since(before) {
            (self.named)(name);
            self.records.named(name);
        }
        let bytes = answer?;
        let named = allowed.into_inner().filter(|_| dns::has_data(&bytes));
        Some(Answered { unwritten: named.filter(|name| self.records.is_unwritten(name)), bytes })
    }

    /// Returns an answer once the record is written for which it waits, or a failure if that cannot be written.
    pub(crate) async fn recorded(&self, answer: Answered, query: &[u8]) -> Option<Vec<u8>> {
        let Some(name) = answer.unwritten else { return Some(answer.bytes) };
        match self.records.resolved(&name).await {
            Ok(()) => Some(answer.bytes),
            Err(reason) => {
                self.refused(Refusal { destination: name.to_string(), reason });
                dns::failure(query)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hutch_policy::{Authority, Level};

    use super::*;
    use crate::names::HOURLY;

    fn sandbox() -> Arc<Sandbox> {
        let rule = serde_json::json!({ "rules": [{"name": "all", "hosts": ["**.a.example", "b.example"]}] });
        let level = Level::new(Authority::Invocation, "test", Some(serde_json::from_value(rule).unwrap()));
        Sandbox::new([Arc::new(level)].into(), Arc::default(), Box::new(|_| ()), Box::new(|_| ()))
    }

    fn take(sandbox: &Sandbox, name: &str) -> Result<(), Reason> {
        sandbox.take_name(&format!("{name}:443").parse().unwrap()).map_err(|refusal| refusal.reason)
    }

    #[test]
    fn names_that_clients_name_count_as_those_that_they_resolve() {
        let sandbox = sandbox();
        sandbox.bound_clients();
        sandbox.answer_names();
        for number in 0..HOURLY {
            assert_eq!(take(&sandbox, &format!("n{number}.a.example")), Ok(()));
        }
        let first = take(&sandbox, "more.a.example").unwrap_err();
        assert!(matches!(first, Reason::Exhausted(_)), "{first:?}");
        assert!(matches!(take(&sandbox, "again.a.example").unwrap_err(), Reason::Forbidden(_)));
        // Known names, names that a rule has, and those that are refused anyway.
        for name in ["n0.a.example", "b.example", "c.example"] {
            assert_eq!(take(&sandbox, name), Ok(()), "{name}");
        }
        assert_eq!(sandbox.names().count(), HOURLY + 1);
    }

    fn query(name: &str, kind: hickory_proto::rr::RecordType) -> Vec<u8> {
        let mut message = hickory_proto::op::Message::query();
        message.add_query(hickory_proto::op::Query::query(name.parse().unwrap(), kind));
        message.to_vec().unwrap()
    }

    #[tokio::test]
    async fn answers_wait_for_the_record_of_their_name_until_it_is_written() {
        use hickory_proto::rr::RecordType::{A, AAAA};
        let (sandbox, written) = (sandbox(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let (weak, is_written) = (Arc::downgrade(&sandbox), written.clone());
        let sink = move |entry: crate::records::Entry<'_>, number: Option<u64>| {
            let (crate::records::Entry::Named(_), Some(number)) = (entry, number) else { return };
            weak.upgrade().unwrap().records.answer(number, is_written.load(Ordering::Relaxed));
        };
        sandbox.records.set(Box::new(sink), true);
        let asked = query("b.example.", A);
        let answer = |message: &[u8]| sandbox.answer(message).unwrap();
        assert_eq!(answer(&query("b.example.", AAAA)).unwritten, None, "it has no address");
        for is_written in [false, false, true] {
            written.store(is_written, Ordering::Relaxed);
            let answered = answer(&asked);
            assert!(answered.unwritten.is_some());
            let bytes = answered.bytes.clone();
            let sent = sandbox.recorded(answered, &asked).await.unwrap();
            assert_eq!((sent == bytes, sent[3] & 0xf), if is_written { (true, 0) } else { (false, 2) });
            assert_eq!(dns::has_data(&sent), is_written);
        }
        assert_eq!(answer(&asked).unwritten, None, "it has a record");
        // A connection by a name has a record of its own, which answers to queries do not have.
        sandbox.bound_clients();
        take(&sandbox, "n.a.example").unwrap();
        assert!(answer(&query("n.a.example.", A)).unwritten.is_some());
    }

    #[test]
    fn queries_for_too_many_names_are_one_alarm_an_hour() {
        use crate::record::{Alarm, Record};
        let rule = serde_json::json!({ "rules": [{"name": "all", "hosts": ["**.a.example"]}] });
        let level = Level::new(Authority::Invocation, "test", Some(serde_json::from_value(rule).unwrap()));
        let (sender, refusals) = std::sync::mpsc::channel();
        let report = Box::new(move |refusal| sender.send(refusal).unwrap());
        let sandbox = Sandbox::new([Arc::new(level)].into(), Arc::default(), report, Box::new(|_| ()));
        let answered = |number: usize| {
            let name = format!("n{number}.a.example.");
            let query =
                hickory_proto::op::Query::query(name.parse().unwrap(), hickory_proto::rr::RecordType::A);
            let mut message = hickory_proto::op::Message::query();
            message.add_query(query);
            // The code of the answer.
            sandbox.answer(&message.to_vec().unwrap()).unwrap().bytes[3] & 0xf
        };
        for number in 0..HOURLY {
            assert_eq!(answered(number), 0, "{number}");
        }
        assert!(refusals.try_recv().is_err());
        for number in HOURLY..HOURLY + 3 {
            assert_eq!(answered(number), 2, "SERVFAIL");
        }
        let refusal = refusals.try_recv().unwrap();
        assert_eq!(refusal.destination, format!("n{HOURLY}.a.example"));
        let record = Record::refused(&refusal.destination, None, &refusal.reason);
        assert!(matches!(record.alarm, Some(Alarm::TooManyNames)), "{refusal:?}");
        assert!(refusals.try_recv().is_err(), "the first one alone");
    }

    #[test]
    fn synthetic_address_stands_for_its_name_inside_of_a_sandbox() {
        let sandbox = sandbox();
        sandbox.add_names(&["b.example".parse().unwrap()]);
        let by_name = |text: &str| sandbox.by_name(text.parse().unwrap()).to_string();
        assert_eq!(by_name("198.18.1.0:443"), "198.18.1.0:443", "a client outside has not got it from here");
        sandbox.bound_clients();
        sandbox.answer_names();
        for (named, expected) in [
            ("198.18.1.0:443", "b.example:443"),
            ("198.18.1.1:443", "198.18.1.1:443"),
            ("192.0.2.1:22", "192.0.2.1:22"),
            ("a.example:80", "a.example:80"),
        ] {
            assert_eq!(by_name(named), expected);
        }
    }

    #[test]
    fn names_of_clients_outside_of_sandboxes_are_not_counted() {
        let sandbox = sandbox();
        for number in 0..=HOURLY {
            assert_eq!(take(&sandbox, &format!("n{number}.a.example")), Ok(()));
        }
        assert_eq!(sandbox.names().count(), 0);
    }
}
