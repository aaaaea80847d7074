//! Replacing an object.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;

use super::create::{check_place, settle_type};
use super::modify::{Part, modify};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::ownership::Ownership;
use crate::{body, fields, meta, respond};

pub(crate) async fn update(
    call: &Call,
    part: Part,
    bytes: &Bytes,
    media_type: &str,
) -> Result<Response, Failure> {
    let mut decoded = body::decode(bytes, media_type)?;
    settle_type(call, &mut decoded.value)?;
    let mut object = fields::settle(call, decoded)?;
    check_place(call, &mut object)?;
    let name = meta::text(&object, "name");
    if name != call.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name
        )));
    }
    if call.kind().is_custom() && meta::text(&object, "resourceVersion").is_empty() {
        let zero = serde_json::Value::from(0);
        let cause = Cause::invalid("metadata.resourceVersion", &zero, "must be specified for an update");
        return Err(Failure::invalid(call.kind(), &call.name, vec![cause]));
    }
    let entry = modify(call, part, Ownership::Track, &mut |_| Ok(object.clone())).await?;
    respond::entry(call, StatusCode::OK, &entry)
}
