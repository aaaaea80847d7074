//! Ingresses and their classes: checked as in Kubernetes, and stored.

use std::net::IpAddr;

use hutch_api::syntax;
use serde_json::Value;

use super::names;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Sequences that no path of the types `Exact` and `Prefix` contains, and what none ends with.
const INVALID_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const INVALID_ENDS: [&str; 2] = ["/..", "/."];
/// Message for a host with a wildcard.
const WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// Annotation that names the class, from before `spec.ingressClassName` existed.
const CLASS: &str = "kubernetes.io/ingress.class";
/// Maximum characters of the controller of a class.
const CONTROLLER: usize = 250;

/// Completes and checks an Ingress or a class.
pub(crate) fn check(kind: &Kind, old: Option<&Value>, object: &mut Value) -> Result<(), Failure> {
    let mut causes = Vec::new();
    match kind.plural.as_str() {
        "ingresses" => {
            if old.is_none() {
                object["status"] = serde_json::json!({ "loadBalancer": {} });
            }
            ingress(object, &mut causes);
            class_annotation(old, object, &mut causes);
        }
        "ingressclasses" => class(old, object, &mut causes),
        _ => {}
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

fn add(causes: &mut Vec<Cause>, field: &str, value: &str, wrong: Vec<String>) {
    causes.extend(wrong.iter().map(|why| Cause::invalid(field, &value.into(), why)));
}

fn ingress(object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    let default = &spec["defaultBackend"];
    if list(spec, "rules").next().is_none() && default.is_null() {
        let rules = Cause::shown("spec", "null", "either `defaultBackend` or `rules` must be specified");
        causes.push(rules);
    }
    if !default.is_null() {
        backend(default, "spec.defaultBackend", causes);
    }
    for (index, rule) in list(spec, "rules") {
        let at = format!("spec.rules[{index}]");
        let name = text(rule, "host");
        if name.parse::<IpAddr>().is_ok() {
            causes.push(Cause::invalid(
                format!("{at}.host"),
                &name.into(),
                "must be a DNS name, not an IP address",
            ));
        }
        if !name.is_empty() {
            add(causes, &format!("{at}.host"), name, host(name));
        }
        if rule["http"].is_object() {
            let at = format!("{at}.http.paths");
            if list(&rule["http"], "paths").next().is_none() {
                causes.push(Cause::required(&at, ""));
            }
            list(&rule["http"], "paths")
                .for_each(|(index, one)| path(one, &format!("{at}[{index}]"), causes));
        }
    }
    for (index, tls) in list(spec, "tls") {
        for (at, name) in list(tls, "hosts") {
            let name = name.as_str().unwrap_or_default();
            add(causes, &format!("spec.tls[{index}].hosts[{at}]"), name, host(name));
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            add(causes, &format!("spec.tls[{index}].secretName"), secret, syntax::subdomain(secret));
        }
    }
    if let Some(name) = spec["ingressClassName"].as_str() {
        add(causes, "spec.ingressClassName", name, syntax::subdomain(name));
    }
}

fn host(name: &str) -> Vec<String> {
    if !name.contains('*') {
        return syntax::subdomain(name);
    }
    let is_valid = name.strip_prefix("*.").is_some_and(syntax::is_subdomain);
    if is_valid { Vec::new() } else { vec![WILDCARD.into()] }
}

fn path(path: &Value, at: &str, causes: &mut Vec<Cause>) {
    let (field, own) = (format!("{at}.path"), text(path, "path"));
    let mut wrong = |why: &str| causes.push(Cause::invalid(field.as_str(), &own.into(), why));
    match path["pathType"].as_str() {
        None => {
            causes.push(Cause::required(format!("{at}.pathType"), "pathType must be specified"));
            return;
        }
        Some("Exact" | "Prefix") => {
            if !own.starts_with('/') {
                wrong("must be an absolute path");
            }
            for sequence in INVALID_SEQUENCES.iter().filter(|sequence| own.contains(**sequence)) {
                wrong(&format!("must not contain '{sequence}'"));
            }
            for end in INVALID_ENDS.iter().filter(|end| own.ends_with(**end)) {
                wrong(&format!("cannot end with '{end}'"));
            }
        }
        Some("ImplementationSpecific") => {
            if !own.is_empty() && !own.starts_with('/') {
                wrong("must be an absolute path");
            }
        }
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\""
            );
            causes.push(Cause::new("FieldValueNotSupported", format!("{at}.pathType"), message));
        }
    }
    backend(&path["backend"], &format!("{at}.backend"), causes);
}

fn backend(backend: &Value, at: &str, causes: &mut Vec<Cause>) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (service.is_null(), resource.is_null()) {
        (false, false) => {
            causes.push(Cause::shown(at, "\"\"", "cannot set both resource and service backends"));
        }
        (true, false) => {
            for field in ["kind", "name"] {
                if text(resource, field).is_empty() {
                    causes.push(Cause::required(format!("{at}.resource.{field}"), ""));
                }
            }
        }
        (true, true) => causes.push(Cause::shown(at, "\"\"", "resource or service backend is required")),
        (false, true) => {
            let name = text(service, "name");
            if name.is_empty() {
                causes.push(Cause::required(format!("{at}.service.name"), ""));
            } else {
                add(causes, &format!("{at}.service.name"), name, syntax::label(name));
            }
            port(&service["port"], at, causes);
        }
    }
}

fn port(port: &Value, at: &str, causes: &mut Vec<Cause>) {
    let (name, number) = (text(port, "name"), port["number"].as_i64().unwrap_or(0));
    match (name, number) {
        ("", 0) => causes.push(Cause::required(at, "port name or number is required")),
        ("", _) if (1..=65535).contains(&number) => {}
        ("", _) => {
            let field = format!("{at}.service.port.number");
            causes.push(Cause::invalid(field, &number.into(), "must be between 1 and 65535, inclusive"));
        }
        (_, 0) => add(causes, &format!("{at}.service.port.name"), name, names::port(name)),
        _ => causes.push(Cause::shown(at, "\"\"", "cannot set both port name & port number")),
    }
}

fn class_annotation(old: Option<&Value>, object: &Value, causes: &mut Vec<Cause>) {
    let annotation = object["metadata"]["annotations"][CLASS].as_str();
    let class = object["spec"]["ingressClassName"].as_str();
    if let (None, Some(annotation), Some(class)) = (old, annotation, class)
        && annotation != class
    {
        let why = "must match `ingressClassName` when both are specified";
        causes.push(Cause::invalid(format!("annotations.{CLASS}"), &annotation.into(), why));
    }
}

fn class(old: Option<&Value>, object: &Value, causes: &mut Vec<Cause>) {
    let controller = text(&object["spec"], "controller");
    let before = old.map(|old| text(&old["spec"], "controller"));
    if before.is_some_and(|before| before != controller) {
        causes.push(Cause::invalid("spec.controller", &controller.into(), "field is immutable"));
    }
    if controller.len() > CONTROLLER {
        let message = format!("Too long: may not be more than {CONTROLLER} bytes");
        causes.push(Cause::new("FieldValueTooLong", "spec.controller", message));
    }
    match controller.split_once('/') {
        _ if controller.is_empty() => causes.push(Cause::required("spec.controller", "")),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            add(causes, "spec.controller", host, syntax::subdomain(host));
        }
        _ => {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            causes.push(Cause::invalid("spec.controller", &controller.into(), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(spec: Value) -> Vec<String> {
        let mut causes = Vec::new();
        ingress(&json!({ "spec": spec }), &mut causes);
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn ingress_without_rules_or_with_a_wrong_backend_is_refused_by_field() {
        let service = json!({ "service": { "name": "web", "port": { "number": 80 } } });
        let rule =
            |path: Value| json!({ "rules": [{ "host": "*.example.com", "http": { "paths": [path] } }] });
        assert!(wrong(json!({ "defaultBackend": service })).is_empty());
        assert!(wrong(rule(json!({ "path": "/", "pathType": "Prefix", "backend": service }))).is_empty());
        assert_eq!(
            wrong(json!({})),
            ["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"]
        );
        assert_eq!(
            wrong(rule(json!({ "path": "a//b", "pathType": "Exact", "backend": {} }))),
            [
                "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must be an absolute path",
                "spec.rules[0].http.paths[0].path: Invalid value: \"a//b\": must not contain '//'",
                "spec.rules[0].http.paths[0].backend: Invalid value: \"\": resource or service backend is required",
            ]
        );
        let both = json!({ "service": { "name": "web", "port": { "number": 80, "name": "http" } } });
        assert_eq!(
            wrong(json!({ "defaultBackend": both })),
            ["spec.defaultBackend: Invalid value: \"\": cannot set both port name & port number"]
        );
        assert_eq!(wrong(json!({ "rules": [{ "host": "10.0.0.1" }, { "host": "a.*.b" }] })).len(), 2);
    }

    #[test]
    fn controller_of_a_class_is_a_path_of_a_domain_and_does_not_change() {
        let of = |old: Option<&str>, controller: &str| {
            let object = |controller: &str| json!({ "spec": { "controller": controller } });
            let (old, mut causes) = (old.map(object), Vec::new());
            class(old.as_ref(), &object(controller), &mut causes);
            causes.len()
        };
        assert_eq!(of(None, "example.com/ingress"), 0);
        assert_eq!(of(None, ""), 1);
        assert_eq!(of(None, "ingress"), 1);
        assert_eq!(of(Some("example.com/a"), "example.com/b"), 1);
    }
}
