//! What lies below an object's path.

mod held;
mod pod;
mod scale;
mod token;

use axum::extract::Request;
use axum::response::Response;
use http::Method;

use crate::body;
use crate::call::{Call, Target};
use crate::failure::Failure;
use crate::verbs::modify::Part;
use crate::verbs::{get, patch, update};

pub(crate) async fn handle(call: &Call, target: &Target, request: Request) -> Result<Response, Failure> {
    let name = target.subresource.as_str();
    if call.kind().subresource(name).is_none() {
        return Err(Failure::no_such_path());
    }
    if matches!(name, "log" | "exec" | "attach" | "portforward") {
        return pod::stream(call, name, request).await;
    }
    let media_type = body::media_type(request.headers());
    let (parts, incoming) = request.into_parts();
    let bytes = body::read(incoming).await?;
    match (name, parts.method) {
        ("status", Method::GET) => get::get(call),
        ("status", Method::PUT) => update::update(call, Part::Status, &bytes, &media_type).await,
        ("status", Method::PATCH) => patch::patch(call, Part::Status, &bytes, &media_type).await,
        ("finalize", Method::PUT) => update::update(call, Part::Finalize, &bytes, &media_type).await,
        ("scale", method) => scale::handle(call, &method, &bytes, &media_type).await,
        ("binding", Method::POST) => pod::bind(call, &bytes, &media_type).await,
        ("eviction", Method::POST) => pod::evict(call, &bytes, &media_type).await,
        ("token", Method::POST) => token::create(call, &bytes, &media_type),
        ("ephemeralcontainers" | "resize", Method::GET) => get::get(call),
        _ => Err(Failure::method_not_allowed()),
    }
}
