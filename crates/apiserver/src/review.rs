//! Reviews: kinds that are answered and not stored.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::access::Action;
use crate::authentication::bearer;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::service_token::AUDIENCE;
use crate::verbs::create::{check_place, settle_type};
use crate::{Identity, body, fields, meta, respond};

pub(crate) fn review(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut decoded = body::decode(bytes, media_type)?;
    settle_type(call, &mut decoded.value)?;
    let mut object = fields::settle(call, decoded)?;
    let status = match call.kind().kind.as_str() {
        "SelfSubjectReview" => json!({ "userInfo": user(&call.identity) }),
        "TokenReview" => token(call, &mut object)?,
        "SelfSubjectRulesReview" => {
            let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Failure::bad_request("no namespace on request"));
            }
            call.core.access.rules_status(&call.identity, namespace)
        }
        "SelfSubjectAccessReview" => allowed(call, &call.identity, &object)?,
        kind => {
            if kind == "LocalSubjectAccessReview" {
                check_place(call, &mut object)?;
            }
            allowed(call, &subject(&object["spec"]), &object)?
        }
    };
    object["status"] = status;
    if call.kind().kind == "SelfSubjectReview" {
        let now = meta::seconds(call.core.ambient.now());
        meta::metadata(&mut object).insert("creationTimestamp".into(), now.into());
    }
    respond::object(call, StatusCode::CREATED, object)
}

fn user(identity: &Identity) -> Value {
    let mut user = json!({ "username": identity.name, "groups": identity.groups });
    if !identity.uid.is_empty() {
        user["uid"] = identity.uid.as_str().into();
    }
    if !identity.extra.is_empty() {
        user["extra"] = json!(identity.extra);
    }
    user
}

/// The identity that a review of access is about.
fn subject(spec: &Value) -> Identity {
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Identity {
        name: spec["user"].as_str().unwrap_or_default().into(),
        groups: groups.map(str::to_owned).collect(),
        ..Identity::default()
    }
}

/// The status of a review of access.
fn allowed(call: &Call, identity: &Identity, object: &Value) -> Result<Value, Failure> {
    let causes = check(call, object);
    let action = Action::of_review(&object["spec"]).filter(|_| causes.is_empty());
    let Some(action) = action else {
        // A Kubernetes API server does not name the kind here.
        let unnamed = Kind { kind: String::new(), ..call.kind().clone() };
        return Err(Failure::invalid(&unnamed, "", causes));
    };
    let decision = call.core.access.decide(identity, &action);
    let mut status = json!({ "allowed": decision.allowed });
    let reason = decision.reason.to_string();
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    Ok(status)
}

/// The attributes of a path under the names that they have in messages.
fn in_go(path: &Value) -> Value {
    let text = |field: &str| path[field].as_str().unwrap_or_default();
    json!({"Path": text("path"), "Verb": text("verb")})
}

/// Validates a review of access, in the order of Kubernetes.
fn check(call: &Call, object: &Value) -> Vec<Cause> {
    let (spec, kind) = (&object["spec"], call.kind().kind.as_str());
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut causes = Vec::new();
    match (resource.is_object(), path.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            causes.push(Cause::invalid("spec.nonResourceAttributes", &in_go(path), why));
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.push(Cause::shown("spec.resourceAttributes", "null", why));
        }
        _ => {}
    }
    let empty = |field: &str| match &spec[field] {
        Value::Array(list) => list.is_empty(),
        other => other.as_str().unwrap_or_default().is_empty(),
    };
    if kind != "SelfSubjectAccessReview" && empty("user") && empty("groups") {
        let why = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", &"".into(), why));
    }
    let mut metadata = object["metadata"].as_object().cloned().unwrap_or_default();
    metadata.remove("managedFields");
    if kind == "LocalSubjectAccessReview" {
        let namespace = metadata.remove("namespace").unwrap_or_default();
        let own = resource["namespace"].as_str().unwrap_or_default();
        if resource.is_object() && namespace != own {
            let why = "must match metadata.namespace";
            causes.push(Cause::invalid("spec.resourceAttributes.namespace", &own.into(), why));
        }
        if path.is_object() {
            let why = "disallowed on this kind of request";
            causes.push(Cause::invalid("spec.nonResourceAttributes", &in_go(path), why));
        }
    }
    if !metadata.is_empty() {
        let local = if kind == "LocalSubjectAccessReview" { " except for namespace" } else { "" };
        let why = format!("must be empty{local}");
        causes.push(Cause::invalid("metadata", &object["metadata"], &why));
    }
    causes
}

/// Checks a token, for one of these audiences or for this server.
fn token(call: &Call, object: &mut Value) -> Result<Value, Failure> {
    // The token goes no further than this: it is not given back.
    let token = object["spec"].as_object_mut().and_then(|spec| spec.remove("token"));
    let token = token.as_ref().and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    let wanted = object["spec"]["audiences"].as_array().map_or(&[][..], Vec::as_slice);
    let mut wanted: Vec<&str> = wanted.iter().filter_map(Value::as_str).collect();
    if wanted.is_empty() {
        wanted.push(AUDIENCE);
    }
    let refused = |error: &str| json!({ "user": {}, "error": error });
    let Some((identity, audiences)) = bearer(&call.core, token.as_bytes()) else {
        return Ok(refused("invalid bearer token"));
    };
    let common: Vec<&String> = audiences.iter().filter(|own| wanted.contains(&own.as_str())).collect();
    if common.is_empty() {
        let quoted = |all: &[&str]| all.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" ");
        let own: Vec<&str> = audiences.iter().map(String::as_str).collect();
        let error = format!(
            "[invalid bearer token, token audiences [{}] is invalid for the target audiences [{}]]",
            quoted(&own),
            quoted(&wanted)
        );
        return Ok(refused(&error));
    }
    Ok(json!({ "authenticated": true, "user": user(&identity), "audiences": common }))
}
