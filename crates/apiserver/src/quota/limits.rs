//! LimitRanges: defaults for the containers of new Pods, and bounds on containers, Pods and volume claims.

use hutch_api::quantity::Quantity;
use hutch_store::Page;
use serde_json::Value;

use super::usage::{Amounts, amounts, resources};
use crate::core::Core;
use crate::failure::Failure;
use crate::json::{default, items, map};
use crate::kinds::Kind;
use crate::meta;

/// Annotation that names what was set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Fills in what a LimitRange leaves out: a default is the maximum, a default request is the default, else the minimum.
pub(crate) fn complete(range: &mut Value) {
    for limit in items(&mut range["spec"], "limits") {
        if limit["type"] != "Container" {
            continue;
        }
        for (field, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
        {
            let from = limit[source].as_object().cloned().unwrap_or_default();
            for (name, amount) in from {
                default(json_object(limit, field), &name, amount);
            }
        }
    }
}

/// A field that is an object, made if missing.
fn json_object<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    map(value, field);
    &mut value[field]
}

fn limits(core: &Core, object: &Value) -> Vec<Value> {
    let prefix = format!("{}/", meta::text(object, "namespace"));
    let page = Page { prefix: &prefix, ..Page::default() };
    let ranges = core.store.ahead().list("limitranges", page).entries;
    let limits = |range: &Value| range["spec"]["limits"].as_array().cloned().unwrap_or_default();
    ranges.iter().flat_map(|entry| limits(&entry.value.value())).collect()
}

/// Sets the defaults of a new Pod and checks it.
pub(crate) fn apply_to_pod(core: &Core, kind: &Kind, pod: &mut Value) -> Result<(), Failure> {
    let limits = limits(core, pod);
    if limits.is_empty() {
        return Ok(());
    }
    let mut notes = Vec::new();
    for (field, what) in [("containers", "container"), ("initContainers", "init container")] {
        for container in items(&mut pod["spec"], field) {
            set_defaults(container, &limits, what, &mut notes);
        }
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        map(&mut pod["metadata"], "annotations").insert(ANNOTATION.into(), text.into());
    }
    let mut wrong = Vec::new();
    for limit in &limits {
        match limit["type"].as_str() {
            Some("Container") => {
                for field in ["containers", "initContainers"] {
                    for container in pod["spec"][field].as_array().into_iter().flatten() {
                        let own = |field: &str| amounts(&container["resources"][field]);
                        check(limit, &own("requests"), Some(&own("limits")), &mut wrong);
                    }
                }
            }
            Some("Pod") => {
                let own = |field| resources(&pod["spec"], field);
                check(limit, &own("requests"), Some(&own("limits")), &mut wrong);
            }
            _ => {}
        }
    }
    refuse(kind, pod, wrong)
}

/// Checks a new or changed volume claim.
pub(crate) fn check_volume_claim(core: &Core, kind: &Kind, claim: &Value) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for limit in limits(core, claim).iter().filter(|limit| limit["type"] == "PersistentVolumeClaim") {
        check(limit, &amounts(&claim["spec"]["resources"]["requests"]), None, &mut wrong);
    }
    refuse(kind, claim, wrong)
}

fn refuse(kind: &Kind, object: &Value, mut wrong: Vec<String>) -> Result<(), Failure> {
    let mut seen = std::collections::HashSet::new();
    wrong.retain(|text| seen.insert(text.clone()));
    let why = match wrong.len() {
        0 => return Ok(()),
        1 => wrong.swap_remove(0),
        _ => format!("[{}]", wrong.join(", ")),
    };
    Err(Failure::forbidden(kind, meta::text(object, "name"), &why, Vec::new()))
}

fn set_defaults(container: &mut Value, limits: &[Value], what: &str, notes: &mut Vec<String>) {
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    for (source, field, word) in [("defaultRequest", "requests", "request"), ("default", "limits", "limit")] {
        let mut set = Vec::new();
        for limit in limits.iter().filter(|limit| limit["type"] == "Container") {
            for (resource, amount) in limit[source].as_object().into_iter().flatten() {
                let own = map(json_object(container, "resources"), field);
                if !own.contains_key(resource) {
                    own.insert(resource.clone(), amount.clone());
                    set.push(resource.clone());
                }
            }
        }
        if !set.is_empty() {
            set.sort();
            notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
        }
    }
}

/// Checks amounts against one element of a LimitRange. Only requests count where there are no limits.
fn check(limit: &Value, requests: &Amounts, limits: Option<&Amounts>, wrong: &mut Vec<String>) {
    let kind = limit["type"].as_str().unwrap_or_default();
    let own_limit = |name: &str| limits.and_then(|limits| limits.get(name));
    for (name, bound) in &amounts(&limit["min"]) {
        let start = format!("minimum {name} usage per {kind} is {bound}");
        match (requests.get(name), own_limit(name)) {
            (None, _) => wrong.push(format!("{start}.  No request is specified")),
            (Some(own), _) if own.milli() < bound.milli() => {
                wrong.push(format!("{start}, but request is {own}"))
            }
            (_, Some(own)) if own.milli() < bound.milli() => {
                wrong.push(format!("{start}, but limit is {own}"))
            }
            _ => {}
        }
    }
    for (name, bound) in &amounts(&limit["max"]) {
        let start = format!("maximum {name} usage per {kind} is {bound}");
        let request = requests.get(name).filter(|own| own.milli() > bound.milli());
        match (limits.is_some(), own_limit(name), request) {
            (true, None, _) => wrong.push(format!("{start}.  No limit is specified")),
            (_, Some(own), _) if own.milli() > bound.milli() => {
                wrong.push(format!("{start}, but limit is {own}"))
            }
            (false, _, _) if !requests.contains_key(name) => {
                wrong.push(format!("{start}.  No request is specified"));
            }
            (_, _, Some(own)) => wrong.push(format!("{start}, but request is {own}")),
            _ => {}
        }
    }
    for (name, bound) in &amounts(&limit["maxLimitRequestRatio"]) {
        let start = format!("{name} max limit to request ratio per {kind} is {bound}");
        ratio(&start, *bound, requests.get(name), own_limit(name), wrong);
    }
}

fn ratio(
    start: &str,
    bound: Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    wrong: &mut Vec<String>,
) {
    let Some(request) = request.filter(|own| own.milli() != 0) else {
        return wrong.push(format!("{start}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(|own| own.milli() != 0) else {
        return wrong.push(format!("{start}, but no limit is specified or limit is 0"));
    };
    let found = limit.milli() as f64 / request.milli() as f64;
    if found * 1000.0 > bound.milli() as f64 {
        wrong.push(format!("{start}, but provided ratio is {found:.6}"));
    }
}
