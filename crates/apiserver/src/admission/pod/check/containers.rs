//! Containers of all kinds: their names, ports, environment and mounts.

use std::collections::HashSet;

use hutch_api::syntax;
use serde_json::Value;

use super::{Place, choice, duplicate, ids, list, resources, text};
use crate::admission::names::{self, descending_path, invalid};
use crate::failure::Cause;
use crate::json::is_set;

/// Sources of an environment variable.
const VARIABLE_SOURCES: [&str; 5] =
    ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

/// Fields of a container that an ephemeral one cannot have.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
];
const NOT_SET: &str = "cannot be set for an Ephemeral Container";

/// Checks containers and init containers, which share their names.
pub(super) fn check(spec: &Value, at: &str, place: Place, volumes: &HashSet<&str>, causes: &mut Vec<Cause>) {
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        causes.push(Cause::required(format!("{at}.containers"), ""));
    }
    let mut taken = HashSet::new();
    for field in ["containers", "initContainers"] {
        for (index, container) in list(spec, field) {
            let at = format!("{at}.{field}[{index}]");
            one(container, &at, place, volumes, causes);
            let name = text(container, "name");
            if !taken.insert(name) {
                causes.push(duplicate(format!("{at}.name"), name));
            }
        }
    }
}

/// Checks ephemeral containers. A Pod gets them by a subresource, and a template never.
pub(super) fn check_ephemeral(
    spec: &Value,
    at: &str,
    place: Place,
    volumes: &HashSet<&str>,
    causes: &mut Vec<Cause>,
) {
    let others = ["containers", "initContainers"].into_iter().flat_map(|field| list(spec, field));
    let others: HashSet<&str> = others.map(|(_, container)| text(container, "name")).collect();
    let (mut taken, mut count) = (others.clone(), 0);
    for (index, container) in list(spec, "ephemeralContainers") {
        let at = format!("{at}.ephemeralContainers[{index}]");
        one(container, &at, Place::Pod, volumes, causes);
        let (name, target) = (text(container, "name"), text(container, "targetContainerName"));
        if !taken.insert(name) {
            causes.push(duplicate(format!("{at}.name"), name));
        }
        if !target.is_empty() && !others.contains(target) {
            let field = format!("{at}.targetContainerName");
            causes.push(Cause::new("FieldValueNotFound", field, format!("Not found: {target:?}")));
        }
        let not_allowed = NOT_EPHEMERAL.into_iter().filter(|field| match &container[*field] {
            Value::Object(fields) if *field == "resources" => !fields.is_empty(),
            Value::Object(_) => true,
            value => is_set(value),
        });
        for field in not_allowed {
            causes.push(Cause::forbidden(format!("{at}.{field}"), NOT_SET));
        }
        for (number, mount) in list(container, "volumeMounts") {
            for field in ["subPath", "subPathExpr"].into_iter().filter(|field| is_set(&mount[*field])) {
                causes.push(Cause::forbidden(format!("{at}.volumeMounts[{number}].{field}"), NOT_SET));
            }
        }
        count += 1;
    }
    if count > 0 && place == Place::Template {
        let why = "ephemeral containers not allowed in pod template";
        causes.push(Cause::forbidden(format!("{at}.ephemeralContainers"), why));
    }
}

fn one(container: &Value, at: &str, place: Place, volumes: &HashSet<&str>, causes: &mut Vec<Cause>) {
    let (field, name) = (format!("{at}.name"), text(container, "name"));
    if name.is_empty() {
        causes.push(Cause::required(field, ""));
    } else {
        causes.extend(invalid(&field, name, syntax::label(name)));
    }
    let image = text(container, "image");
    if image.is_empty() {
        causes.push(Cause::required(format!("{at}.image"), ""));
    } else if place == Place::Pod && image.trim() != image {
        let message = "must not have leading or trailing whitespace";
        causes.push(Cause::invalid(format!("{at}.image"), &image.into(), message));
    }
    choice(container, at, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], causes);
    ports(container, at, causes);
    resources::check(&container["resources"], &format!("{at}.resources"), causes);
    variables(container, at, causes);
    variable_sources(container, &format!("{at}.envFrom"), causes);
    mounts(container, &format!("{at}.volumeMounts"), volumes, causes);
    choice(container, at, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], causes);
    let context = &container["securityContext"];
    ids(context, &format!("{at}.securityContext"), &["runAsUser", "runAsGroup"], causes);
}

fn ports(container: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mut taken = HashSet::new();
    for (index, port) in list(container, "ports") {
        let at = format!("{at}.ports[{index}]");
        let (field, name) = (format!("{at}.name"), text(port, "name"));
        if !name.is_empty() {
            let wrong = names::port(name);
            if wrong.is_empty() && !taken.insert(name) {
                causes.push(duplicate(field, name));
            } else {
                causes.extend(invalid(&field, name, wrong));
            }
        }
        for field in ["containerPort", "hostPort"] {
            let number = port[field].as_i64().unwrap_or(0);
            if number == 0 && field == "containerPort" {
                causes.push(Cause::required(format!("{at}.{field}"), ""));
            } else if number != 0 && !(1..=65535).contains(&number) {
                let message = "must be between 1 and 65535, inclusive";
                causes.push(Cause::invalid(format!("{at}.{field}"), &number.into(), message));
            }
        }
        choice(port, &at, "protocol", &["SCTP", "TCP", "UDP"], causes);
    }
}

fn variables(container: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, variable) in list(container, "env") {
        let at = format!("{at}.env[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            causes.push(Cause::required(format!("{at}.name"), ""));
        } else {
            causes.extend(invalid(&format!("{at}.name"), name, names::variable(name)));
        }
        let (from, at) = (&variable["valueFrom"], format!("{at}.valueFrom"));
        if from.is_null() {
            continue;
        }
        for reference in ["configMapKeyRef", "secretKeyRef"] {
            if !from[reference].is_null() {
                key(&from[reference], &format!("{at}.{reference}"), causes);
            }
        }
        let sources = VARIABLE_SOURCES.iter().filter(|source| !from[**source].is_null()).count();
        let message = match sources {
            0 => {
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            }
            _ if !text(variable, "value").is_empty() => "may not be specified when `value` is not empty",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        causes.push(Cause::invalid(at, &"".into(), message));
    }
}

/// A reference to one key of a ConfigMap or a Secret.
fn key(reference: &Value, at: &str, causes: &mut Vec<Cause>) {
    let name = text(reference, "name");
    causes.extend(invalid(&format!("{at}.name"), name, syntax::subdomain(name)));
    let key = text(reference, "key");
    if key.is_empty() {
        causes.push(Cause::required(format!("{at}.key"), ""));
    } else {
        causes.extend(invalid(&format!("{at}.key"), key, names::key(key)));
    }
}

/// `envFrom`: all keys of a ConfigMap or a Secret.
fn variable_sources(container: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, source) in list(container, "envFrom") {
        let prefix = text(source, "prefix");
        causes.extend(invalid(&format!("{at}[{index}].prefix"), prefix, names::variable(prefix)));
        let mut kinds = 0;
        for kind in ["configMapRef", "secretRef"] {
            let reference = &source[kind];
            if reference.is_null() {
                continue;
            }
            kinds += 1;
            let (field, name) = (format!("{at}[{index}].{kind}.name"), text(reference, "name"));
            if name.is_empty() {
                causes.push(Cause::required(field, ""));
            } else {
                causes.extend(invalid(&field, name, syntax::subdomain(name)));
            }
        }
        let message = match kinds {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        causes.push(Cause::invalid(at, &"".into(), message));
    }
}

fn mounts(container: &Value, at: &str, volumes: &HashSet<&str>, causes: &mut Vec<Cause>) {
    let mut taken = HashSet::new();
    for (index, mount) in list(container, "volumeMounts") {
        let name = text(mount, "name");
        if name.is_empty() {
            causes.push(Cause::required(format!("{at}[{index}].name"), ""));
        }
        if !volumes.contains(name) {
            let field = format!("{at}[{index}].name");
            causes.push(Cause::new("FieldValueNotFound", field, format!("Not found: {name:?}")));
        }
        let path = text(mount, "mountPath");
        if path.is_empty() {
            causes.push(Cause::required(format!("{at}[{index}].mountPath"), ""));
        }
        if !taken.insert(path) {
            causes.push(Cause::invalid(format!("{at}[{index}].mountPath"), &path.into(), "must be unique"));
        }
        // Kubernetes does not say which of the mounts is wrong.
        let (below, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        causes.extend(invalid(&format!("{at}.subPath"), below, descending_path(below)));
        if !below.is_empty() && !expression.is_empty() {
            let message = "subPathExpr and subPath are mutually exclusive";
            causes.push(Cause::invalid(format!("{at}[{index}].subPathExpr"), &expression.into(), message));
        }
        causes.extend(invalid(&format!("{at}.subPathExpr"), expression, descending_path(expression)));
    }
}
