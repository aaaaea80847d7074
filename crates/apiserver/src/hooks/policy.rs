//! ValidatingAdmissionPolicies and their bindings.

use hutch_store::{Page, Store};
use serde_json::Value;

use super::rule::{Rule, selector};
use super::webhook::Condition;
use crate::expression::{self, Expression};
use crate::object::Object;
use crate::selector::LabelSelector;

/// Collections of the policies and of the bindings.
pub(crate) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
pub(crate) const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

/// A compiled expression, or why it is invalid.
pub(crate) type Compiled = Result<Expression, String>;

/// A policy with its bindings.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) constraints: Constraints,
    pub(crate) conditions: Vec<Condition>,
    /// Names and values, which may use those before them.
    pub(crate) variables: Vec<(String, Compiled)>,
    pub(crate) validations: Vec<Validation>,
    /// Keys and values.
    pub(crate) annotations: Vec<(String, Compiled)>,
    /// True if a request is accepted when an expression cannot be evaluated.
    pub(crate) ignores_failures: bool,
    /// `apiVersion` and `kind` of its parameters.
    pub(crate) parameters: Option<(String, String)>,
    pub(crate) bindings: Vec<Binding>,
}

/// Selection of requests.
#[derive(Debug)]
pub(crate) struct Constraints {
    pub(crate) rules: Vec<Rule>,
    pub(crate) excluded: Vec<Rule>,
    /// True if the rules concern only the version that a request is in.
    pub(crate) exact: bool,
    pub(crate) namespaces: LabelSelector,
    pub(crate) objects: LabelSelector,
}

/// An expression that must be true.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) text: String,
    pub(crate) compiled: Compiled,
    pub(crate) message: String,
    pub(crate) message_expression: Option<Compiled>,
    pub(crate) reason: String,
}

/// A binding of a policy.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) name: String,
    /// Selection besides that of the policy.
    pub(crate) constraints: Option<Constraints>,
    pub(crate) actions: Vec<String>,
    pub(crate) parameter: Option<Parameter>,
}

/// Reference to the object with the parameters.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Empty for that of the request.
    pub(crate) namespace: String,
    /// True if requests are accepted when it does not exist.
    pub(crate) may_lack: bool,
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().trim().to_owned()
}

fn list(value: &Value, field: &str) -> Vec<Value> {
    value[field].as_array().cloned().unwrap_or_default()
}

/// Variables that expressions of a policy may use, without those that it defines.
pub(crate) fn variables(has_parameters: bool) -> Vec<String> {
    let mut names =
        ["object", "oldObject", "request", "namespaceObject", "variables"].map(String::from).to_vec();
    if has_parameters {
        names.push("params".into());
    }
    names
}

impl Constraints {
    fn read(constraints: &Value) -> Constraints {
        let rules = |field: &str| list(constraints, field).iter().map(Rule::read).collect();
        Constraints {
            rules: rules("resourceRules"),
            excluded: rules("excludeResourceRules"),
            exact: constraints["matchPolicy"] == "Exact",
            namespaces: selector(&constraints["namespaceSelector"]),
            objects: selector(&constraints["objectSelector"]),
        }
    }
}

impl Policy {
    fn read(name: &str, spec: &Value) -> Policy {
        let parameters = &spec["paramKind"];
        let parameters =
            parameters.is_object().then(|| (text(parameters, "apiVersion"), text(parameters, "kind")));
        let mut names = variables(parameters.is_some());
        let compile = |names: &[String], text: &str| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            expression::compile(text, &names)
        };
        let of_conditions: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| !matches!(*name, "variables" | "namespaceObject"))
            .collect();
        let conditions = Condition::all(&spec["matchConditions"], &of_conditions);
        let mut variables = Vec::new();
        for variable in list(spec, "variables") {
            let name = text(&variable, "name");
            variables.push((name.clone(), compile(&names, &text(&variable, "expression"))));
            names.push(format!("variables.{name}"));
        }
        let validation = |validation: &Value| Validation {
            text: text(validation, "expression"),
            compiled: compile(&names, &text(validation, "expression")),
            message: text(validation, "message"),
            message_expression: validation["messageExpression"].as_str().map(|text| compile(&names, text)),
            reason: text(validation, "reason"),
        };
        Policy {
            name: name.to_owned(),
            constraints: Constraints::read(&spec["matchConstraints"]),
            conditions,
            variables,
            validations: list(spec, "validations").iter().map(validation).collect(),
            annotations: list(spec, "auditAnnotations")
                .iter()
                .map(|one| (text(one, "key"), compile(&names, &text(one, "valueExpression"))))
                .collect(),
            ignores_failures: spec["failurePolicy"] == "Ignore",
            parameters,
            bindings: Vec::new(),
        }
    }
}

impl Binding {
    fn read(name: &str, spec: &Value) -> Binding {
        let parameter = &spec["paramRef"];
        Binding {
            name: name.to_owned(),
            constraints: spec["matchResources"]
                .is_object()
                .then(|| Constraints::read(&spec["matchResources"])),
            actions: list(spec, "validationActions")
                .iter()
                .filter_map(|one| Some(one.as_str()?.to_owned()))
                .collect(),
            parameter: parameter.is_object().then(|| Parameter {
                name: text(parameter, "name"),
                namespace: text(parameter, "namespace"),
                may_lack: parameter["parameterNotFoundAction"] == "Allow",
            }),
        }
    }
}

/// Reads the stored policies that have a binding.
pub(super) fn read(store: &Store<Object>) -> Vec<Policy> {
    let all = |collection: &str| store.list(collection, Page::default()).entries;
    let mut policies: Vec<Policy> =
        all(POLICIES).iter().map(|entry| Policy::read(&entry.name, &entry.value.value()["spec"])).collect();
    for entry in all(BINDINGS) {
        let binding = entry.value.value();
        let named = binding["spec"]["policyName"].as_str().unwrap_or_default();
        if let Some(policy) = policies.iter_mut().find(|policy| policy.name == named) {
            policy.bindings.push(Binding::read(&entry.name, &binding["spec"]));
        }
    }
    policies.retain(|policy| !policy.bindings.is_empty());
    policies
}
