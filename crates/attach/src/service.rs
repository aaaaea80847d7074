//! Services, as far as they lead to Pods.

use std::collections::{BTreeMap, HashMap};

use hutch_api::owner;
use hutch_policy::PortRange;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

type Labels = BTreeMap<String, String>;

/// Maximum ports of a Service, and of a Pod as far as a Service names them. Further ones lead nowhere.
const PORTS: usize = 512;

/// A Service, as far as it leads to Pods.
#[derive(Debug, Default, PartialEq)]
pub struct ServiceFacts {
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
    pub fn of(service: Service) -> ServiceFacts {
        let owner = owner::sandbox(&service).map(|owner| owner.uid.clone());
        let spec = service.spec.unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            return ServiceFacts::default();
        }
        let headless = spec.cluster_ip.as_deref() == Some("None");
        let ports = (!headless).then(|| spec.ports.iter().flatten().take(PORTS).filter_map(port).collect());
        ServiceFacts { owner, selector: spec.selector.unwrap_or_default(), ports }
    }

    /// Returns the uid of the Sandbox that controls it.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns true if it leads to a Pod of its namespace.
    pub fn leads_to(&self, pod: &Pod) -> bool {
        let owner = owner::sandbox(pod).map(|owner| owner.uid.as_str());
        self.selects(pod.labels()) || (owner.is_some() && owner == self.owner())
    }

    fn selects(&self, labels: &Labels) -> bool {
        !self.selector.is_empty() && self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Returns the port of a Pod to which a port of the Service leads.
    pub fn target(&self, asked: u16, pod: Option<&Pod>) -> Option<u16> {
        let Some(ports) = &self.ports else { return Some(asked) };
        let (_, target) = ports.iter().find(|(port, _)| *port == asked)?;
        target.number(&named_ports(pod))
    }

    /// Returns the ports of the Service that lead to open ports of a Pod.
    pub fn open(&self, open: Vec<PortRange>, pod: Option<&Pod>) -> Vec<PortRange> {
        let Some(ports) = self.ports.as_ref().filter(|_| !open.is_empty()) else { return open };
        let named = named_ports(pod);
        let is_open = |target: &Target| {
            target.number(&named).is_some_and(|port| open.iter().any(|range| range.contains(port)))
        };
        let ports = ports.iter().filter(|(_, target)| is_open(target));
        ports.filter_map(|(port, _)| PortRange::new(*port, *port)).collect()
    }
}

/// Ports of a Pod by their names.
type Named<'a> = HashMap<&'a str, i32>;

/// Returns the ports of a Pod that have names. Of several with one name, the first counts.
fn named_ports(pod: Option<&Pod>) -> Named<'_> {
    let containers = pod.and_then(|pod| pod.spec.as_ref()).into_iter().flat_map(|spec| &spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).take(PORTS);
    let mut named = Named::new();
    for port in ports {
        if let Some(name) = &port.name {
            named.entry(name).or_insert(port.container_port);
        }
    }
    named
}

impl Target {
    fn number(&self, named: &Named<'_>) -> Option<u16> {
        match self {
            Target::Number(number) => Some(*number),
            Target::Name(name) => u16::try_from(*named.get(name.as_str())?).ok(),
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

    /// Found by review: thousands of names of one Service and one Pod held up the decisions about all others.
    #[test]
    fn so_many_ports_of_a_service_and_of_a_pod_count() {
        let many = 0..2 * PORTS;
        let ports: Vec<_> = many
            .clone()
            .map(|number| serde_json::json!({"port": number + 1, "targetPort": format!("p{number}")}))
            .collect();
        let service = service(&serde_json::json!({"clusterIP": "10.96.0.10", "ports": ports}));
        let ports: Vec<_> = many
            .map(|number| serde_json::json!({"name": format!("p{number}"), "containerPort": 9000}))
            .collect();
        let pod = serde_json::json!({"spec": {"containers": [{"name": "c", "ports": ports}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(service.open(vec![range(9000, 9000)], Some(&pod)).len(), PORTS);
        assert_eq!(service.open(Vec::new(), Some(&pod)), []);
    }
}
