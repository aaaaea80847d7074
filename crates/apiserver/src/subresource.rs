//! Subresources.

mod eviction;
mod held;
mod pod;
mod scale;
mod token;

use axum::extract::Request;
use axum::response::Response;
use http::Method;
use serde_json::json;

use crate::admit::{Admission, Objects};
use crate::call::{Call, Target};
use crate::failure::Failure;
use crate::hooks::rule::Operation;
use crate::verbs::modify::Part;
use crate::verbs::{get, patch, update};
use crate::{body, certificates};

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
    let is_request = call.resource.is(certificates::GROUP, certificates::REQUESTS);
    if is_request && name == "status" && parts.method != Method::GET {
        // Certificates are signed by this server alone.
        return Err(Failure::method_not_allowed());
    }
    let bytes = body::read(incoming).await?;
    if parts.method == Method::POST
        && let Some(admission) = Admission::of(call, Operation::Create, name, &call.name, call.dry_run()?)
    {
        let body = if bytes.is_empty() { json!({}) } else { body::decode(&bytes, &media_type)?.value };
        admission.pass(Objects { new: Some(&body), ..Objects::default() }).await?;
    }
    match (name, parts.method) {
        ("status" | "approval", Method::GET) => get::get(call),
        ("approval", Method::PUT) => update::update(call, Part::Approval, &bytes, &media_type).await,
        ("approval", Method::PATCH) => patch::patch(call, Part::Approval, &bytes, &media_type).await,
        ("status", Method::PUT) => update::update(call, Part::Status, &bytes, &media_type).await,
        ("status", Method::PATCH) => patch::patch(call, Part::Status, &bytes, &media_type).await,
        ("finalize", Method::PUT) => update::update(call, Part::Finalize, &bytes, &media_type).await,
        ("scale", method) => scale::handle(call, &method, &bytes, &media_type).await,
        ("binding", Method::POST) => pod::bind(call, &bytes, &media_type).await,
        ("eviction", Method::POST) => eviction::evict(call, &bytes, &media_type).await,
        ("token", Method::POST) => token::create(call, &bytes, &media_type),
        ("ephemeralcontainers" | "resize", Method::GET) => get::get(call),
        ("ephemeralcontainers", Method::PUT) => {
            update::update(call, Part::EphemeralContainers, &bytes, &media_type).await
        }
        ("ephemeralcontainers", Method::PATCH) => {
            patch::patch(call, Part::EphemeralContainers, &bytes, &media_type).await
        }
        _ => Err(Failure::method_not_allowed()),
    }
}
