//! Changing an object by a patch of one of the four types.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::create::{check_place, insert};
use super::modify::{Part, modify};
use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::ownership::Ownership;
use crate::patch::{self, Applier, Conflict, PatchError};
use crate::{body, fields, meta, respond};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

pub(crate) async fn patch(
    call: &Call,
    part: Part,
    bytes: &Bytes,
    media_type: &str,
) -> Result<Response, Failure> {
    match media_type {
        APPLY => return apply(call, part, bytes).await,
        STRATEGIC if call.kind().is_custom() => {
            return Err(Failure::unsupported_media_type(&[JSON, MERGE, APPLY]));
        }
        JSON | MERGE | STRATEGIC => {}
        _ => return Err(Failure::unsupported_media_type(&[JSON, MERGE, STRATEGIC, APPLY])),
    }
    let patch = body::json(bytes)?.value;
    let names_revision = names_revision(&patch, media_type);
    let entry = modify(call, part, Ownership::Track, &mut |current| {
        let patched = match media_type {
            JSON => patch::json(current, &patch),
            MERGE => patch::merge(current, &patch),
            _ => patch::strategic(current, &patch, call.kind().shape()),
        };
        let mut patched = patched.map_err(|error| refused(call, error))?;
        if !names_revision {
            meta::metadata(&mut patched).remove("resourceVersion");
        }
        let patched = fields::settle_patched(call, current, patched)?;
        check_identity(call, current, &patched)?;
        Ok(patched)
    })
    .await?;
    respond::entry(call, StatusCode::OK, &entry)
}

/// Returns true if the patch is for one revision only.
fn names_revision(patch: &Value, media_type: &str) -> bool {
    if media_type != JSON {
        return !meta::text(patch, "resourceVersion").is_empty();
    }
    let operations = patch.as_array().into_iter().flatten();
    operations
        .into_iter()
        .any(|operation| operation["path"] == "/metadata/resourceVersion" && operation["op"] != "test")
}

/// A patch cannot rename an object or make it another kind.
fn check_identity(call: &Call, current: &Value, patched: &Value) -> Result<(), Failure> {
    let (name, own) = (meta::text(patched, "name"), meta::text(current, "name"));
    if name != own {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({own})"
        )));
    }
    let (namespace, own) = (meta::text(patched, "namespace"), meta::text(current, "namespace"));
    if namespace != own {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    super::create::check_type(call, patched)
}

fn refused(call: &Call, error: PatchError) -> Failure {
    match error {
        PatchError::Malformed(text) => Failure::bad_request(text),
        PatchError::TooLarge(_) | PatchError::CopiesTooLarge => Failure::too_large(),
        PatchError::Unprocessable(_) => Failure::unprocessable(call.kind(), &call.name, &error.to_string()),
        PatchError::Conflict(ref conflicts) => {
            let cause = |conflict: &Conflict| Cause::new(Conflict::CAUSE, &conflict.path, conflict.message());
            let causes = conflicts.iter().map(cause).collect();
            Failure::apply_conflict(error.to_string(), causes)
        }
    }
}

/// Server-side apply: makes the object if it is not there.
async fn apply(call: &Call, part: Part, bytes: &Bytes) -> Result<Response, Failure> {
    let manager = call.query.get("fieldManager").unwrap_or_default();
    if manager.is_empty() {
        let cause = Cause::required("fieldManager", "is required for apply patch");
        return Err(Failure::invalid_options("PatchOptions", cause));
    }
    // JSON is YAML too, and what clients send.
    let decoded = if bytes.first() == Some(&b'{') { body::json(bytes)? } else { body::yaml(bytes)? };
    super::create::check_type(call, &decoded.value)?;
    let mut applied = fields::settle(call, decoded)?;
    check_place(call, &mut applied)?;
    let name = meta::text(&applied, "name");
    if name.is_empty() {
        meta::metadata(&mut applied).insert("name".into(), call.name.as_str().into());
    } else if name != call.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name
        )));
    }
    let (force, subresource) = (call.query.flag("force"), part.owner());
    let applier = Applier { manager, force, subresource, now: call.core.ambient.now() };
    let names_revision = !meta::text(&applied, "resourceVersion").is_empty();
    let exists = call.store.latest(&call.resource.collection, &call.key(&call.name)).is_some();
    if !exists && part == Part::Main {
        let uid = meta::text(&applied, "uid");
        if !uid.is_empty() {
            let why = "Precondition failed: UID in precondition: , UID in object meta: ";
            return Err(Failure::conflict(call.kind(), &call.name, &format!("{why}{uid}")));
        }
        let place = call.namespace.as_deref().unwrap_or_default();
        let create = Action::on("create", &call.kind().group, &call.kind().plural, &call.name).inside(place);
        call.core.access.check(&call.identity, create)?;
        let made =
            patch::apply(None, &applied, applier, call.kind()).map_err(|error| refused(call, error))?;
        match insert(call, made, Ownership::Settled).await {
            // Another client created it in between: then it is an update.
            Err(failure) if failure.is("AlreadyExists") => {}
            other => return respond::entry(call, StatusCode::CREATED, &other?),
        }
    }
    let entry = modify(call, part, Ownership::Settled, &mut |current| {
        let next = patch::apply(Some(current), &applied, applier, call.kind());
        let mut next = next.map_err(|error| refused(call, error))?;
        if !names_revision {
            meta::metadata(&mut next).remove("resourceVersion");
        }
        Ok(next)
    })
    .await?;
    respond::entry(call, StatusCode::OK, &entry)
}
