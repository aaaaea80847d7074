//! Requests for client certificates: checks, approval and signature.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_serve::ClientRequest;
use serde_json::{Value, json};

use super::default;
use crate::access::Action;
use crate::call::Call;
use crate::certificates::{GROUP, SIGNER, request};
use crate::failure::{Cause, Failure};
use crate::identity::{Identity, MASTERS};
use crate::meta;

/// Uses that a certificate of this signer may have.
const USAGES: [&str; 3] = ["client auth", "digital signature", "key encipherment"];
/// Shortest life of a certificate, in seconds.
const SECONDS_MIN: i64 = 600;
/// Life of a certificate by default and at most, in seconds: a year.
const SECONDS_MAX: i64 = 365 * 24 * 3600;

/// Completes and checks a new object.
pub(crate) fn create(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let Identity { name, uid, groups, extra } = &call.identity;
    for (field, value) in
        [("username", json!(name)), ("uid", json!(uid)), ("groups", json!(groups)), ("extra", json!(extra))]
    {
        let empty = value.as_str() == Some("") || value.as_object().is_some_and(serde_json::Map::is_empty);
        if let Some(spec) = object["spec"].as_object_mut() {
            if empty {
                spec.remove(field)
            } else {
                spec.insert(field.into(), value)
            };
        }
    }
    object["status"] = json!({});
    let signer = object["spec"]["signerName"].as_str().unwrap_or_default();
    if signer != SIGNER {
        call.warn(format!("hutch up signs requests for {SIGNER} alone: this one for {signer:?} is stored, and no certificate follows"));
    }
    let own = meta::text(object, "name");
    let (request, causes) = check(object);
    if !causes.is_empty() {
        return Err(Failure::invalid(call.kind(), own, causes));
    }
    let masters = request.is_some_and(|request| request.groups.iter().any(|group| group == MASTERS));
    if masters && object["spec"]["signerName"] == SIGNER {
        let why = format!("use of {SIGNER} signer with system:masters group is not allowed");
        return Err(Failure::forbidden(call.kind(), own, &why, Vec::new()));
    }
    Ok(())
}

fn check(object: &Value) -> (Option<ClientRequest>, Vec<Cause>) {
    let (spec, mut causes) = (&object["spec"], Vec::new());
    let request = request(object);
    if let Err(error) = &request {
        causes.push(Cause::shown("spec.request", "\"\"", error));
    }
    let usages = spec["usages"].as_array().map_or(&[][..], Vec::as_slice);
    if usages.is_empty() {
        causes.push(Cause::required("spec.usages", ""));
    }
    let signer = spec["signerName"].as_str().unwrap_or_default();
    if signer.is_empty() {
        causes.push(Cause::required("spec.signerName", ""));
    }
    if signer == SIGNER {
        for (index, usage) in usages.iter().enumerate() {
            if !USAGES.iter().any(|own| usage == own) {
                let why = format!("the signer {SIGNER} allows {}", USAGES.join(", "));
                causes.push(Cause::invalid(format!("spec.usages[{index}]"), usage, &why));
            }
        }
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < SECONDS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.push(Cause::invalid("spec.expirationSeconds", &seconds.into(), why));
    }
    (request.ok(), causes)
}

/// Checks that the caller may approve or deny requests for the signer of this one.
pub(crate) fn may_approve(call: &Call, object: &Value) -> Result<(), Failure> {
    let signer = object["spec"]["signerName"].as_str().unwrap_or_default();
    let domain = signer.split('/').next().unwrap_or_default();
    let all = format!("{domain}/*");
    let allowed = [signer, &all].into_iter().any(|name| {
        call.core.access.decide(&call.identity, &Action::on("approve", GROUP, "signers", name)).allowed
    });
    if allowed {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(Failure::forbidden(call.kind(), &call.name, &why, Vec::new()))
}

/// The next state of an object from the conditions that a caller sets. An approved request for the signer of this server is
/// signed at once.
pub(crate) fn decided(call: &Call, current: &Value, wanted: &Value) -> Result<Value, Failure> {
    let now = meta::seconds(call.core.ambient.now());
    let mut conditions = wanted["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for condition in &mut conditions {
        default(condition, "status", "True");
        default(condition, "lastUpdateTime", now.as_str());
        default(condition, "lastTransitionTime", now.as_str());
    }
    let has = |conditions: &[Value], kind: &str| conditions.iter().any(|condition| condition["type"] == kind);
    let before = current["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut causes = Vec::new();
    for kind in ["Approved", "Denied"] {
        if has(before, kind) && !has(&conditions, kind) {
            let why = format!("updates may not remove a condition of type {kind:?}");
            causes.push(Cause::forbidden("status.conditions", &why));
        }
    }
    if has(&conditions, "Approved") && has(&conditions, "Denied") {
        let why = "Approved and Denied conditions are mutually exclusive";
        causes.push(Cause::invalid("status.conditions", &"Denied".into(), why));
    }
    if !causes.is_empty() {
        return Err(Failure::invalid(call.kind(), &call.name, causes));
    }
    let mut next = current.clone();
    meta::metadata(&mut next).remove("resourceVersion");
    let approved = has(&conditions, "Approved");
    next["status"]["conditions"] = conditions.into();
    let signed = !next["status"]["certificate"].is_null();
    if approved && !signed && next["spec"]["signerName"] == SIGNER {
        next["status"]["certificate"] = sign(call, &next)?.into();
    }
    Ok(next)
}

fn sign(call: &Call, object: &Value) -> Result<String, Failure> {
    let authority = call.core.authority.as_ref();
    let authority =
        authority.ok_or_else(|| Failure::unavailable("this server has no certificate authority"))?;
    let request = request(object).map_err(Failure::internal)?;
    let seconds = object["spec"]["expirationSeconds"].as_i64().unwrap_or(SECONDS_MAX).min(SECONDS_MAX);
    let life = Duration::from_secs(seconds.max(SECONDS_MIN).unsigned_abs());
    let signed = authority.sign_request(&request, life).map_err(|error| {
        tracing::error!(%error, request = %call.name, "failed to sign a client certificate");
        Failure::internal("the certificate could not be signed")
    })?;
    Ok(STANDARD.encode(signed.certificate_pem))
}
