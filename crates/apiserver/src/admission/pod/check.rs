//! Validates the spec of a Pod with the fields and messages of a kube-apiserver: all that becomes a name, a path or an id
//! on the node.

mod containers;
mod resources;
mod volumes;

use std::net::IpAddr;

use hutch_api::syntax;
use serde_json::Value;

use crate::admission::names::invalid;
use crate::failure::Cause;

/// Largest user and group id.
const ID_MAX: i64 = i32::MAX as i64;
/// Maximum bytes of `hostnameOverride`, as Linux has it.
const HOSTNAME_BYTES: usize = 64;

/// The place of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a Pod.
    Pod,
    /// In the template of a workload, where Kubernetes allows a little more.
    Template,
}

/// Checks a spec that has its defaults. `at` is its path, such as `spec.template.spec`.
pub(crate) fn spec(spec: &Value, at: &str, place: Place) -> Vec<Cause> {
    let mut causes = Vec::new();
    let volumes = volumes::check(spec, at, &mut causes);
    containers::check(spec, at, place, &volumes, &mut causes);
    choice(
        spec,
        at,
        "dnsPolicy",
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        &mut causes,
    );
    choice(spec, at, "restartPolicy", &["Always", "OnFailure", "Never"], &mut causes);
    let context = format!("{at}.securityContext");
    ids(&spec["securityContext"], &context, &["fsGroup", "runAsUser", "runAsGroup"], &mut causes);
    for (index, group) in list(&spec["securityContext"], "supplementalGroups") {
        id(group, &format!("{context}.supplementalGroups[{index}]"), &mut causes);
    }
    if let Some(name) = spec["hostnameOverride"].as_str() {
        let field = format!("{at}.hostnameOverride");
        if name.len() > HOSTNAME_BYTES {
            let message = format!("Too long: may not be more than {HOSTNAME_BYTES} bytes");
            causes.push(Cause::new("FieldValueTooLong", field.as_str(), message));
        }
        causes.extend(invalid(&field, name, syntax::subdomain(name)));
    }
    for field in ["serviceAccountName", "nodeName", "priorityClassName"] {
        let name = text(spec, field);
        if !name.is_empty() {
            causes.extend(invalid(&format!("{at}.{field}"), name, syntax::subdomain(name)));
        }
    }
    if let Some(name) = spec["runtimeClassName"].as_str() {
        causes.extend(invalid(&format!("{at}.runtimeClassName"), name, syntax::subdomain(name)));
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, field);
        if !name.is_empty() {
            causes.extend(invalid(&format!("{at}.{field}"), name, syntax::label(name)));
        }
    }
    resources::check(&spec["resources"], &format!("{at}.resources"), &mut causes);
    host_aliases(spec, at, &mut causes);
    containers::check_ephemeral(spec, at, place, &volumes, &mut causes);
    causes
}

fn host_aliases(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, alias) in list(spec, "hostAliases") {
        let ip = text(alias, "ip");
        if ip.parse::<IpAddr>().is_err() {
            let message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.push(Cause::invalid(format!("{at}.hostAliases[{index}].ip"), &ip.into(), message));
        }
        for (place, name) in list(alias, "hostnames") {
            let name = name.as_str().unwrap_or_default();
            let field = format!("{at}.hostAliases[{index}].hostnames[{place}]");
            causes.extend(invalid(&field, name, syntax::subdomain(name)));
        }
    }
}

/// The user and group ids of a security context.
fn ids(context: &Value, at: &str, fields: &[&str], causes: &mut Vec<Cause>) {
    for field in fields {
        id(&context[*field], &format!("{at}.{field}"), causes);
    }
}

fn id(value: &Value, field: &str, causes: &mut Vec<Cause>) {
    if let Some(number) = value.as_i64()
        && !(0..=ID_MAX).contains(&number)
    {
        let message = format!("must be between 0 and {ID_MAX}, inclusive");
        causes.push(Cause::invalid(field, value, &message));
    }
}

/// Checks a field that has one of a few values; it may be absent.
fn choice(value: &Value, at: &str, field: &str, valid: &[&str], causes: &mut Vec<Cause>) {
    let Some(chosen) = value[field].as_str() else { return };
    let field = format!("{at}.{field}");
    if chosen.is_empty() {
        causes.push(Cause::required(field, ""));
    } else if !valid.contains(&chosen) {
        let valid: Vec<String> = valid.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {chosen:?}: supported values: {}", valid.join(", "));
        causes.push(Cause::new("FieldValueNotSupported", field, message));
    }
}

/// A cause for a value that is in a list twice.
fn duplicate(field: String, value: &str) -> Cause {
    Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {value:?}"))
}

/// A text field; empty when it is missing.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The items of a list with their places; none if it is missing.
fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests;
