//! Field selectors: `metadata.name=a,status.phase!=Failed`, with the fields that each kind allows.

use serde_json::Value;

use super::{MAX_LENGTH, SelectorError};
use crate::kinds::Kind;

/// All terms must hold; none at all matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    equal: bool,
    value: String,
}

/// The fields, besides name and namespace, by which a built-in kind can be selected.
fn fields_of(kind: &Kind) -> &'static [&'static str] {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("apps", "ReplicaSet") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        ("certificates.k8s.io", "CertificateSigningRequest") => &["spec.signerName"],
        _ => &[],
    }
}

impl FieldSelector {
    /// Reads the text of a `fieldSelector` parameter for a kind.
    pub(crate) fn parse(text: &str, kind: &Kind) -> Result<Self, SelectorError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectorError::Fields(format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let mut terms = Vec::new();
        for part in split(text) {
            if part.is_empty() {
                continue;
            }
            let term = term(&part)
                .ok_or_else(|| SelectorError::Fields(format!("'{text}'; can't understand '{part}'")))?;
            if !supported(kind, &term.field) {
                return Err(SelectorError::Unsupported(term.field));
            }
            terms.push(term);
        }
        Ok(FieldSelector(terms))
    }

    /// Returns true if it matches everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one name that it allows, if it selects by name: a list can then be a get.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.iter().find(|t| t.equal && t.field == "metadata.name").map(|t| t.value.as_str())
    }

    /// Returns true if an object, in the version of the request, matches.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| {
            let same = match term.field.as_str() {
                // A Pod has several addresses; any of them is meant.
                "status.podIPs" => {
                    let all = object.pointer("/status/podIPs").and_then(Value::as_array);
                    all.into_iter().flatten().any(|ip| ip["ip"].as_str() == Some(&term.value))
                }
                "source" => {
                    let component = value(object, "source.component");
                    let component =
                        if component.is_empty() { value(object, "reportingComponent") } else { component };
                    component == term.value
                }
                "status.successful" => number_or_zero(object, "status.succeeded") == term.value,
                "status.replicas" => number_or_zero(object, "status.replicas") == term.value,
                "spec.unschedulable" | "spec.hostNetwork" => {
                    let flag = value(object, &term.field);
                    (if flag.is_empty() { "false" } else { &flag }) == term.value
                }
                field => value(object, field) == term.value,
            };
            same == term.equal
        })
    }
}

fn supported(kind: &Kind, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => kind.namespaced || kind.is_custom(),
        _ => fields_of(kind).contains(&field) || kind.selectable_fields.iter().any(|f| f == field),
    }
}

/// The value at a dotted path as text; empty if absent.
fn value(object: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(object, |value, name| value.get(name));
    match found {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn number_or_zero(object: &Value, path: &str) -> String {
    let number = value(object, path);
    if number.is_empty() { "0".into() } else { number }
}

/// Splits at commas; a backslash takes the next character as it is and stays for the values to read.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let part = match c {
            ',' => {
                parts.push(String::new());
                continue;
            }
            c => c,
        };
        if let Some(last) = parts.last_mut() {
            last.push(part);
            if c == '\\' {
                last.extend(chars.next());
            }
        }
    }
    parts
}

fn term(part: &str) -> Option<Term> {
    let at = part.find(['=', '!'])?;
    let (field, rest) = part.split_at(at);
    let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
        (false, value)
    } else {
        (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?)
    };
    let mut plain = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            '=' | ',' => return None,
            c => plain.push(c),
        }
    }
    Some(Term { field: field.trim().into(), equal, value: plain })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::builtin;

    fn kind(api_version: &str, name: &str) -> Kind {
        builtin().into_iter().find(|k| k.api_version() == api_version && k.kind == name).expect("a kind")
    }

    #[test]
    fn selectors_match_by_field() {
        let pod = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "hutch"},
            "status": {"phase": "Running", "podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}, {"ip": "::1"}]}});
        let cases = [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name==b", false),
            ("metadata.name=a,metadata.namespace!=n", false),
            ("status.podIP!=", true),
            ("status.podIPs=::1", true),
            ("spec.nodeName=hutch,status.phase!=Failed", true),
            ("spec.hostNetwork=false", true),
            ("spec.nodeName=", false),
        ];
        for (text, wanted) in cases {
            let selector =
                FieldSelector::parse(text, &kind("v1", "Pod")).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.matches(&pod), wanted, "{text}");
        }
        assert_eq!(
            FieldSelector::parse("metadata.name=a", &kind("v1", "Pod")).expect("one").name(),
            Some("a")
        );
        let event = json!({"involvedObject": {"name": "x,y", "kind": "Pod"}, "source": {"component": "c"}});
        for text in ["involvedObject.name=x\\,y,involvedObject.kind=Pod", "source=c"] {
            assert!(
                FieldSelector::parse(text, &kind("v1", "Event")).expect("a selector").matches(&event),
                "{text}"
            );
        }
    }

    #[test]
    fn fields_that_cannot_be_selected_are_named() {
        let error =
            |text: &str, kind: &Kind| FieldSelector::parse(text, kind).expect_err("an error").to_string();
        let cases = [
            ("spec.foo=1", kind("v1", "Pod"), "field label not supported: spec.foo"),
            (
                "metadata.name=a,status.phase=1",
                kind("apps/v1", "Deployment"),
                "field label not supported: status.phase",
            ),
            ("metadata.namespace=a", kind("v1", "Node"), "field label not supported: metadata.namespace"),
            ("name", kind("v1", "Pod"), "invalid field selector: 'name'; can't understand 'name'"),
        ];
        for (text, kind, wanted) in cases {
            assert_eq!(error(text, &kind), wanted);
        }
    }
}
