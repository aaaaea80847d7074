//! The decision whether a webhook concerns a request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Value, json};

use super::{Admission, Objects};
use crate::expression::Evaluation;
use crate::failure::Failure;
use crate::hooks::rule::{Operation, Rule, Subject};
use crate::hooks::webhook::{Condition, Webhook};
use crate::kinds::Kind;
use crate::selector::LabelSelector;

/// The objects as variables, by group and version: each is converted once for all policies and webhooks that read it, until a
/// webhook is called.
#[derive(Default)]
pub(super) struct Views(HashMap<(String, String), Evaluation>);

impl Admission<'_> {
    /// The version that a webhook reads; `None` if the webhook does not concern the request.
    pub(super) fn selected(
        &self,
        webhook: &Webhook,
        objects: Objects<'_>,
        views: &mut Views,
    ) -> Result<Option<&Kind>, Failure> {
        let Some(kind) = self.matching(&webhook.rules, webhook.exact) else { return Ok(None) };
        if !self.in_namespace(&webhook.namespaces, objects)? || !has_labels(&webhook.objects, objects) {
            return Ok(None);
        }
        if webhook.conditions.is_empty() {
            return Ok(Some(kind));
        }
        let evaluation = self.evaluation(kind, objects, views)?;
        self.budget.begin();
        let held = holds(&webhook.conditions, evaluation);
        self.affords()?;
        match held {
            Ok(true) => Ok(Some(kind)),
            Ok(false) => Ok(None),
            Err(why) if webhook.ignores_failures => {
                tracing::warn!(
                    webhook = webhook.name,
                    error = why,
                    "a match condition failed; webhook not called"
                );
                Ok(None)
            }
            Err(why) => Err(Failure::forbidden(self.request.kind, self.request.name, &why, Vec::new())),
        }
    }

    /// The request with its objects and its namespace as variables.
    pub(super) fn evaluation<'v>(
        &self,
        kind: &Kind,
        objects: Objects<'_>,
        views: &'v mut Views,
    ) -> Result<&'v mut Evaluation, Failure> {
        let vacant = match views.0.entry((kind.group.clone(), kind.version.clone())) {
            Entry::Occupied(entry) => return Ok(entry.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let mut evaluation = Evaluation::new(&self.budget);
        evaluation.set("object", &self.converted(kind, objects.new)?);
        evaluation.set("oldObject", &self.converted(kind, objects.old)?);
        evaluation.set("request", &Value::Object(self.request.describe(kind)));
        let namespace =
            self.call.namespace.as_deref().and_then(|name| self.call.core.read("namespaces", name));
        let namespace = namespace.map_or(Value::Null, |mut namespace| {
            crate::meta::metadata(&mut namespace).remove("managedFields");
            namespace
        });
        evaluation.set("namespaceObject", &namespace);
        Ok(vacant.insert(evaluation))
    }

    /// Refuses a request whose expressions have cost too much together. Failure policies do not decide about that: a policy must
    /// not be able to have others left out.
    pub(super) fn affords(&self) -> Result<(), Failure> {
        if !self.budget.is_used_up() {
            return Ok(());
        }
        let why = "the expressions of all admission policies and webhooks exceed the cost limit of a request";
        Err(Failure::forbidden(self.request.kind, self.request.name, why, Vec::new()))
    }

    /// The first kind that one of the rules matches, the request's own before others that show the same objects.
    pub(super) fn matching(&self, rules: &[Rule], exact: bool) -> Option<&Kind> {
        let considered = if exact { &self.kinds[..1] } else { &self.kinds[..] };
        considered.iter().map(|resource| &resource.kind).find(|kind| {
            let subject = Subject {
                group: &kind.group,
                version: &kind.version,
                plural: &kind.plural,
                subresource: self.request.subresource,
                namespaced: kind.namespaced,
            };
            rules.iter().any(|rule| rule.matches(self.request.operation, subject, self.request.name))
        })
    }

    /// Returns true if the namespace of the request has these labels. Objects outside namespaces always match.
    pub(super) fn in_namespace(
        &self,
        selector: &LabelSelector,
        objects: Objects<'_>,
    ) -> Result<bool, Failure> {
        let namespace = self.request.namespace;
        if selector.is_empty() || namespace.is_empty() {
            return Ok(true);
        }
        // The namespace itself, as it will be.
        let is_written = matches!(self.request.operation, Operation::Create | Operation::Update);
        if self.call.resource.is("", "namespaces") && self.request.subresource.is_empty() && is_written {
            return Ok(objects.new.is_some_and(|object| selector.matches(object)));
        }
        let Some(object) = self.call.core.read("namespaces", namespace) else {
            let kind = Kind { plural: "namespaces".into(), ..Kind::default() };
            return Err(Failure::not_found(&kind, namespace));
        };
        Ok(selector.matches(&object))
    }
}

/// Returns true if the new or the old object has these labels.
pub(super) fn has_labels(selector: &LabelSelector, objects: Objects<'_>) -> bool {
    selector.is_empty()
        || [objects.new, objects.old].into_iter().flatten().any(|object| selector.matches(object))
}

/// Returns true if all conditions hold. One that is false decides, even if others cannot be evaluated.
pub(super) fn holds(conditions: &[Condition], evaluation: &Evaluation) -> Result<bool, String> {
    let mut failed = None;
    for Condition { text, compiled } in conditions {
        let truth = compiled.as_ref().map_err(Clone::clone).and_then(|compiled| evaluation.truth(compiled));
        match truth {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => {
                failed.get_or_insert_with(|| format!("expression '{text}' resulted in error: {why}"));
            }
        }
    }
    failed.map_or(Ok(true), Err)
}

/// The options of a stream into a Pod, as an object.
pub(crate) fn stream_options(kind: &str, query: &crate::query::Query) -> Value {
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    // As the stream itself reads them: a webhook must not see less than what is opened.
    let flag = |value: &str| !value.eq_ignore_ascii_case("false") && value != "0";
    for field in ["stdin", "stdout", "stderr", "tty"] {
        if query.get(field).is_some_and(flag) {
            options[field] = true.into();
        }
    }
    if let Some(container) = query.get("container").filter(|container| !container.is_empty()) {
        options["container"] = container.into();
    }
    let command: Vec<Value> = query.all("command").map(Into::into).collect();
    if !command.is_empty() {
        options["command"] = command.into();
    }
    let ports = query.all("ports").flat_map(|ports| ports.split(','));
    let ports: Vec<Value> = ports.filter_map(|port| port.parse::<u16>().ok()).map(Into::into).collect();
    if !ports.is_empty() {
        options["ports"] = ports.into();
    }
    options
}
