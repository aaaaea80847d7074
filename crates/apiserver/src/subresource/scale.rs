//! `autoscaling/v1` Scale: the number of replicas of anything that has one.

use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;

use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Scale;
use crate::ownership::Ownership;
use crate::verbs::modify::{Part, modify};
use crate::{body, convert, meta, patch, respond, scale};

pub(crate) async fn handle(
    call: &Call,
    method: &Method,
    bytes: &Bytes,
    media_type: &str,
) -> Result<Response, Failure> {
    let Some(paths) = &call.kind().scale else { return Err(Failure::no_such_path()) };
    let object = match *method {
        Method::GET => {
            let entry = call.store.get(&call.resource.collection, &call.key(&call.name));
            let entry = entry.ok_or_else(|| Failure::not_found(call.kind(), &call.name))?;
            convert::from_storage(call.kind(), entry.value.value())?
        }
        Method::PUT | Method::PATCH => {
            let sent =
                if *method == Method::PUT { body::decode(bytes, media_type)? } else { body::json(bytes)? };
            let entry = modify(call, Part::Scale, Ownership::Track, &mut |current| {
                let own = scale::of(paths, current);
                let wanted = match (method, media_type) {
                    (&Method::PUT, _) => Ok(sent.value.clone()),
                    (_, "application/json-patch+json") => patch::json(&own, &sent.value),
                    // A Scale has no lists, so the two merge patches do the same.
                    (_, "application/merge-patch+json" | "application/strategic-merge-patch+json") => {
                        patch::merge(&own, &sent.value)
                    }
                    _ => {
                        return Err(Failure::unsupported_media_type(&[
                            "application/json-patch+json",
                            "application/merge-patch+json",
                            "application/strategic-merge-patch+json",
                        ]));
                    }
                };
                let wanted = wanted.map_err(|error| Failure::bad_request(error.to_string()))?;
                let named =
                    *method == Method::PUT || sent.value.pointer("/metadata/resourceVersion").is_some();
                with_replicas(call, paths, current, &wanted, named)
            })
            .await?;
            convert::from_storage(call.kind(), entry.value.value())?
        }
        _ => return Err(Failure::method_not_allowed()),
    };
    respond::object(call, StatusCode::OK, scale::of(paths, &object))
}

fn with_replicas(
    call: &Call,
    paths: &Scale,
    current: &Value,
    wanted: &Value,
    named: bool,
) -> Result<Value, Failure> {
    let replicas = wanted.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let cause = Cause::invalid("spec.replicas", &replicas.into(), "must be greater than or equal to 0");
        return Err(Failure::invalid(call.kind(), &call.name, vec![cause]));
    }
    let mut next = current.clone();
    let metadata = meta::metadata(&mut next);
    match wanted.pointer("/metadata/resourceVersion").filter(|_| named) {
        Some(revision) => metadata.insert("resourceVersion".into(), revision.clone()),
        None => metadata.remove("resourceVersion"),
    };
    let mut place = &mut next;
    for name in paths.spec_replicas.trim_start_matches('.').split('.') {
        place = &mut place[name];
    }
    *place = replicas.into();
    Ok(next)
}
