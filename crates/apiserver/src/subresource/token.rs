//! TokenRequest: makes a token of a ServiceAccount. Nothing is stored, so it costs no more than a read.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::service_token::{AUDIENCE, Bound, Claims, Reference};
use crate::verbs::create::check_place;
use crate::{Identity, body, meta, object, respond};

/// Seconds for which a token is good by default.
const DEFAULT_SECONDS: i64 = 3600;
/// Shortest life of a token, in seconds.
const SECONDS_MIN: i64 = 600;
/// Longest life of a token, in seconds.
const SECONDS_MAX: i64 = 1 << 32;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    audiences: Option<Vec<String>>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<ObjectReference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

pub(crate) fn create(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut request = body::decode(bytes, media_type)?.value;
    let spec = request.get("spec").filter(|spec| !spec.is_null()).cloned().unwrap_or_else(|| json!({}));
    let spec: Spec = serde_json::from_value(spec)
        .map_err(|error| Failure::bad_request(format!("TokenRequest in version \"v1\": spec: {error}")))?;
    let namespace = call.namespace.clone().unwrap_or_default();
    check_place(call, &mut request)?;
    check_name(call, &request)?;
    let account = call.core.read(&call.resource.collection, &call.key(&call.name));
    let account = account.ok_or_else(|| Failure::not_found(call.kind(), &call.name))?;
    let uid = meta::text(&account, "uid").to_owned();
    let given = meta::text(&request, "uid");
    if !given.is_empty() && given != uid {
        let why = format!(
            "the UID in the token request ({given}) does not match the UID of the service account ({uid})"
        );
        return Err(Failure::conflict(&kind("TokenRequest"), &call.name, &why));
    }
    let seconds = spec.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds)?;
    let audiences = spec.audiences.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![AUDIENCE.into()]);
    let now = call.core.ambient.now();
    let mut claims = Claims {
        aud: audiences.clone(),
        exp: Some(now.as_second() + seconds),
        iat: now.as_second(),
        iss: AUDIENCE.into(),
        jti: call.core.ambient.uuid().to_string(),
        nbf: now.as_second(),
        sub: Identity::service_account(&namespace, &call.name).name,
        bound: Bound {
            serviceaccount: Reference { name: call.name.clone(), uid: uid.clone() },
            namespace,
            pod: None,
            secret: None,
            node: None,
        },
    };
    if let Some(reference) = &spec.bound_object_ref {
        bind(call, reference, &mut claims.bound)?;
    }
    let token = call.core.signer.sign(&claims).ok_or_else(|| {
        let cause = Cause::new(
            "FieldValueTooLong",
            "spec.audiences",
            "Too long: the token would be longer than a server accepts",
        );
        Failure::invalid(&kind("TokenRequest"), "", vec![cause])
    })?;
    request["kind"] = "TokenRequest".into();
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    let metadata = meta::metadata(&mut request);
    metadata.insert("name".into(), call.name.as_str().into());
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), meta::seconds(now).into());
    request["spec"]["audiences"] = audiences.into();
    request["spec"]["expirationSeconds"] = seconds.into();
    if request["spec"]["boundObjectRef"].is_null() {
        request["spec"]["boundObjectRef"] = Value::Null;
    }
    let end = now + jiff::SignedDuration::from_secs(seconds);
    request["status"] = json!({ "token": token, "expirationTimestamp": meta::seconds(end) });
    respond::object(call, StatusCode::CREATED, request)
}

/// A kind of which only the name appears in a message.
fn kind(name: &str) -> Kind {
    let group = if name == "TokenRequest" { "authentication.k8s.io" } else { "" };
    Kind { group: group.into(), kind: name.into(), plural: name.into(), ..Kind::default() }
}

/// The name in the body is that of the path.
fn check_name(call: &Call, request: &Value) -> Result<(), Failure> {
    let given = meta::text(request, "name");
    if given.is_empty() || given == call.name {
        return Ok(());
    }
    let message = "must match the service account name if specified";
    let cause = Cause::invalid("metadata.name", &given.into(), message);
    Err(Failure::invalid(&kind("TokenRequest"), &call.name, vec![cause]))
}

fn check_seconds(seconds: i64) -> Result<(), Failure> {
    let message = if seconds < SECONDS_MIN {
        "may not specify a duration less than 10 minutes"
    } else if seconds > SECONDS_MAX {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), message);
    Err(Failure::invalid(&kind("TokenRequest"), "", vec![cause]))
}

/// Binds the token to an object, with which it ends.
fn bind(call: &Call, reference: &ObjectReference, bound: &mut Bound) -> Result<(), Failure> {
    let ObjectReference { api_version, kind: kind_name, name, uid } = reference;
    let (plural, place, slot) = match (api_version.as_str(), kind_name.as_str()) {
        ("v1", "Pod") => ("pods", call.namespace.as_deref(), &mut bound.pod),
        ("v1", "Secret") => ("secrets", call.namespace.as_deref(), &mut bound.secret),
        ("v1", "Node") => ("nodes", None, &mut bound.node),
        _ => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind_name}");
            return Err(Failure::bad_request(message));
        }
    };
    let stored = Kind { plural: plural.into(), ..Kind::default() };
    let object = call.core.read(plural, &object::key(place, name));
    let object = object.ok_or_else(|| Failure::not_found(&stored, name))?;
    if plural == "pods" && object["spec"]["serviceAccountName"] != call.name.as_str() {
        return Err(Failure::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            call.name
        )));
    }
    let own = meta::text(&object, "uid");
    if !uid.is_empty() && uid != own {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Failure::conflict(&kind(kind_name), name, &why));
    }
    *slot = Some(Reference { name: name.clone(), uid: own.to_owned() });
    Ok(())
}
