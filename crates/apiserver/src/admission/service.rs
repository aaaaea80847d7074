//! Services: defaults, and an address of their own.

use std::collections::HashSet;

use hutch_store::Page;
use serde_json::{Value, json};

use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Cluster addresses are 10.96.0.0/16, as a fresh cluster has them. Nothing routes by them here.
const NETWORK: [u8; 2] = [10, 96];
/// The first address that is given out; those before it are kept for the system.
const FIRST: u32 = 10;

pub(crate) fn create(core: &Core, object: &mut Value) -> Result<(), Failure> {
    complete(core, object)?;
    object["status"] = json!({ "loadBalancer": {} });
    Ok(())
}

pub(crate) fn update(core: &Core, kind: &Kind, old: &Value, object: &mut Value) -> Result<(), Failure> {
    let spec = &mut object["spec"];
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = old["spec"].get(field) {
            super::default(spec, field, value.clone());
        }
    }
    let (before, now) = (&old["spec"]["clusterIP"], &object["spec"]["clusterIP"]);
    let external = |spec: &Value| spec["type"] == "ExternalName";
    if before != now && !before.is_null() && !external(&old["spec"]) && !external(&object["spec"]) {
        let cause = Cause::invalid("spec.clusterIPs[0]", &json!([now]), "may not change once set");
        return Err(Failure::invalid(kind, meta::text(object, "name"), vec![cause]));
    }
    complete(core, object)
}

fn complete(core: &Core, object: &mut Value) -> Result<(), Failure> {
    let spec = &mut object["spec"];
    super::default(spec, "type", "ClusterIP");
    super::default(spec, "sessionAffinity", "None");
    for port in super::items(spec, "ports") {
        super::default(port, "protocol", "TCP");
        let number = port["port"].clone();
        super::default(port, "targetPort", number);
    }
    if spec["type"] == "ExternalName" {
        return Ok(());
    }
    super::default(spec, "internalTrafficPolicy", "Cluster");
    super::default(spec, "ipFamilies", json!(["IPv4"]));
    super::default(spec, "ipFamilyPolicy", "SingleStack");
    if spec["clusterIP"].as_str().is_none_or(str::is_empty) {
        spec["clusterIP"] = free_address(core)?.into();
    }
    let address = spec["clusterIP"].clone();
    spec["clusterIPs"] = json!([address]);
    Ok(())
}

/// An address that no Service has. Two creates at the same moment may be given the same one; as nothing routes by
/// these addresses, that is harmless and not worth a lock.
fn free_address(core: &Core) -> Result<String, Failure> {
    let list = core.store.ahead().list("services", Page::default());
    let taken: HashSet<String> = list
        .entries
        .iter()
        .filter_map(|entry| entry.value.value()["spec"]["clusterIP"].as_str().map(Into::into))
        .collect();
    let span = u32::from(u16::MAX) - FIRST;
    let start = u32::try_from(core.ambient.below(span as usize)).unwrap_or_default();
    for step in 0..span {
        let number = FIRST + (start + step) % span;
        let [high, low] = u16::try_from(number).unwrap_or_default().to_be_bytes();
        let address = format!("{}.{}.{high}.{low}", NETWORK[0], NETWORK[1]);
        if !taken.contains(&address) {
            return Ok(address);
        }
    }
    Err(Failure::internal("failed to allocate a serviceIP: range is full"))
}
