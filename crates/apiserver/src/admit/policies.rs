//! The decision of ValidatingAdmissionPolicies about a request.

use std::collections::HashMap;

use hutch_audit::Text;
use kube_cel::cel::Value as Cel;
use serde_json::{Value, json};

use super::select::{Views, has_labels, holds};
use super::{Admission, Objects};
use crate::expression::Evaluation;
use crate::failure::Failure;
use crate::hooks::policy::{Binding, Compiled, Constraints, Parameter, Policy, Validation};
use crate::kinds::Kind;
use crate::object;

/// Maximum bytes of a message that an expression makes, as in Kubernetes.
const MESSAGE_BYTES: usize = 5 << 10;
/// Maximum characters of a message in an audit record.
const MESSAGE: usize = 200;
/// Annotation of a request that a binding only audits, as in Kubernetes.
const FAILURE: (&str, &str) = ("validation.policy.admission.k8s.io", "validation_failure");

/// A reason why a policy does not accept a request.
struct Refusal {
    message: String,
    reason: String,
    /// Place of the validation; `None` for another expression.
    index: Option<usize>,
    /// True if the actions of the binding decide what it means; false for a policy that cannot be applied.
    follows_actions: bool,
}

impl Refusal {
    fn invalid(message: String) -> Refusal {
        Refusal { message, reason: "Invalid".into(), index: None, follows_actions: true }
    }
}

impl Admission<'_> {
    /// Refuses a request that a policy does not accept.
    pub(super) fn check_policies(&self, objects: Objects<'_>, views: &mut Views) -> Result<(), Failure> {
        let mut denial = None;
        for policy in &self.hooks.policies {
            let Some(kind) = self.constrained(&policy.constraints, objects)? else { continue };
            for binding in &policy.bindings {
                let also = binding.constraints.as_ref().map(|own| self.also(own, objects)).transpose()?;
                if also == Some(false) {
                    continue;
                }
                self.left()?;
                self.budget.begin();
                let refusals = self.bound(policy, binding, self.evaluation(kind, objects, views)?);
                self.affords()?;
                for refusal in refusals {
                    self.act(policy, binding, refusal, &mut denial);
                }
            }
        }
        denial.map_or(Ok(()), Err)
    }

    /// Does with a refusal what the binding says.
    fn act(&self, policy: &Policy, binding: &Binding, refusal: Refusal, denial: &mut Option<Failure>) {
        let Refusal { message, reason, index, follows_actions } = refusal;
        let has = |action: &str| binding.actions.iter().any(|own| own == action);
        let (name, bound) = (&policy.name, &binding.name);
        let about = format!("ValidatingAdmissionPolicy '{name}' with binding '{bound}'");
        if has("Audit") && follows_actions {
            // Masked before it is text in JSON, where a mask ends at its quotes; and so short that others have room beside it.
            let masked = Text::masked(&message);
            let message: String = masked.as_str().chars().take(MESSAGE).collect();
            let failure = json!([{"message": message, "policy": name, "binding": bound,
                "expressionIndex": index.unwrap_or_default(), "validationActions": binding.actions}]);
            self.call.annotations.add(FAILURE.0, FAILURE.1, &failure.to_string());
        }
        if has("Warn") && follows_actions {
            self.call.warn(format!("Validation failed for {about}: {message}"));
        }
        if (has("Deny") || !follows_actions) && denial.is_none() {
            let message = format!("{about} denied request: {message}");
            *denial = Some(Failure::of_policy(self.request.kind, self.request.name, &message, &reason));
        }
    }

    /// The version that a policy reads; `None` if it does not concern the request.
    fn constrained(&self, constraints: &Constraints, objects: Objects<'_>) -> Result<Option<&Kind>, Failure> {
        let Some(kind) = self.matching(&constraints.rules, constraints.exact) else { return Ok(None) };
        let excluded = self.matching(&constraints.excluded, constraints.exact).is_some();
        let selected = !excluded
            && self.in_namespace(&constraints.namespaces, objects)?
            && has_labels(&constraints.objects, objects);
        Ok(selected.then_some(kind))
    }

    /// Returns true if a binding concerns a request that its policy concerns. Without rules it concerns all.
    fn also(&self, constraints: &Constraints, objects: Objects<'_>) -> Result<bool, Failure> {
        if constraints.rules.is_empty() {
            let excluded = self.matching(&constraints.excluded, constraints.exact).is_some();
            return Ok(!excluded
                && self.in_namespace(&constraints.namespaces, objects)?
                && has_labels(&constraints.objects, objects));
        }
        Ok(self.constrained(constraints, objects)?.is_some())
    }

    /// The refusals of a policy with the parameters of one binding.
    fn bound(&self, policy: &Policy, binding: &Binding, evaluation: &mut Evaluation) -> Vec<Refusal> {
        let failed = |message: String| match policy.ignores_failures {
            true => Vec::new(),
            false => vec![Refusal::invalid(message)],
        };
        let parameters = match self.parameters(policy, binding.parameter.as_ref()) {
            Ok(Some(parameters)) => parameters,
            Ok(None) => return Vec::new(),
            Err(why) if policy.ignores_failures => {
                tracing::warn!(
                    policy = policy.name,
                    binding = binding.name,
                    error = why,
                    "a policy is not applied"
                );
                return Vec::new();
            }
            Err(why) => {
                let message = format!("failed to configure binding: {why}");
                return vec![Refusal { follows_actions: false, ..Refusal::invalid(message) }];
            }
        };
        evaluation.set("params", &parameters);
        match holds(&policy.conditions, evaluation) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(why) => return failed(why),
        }
        let errors = set_variables(policy, evaluation);
        let mut refusals = Vec::new();
        for (index, validation) in policy.validations.iter().enumerate() {
            let (text, before) = (&validation.text, refusals.len());
            match evaluated(evaluation, &validation.compiled, &errors) {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => refusals.push(refusal(validation, evaluation, &errors)),
                Ok(other) => {
                    let got = other.type_of();
                    refusals.extend(failed(format!("expression '{text}' must evaluate to bool, got {got}")));
                }
                Err(why) => refusals.extend(failed(format!("expression '{text}' resulted in error: {why}"))),
            }
            refusals[before..].iter_mut().for_each(|refusal| refusal.index = Some(index));
        }
        for why in self.annotate(policy, evaluation, &errors) {
            refusals.extend(failed(why).into_iter().map(|one| Refusal { follows_actions: false, ..one }));
        }
        refusals
    }

    /// Adds the audit annotations of a policy to the record of the request. Returns why some cannot be evaluated.
    fn annotate(&self, policy: &Policy, evaluation: &Evaluation, errors: &[(String, String)]) -> Vec<String> {
        let mut failed = Vec::new();
        for (key, compiled) in &policy.annotations {
            match evaluated(evaluation, compiled, errors) {
                Ok(Cel::String(value)) if !value.trim().is_empty() => {
                    self.call.annotations.add(&policy.name, key, &value);
                }
                Ok(Cel::String(_) | Cel::Null) => {}
                Ok(other) => {
                    failed.push(format!(
                        "valueExpression of {key:?} must evaluate to string, got {}",
                        other.type_of()
                    ));
                }
                Err(why) => failed.push(why),
            }
        }
        failed
    }

    /// The object with the parameters: null for a binding without a reference, `None` if requests are then accepted.
    fn parameters(&self, policy: &Policy, reference: Option<&Parameter>) -> Result<Option<Value>, String> {
        let (Some((api_version, kind)), Some(Parameter { name, namespace, may_lack })) =
            (&policy.parameters, reference)
        else {
            return Ok(Some(Value::Null));
        };
        let served = self.call.core.registry.served();
        let resource = served
            .find_kind(api_version, kind)
            .filter(|resource| may_be_parameters(&resource.kind))
            .ok_or_else(|| {
                format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'")
            })?;
        let place = match (resource.kind.namespaced, namespace.as_str(), self.call.namespace.as_deref()) {
            (false, _, _) => None,
            (true, "", Some(own)) => Some(own),
            (true, "", None) => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .into(),
                );
            }
            (true, named, _) => Some(named),
        };
        match self.call.core.read(&resource.collection, &object::key(place, name)) {
            Some(found) => crate::convert::from_storage(&resource.kind, found)
                .map(Some)
                .map_err(|failure| failure.message),
            None if *may_lack => Ok(None),
            None => Err("no params found for policy binding with `Deny` parameterNotFoundAction".into()),
        }
    }
}

/// Sets the variables of a policy. Returns the names of those that cannot be evaluated, and why.
fn set_variables(policy: &Policy, evaluation: &mut Evaluation) -> Vec<(String, String)> {
    let (mut errors, mut values) = (Vec::new(), HashMap::new());
    for (name, compiled) in &policy.variables {
        evaluation.set_map("variables", &values);
        match evaluated(evaluation, compiled, &errors) {
            Ok(value) => drop(values.insert(name.clone(), value)),
            Err(why) => errors.push((name.clone(), why)),
        }
    }
    evaluation.set_map("variables", &values);
    errors
}

/// Evaluates an expression. A variable that could not be evaluated makes those fail that use it.
fn evaluated(
    evaluation: &Evaluation,
    compiled: &Compiled,
    errors: &[(String, String)],
) -> Result<Cel, String> {
    let value = compiled.as_ref().map_err(Clone::clone).and_then(|compiled| evaluation.value(compiled));
    value.map_err(|why| {
        let of_variable = errors.iter().find(|(name, _)| why == format!("No such key: {name}"));
        of_variable.map_or(why.clone(), |(name, why)| {
            format!("composited variable {name:?} fails to evaluate: {why}")
        })
    })
}

/// The refusal of a validation that is false, with the best message.
fn refusal(validation: &Validation, evaluation: &Evaluation, errors: &[(String, String)]) -> Refusal {
    let made = validation.message_expression.as_ref().map(|compiled| evaluated(evaluation, compiled, errors));
    let made = match made {
        Some(Ok(Cel::String(message))) => message.trim().to_owned(),
        _ => String::new(),
    };
    let usable = !made.is_empty() && made.len() <= MESSAGE_BYTES && !made.contains('\n');
    let message = match (usable, validation.message.as_str()) {
        (true, _) => made,
        (false, "") => format!("failed expression: {}", validation.text),
        (false, message) => message.to_owned(),
    };
    let reason = if validation.reason.is_empty() { "Invalid" } else { &validation.reason };
    Refusal { reason: reason.to_owned(), ..Refusal::invalid(message) }
}

/// Returns true if objects of this type may be parameters: ConfigMaps and custom kinds. Others, such as Secrets, could be read
/// through messages.
pub(crate) fn may_be_parameters(kind: &Kind) -> bool {
    kind.is_custom() || (kind.group.is_empty() && kind.plural == "configmaps")
}
