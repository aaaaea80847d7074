//! EndpointSlices and Endpoints of Services: where their Pods are.

use std::collections::BTreeMap;
use std::sync::Arc;

use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as CorePort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
    ServicePort,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::core::Selector;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

use crate::Error;
use crate::members::Members;
use crate::reader::Reader;
use crate::workload::{drive, owned_by, pod};

const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const MANAGER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
/// Endpoints of one Service at most: what the API allows in one slice. Further Pods are left out.
const MAX_ENDPOINTS: usize = 1000;
/// Reconciles Services until dropped.
pub(crate) async fn run(reader: Arc<Reader>) -> Result<(), Error> {
    let client = || reader.client().clone();
    let services: Api<Read<Service>> = Api::all(client());
    let pods: Api<Read<Pod>> = Api::all(client());
    let slices: Api<Read<EndpointSlice>> = Api::all(client());
    let managed = watcher::Config::default().labels(&format!("{MANAGER_LABEL}={MANAGER}"));
    let controller = Controller::new(services);
    let members = Members::new(controller.objects(), selects);
    let controller = controller
        .owns(slices, managed)
        .watches(pods, watcher::Config::default(), move |pod| members.of(pod));
    drive(controller, reconcile, reader).await
}

fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    spec.selector.as_ref().filter(|selector| !selector.is_empty())
}

fn selects(service: &Service, pod: &impl ResourceExt) -> bool {
    let labels = pod.labels();
    service.namespace() == pod.namespace()
        && selector(service)
            .is_some_and(|all| all.iter().all(|(name, value)| labels.get(name) == Some(value)))
}

async fn reconcile(Key { namespace, name }: Key, reader: Arc<Reader>) -> Result<Outcome, Error> {
    let what = format!("Service {namespace}/{name}");
    let client = reader.client();
    let services: Api<Read<Service>> = Api::namespaced(client.clone(), &namespace);
    let Some(service) = reader.get(&services, &name, &what).await? else {
        return Ok(Outcome::Settled);
    };
    let Some(labels) = selector(&service).filter(|_| service.metadata.deletion_timestamp.is_none()) else {
        // Without a selector the EndpointSlices are written by another client.
        return Ok(Outcome::Settled);
    };
    let pods: Api<Read<Pod>> = Api::namespaced(client.clone(), &namespace);
    let selector: Selector = labels.clone().into_iter().collect();
    let selected = ListParams::default().labels_from(&selector);
    // One that cannot be read has no address either.
    let mut pods = reader.list(&pods, &selected, &format!("Pods of {what}")).await?;
    pods.sort_by_key(ResourceExt::name_any);
    write_slice(client, slice(&service, &pods)?, &what).await?;
    write_endpoints(client, endpoints(&service, &pods), &what).await?;
    Ok(Outcome::Settled)
}

async fn write_slice(client: &Client, wanted: EndpointSlice, what: &str) -> Result<(), Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &wanted.namespace().unwrap_or_default());
    let write = || Error::write(format!("EndpointSlice of {what}"));
    let found =
        api.get_opt(&wanted.name_any()).await.map_err(Error::read(format!("EndpointSlice of {what}")))?;
    match found {
        None => api.create(&PostParams::default(), &wanted).await.map_err(write()).map(drop),
        Some(found) if same_slice(&found, &wanted) => Ok(()),
        Some(found) => {
            let next = EndpointSlice { metadata: merged(found.metadata, &wanted.metadata), ..wanted };
            api.replace(&next.name_any(), &PostParams::default(), &next).await.map_err(write()).map(drop)
        }
    }
}

fn same_slice(found: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let labels = wanted.labels().iter().all(|(name, value)| found.labels().get(name) == Some(value));
    // An empty list may come back as none.
    let endpoints = found.endpoints.iter().flatten().eq(wanted.endpoints.iter().flatten());
    labels && endpoints && found.ports.iter().flatten().eq(wanted.ports.iter().flatten())
}

async fn write_endpoints(client: &Client, wanted: Endpoints, what: &str) -> Result<(), Error> {
    let api: Api<Endpoints> = Api::namespaced(client.clone(), &wanted.namespace().unwrap_or_default());
    let write = || Error::write(format!("Endpoints of {what}"));
    let found = api.get_opt(&wanted.name_any()).await.map_err(Error::read(format!("Endpoints of {what}")))?;
    match found {
        None => api.create(&PostParams::default(), &wanted).await.map_err(write()).map(drop),
        Some(found)
            if found.subsets.as_deref().unwrap_or_default()
                == wanted.subsets.as_deref().unwrap_or_default() =>
        {
            Ok(())
        }
        Some(found) => {
            let next = Endpoints { metadata: merged(found.metadata, &wanted.metadata), ..wanted };
            api.replace(&next.name_any(), &PostParams::default(), &next).await.map_err(write()).map(drop)
        }
    }
}

/// Returns the found metadata with our labels; its resourceVersion makes the write fail after a change in between.
fn merged(mut found: ObjectMeta, wanted: &ObjectMeta) -> ObjectMeta {
    found.labels.get_or_insert_default().extend(wanted.labels.clone().unwrap_or_default());
    found.managed_fields = None;
    found
}

/// Pods that have an address and have not ended.
fn placed(pods: &[Pod]) -> impl Iterator<Item = (&Pod, &str)> {
    let placed = pods.iter().filter(|pod| !pod::has_ended(pod)).filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.as_deref().filter(|address| !address.is_empty())?;
        Some((pod, address))
    });
    placed.take(MAX_ENDPOINTS)
}

fn publishes_unready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.namespace(),
        name: Some(pod.name_any()),
        uid: pod.uid(),
        ..ObjectReference::default()
    }
}

/// The Pod's host name, when it is known under the Service.
fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    spec.hostname.clone().filter(|_| spec.subdomain.as_ref() == service.metadata.name.as_ref())
}

fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

/// A port of the Service as a number in the Pod. Names are looked up in the first Pod that has them.
fn target(port: &ServicePort, pods: &[Pod]) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(if *number == 0 { port.port } else { *number }),
        Some(IntOrString::String(name)) => name,
    };
    let containers = pods.iter().filter_map(|pod| pod.spec.as_ref()).flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
}

fn ports<'a>(service: &'a Service, pods: &'a [Pod]) -> impl Iterator<Item = (&'a ServicePort, i32)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.filter_map(|port| Some((port, target(port, pods)?)))
}

fn slice(service: &Service, pods: &[Pod]) -> Result<EndpointSlice, Error> {
    let endpoint = |(pod, address): (&Pod, &str)| {
        let (serving, terminating) = (pod::is_ready(pod), pod::is_deleting(pod));
        Endpoint {
            addresses: vec![address.to_owned()],
            conditions: Some(EndpointConditions {
                ready: Some(serving && !terminating || publishes_unready(service)),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            hostname: hostname(service, pod),
            node_name: node(pod),
            target_ref: Some(reference(pod)),
            ..Endpoint::default()
        }
    };
    let port = |(port, number): (&ServicePort, i32)| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(number),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    };
    let mut labels = service.labels().clone();
    labels.insert(SERVICE_LABEL.into(), service.name_any());
    labels.insert(MANAGER_LABEL.into(), MANAGER.into());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert("service.kubernetes.io/headless".into(), String::new());
    }
    let first = placed(pods).next().map(|(_, address)| address);
    Ok(EndpointSlice {
        metadata: ObjectMeta {
            // One slice for each Service: it can have a fixed name.
            name: Some(format!("{}-pods", service.name_any())),
            namespace: service.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![owned_by(service)?]),
            ..ObjectMeta::default()
        },
        address_type: if first.is_some_and(|address| address.contains(':')) { "IPv6" } else { "IPv4" }.into(),
        endpoints: Some(placed(pods).map(endpoint).collect()),
        ports: Some(ports(service, pods).map(port).collect()),
    })
}

fn endpoints(service: &Service, pods: &[Pod]) -> Endpoints {
    let address = |(pod, address): (&Pod, &str)| EndpointAddress {
        ip: address.to_owned(),
        hostname: hostname(service, pod),
        node_name: node(pod),
        target_ref: Some(reference(pod)),
    };
    let port = |(port, number): (&ServicePort, i32)| CorePort {
        name: port.name.clone(),
        port: number,
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    };
    let (ready, unready): (Vec<_>, Vec<_>) = placed(pods)
        .filter(|(pod, _)| !pod::is_deleting(pod))
        .partition(|(pod, _)| pod::is_ready(pod) || publishes_unready(service));
    let some = |addresses: Vec<(&Pod, &str)>| {
        (!addresses.is_empty()).then(|| addresses.into_iter().map(address).collect::<Vec<_>>())
    };
    let (addresses, not_ready_addresses) = (some(ready), some(unready));
    let ports: Vec<_> = ports(service, pods).map(port).collect();
    let ports = (!ports.is_empty()).then_some(ports);
    let subset = EndpointSubset { addresses, not_ready_addresses, ports };
    let empty = subset.addresses.is_none() && subset.not_ready_addresses.is_none();
    Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.namespace(),
            labels: service.metadata.labels.clone(),
            // Kubernetes goes by the name; the owner lets it go with the Service.
            owner_references: owned_by(service).ok().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        subsets: (!empty).then(|| vec![subset]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "u"},
            "spec": {"selector": {"app": "x"}, "clusterIP": "None", "ports": [
                {"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81},
                {"name": "c", "port": 82, "targetPort": "nowhere"},
            ]},
        }))
        .unwrap()
    }

    fn pod(name: &str, address: &str, ready: &str, labels: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels},
            "spec": {"nodeName": "hutch", "hostname": name, "subdomain": "s",
                "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_with_an_address_are_endpoints_and_say_whether_they_are_ready() {
        let labels = || json!({"app": "x"});
        let mut ended = pod("d", "10.0.0.4", "False", labels());
        ended.status.as_mut().unwrap().phase = Some("Succeeded".into());
        let pods = [
            pod("a", "10.0.0.1", "True", labels()),
            pod("b", "10.0.0.2", "False", labels()),
            pod("c", "", "False", labels()),
            ended,
        ];
        let slice = slice(&service(), &pods).unwrap();
        let ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().unwrap().ready;
        let found: Vec<_> =
            slice.endpoints.iter().flatten().map(|e| (e.addresses[0].as_str(), ready(e))).collect();
        assert_eq!(found, [("10.0.0.1", Some(true)), ("10.0.0.2", Some(false))]);
        assert_eq!(slice.endpoints.as_ref().unwrap()[0].hostname.as_deref(), Some("a"));
        let ports: Vec<_> = slice.ports.iter().flatten().map(|p| p.port.unwrap()).collect();
        assert_eq!(ports, [8080, 81]);
        assert_eq!(slice.labels()[SERVICE_LABEL], "s");
        let subset = endpoints(&service(), &pods).subsets.unwrap().remove(0);
        assert_eq!(subset.addresses.unwrap()[0].ip, "10.0.0.1");
        assert_eq!(subset.not_ready_addresses.unwrap()[0].ip, "10.0.0.2");
        assert_eq!(endpoints(&service(), &[]).subsets, None);
    }

    #[test]
    fn a_service_selects_by_all_its_labels_in_its_namespace() {
        assert!(selects(&service(), &pod("a", "", "True", json!({"app": "x", "more": "y"}))));
        assert!(!selects(&service(), &pod("a", "", "True", json!({"app": "z"}))));
        let mut elsewhere = pod("a", "", "True", json!({"app": "x"}));
        elsewhere.metadata.namespace = Some("m".into());
        assert!(!selects(&service(), &elsewhere));
        let mut all = service();
        all.spec.as_mut().unwrap().selector = Some(BTreeMap::new());
        assert!(!selects(&all, &pod("a", "", "True", json!({}))));
    }
}
