//! Reading one object.

use axum::response::Response;
use http::StatusCode;

use crate::call::Call;
use crate::failure::Failure;
use crate::respond;

pub(crate) fn get(call: &Call) -> Result<Response, Failure> {
    let entry = call.store.get(&call.resource.collection, &call.key(&call.name));
    let entry = entry.ok_or_else(|| Failure::not_found(call.kind(), &call.name))?;
    if let Some(asked) = call.query.number("resourceVersion")? {
        super::list::not_of_the_future(call, asked)?;
    }
    respond::entry(call, StatusCode::OK, &entry)
}
