//! Configurations of webhooks: their defaults, and their checks with Kubernetes' messages.

use std::collections::HashSet;

use http::Uri;
use hutch_api::syntax;
use serde_json::{Value, json};

use super::names::{invalid, must_be_one_of};
use super::selectors;
use crate::call::Call;
use crate::core::Core;
use crate::expression;
use crate::failure::{Cause, Failure};
use crate::hooks::webhook::{Target, VARIABLES, not_allowed, tls};
use crate::hooks::{self, MUTATING, VALIDATING};
use crate::json::{default, items};
use crate::kinds::Kind;
use crate::meta;

/// Maximum webhooks of all stored configurations of a kind: each of them may be called for one request.
const WEBHOOKS: usize = 64;
/// Maximum conditions of one webhook or policy, as in Kubernetes.
const CONDITIONS: usize = 64;
/// Labels of a name such as `a.example.com`.
const NAME_LABELS: usize = 3;
/// Version of the reviews that this server sends.
const REVIEW_VERSION: &str = "v1";
/// Form of a URL, in messages.
const FORM: &str = "; desired format: https://host[/path]";
/// Operations of rules.
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// Completes and checks a configuration. Webhooks that were valid when they were stored stay until they are changed: an object
/// must be able to lose its finalizers after a start without the host of a webhook.
pub(crate) fn check(
    core: &Core,
    kind: &Kind,
    old: Option<&Value>,
    object: &mut Value,
) -> Result<(), Failure> {
    let mutating = kind.plural == "mutatingwebhookconfigurations";
    for webhook in items(object, "webhooks") {
        complete(webhook, mutating);
    }
    if old.is_some_and(|old| old["webhooks"] == object["webhooks"]) {
        return Ok(());
    }
    let mut causes = Vec::new();
    let mut names = HashSet::new();
    let webhooks = object["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, webhook) in webhooks.iter().enumerate() {
        let at = format!("webhooks[{index}]");
        one(core, webhook, &at, &mut causes);
        let name = text(webhook, "name");
        if !name.is_empty() && !names.insert(name) {
            causes.push(duplicate(format!("{at}.name"), name));
        }
    }
    let collection = if mutating { MUTATING } else { VALIDATING };
    let all = webhooks.len() + core.hooks.count_besides(collection, meta::text(object, "name"));
    if all > WEBHOOKS {
        let message = format!("Too many: {all}: all {} must have at most {WEBHOOKS} webhooks", kind.plural);
        causes.push(Cause::new("FieldValueTooMany", "webhooks", message));
    }
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, meta::text(object, "name"), causes)) }
}

/// Warns about parts of a configuration that have no effect yet.
pub(crate) fn warn(call: &Call, object: &Value) {
    if call.kind().group != hooks::GROUP {
        return;
    }
    for (index, webhook) in list(object, "webhooks") {
        if text(&webhook["clientConfig"], "caBundle").is_empty() {
            call.warn(format!(
                "webhooks[{index}].clientConfig.caBundle: calls fail until it is set: this server trusts no other authority"
            ));
        }
        exempt(call, webhook, "rules", &format!("webhooks[{index}].rules"));
    }
}

/// Warns about rules that concern only objects that pass without admission.
pub(super) fn exempt(call: &Call, value: &Value, field: &str, at: &str) {
    for (index, rule) in list(value, field) {
        let groups = rule["apiGroups"].as_array();
        if groups.is_some_and(|groups| groups.iter().all(|group| group == hooks::GROUP)) {
            let group = hooks::GROUP;
            call.warn(format!(
                "{at}[{index}]: has no effect: objects of {group} pass without webhooks and policies"
            ));
        }
    }
}

fn complete(webhook: &mut Value, mutating: bool) {
    default(webhook, "failurePolicy", "Fail");
    default(webhook, "matchPolicy", "Equivalent");
    default(webhook, "namespaceSelector", json!({}));
    default(webhook, "objectSelector", json!({}));
    default(webhook, "timeoutSeconds", 10);
    if mutating {
        default(webhook, "reinvocationPolicy", "Never");
    }
    for rule in items(webhook, "rules") {
        default(rule, "scope", "*");
    }
    if webhook["clientConfig"]["service"].is_object() {
        default(&mut webhook["clientConfig"]["service"], "port", 443);
    }
}

pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

pub(super) fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    value[field].as_array().into_iter().flatten().enumerate()
}

pub(super) fn duplicate(field: String, value: &str) -> Cause {
    Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {value:?}"))
}

fn one(core: &Core, webhook: &Value, at: &str, causes: &mut Vec<Cause>) {
    causes.extend(name(&format!("{at}.name"), text(webhook, "name")));
    for (index, rule) in list(webhook, "rules") {
        self::rule(rule, &format!("{at}.rules[{index}]"), causes);
    }
    for (field, allowed) in [
        ("failurePolicy", &["Fail", "Ignore"][..]),
        ("matchPolicy", &["Equivalent", "Exact"]),
        ("reinvocationPolicy", &["IfNeeded", "Never"]),
        ("sideEffects", &["None", "NoneOnDryRun"]),
    ] {
        causes.extend(must_be_one_of(&format!("{at}.{field}"), &webhook[field], allowed));
    }
    if webhook["sideEffects"].is_null() {
        causes.push(Cause::required(format!("{at}.sideEffects"), "must specify one of None, NoneOnDryRun"));
    }
    if webhook["timeoutSeconds"].as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        causes.push(Cause::invalid(format!("{at}.timeoutSeconds"), &webhook["timeoutSeconds"], why));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        selectors::check(&webhook[field], &format!("{at}.{field}"), causes);
    }
    client(core, &webhook["clientConfig"], &format!("{at}.clientConfig"), causes);
    conditions(&webhook["matchConditions"], &format!("{at}.matchConditions"), VARIABLES, causes);
    versions(&webhook["admissionReviewVersions"], &format!("{at}.admissionReviewVersions"), causes);
}

fn name(field: &str, name: &str) -> Option<Cause> {
    if name.is_empty() {
        return Some(Cause::required(field, ""));
    }
    let wrong = syntax::subdomain(name);
    if !wrong.is_empty() {
        return Some(Cause::invalid(field, &name.into(), &wrong.join(",")));
    }
    let why = "should be a domain with at least three segments separated by dots";
    (name.split('.').count() < NAME_LABELS).then(|| Cause::invalid(field, &name.into(), why))
}

/// Checks a rule of a webhook or a policy.
pub(super) fn rule(rule: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (field, name) in
        [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let (values, field) = (&rule[field], format!("{at}.{field}"));
        let count = values.as_array().map_or(0, Vec::len);
        if count == 0 {
            causes.push(Cause::required(&field, ""));
        }
        if count > 1 && values.as_array().is_some_and(|all| all.contains(&json!("*"))) {
            let why = format!("if '*' is present, must not specify other {name}");
            causes.push(Cause::invalid(&field, values, &why));
        }
    }
    for (index, operation) in list(rule, "operations") {
        causes.extend(must_be_one_of(&format!("{at}.operations[{index}]"), operation, OPERATIONS));
    }
    for (index, _) in
        list(rule, "apiVersions").filter(|(_, version)| version.as_str().is_none_or(str::is_empty))
    {
        causes.push(Cause::required(format!("{at}.apiVersions[{index}]"), ""));
    }
    resources(&rule["resources"], &format!("{at}.resources"), causes);
    causes.extend(must_be_one_of(&format!("{at}.scope"), &rule["scope"], &["*", "Cluster", "Namespaced"]));
}

fn resources(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    let all: Vec<&str> =
        resources.as_array().into_iter().flatten().map(|one| one.as_str().unwrap_or_default()).collect();
    if all.is_empty() {
        causes.push(Cause::required(at, ""));
    }
    let (mut wild_parts, mut wild_plurals) = (HashSet::new(), HashSet::new());
    for (index, resource) in all.iter().enumerate() {
        let field = format!("{at}[{index}]");
        if resource.is_empty() {
            causes.push(Cause::required(&field, ""));
        }
        let Some((plural, part)) = resource.split_once('/') else { continue };
        let mut wrong = |why: String| causes.push(Cause::invalid(&field, &(*resource).into(), &why));
        if wild_parts.contains(plural) {
            wrong(format!("if '{plural}/*' is present, must not specify {resource}"));
        }
        if wild_plurals.contains(part) {
            wrong(format!("if '*/{part}' is present, must not specify {resource}"));
        }
        if part == "*" {
            wild_parts.insert(plural);
        }
        if plural == "*" {
            wild_plurals.insert(part);
        }
    }
    if all.len() > 1 && all.contains(&"*/*") {
        causes.push(Cause::invalid(at, resources, "if '*/*' is present, must not specify other resources"));
    }
    if all.contains(&"*") && all.iter().any(|one| *one != "*" && !one.contains('/')) {
        let why = "if '*' is present, must not specify other resources without subresources";
        causes.push(Cause::invalid(at, resources, why));
    }
}

fn client(core: &Core, config: &Value, at: &str, causes: &mut Vec<Cause>) {
    match (config["url"].as_str(), config["service"].is_object()) {
        (Some(url), false) => self::url(core, url, &format!("{at}.url"), causes),
        (None, true) => service(&config["service"], &format!("{at}.service"), causes),
        _ => causes.push(Cause::required(at, "exactly one of url or service is required")),
    }
    let bundle = text(config, "caBundle");
    if !bundle.is_empty()
        && let Err(why) = tls(bundle)
    {
        causes.push(Cause::new(
            "FieldValueInvalid",
            format!("{at}.caBundle"),
            format!("Invalid value: {why}"),
        ));
    }
}

fn url(core: &Core, url: &str, at: &str, causes: &mut Vec<Cause>) {
    let uri: Uri = match url.split('#').next().unwrap_or_default().parse() {
        Ok(uri) => uri,
        Err(error) => {
            causes.push(Cause::required(at, &format!("url must be a valid URL: {error}{FORM}")));
            return;
        }
    };
    let before = causes.len();
    let mut wrong = |value: &str, why: &str| causes.push(Cause::invalid(at, &value.into(), why));
    let scheme = uri.scheme_str().unwrap_or_default();
    if scheme != "https" {
        wrong(scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if uri.host().is_none_or(str::is_empty) {
        wrong("", &format!("host must be specified{FORM}"));
    }
    if let Some((user, _)) = uri.authority().and_then(|authority| authority.as_str().rsplit_once('@')) {
        wrong(user, "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = url.split_once('#').filter(|(_, fragment)| !fragment.is_empty()) {
        wrong(fragment, "fragments are not permitted in the URL");
    }
    if let Some(query) = uri.query().filter(|query| !query.is_empty()) {
        wrong(query, "query parameters are not permitted in the URL");
    }
    if causes.len() > before {
        return;
    }
    if let Target::Host { host, port, .. } = Target::of_url(url)
        && !core.connector.get().is_some_and(|connector| connector.allows(&host, port))
    {
        causes.push(Cause::forbidden(at, &not_allowed(&host, port)));
    }
}

fn service(service: &Value, at: &str, causes: &mut Vec<Cause>) {
    for field in ["name", "namespace"] {
        if text(service, field).is_empty() {
            causes.push(Cause::required(format!("{at}.{field}"), ""));
        }
    }
    if !service["port"].as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        causes.push(Cause::invalid(format!("{at}.port"), &service["port"], why));
    }
    let path = text(service, "path");
    if matches!(path, "" | "/") {
        return;
    }
    let field = format!("{at}.path");
    let mut wrong = |why: &str| causes.push(Cause::invalid(&field, &path.into(), why));
    if !path.starts_with('/') {
        wrong("must start with a '/'");
        return;
    }
    let steps = path[1..].strip_suffix('/').unwrap_or(&path[1..]).split('/');
    for (index, step) in steps.enumerate() {
        if step.is_empty() {
            wrong(&format!("segment[{index}] may not be empty"));
            continue;
        }
        for why in syntax::subdomain(step) {
            wrong(&format!("segment[{index}]: {why}"));
        }
    }
}

/// Checks the conditions of a webhook or a policy. They may use these variables.
pub(super) fn conditions(conditions: &Value, at: &str, variables: &[&str], causes: &mut Vec<Cause>) {
    let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
    if conditions.len() > CONDITIONS {
        let message = format!("Too many: {}: must have at most {CONDITIONS} items", conditions.len());
        causes.push(Cause::new("FieldValueTooMany", at, message));
        return;
    }
    let mut names = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let at = format!("{at}[{index}]");
        self::expression(text(condition, "expression"), &format!("{at}.expression"), variables, causes);
        let (name, field) = (text(condition, "name"), format!("{at}.name"));
        if name.is_empty() {
            causes.push(Cause::required(&field, ""));
        } else {
            causes.extend(invalid(&field, name, syntax::key(name)));
            if !names.insert(name) {
                causes.push(duplicate(field, name));
            }
        }
    }
}

/// Checks an expression.
pub(super) fn expression(text: &str, field: &str, variables: &[&str], causes: &mut Vec<Cause>) {
    let text = text.trim();
    if text.is_empty() {
        causes.push(Cause::required(field, ""));
    } else if let Err(why) = expression::compile(text, variables) {
        causes.push(Cause::invalid(field, &text.into(), &why));
    }
}

fn versions(versions: &Value, at: &str, causes: &mut Vec<Cause>) {
    let all = versions.as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        causes.push(Cause::required(at, &format!("must specify one of {REVIEW_VERSION}")));
        return;
    }
    let mut seen = HashSet::new();
    for (index, version) in all.iter().enumerate() {
        let (version, field) = (version.as_str().unwrap_or_default(), format!("{at}[{index}]"));
        if !seen.insert(version) {
            causes.push(Cause::invalid(&field, &version.into(), "duplicate version"));
            continue;
        }
        causes.extend(invalid(&field, version, syntax::label(version)));
    }
    if !seen.contains(REVIEW_VERSION) {
        causes.push(Cause::invalid(at, versions, &format!("must include at least one of {REVIEW_VERSION}")));
    }
}
