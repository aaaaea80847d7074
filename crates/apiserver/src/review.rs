//! Kinds that only answer a question: who is this, may it do that.
//!
//! Everyone who authenticates may do everything, so the answer about permissions is always yes.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::call::Call;
use crate::failure::Failure;
use crate::verbs::create::settle_type;
use crate::{Identity, body, fields, meta, respond};

pub(crate) fn review(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut decoded = body::decode(bytes, media_type)?;
    settle_type(call, &mut decoded.value)?;
    let mut object = fields::settle(call, decoded)?;
    let status = match call.kind().kind.as_str() {
        "SelfSubjectReview" => json!({ "userInfo": user(&call.identity) }),
        "TokenReview" => token(call, &mut object),
        "SelfSubjectRulesReview" => json!({
            "incomplete": false,
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
        }),
        _ => {
            json!({ "allowed": true, "reason": "every authenticated user may do everything on this server" })
        }
    };
    object["status"] = status;
    if call.kind().kind == "SelfSubjectReview" {
        meta::metadata(&mut object).insert("creationTimestamp".into(), meta::now().into());
    }
    respond::object(call, StatusCode::CREATED, object)
}

fn user(identity: &Identity) -> Value {
    json!({ "username": identity.name, "groups": identity.groups })
}

fn token(call: &Call, object: &mut Value) -> Value {
    // The token goes no further than this: it is not given back.
    let token = object["spec"].as_object_mut().and_then(|spec| spec.remove("token"));
    let token = token.as_ref().and_then(Value::as_str).unwrap_or_default();
    match call.core.credentials.identify(token.as_bytes()) {
        Some(identity) => json!({ "authenticated": true, "user": user(&identity) }),
        None => json!({ "authenticated": false, "user": {}, "error": "invalid bearer token" }),
    }
}
