//! Services through which Pods reach the Pods of other Sandboxes.
//!
//! A Sandbox is found by the uid that its Pod names as owner, never by an address. The proxy knows the names; each
//! connection is decided here again.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_api::owner;
use hutch_policy::{Level, Peer, PortRange, Subject, may_reach, names_sandboxes, open_ports, would_refuse};
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::known::{Known, Labels};
use crate::config::PeerRefusal;
use crate::live::Live;

/// Maximum Services of a Pod.
const SERVICES: usize = 128;

/// A Service, as far as it leads to Pods.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServiceFacts {
    /// Uid of the Sandbox that controls it.
    owner: Option<String>,
    selector: Labels,
    /// The ports of the Service; `None` where clients connect to those of the Pod.
    ports: Option<Vec<(u16, Target)>>,
}

/// Port of a Pod to which a port of a Service leads.
#[derive(Debug, PartialEq)]
enum Target {
    Number(u16),
    Name(String),
}

impl ServiceFacts {
    /// Reads a Service. One that leads elsewhere leads nowhere here.
    pub(super) fn of(service: Service) -> ServiceFacts {
        let owner = owner::sandbox(&service).map(|owner| owner.uid.clone());
        let spec = service.spec.unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            return ServiceFacts::default();
        }
        let headless = spec.cluster_ip.as_deref() == Some("None");
        let ports = (!headless).then(|| spec.ports.iter().flatten().filter_map(port).collect());
        ServiceFacts { owner, selector: spec.selector.unwrap_or_default(), ports }
    }

    fn selects(&self, labels: &Labels) -> bool {
        !self.selector.is_empty() && self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Returns the port of a Pod to which a port of the Service leads.
    fn target(&self, asked: u16, pod: Option<&Pod>) -> Option<u16> {
        let Some(ports) = &self.ports else { return Some(asked) };
        let (_, target) = ports.iter().find(|(port, _)| *port == asked)?;
        target.number(pod)
    }

    /// Returns the ports of the Service that lead to open ports of a Pod.
    fn open(&self, open: Vec<PortRange>, pod: Option<&Pod>) -> Vec<PortRange> {
        let Some(ports) = &self.ports else { return open };
        let is_open = |target: &Target| {
            target.number(pod).is_some_and(|port| open.iter().any(|range| range.contains(port)))
        };
        let ports = ports.iter().filter(|(_, target)| is_open(target));
        ports.filter_map(|(port, _)| PortRange::new(*port, *port)).collect()
    }
}

impl Target {
    fn number(&self, pod: Option<&Pod>) -> Option<u16> {
        match self {
            Target::Number(number) => Some(*number),
            Target::Name(name) => {
                let containers = pod?.spec.as_ref()?.containers.iter();
                let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
                let port = ports.find(|port| port.name.as_ref() == Some(name))?;
                u16::try_from(port.container_port).ok()
            }
        }
    }
}

fn port(port: &ServicePort) -> Option<(u16, Target)> {
    if port.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
        return None;
    }
    let number = u16::try_from(port.port).ok()?;
    let target = match &port.target_port {
        Some(IntOrString::String(name)) => Target::Name(name.clone()),
        Some(IntOrString::Int(target)) => Target::Number(u16::try_from(*target).ok()?),
        None => Target::Number(number),
    };
    Some((number, target))
}

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
            let selected = candidates.iter().filter(|(_, pod)| {
                let owner = owner::sandbox(&**pod).map(|owner| &owner.uid);
                service.selects(pod.labels()) || (owner.is_some() && owner == service.owner.as_ref())
            });
            let mut behind: Vec<Behind> = selected
                .filter_map(|(live, pod)| {
                    Some(Behind { subject: self.subject(pod)?, live: Some(Arc::clone(live)) })
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
        let owner = service.owner.as_ref()?;
        let first = (namespace.to_owned(), String::new());
        let own = self.sandboxes.objects.range(first..).take_while(|((found, _), _)| found == namespace);
        let ((_, name), facts) = own.into_iter().find(|(_, facts)| facts.uid == *owner)?;
        let subject = Subject {
            namespace: namespace.to_owned(),
            namespace_labels: self.namespace_labels(namespace)?.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: &serde_json::Value) -> ServiceFacts {
        let object = serde_json::json!({ "metadata": {"name": "db"}, "spec": spec });
        ServiceFacts::of(serde_json::from_value(object).unwrap())
    }

    fn range(first: u16, last: u16) -> PortRange {
        PortRange::new(first, last).unwrap()
    }

    #[test]
    fn headless_service_has_the_ports_of_the_pod() {
        let headless = service(&serde_json::json!({"clusterIP": "None", "selector": {"a": "b"}}));
        assert_eq!(headless.target(5432, None), Some(5432));
        assert_eq!(headless.open(vec![range(1, 9)], None), [range(1, 9)]);
        assert!(headless.selects(&[("a".to_owned(), "b".to_owned())].into()));
        assert!(!headless.selects(&Labels::new()));
    }

    #[test]
    fn service_with_an_address_leads_to_its_target_ports() {
        let ports = serde_json::json!([
            {"port": 80, "targetPort": 8080}, {"port": 81, "targetPort": "web"}, {"port": 82},
            {"port": 53, "protocol": "UDP"},
        ]);
        let mapped = service(&serde_json::json!({"clusterIP": "10.96.0.10", "ports": ports}));
        let pod = serde_json::json!({"spec": {"containers": [
            {"name": "c", "ports": [{"name": "web", "containerPort": 9000}]},
        ]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let target = |port| mapped.target(port, Some(&pod));
        assert_eq!([80, 81, 82, 53, 8080].map(target), [Some(8080), Some(9000), Some(82), None, None]);
        assert_eq!(mapped.open(vec![range(9000, 9000)], Some(&pod)), [range(81, 81)]);
        assert_eq!(mapped.target(81, None), None);
        assert!(!mapped.selects(&[("a".to_owned(), "b".to_owned())].into()), "no selector selects nothing");
    }
}
