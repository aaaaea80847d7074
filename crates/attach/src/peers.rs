//! Services through which Pods reach the Pods of other Sandboxes.
//!
//! A Sandbox is found by the uid that its Pod names as owner, never by an address. The proxy knows the names; each
//! connection is decided here again.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_api::owner;
use hutch_policy::{
    Closed, Decision, Level, Mode, Peer, PortRange, Subject, decide_peer, may_reach, names_sandboxes,
    open_ports, would_refuse,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::mirror::Mirror;
use crate::objects::Objects;
use crate::service::ServiceFacts;

/// Maximum Services of a Pod.
const SERVICES: usize = 128;

/// Services that are known.
pub type Services = Mirror<ServiceFacts>;

/// Reason why a Pod is not connected to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRefusal {
    /// Its policies do not allow it.
    Denied {
        /// Reason.
        why: String,
        /// Policy that decides it.
        by: Ground,
    },
    /// The other Pod cannot be reached.
    Unreachable(String),
}

/// Policy and rule that decide about a connection, as far as there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ground {
    /// Name of the policy.
    pub policy: Option<String>,
    /// Name of its rule.
    pub rule: Option<String>,
}

impl PeerRefusal {
    /// Returns a refusal by no policy.
    pub fn denied(why: impl Into<String>) -> PeerRefusal {
        PeerRefusal::Denied { why: why.into(), by: Ground::default() }
    }
}

impl From<Closed> for PeerRefusal {
    fn from(closed: Closed) -> PeerRefusal {
        let (policy, rule) = closed.by();
        let by = Ground { policy: policy.map(str::to_owned), rule: rule.map(str::to_owned) };
        PeerRefusal::Denied { why: closed.to_string(), by }
    }
}

/// A Sandbox behind a Service. `P` is the place of its Pod.
pub struct Behind<P> {
    /// Shared: many Services may lead to one Pod, whose labels have any length.
    subject: Arc<Subject>,
    /// Its Pod, if it runs.
    pod: Option<(P, Arc<Pod>)>,
}

/// Sandboxes behind all Services, by namespace and name of the Service.
pub type AllBehind<P> = BTreeMap<(String, String), Vec<Behind<P>>>;

/// A Pod to which a connection leads.
pub struct Chosen<P> {
    /// Place of the Pod.
    pub place: P,
    /// Port of the Pod.
    pub port: u16,
    /// Objection of a level that only observes.
    pub observed: Option<String>,
    /// Policy that allows it.
    pub by: Ground,
}

impl Objects {
    /// Returns the Sandboxes behind a Service, or behind all. `running` are the Pods that can be reached.
    pub fn behind<P: Clone>(
        &self,
        services: &Services,
        only: Option<&(String, String)>,
        running: impl Iterator<Item = (P, Arc<Pod>)>,
    ) -> AllBehind<P> {
        let is_wanted = |namespace: &String| only.is_none_or(|(wanted, _)| wanted == namespace);
        let mut pods: HashMap<String, Vec<Candidate<P>>> = HashMap::new();
        for (place, pod) in running {
            if let (Some(namespace), Some(_)) = (pod.namespace().filter(is_wanted), owner::sandbox(&*pod)) {
                pods.entry(namespace)
                    .or_default()
                    .push(Candidate { at: (place, pod), subject: OnceCell::new() });
            }
        }
        let wanted = services.objects.iter().filter(|(key, _)| only.is_none_or(|only| only == *key));
        let behind = wanted.map(|(key, service)| {
            let candidates = pods.get(&key.0).map(Vec::as_slice).unwrap_or_default();
            let selected = candidates.iter().filter(|candidate| service.leads_to(&candidate.at.1));
            let mut behind: Vec<Behind<P>> = selected
                .filter_map(|Candidate { at, subject }| {
                    let subject = subject.get_or_init(|| self.subject(&at.1).map(Arc::new)).clone()?;
                    Some(Behind { subject, pod: Some(at.clone()) })
                })
                .collect();
            if behind.is_empty() {
                behind.extend(self.asleep(&key.0, service));
            }
            (key.clone(), behind)
        });
        behind.filter(|(_, behind)| !behind.is_empty()).collect()
    }

    /// Returns the Sandbox that controls a Service and has no Pod that runs.
    fn asleep<P>(&self, namespace: &str, service: &ServiceFacts) -> Option<Behind<P>> {
        let owner = service.owner()?;
        let first = (namespace.to_owned(), String::new());
        let own = self.sandboxes.objects.range(first..).take_while(|((found, _), _)| found == namespace);
        let ((_, name), facts) = own.into_iter().find(|(_, facts)| facts.uid == owner)?;
        let subject = Subject {
            namespace: namespace.to_owned(),
            namespace_labels: self.namespace_labels(namespace)?.clone(),
            sandbox: Some(name.clone()),
            labels: facts.labels.clone(),
            ..Subject::default()
        };
        Some(Behind { subject: Arc::new(subject), pod: None })
    }
}

/// A Pod to which Services may lead, and what policies know of it.
struct Candidate<P> {
    at: (P, Arc<Pod>),
    subject: OnceCell<Option<Arc<Subject>>>,
}

/// Services that Pods reach, remembered for those with the same levels: most have.
pub struct Reachable<'a, P> {
    services: &'a Services,
    /// Sandboxes behind all Services.
    pub all: AllBehind<P>,
    /// By the namespace of a Pod, and the places of its levels in memory.
    known: HashMap<(String, Vec<usize>), Vec<Peer>>,
}

impl<'a, P> Reachable<'a, P> {
    /// `all` are the Sandboxes behind these Services.
    pub fn new(services: &'a Services, all: AllBehind<P>) -> Reachable<'a, P> {
        Reachable { services, all, known: HashMap::new() }
    }

    /// Returns the Services through which a Pod of the namespace `from` with these levels reaches Sandboxes.
    pub fn of(&mut self, levels: &[Arc<Level>], from: &str) -> Vec<Peer> {
        if !names_sandboxes(levels) {
            return Vec::new();
        }
        let places = levels.iter().map(|level| Arc::as_ptr(level).addr()).collect();
        let known = self.known.entry((from.to_owned(), places));
        known.or_insert_with(|| peers(self.services, levels, from, &self.all)).clone()
    }
}

fn peers<P>(services: &Services, levels: &[Arc<Level>], from: &str, all: &AllBehind<P>) -> Vec<Peer> {
    let mut peers = Vec::new();
    // Those of its own namespace first: other tenants decide how many there are elsewhere.
    let of = |own: bool| all.iter().filter(move |((namespace, _), _)| (namespace == from) == own);
    // Many Services may lead to one Sandbox.
    let mut opened: HashMap<*const Subject, Vec<PortRange>> = HashMap::new();
    for (key, behind) in of(true).chain(of(false)) {
        let Some(service) = services.objects.get(key) else { continue };
        let ports = behind.iter().flat_map(|Behind { subject, pod }| {
            let pod = pod.as_ref().map(|(_, pod)| &**pod);
            let open =
                opened.entry(Arc::as_ptr(subject)).or_insert_with(|| open_ports(levels, from, subject));
            service.open(open.clone(), pod)
        });
        let ports = merged(ports.collect());
        if ports.is_empty() {
            continue;
        }
        if peers.len() == SERVICES {
            tracing::warn!(
                namespace = from,
                "policies open more than {SERVICES} Services; the others stay closed"
            );
            break;
        }
        peers.push(Peer { service: key.1.clone(), namespace: key.0.clone(), ports });
    }
    peers
}

/// Returns the ranges of these without those that are in others, at most [`Peer::RANGES`].
fn merged(mut ports: Vec<PortRange>) -> Vec<PortRange> {
    ports.sort_unstable_by_key(PortRange::first);
    let mut merged: Vec<PortRange> = Vec::new();
    for range in ports {
        let full = merged.len() == Peer::RANGES;
        match merged.last_mut() {
            Some(last) if range.first() <= last.last().saturating_add(1) => {
                let end = last.last().max(range.last());
                *last = PortRange::new(last.first(), end).unwrap_or(*last);
            }
            _ if !full => merged.push(range),
            _ => break,
        }
    }
    merged
}

/// Decides to which Pod a connection of a Pod with these levels leads.
///
/// # Errors
/// The reason why it leads to none.
pub fn choose<P: Clone>(
    services: &Services,
    levels: &[Arc<Level>],
    from: &str,
    service: &(String, String),
    asked: NonZeroU16,
    all: &AllBehind<P>,
) -> Result<Chosen<P>, PeerRefusal> {
    let nothing = || PeerRefusal::denied("nothing allows it");
    if !names_sandboxes(levels) {
        return Err(nothing());
    }
    let facts = services.objects.get(service).ok_or_else(nothing)?;
    let mut refusal = nothing();
    // One that is open and runs, at random: Services spread connections.
    let mut open = Vec::new();
    for Behind { subject, pod } in all.get(service).into_iter().flatten() {
        let name = subject.sandbox.as_deref().unwrap_or_default();
        let object = pod.as_ref().map(|(_, pod)| &**pod);
        let Some(port) = facts.target(asked.get(), object).and_then(NonZeroU16::new) else {
            refusal = PeerRefusal::denied(format!("Service {:?} has no port {asked}", service.1));
            continue;
        };
        match (may_reach(levels, from, subject, port), pod) {
            (Err(closed), _) => refusal = closed.into(),
            (Ok(()), None) => {
                refusal = PeerRefusal::Unreachable(format!(
                    "sandbox {name:?} has no Pod; it may be suspended: `hutch resume {name}` starts it again"
                ));
            }
            (Ok(()), Some((place, _))) => {
                let observed = would_refuse(levels, from, subject, port).map(|closed| closed.to_string());
                let by = ground(levels, from, subject, port);
                open.push(Chosen { place: place.clone(), port: port.get(), observed, by });
            }
        }
    }
    match open.len() {
        0 => Err(refusal),
        number => Ok(open.swap_remove(pick(number))),
    }
}

/// Returns the first policy that allows a port, of those that decide, and its rule.
fn ground(levels: &[Arc<Level>], from: &str, to: &Subject, port: NonZeroU16) -> Ground {
    let (_, opinions) = decide_peer(levels, from, to, port);
    let mut enforced = opinions.iter().filter(|opinion| opinion.level.mode == Mode::Enforce);
    let allowing = enforced.find(|opinion| opinion.decision == Decision::Allow);
    let policy = allowing.map(|opinion| opinion.level.name.clone());
    Ground { policy, rule: allowing.and_then(|opinion| opinion.rule).map(str::to_owned) }
}

/// Returns true if a connection of a Pod with these levels through a Service may lead to a port of a Pod of which `to` is true.
pub(crate) fn leads_to<P>(
    levels: &[Arc<Level>],
    from: &str,
    (service, port): (&(String, String), u16),
    all: &AllBehind<P>,
    to: impl Fn(&P) -> bool,
) -> bool {
    let Some(port) = NonZeroU16::new(port).filter(|_| names_sandboxes(levels)) else { return false };
    let mut behind = all.get(service).into_iter().flatten();
    let found = behind.find(|behind| behind.pod.as_ref().is_some_and(|(place, _)| to(place)));
    found.is_some_and(|Behind { subject, .. }| may_reach(levels, from, subject, port).is_ok())
}

/// Returns a number below another one, a different one with each call.
fn pick(below: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    CALLS.fetch_add(1, Ordering::Relaxed) % below
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by review: the ports of other tenants' Services made the list of peers too long, and then none were left.
    #[test]
    fn ranges_that_touch_are_one_and_the_first_count() {
        let range = |first, last| PortRange::new(first, last).unwrap();
        let merged_of =
            |ports: &[(u16, u16)]| merged(ports.iter().map(|(first, last)| range(*first, *last)).collect());
        assert_eq!(
            merged_of(&[(82, 82), (80, 80), (81, 81), (90, 95), (92, 93)]),
            [range(80, 82), range(90, 95)]
        );
        assert_eq!(merged_of(&[(1, u16::MAX), (5, 6)]), [range(1, u16::MAX)]);
        let apart: Vec<_> = (1..=100).map(|number| (number * 2, number * 2)).collect();
        assert_eq!(merged_of(&apart).len(), Peer::RANGES);
        assert_eq!(merged_of(&apart)[0], range(2, 2));
    }
}
