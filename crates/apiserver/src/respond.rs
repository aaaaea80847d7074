//! Answers: objects, lists and tables, in the requested form and version.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hutch_store::Entry;
use serde_json::{Map, Value, json};

use crate::accept::Form;
use crate::call::Call;
use crate::failure::Failure;
use crate::kinds::Kind;
use crate::object::{Object, encode};
use crate::{convert, table};

pub(crate) const JSON: &str = "application/json";

/// A response with a JSON body.
pub(crate) fn json_bytes(code: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// A response with a JSON value.
pub(crate) fn json_value(code: StatusCode, value: &Value) -> Response {
    json_bytes(code, encode(value).0)
}

/// A `Status` of success.
pub(crate) fn success(call: &Call, name: &str, uid: &str) -> Response {
    let mut details = json!({ "name": name, "kind": call.kind().plural });
    if !call.kind().group.is_empty() {
        details["group"] = call.kind().group.as_str().into();
    }
    if !uid.is_empty() {
        details["uid"] = uid.into();
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    json_value(StatusCode::OK, &status)
}

/// A stored object in the version and form of the request.
pub(crate) fn entry(call: &Call, code: StatusCode, entry: &Arc<Entry<Object>>) -> Result<Response, Failure> {
    if call.form == Form::Json && call.resource.shows_stored(entry) {
        return Ok(json_bytes(code, entry.value.json().clone()));
    }
    object(call, code, call.resource.shown(entry)?)
}

/// An object that is already in the version of the request, in the requested form.
pub(crate) fn object(call: &Call, code: StatusCode, object: Value) -> Result<Response, Failure> {
    match call.form {
        Form::Json => Ok(json_value(code, &object)),
        Form::Yaml => yaml(code, &object),
        Form::Metadata => Ok(json_value(code, &only_metadata(&object))),
        Form::Table => Ok(json_value(code, &rows(call, std::slice::from_ref(&object), None)?)),
    }
}

/// A list of stored objects.
pub(crate) fn list(
    call: &Call,
    entries: &[Arc<Entry<Object>>],
    metadata: Map<String, Value>,
) -> Result<Response, Failure> {
    let kind = call.kind();
    let shows_stored =
        convert::is_storage_version(kind) && entries.iter().all(|entry| call.resource.shows_stored(entry));
    if call.form == Form::Json && shows_stored {
        return Ok(json_bytes(StatusCode::OK, joined(call, entries, &metadata)));
    }
    let objects = entries.iter().map(|entry| call.resource.shown(entry));
    let objects: Vec<Value> = objects.collect::<Result<_, _>>()?;
    match call.form {
        Form::Table => {
            let table = rows(call, &objects, Some(metadata))?;
            Ok(json_value(StatusCode::OK, &table))
        }
        Form::Metadata => {
            let items: Vec<Value> = objects.iter().map(only_metadata).collect();
            let list = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items,
            });
            Ok(json_value(StatusCode::OK, &list))
        }
        Form::Json | Form::Yaml => {
            let list = json!({
                "kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": metadata, "items": objects,
            });
            if call.form == Form::Yaml {
                yaml(StatusCode::OK, &list)
            } else {
                Ok(json_value(StatusCode::OK, &list))
            }
        }
    }
}

/// A list joined from the stored texts, without decoding any. Items of built-in kinds carry no type, those of custom
/// kinds do, as with a real server.
fn joined(call: &Call, entries: &[Arc<Entry<Object>>], metadata: &Map<String, Value>) -> Vec<u8> {
    let kind = call.kind();
    let size: usize = entries.iter().map(|entry| entry.value.json().len() + 1).sum();
    let head = json!({ "kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": metadata });
    let (mut text, _) = encode(&head);
    text.reserve(size + 16);
    text.pop();
    text.extend_from_slice(b",\"items\":[");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        if kind.is_custom() {
            text.extend_from_slice(entry.value.json());
        } else {
            text.push(b'{');
            text.extend_from_slice(entry.value.json_after_type());
        }
    }
    text.extend_from_slice(b"]}");
    text
}

/// The `PartialObjectMetadata` of an object.
pub(crate) fn only_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}

/// Type of the body of `/scale`, whose rows are not those of the kind itself.
const SCALE: (&str, &str) = ("autoscaling/v1", "Scale");

/// The `Table` of some objects.
pub(crate) fn rows(
    call: &Call,
    objects: &[Value],
    metadata: Option<Map<String, Value>>,
) -> Result<Value, Failure> {
    let include = match call.query.get("includeObject") {
        None | Some("") => table::Include::Metadata,
        Some(text) => text
            .parse()
            .map_err(|_| Failure::bad_request(format!("unrecognized includeObject value: \"{text}\"")))?,
    };
    let is_scale =
        objects.first().is_some_and(|object| object["apiVersion"] == SCALE.0 && object["kind"] == SCALE.1);
    let scale =
        is_scale.then(|| Kind { kind: SCALE.1.into(), definition: Some(SCALE.1.into()), ..Kind::default() });
    let kind = scale.as_ref().unwrap_or(call.kind());
    let mut table = table::render(kind, objects, include, call.core.ambient.now());
    if let Some(metadata) = metadata {
        table["metadata"] = metadata.into();
    } else if let [object] = objects {
        let revision = crate::meta::text(object, "resourceVersion");
        table["metadata"] = json!({ "resourceVersion": revision });
    }
    Ok(table)
}

fn yaml(code: StatusCode, value: &Value) -> Result<Response, Failure> {
    let text = serde_saphyr::to_string(value).map_err(Failure::internal)?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    Ok(response)
}

/// Puts the warnings of a call into its answer.
pub(crate) fn with_warnings(mut response: Response, warnings: Vec<String>) -> Response {
    for warning in warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        // A warning that cannot be a header value (a control character in a field's name) is left out.
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}
