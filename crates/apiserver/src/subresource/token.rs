//! Tokens of service accounts: random, kept as a hash, void after their time.

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::{Identity, body, meta, respond};

/// Seconds that a token is good for unless the client asks otherwise.
const DEFAULT_SECONDS: i64 = 3600;
/// Shortest and longest life that may be asked for: ten minutes, a year.
const SECONDS: std::ops::RangeInclusive<i64> = 600..=31_536_000;

pub(crate) fn create(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut request = body::decode(bytes, media_type)?.value;
    let account = call.core.read(&call.resource.collection, &call.key(&call.name));
    if account.is_none() {
        return Err(Failure::not_found(call.kind(), &call.name));
    }
    let seconds =
        request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    if !SECONDS.contains(&seconds) {
        let detail = "may not specify a duration less than 10 minutes or more than a year";
        let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), detail);
        return Err(Failure::invalid(call.kind(), &call.name, vec![cause]));
    }
    let mut secret = [0u8; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| Failure::internal("no randomness"))?;
    let token = URL_SAFE_NO_PAD.encode(secret);
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let identity = Identity::service_account(namespace, &call.name);
    call.core.credentials.grant(token.as_bytes(), identity, Some(expires.as_second())).map_err(|error| {
        tracing::error!(%error, "a token could not be kept");
        Failure::internal("the token could not be kept")
    })?;
    request["kind"] = "TokenRequest".into();
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    let metadata = meta::metadata(&mut request);
    metadata.insert("name".into(), call.name.as_str().into());
    metadata.insert("namespace".into(), namespace.into());
    metadata.insert("creationTimestamp".into(), meta::now().into());
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] = json!({ "token": token, "expirationTimestamp": meta::seconds(expires) });
    respond::object(call, StatusCode::CREATED, request)
}
