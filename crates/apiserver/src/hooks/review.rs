//! The review that a webhook receives.

use serde_json::{Map, Value, json};

use super::rule::Operation;
use crate::Identity;
use crate::kinds::Kind;

/// Type of the review.
pub(crate) const API_VERSION: &str = "admission.k8s.io/v1";
pub(crate) const KIND: &str = "AdmissionReview";

/// Group, version and kind of a body, which for some subresources is not that of the object.
pub(crate) type BodyKind = (String, String, String);

/// A request as webhooks see it.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    /// The kind in the version of the request.
    pub(crate) kind: &'a Kind,
    pub(crate) subresource: &'a str,
    /// The namespace; for a request about a namespace, that itself.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) identity: &'a Identity,
    pub(crate) dry_run: bool,
    /// Options of the request, as an object of `meta.k8s.io/v1`.
    pub(crate) options: Value,
}

impl Request<'_> {
    /// Type of the body.
    pub(crate) fn body(&self, kind: &Kind) -> BodyKind {
        let own = || (kind.group.clone(), kind.version.clone(), kind.kind.clone());
        kind.subresource(self.subresource).map_or_else(own, |subresource| subresource.body.clone())
    }

    /// The request as the `request` of a review has it, without its objects. `kind` is the version that the receiver reads.
    pub(crate) fn describe(&self, kind: &Kind) -> Map<String, Value> {
        let of_kind = |kind: &Kind| {
            let (group, version, kind) = self.body(kind);
            json!({"group": group, "version": version, "kind": kind})
        };
        let of_resource =
            |kind: &Kind| json!({"group": kind.group, "version": kind.version, "resource": kind.plural});
        let mut user = json!({"username": self.identity.name, "groups": self.identity.groups});
        if !self.identity.uid.is_empty() {
            user["uid"] = self.identity.uid.as_str().into();
        }
        if !self.identity.extra.is_empty() {
            user["extra"] = json!(self.identity.extra);
        }
        let mut request = json!({
            "kind": of_kind(kind), "resource": of_resource(kind),
            "requestKind": of_kind(self.kind), "requestResource": of_resource(self.kind),
            "operation": self.operation.name(), "userInfo": user, "dryRun": self.dry_run, "options": self.options,
        });
        let texts = [
            ("subResource", self.subresource),
            ("requestSubResource", self.subresource),
            ("name", self.name),
            ("namespace", self.namespace),
        ];
        for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            request[field] = text.into();
        }
        match request {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

/// The review of a request.
pub(crate) fn review(mut request: Map<String, Value>, uid: &str, object: Value, old: Value) -> Value {
    request.insert("uid".into(), uid.into());
    request.insert("object".into(), object);
    request.insert("oldObject".into(), old);
    json!({"kind": KIND, "apiVersion": API_VERSION, "request": request})
}
