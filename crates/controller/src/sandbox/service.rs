//! Headless Service of a Sandbox.

use std::collections::{BTreeMap, BTreeSet};

use hutch_api::{Sandbox, label, name_hash};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::Observed;
use super::plan::{Action, Part, Plan};
use super::volume::{foreign, may_adopt, unauthorised};
use crate::owner;
use crate::patch::{Strings, put, put_difference};

/// Cluster IP of a headless Service.
const HEADLESS: &str = "None";

pub(super) fn plan(observed: &Observed, plan: &mut Plan) {
    let (sandbox, wanted) = (observed.sandbox.as_ref(), observed.sandbox.spec.service);
    let Some(service) = &observed.service else {
        if wanted == Some(true) {
            plan.actions.push(Action::CreateService(Box::new(desired(sandbox))));
        }
        return;
    };
    if service.metadata.deletion_timestamp.is_some() {
        return;
    }
    let owned = owner::is_controlled_by(service.as_ref(), sandbox);
    if wanted == Some(false) {
        if owned {
            plan.actions.push(Action::DeleteService);
        }
    } else if owned {
        let patch = patch(sandbox, service, wanted == Some(true));
        if !patch.is_empty() {
            plan.actions.push(Action::PatchService(Value::Object(patch)));
        }
    } else if let Some(other) = owner::controller(service.as_ref()) {
        let problem = foreign("service", &service.name_any(), &owner::described(other), &sandbox.name_any());
        plan.problems.push((Part::Service, problem));
    } else if wanted == Some(true) {
        adopt(sandbox, service, plan);
    }
}

fn adopt(sandbox: &Sandbox, service: &Service, plan: &mut Plan) {
    let name = service.name_any();
    if !may_adopt(service.labels(), &sandbox.name_any()) {
        plan.problems.push((Part::Service, unauthorised("service", &name)));
        return;
    }
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
    if !address.is_empty() && address != HEADLESS {
        let problem = format!(
            "cannot adopt service {name:?}: ClusterIP is {address:?} (expected \"None\", field is immutable)"
        );
        plan.problems.push((Part::Service, problem));
        return;
    }
    let mut patch = patch(sandbox, service, true);
    let mut owners = service.owner_references().to_vec();
    owners.push(owner::reference(sandbox));
    put(&mut patch, &["metadata", "ownerReferences"], json!(owners));
    plan.actions.push(Action::PatchService(Value::Object(patch)));
}

fn desired(sandbox: &Sandbox) -> Service {
    let ports = ports(sandbox);
    Service {
        metadata: ObjectMeta {
            name: sandbox.metadata.name.clone(),
            namespace: sandbox.namespace(),
            labels: Some(tracking(sandbox)),
            owner_references: Some(vec![owner::reference(sandbox)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some(HEADLESS.into()),
            selector: Some(tracking(sandbox)),
            ports: (!ports.is_empty()).then_some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn tracking(sandbox: &Sandbox) -> Strings {
    Strings::from([(label::SANDBOX_NAME_HASH.to_owned(), name_hash(&sandbox.name_any()))])
}

fn patch(sandbox: &Sandbox, service: &Service, with_ports: bool) -> Map<String, Value> {
    let mut patch = Map::new();
    let mut labels = service.labels().clone();
    labels.extend(tracking(sandbox));
    put_difference(&mut patch, &["metadata", "labels"], Some(service.labels()), &labels);
    let spec = service.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    put_difference(&mut patch, &["spec", "selector"], selector, &tracking(sandbox));
    let wanted = ports(sandbox);
    let current = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    if with_ports && !same_ports(current, &wanted) {
        let value = if wanted.is_empty() { Value::Null } else { json!(wanted) };
        put(&mut patch, &["spec", "ports"], value);
    }
    patch
}

/// Compares the fields that the controller sets; servers may add others.
fn same_ports(current: &[ServicePort], wanted: &[ServicePort]) -> bool {
    let parts = |port: &ServicePort| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        (port.name.clone(), port.port, protocol, port.target_port.clone())
    };
    current.iter().map(parts).eq(wanted.iter().map(parts))
}

/// Returns the ports of the Pod's containers, and of its sidecar init containers.
fn ports(sandbox: &Sandbox) -> Vec<ServicePort> {
    let spec = &sandbox.spec.pod_template.spec;
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut names: BTreeMap<(i32, String), Option<String>> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for port in spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()) {
        if port.container_port == 0 {
            continue;
        }
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        let name = names.entry((port.container_port, protocol)).or_default();
        let explicit = port.name.clone().filter(|explicit| !explicit.is_empty());
        if let Some(explicit) = explicit.filter(|explicit| name.is_none() && !taken.contains(explicit)) {
            taken.insert(explicit.clone());
            *name = Some(explicit);
        }
    }
    let mut ports = Vec::with_capacity(names.len());
    for ((port, protocol), name) in names {
        let name =
            name.unwrap_or_else(|| free_name(&format!("p-{port}-{}", protocol.to_lowercase()), &taken));
        taken.insert(name.clone());
        ports.push(ServicePort {
            name: Some(name),
            port,
            protocol: Some(protocol),
            target_port: Some(IntOrString::Int(port)),
            ..ServicePort::default()
        });
    }
    ports
}

fn free_name(base: &str, taken: &BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{base}-{n}"));
    std::iter::once(base.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}
