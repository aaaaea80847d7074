//! Reviews: kinds that are answered and not stored.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::identity::bearer;
use crate::service_token::AUDIENCE;
use crate::verbs::create::settle_type;
use crate::{Identity, access, body, fields, meta, respond};

pub(crate) fn review(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut decoded = body::decode(bytes, media_type)?;
    settle_type(call, &mut decoded.value)?;
    let mut object = fields::settle(call, decoded)?;
    let status = match call.kind().kind.as_str() {
        "SelfSubjectReview" => json!({ "userInfo": user(&call.identity) }),
        "TokenReview" => token(call, &mut object)?,
        "SelfSubjectRulesReview" => access::rules(&call.identity),
        "SelfSubjectAccessReview" => allowed(call, &call.identity, &object["spec"])?,
        _ => allowed(call, &subject(&object["spec"]), &object["spec"])?,
    };
    object["status"] = status;
    if call.kind().kind == "SelfSubjectReview" {
        meta::metadata(&mut object).insert("creationTimestamp".into(), meta::now().into());
    }
    respond::object(call, StatusCode::CREATED, object)
}

fn user(identity: &Identity) -> Value {
    let mut user = json!({ "username": identity.name, "groups": identity.groups });
    if !identity.uid.is_empty() {
        user["uid"] = identity.uid.as_str().into();
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
fn allowed(call: &Call, identity: &Identity, spec: &Value) -> Result<Value, Failure> {
    let Some(action) = Action::of_review(spec) else {
        let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let cause = Cause::shown("spec.resourceAttributes", "null", message);
        return Err(Failure::invalid(call.kind(), "", vec![cause]));
    };
    Ok(json!({ "allowed": access::allows(identity, action) }))
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
    let refused = |error: &str| json!({ "authenticated": false, "user": {}, "error": error });
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
