//! The cells of Ingresses and their classes.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{array, created, name, or_none, text};

/// Maximum hosts that one cell lists.
const HOSTS: usize = 3;
/// Maximum characters of the addresses.
const ADDRESS: usize = 16;

pub(super) fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports = if array(object, "/spec/tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name(object),
        or_none(text(object, "/spec/ingressClassName")).into(),
        hosts(array(object, "/spec/rules")).into(),
        addresses(object).into(),
        ports.into(),
        created(object, now),
    ]
}

fn hosts(rules: &[Value]) -> String {
    let named = rules.iter().filter_map(|rule| rule["host"].as_str()).filter(|host| !host.is_empty());
    let mut list: Vec<&str> = named.take(HOSTS + 1).collect();
    let more = list.len() == HOSTS && rules.len() > HOSTS || list.len() > HOSTS;
    list.truncate(HOSTS);
    match (list.is_empty(), more) {
        (true, _) => "*".into(),
        (false, false) => list.join(","),
        (false, true) => format!("{} + {} more...", list.join(","), rules.len() - HOSTS),
    }
}

fn addresses(object: &Value) -> String {
    let points = array(object, "/status/loadBalancer/ingress").iter();
    let address = |point: &Value| {
        let address = Some(text(point, "/ip")).filter(|ip| !ip.is_empty());
        address.unwrap_or_else(|| text(point, "/hostname")).to_owned()
    };
    let all: BTreeSet<String> = points.map(address).filter(|address| !address.is_empty()).collect();
    let all = all.into_iter().collect::<Vec<_>>().join(",");
    if all.chars().count() <= ADDRESS {
        return all;
    }
    all.chars().take(ADDRESS - 3).collect::<String>() + "..."
}

pub(super) fn class(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut name = text(object, "/metadata/name").to_owned();
    if object["metadata"]["annotations"]["ingressclass.kubernetes.io/is-default-class"] == "true" {
        name += " (default)";
    }
    let parameters = &object["spec"]["parameters"];
    let kind = text(parameters, "/kind");
    let parameters = match text(parameters, "/apiGroup") {
        _ if !parameters.is_object() => "<none>".to_owned(),
        "" => format!("{kind}/{}", text(parameters, "/name")),
        group => format!("{kind}.{group}/{}", text(parameters, "/name")),
    };
    vec![name.into(), text(object, "/spec/controller").into(), parameters.into(), created(object, now)]
}
