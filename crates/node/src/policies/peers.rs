//! Services through which Pods reach the Pods of other Sandboxes.
//!
//! A Sandbox is found by the uid that its Pod names as owner, never by an address. The proxy knows the names; each
//! connection is decided here again.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_api::owner;
use hutch_policy::{Level, Peer, PortRange, Subject, may_reach, names_sandboxes, open_ports, would_refuse};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::known::Known;
use super::service::ServiceFacts;
use crate::config::PeerRefusal;
use crate::live::Live;

/// Maximum Services of a Pod.
const SERVICES: usize = 128;

/// A Sandbox behind a Service.
pub(super) struct Behind {
    subject: Subject,
    /// Its Pod, if it runs here.
    live: Option<Arc<Live>>,
}

/// A Pod of a Sandbox that runs here.
type Candidate<'a> = (&'a Arc<Live>, Arc<Pod>);

/// Sandboxes behind all Services, by namespace and name of the Service.
pub(super) type AllBehind = BTreeMap<(String, String), Vec<Behind>>;

impl Known {
    /// Returns the Sandboxes behind all Services. `served` are the Pods that run here.
    pub(super) fn behind<'a>(&self, served: impl Iterator<Item = &'a Arc<Live>>) -> AllBehind {
        let mut pods: HashMap<String, Vec<Candidate<'_>>> = HashMap::new();
        for live in served {
            let pod = live.pod();
            if let (Some(namespace), Some(_)) = (pod.namespace(), owner::sandbox(&*pod)) {
                pods.entry(namespace).or_default().push((live, pod));
            }
        }
        let services = self.services.objects.iter();
        let behind = services.map(|(key, service)| {
            let candidates = pods.get(&key.0).map(Vec::as_slice).unwrap_or_default();
            let selected = candidates.iter().filter(|(_, pod)| service.leads_to(pod));
            let mut behind: Vec<Behind> = selected
                .filter_map(|(live, pod)| {
                    Some(Behind { subject: self.objects.subject(pod)?, live: Some(Arc::clone(live)) })
                })
                .collect();
            if behind.is_empty() {
                behind.extend(self.asleep(&key.0, service));
            }
            (key.clone(), behind)
        });
        behind.filter(|(_, behind)| !behind.is_empty()).collect()
    }

    /// Returns the Sandbox that controls a Service and has no Pod here.
    fn asleep(&self, namespace: &str, service: &ServiceFacts) -> Option<Behind> {
        let owner = service.owner()?;
        let first = (namespace.to_owned(), String::new());
        let own =
            self.objects.sandboxes.objects.range(first..).take_while(|((found, _), _)| found == namespace);
        let ((_, name), facts) = own.into_iter().find(|(_, facts)| facts.uid == owner)?;
        let subject = Subject {
            namespace: namespace.to_owned(),
            namespace_labels: self.objects.namespace_labels(namespace)?.clone(),
            sandbox: Some(name.clone()),
            labels: facts.labels.clone(),
            ..Subject::default()
        };
        Some(Behind { subject, live: None })
    }

    /// Returns the Services through which a Pod of the namespace `from` with these levels reaches Sandboxes.
    pub(super) fn peers(&self, levels: &[Arc<Level>], from: &str, all: &AllBehind) -> Vec<Peer> {
        let mut peers = Vec::new();
        for (key, behind) in all {
            let Some(service) = self.services.objects.get(key) else { continue };
            let mut ports: Vec<PortRange> = behind
                .iter()
                .flat_map(|Behind { subject, live }| {
                    let pod = live.as_ref().map(|live| live.pod());
                    service.open(open_ports(levels, from, subject), pod.as_deref())
                })
                .collect();
            ports.sort_unstable();
            ports.dedup();
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

    /// Decides to which Pod a connection of a Pod with these levels leads, and to which of its ports. The second value says
    /// what a level that only observes has against it.
    pub(super) fn choose(
        &self,
        levels: &[Arc<Level>],
        from: &str,
        service: (String, String),
        asked: NonZeroU16,
        all: &AllBehind,
    ) -> Result<(Arc<Live>, u16, Option<String>), PeerRefusal> {
        let nothing = || PeerRefusal::Denied("nothing allows it".to_owned());
        if !names_sandboxes(levels) {
            return Err(nothing());
        }
        let facts = self.services.objects.get(&service).ok_or_else(nothing)?;
        let mut refusal = nothing();
        // One that is open and runs, at random: Services spread connections.
        let mut open = Vec::new();
        for Behind { subject, live } in all.get(&service).into_iter().flatten() {
            let name = subject.sandbox.as_deref().unwrap_or_default();
            let pod = live.as_ref().map(|live| live.pod());
            let Some(port) = facts.target(asked.get(), pod.as_deref()).and_then(NonZeroU16::new) else {
                refusal = PeerRefusal::Denied(format!("Service {:?} has no port {asked}", service.1));
                continue;
            };
            match (may_reach(levels, from, subject, port), live) {
                (Err(closed), _) => refusal = PeerRefusal::Denied(closed.to_string()),
                (Ok(()), None) => {
                    refusal = PeerRefusal::Unreachable(format!(
                        "sandbox {name:?} has no Pod; it may be suspended: `hutch resume {name}` starts it again"
                    ));
                }
                (Ok(()), Some(live)) => {
                    let observed = would_refuse(levels, from, subject, port);
                    open.push((live.clone(), port.get(), observed.map(|closed| closed.to_string())));
                }
            }
        }
        match open.len() {
            0 => Err(refusal),
            number => Ok(open.swap_remove(pick(number))),
        }
    }
}

/// Returns a number below another one, a different one with each call.
fn pick(below: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    CALLS.fetch_add(1, Ordering::Relaxed) % below
}
