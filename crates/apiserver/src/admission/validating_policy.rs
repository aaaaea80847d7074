//! ValidatingAdmissionPolicies and their bindings: their defaults, and their checks with Kubernetes' messages.

use std::collections::HashSet;

use hutch_api::syntax;
use serde_json::{Value, json};

use super::names::{invalid, must_be_one_of};
use super::selectors;
use super::webhook::{conditions, duplicate, exempt, expression, list, rule, text};
use crate::access::Action;
use crate::admit::may_be_parameters;
use crate::call::Call;
use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::hooks::GROUP;
use crate::hooks::policy::{BINDINGS, POLICIES, variables};
use crate::json::{default, items};
use crate::kinds::Kind;
use crate::meta;

/// Maximum policies, and maximum bindings: all of them may concern one request.
const STORED_POLICIES: usize = 64;
const STORED_BINDINGS: usize = 256;
/// Maximum validations and maximum variables of a policy.
const EXPRESSIONS: usize = 64;
/// Maximum audit annotations of a policy, as in Kubernetes.
const ANNOTATIONS: usize = 20;
/// Words that cannot name a variable.
const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Completes and checks a policy. One that was valid when it was stored stays until its spec is changed.
pub(crate) fn check(
    core: &Core,
    kind: &Kind,
    old: Option<&Value>,
    object: &mut Value,
) -> Result<(), Failure> {
    let name = meta::text(object, "name").to_owned();
    super::map(object, "spec");
    default(&mut object["spec"], "failurePolicy", "Fail");
    if object["spec"]["matchConstraints"].is_object() {
        complete(&mut object["spec"]["matchConstraints"]);
    }
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let mut causes = Vec::new();
    policy(core, &name, &object["spec"], &mut causes);
    too_many(core.hooks.objects_besides(POLICIES, &name) + 1, STORED_POLICIES, kind, &mut causes);
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, &name, causes)) }
}

/// Completes and checks a binding.
pub(crate) fn check_binding(
    core: &Core,
    kind: &Kind,
    old: Option<&Value>,
    object: &mut Value,
) -> Result<(), Failure> {
    let name = meta::text(object, "name").to_owned();
    super::map(object, "spec");
    if object["spec"]["matchResources"].is_object() {
        complete(&mut object["spec"]["matchResources"]);
    }
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let mut causes = Vec::new();
    binding(&object["spec"], &mut causes);
    too_many(core.hooks.objects_besides(BINDINGS, &name) + 1, STORED_BINDINGS, kind, &mut causes);
    if causes.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, &name, causes)) }
}

/// Refuses a binding to parameters that the caller may not read: messages can show them.
pub(crate) fn check_use(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if !call.resource.is(GROUP, "validatingadmissionpolicybindings") {
        return Ok(());
    }
    let (reference, policy) = (&object["spec"]["paramRef"], &object["spec"]["policyName"]);
    let unchanged = before.is_some_and(|before| {
        before["spec"]["paramRef"] == *reference && before["spec"]["policyName"] == *policy
    });
    if unchanged || !reference.is_object() {
        return Ok(());
    }
    // Before the policy exists nothing says which kind the parameters have: then all that it may be must be readable.
    let stored = call.core.read(POLICIES, policy.as_str().unwrap_or_default());
    let kind = stored.map(|policy| policy["spec"]["paramKind"].clone()).unwrap_or_default();
    let served = call.core.registry.served();
    let resource = served.find_kind(text(&kind, "apiVersion"), text(&kind, "kind"));
    let (group, plural) =
        resource.map_or(("*", "*"), |resource| (resource.kind.group.as_str(), resource.kind.plural.as_str()));
    let get = Action::on("get", group, plural, text(reference, "name")).inside(text(reference, "namespace"));
    if call.core.access.decide(&call.identity, &get).allowed {
        return Ok(());
    }
    let why = "user does not have \"get\" permission on the object referenced by paramRef";
    Err(Failure::forbidden(call.kind(), meta::text(object, "name"), why, Vec::new()))
}

/// Warns about parts of a policy or a binding without effect.
pub(crate) fn warn(call: &Call, object: &Value) {
    if call.resource.is(GROUP, "validatingadmissionpolicies") {
        exempt(
            call,
            &object["spec"]["matchConstraints"],
            "resourceRules",
            "spec.matchConstraints.resourceRules",
        );
    }
    if call.resource.is(GROUP, "validatingadmissionpolicybindings") {
        let named = text(&object["spec"], "policyName");
        let policy = call.core.read(POLICIES, named);
        if policy.is_none() {
            call.warn(format!("spec.policyName: there is no ValidatingAdmissionPolicy {named:?} yet"));
        }
        if object["spec"]["paramRef"].is_object()
            && policy.is_some_and(|policy| policy["spec"]["paramKind"].is_null())
        {
            call.warn("spec.paramRef: has no effect: the policy has no paramKind");
        }
    }
}

fn too_many(all: usize, most: usize, kind: &Kind, causes: &mut Vec<Cause>) {
    if all > most {
        let message = format!("Too many: {all}: at most {most} {} can be stored", kind.plural);
        causes.push(Cause::new("FieldValueTooMany", "metadata.name", message));
    }
}

fn complete(constraints: &mut Value) {
    default(constraints, "matchPolicy", "Equivalent");
    default(constraints, "namespaceSelector", json!({}));
    default(constraints, "objectSelector", json!({}));
    for field in ["resourceRules", "excludeResourceRules"] {
        for rule in items(constraints, field) {
            default(rule, "scope", "*");
        }
    }
}

fn policy(core: &Core, name: &str, spec: &Value, causes: &mut Vec<Cause>) {
    causes.extend(must_be_one_of("spec.failurePolicy", &spec["failurePolicy"], &["Fail", "Ignore"]));
    let has_parameters = spec["paramKind"].is_object();
    if has_parameters {
        parameters(core, &spec["paramKind"], causes);
    }
    if spec["matchConstraints"].is_object() {
        constraints(&spec["matchConstraints"], "spec.matchConstraints", causes);
        if list(&spec["matchConstraints"], "resourceRules").next().is_none() {
            causes.push(Cause::required("spec.matchConstraints.resourceRules", ""));
        }
    } else {
        causes.push(Cause::required("spec.matchConstraints", ""));
    }
    let mut names = variables(has_parameters);
    let of_conditions: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !matches!(*name, "variables" | "namespaceObject"))
        .collect();
    conditions(&spec["matchConditions"], "spec.matchConditions", &of_conditions, causes);
    for (index, variable) in list(spec, "variables") {
        let at = format!("spec.variables[{index}]");
        let own = text(variable, "name");
        if own.trim().is_empty() {
            causes.push(Cause::required(format!("{at}.name"), "name is not specified"));
        } else if !is_identifier(own) {
            causes.push(Cause::invalid(format!("{at}.name"), &own.into(), "must be a valid CEL identifier"));
        } else if names.contains(&format!("variables.{own}")) {
            causes.push(duplicate(format!("{at}.name"), own));
        }
        compiled(variable, "expression", &at, &names, causes);
        names.push(format!("variables.{own}"));
    }
    for field in ["validations", "variables"] {
        let count = list(spec, field).count();
        if count > EXPRESSIONS {
            let message = format!("Too many: {count}: must have at most {EXPRESSIONS} items");
            causes.push(Cause::new("FieldValueTooMany", format!("spec.{field}"), message));
        }
    }
    if list(spec, "validations").chain(list(spec, "auditAnnotations")).next().is_none() {
        for field in ["spec.validations", "spec.auditAnnotations"] {
            let why = "validations or auditAnnotations must contain at least one item";
            causes.push(Cause::required(field, why));
        }
    }
    for (index, validation) in list(spec, "validations") {
        self::validation(validation, &format!("spec.validations[{index}]"), &names, causes);
    }
    annotations(name, spec, &names, causes);
}

fn compiled(value: &Value, field: &str, at: &str, names: &[String], causes: &mut Vec<Cause>) {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    expression(text(value, field), &format!("{at}.{field}"), &names, causes);
}

fn is_identifier(name: &str) -> bool {
    let begins = |first: char| first.is_ascii_alphabetic() || first == '_';
    name.starts_with(begins)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !RESERVED.contains(&name)
}

fn validation(validation: &Value, at: &str, names: &[String], causes: &mut Vec<Cause>) {
    compiled(validation, "expression", at, names, causes);
    for field in ["message", "messageExpression"] {
        let given = text(validation, field);
        if !given.is_empty() && given.trim().is_empty() {
            causes.push(Cause::invalid(
                format!("{at}.{field}"),
                &given.into(),
                "must be non-empty if specified",
            ));
        }
    }
    if !text(validation, "messageExpression").trim().is_empty() {
        compiled(validation, "messageExpression", at, names, causes);
    }
    let message = text(validation, "message");
    if message.trim().contains(['\n', '\r']) {
        causes.push(Cause::invalid(format!("{at}.message"), &message.into(), "must not contain line breaks"));
    }
    let reasons = &["Forbidden", "Invalid", "RequestEntityTooLarge"];
    causes.extend(must_be_one_of(&format!("{at}.reason"), &validation["reason"], reasons));
}

fn annotations(name: &str, spec: &Value, names: &[String], causes: &mut Vec<Cause>) {
    let annotations = &spec["auditAnnotations"];
    if list(spec, "auditAnnotations").count() > ANNOTATIONS {
        let why = format!("must not have more than {ANNOTATIONS} auditAnnotations");
        causes.push(Cause::invalid("spec.auditAnnotations", annotations, &why));
    }
    let mut keys = HashSet::new();
    for (index, annotation) in list(spec, "auditAnnotations") {
        let at = format!("spec.auditAnnotations[{index}]");
        let key = text(annotation, "key");
        let full = format!("{name}/{key}");
        causes.extend(invalid(&format!("{at}.key"), &full, syntax::key(&full)));
        if !keys.insert(key) {
            causes.push(duplicate(format!("{at}.key"), key));
        }
        compiled(annotation, "valueExpression", &at, names, causes);
    }
}

fn parameters(core: &Core, kind: &Value, causes: &mut Vec<Cause>) {
    let (api_version, name) = (text(kind, "apiVersion"), text(kind, "kind"));
    for (field, given) in [("apiVersion", api_version), ("kind", name)] {
        if given.is_empty() {
            causes.push(Cause::required(format!("spec.paramKind.{field}"), ""));
            return;
        }
    }
    // A kind that is defined later may be custom.
    let served = core.registry.served();
    if let Some(resource) = served.find_kind(api_version, name)
        && !may_be_parameters(&resource.kind)
    {
        let why = "this server takes parameters from ConfigMaps and custom resources only";
        causes.push(Cause::forbidden("spec.paramKind", why));
    }
}

fn constraints(constraints: &Value, at: &str, causes: &mut Vec<Cause>) {
    let policies = &["Equivalent", "Exact"];
    causes.extend(must_be_one_of(&format!("{at}.matchPolicy"), &constraints["matchPolicy"], policies));
    for field in ["namespaceSelector", "objectSelector"] {
        selectors::check(&constraints[field], &format!("{at}.{field}"), causes);
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, one) in list(constraints, field) {
            let at = format!("{at}.{field}[{index}]");
            let mut names = HashSet::new();
            for (index, name) in list(one, "resourceNames") {
                let (name, field) =
                    (name.as_str().unwrap_or_default(), format!("{at}.resourceNames[{index}]"));
                causes.extend(invalid(&field, name, syntax::segment(name, true)));
                if !names.insert(name) {
                    causes.push(duplicate(field, name));
                }
            }
            rule(one, &at, causes);
        }
    }
}

fn binding(spec: &Value, causes: &mut Vec<Cause>) {
    let policy = text(spec, "policyName");
    if policy.is_empty() {
        causes.push(Cause::required("spec.policyName", ""));
    } else {
        causes.extend(invalid("spec.policyName", policy, syntax::subdomain(policy)));
    }
    if spec["paramRef"].is_object() {
        reference(&spec["paramRef"], causes);
    }
    if spec["matchResources"].is_object() {
        constraints(&spec["matchResources"], "spec.matchResources", causes);
    }
    let actions = &spec["validationActions"];
    let mut seen = HashSet::new();
    for (index, action) in list(spec, "validationActions") {
        let field = format!("spec.validationActions[{index}]");
        causes.extend(must_be_one_of(&field, action, &["Audit", "Deny", "Warn"]));
        let action = action.as_str().unwrap_or_default();
        if !seen.insert(action) {
            causes.push(duplicate(field, action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                   response and headers serves no purpose)";
        causes.push(Cause::invalid("spec.validationActions", actions, why));
    }
    if seen.is_empty() {
        causes.push(Cause::required("spec.validationActions", "at least one validation action is required"));
    }
}

fn reference(reference: &Value, causes: &mut Vec<Cause>) {
    let (name, at) = (text(reference, "name"), "spec.paramRef");
    match (name.is_empty(), reference["selector"].is_null()) {
        (true, true) => causes.push(Cause::required(at, "one of name or selector must be specified")),
        (false, false) => {
            causes.push(Cause::forbidden(format!("{at}.name"), "name and selector are mutually exclusive"));
        }
        (true, false) => {
            let why = "this server finds parameters by name only";
            causes.push(Cause::forbidden(format!("{at}.selector"), why));
        }
        (false, true) => causes.extend(invalid(&format!("{at}.name"), name, syntax::segment(name, true))),
    }
    let action = &reference["parameterNotFoundAction"];
    if action.as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required(format!("{at}.parameterNotFoundAction"), ""));
    } else {
        causes.extend(must_be_one_of(&format!("{at}.parameterNotFoundAction"), action, &["Allow", "Deny"]));
    }
}
