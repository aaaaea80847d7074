//! From a request to the verb that answers it.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;

use crate::access::RequestAction;
use crate::admit::{Admission, Objects};
use crate::audit::Attempt;
use crate::authentication::{Ahead, Unhooked};
use crate::call::{Call, Caller, Target};
use crate::core::Core;
use crate::failure::Failure;
use crate::hooks::rule::Operation;
use crate::journal::{Annotations, External};
use crate::query::{Query, percent_decode};
use crate::verbs::modify::Part;
use crate::verbs::{create, delete, delete_collection, get, list, patch, update, watch};
use crate::{Identity, SERVER_VERSION, accept, body, discovery, openapi, respond, review, subresource};

/// Answers any request, and records it.
pub(crate) async fn handle(core: Arc<Core>, request: Request) -> Response {
    match Attempt::of(&core, &request) {
        Some(attempt) => attempt.through(&core, |core| answer(core, request)).await,
        None => answer(core, request).await,
    }
}

async fn answer(core: Arc<Core>, request: Request) -> Response {
    match route(core, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn route(core: Arc<Core>, request: Request) -> Result<Response, Failure> {
    // What cannot be decoded is not a path of anything.
    let path = percent_decode(request.uri().path()).map(|path| path.trim_matches('/').to_owned());
    let Some(identity) = request.extensions().get::<Identity>().cloned() else {
        return Err(Failure::unauthorized());
    };
    let served = core.registry.served();
    let target = path.as_deref().and_then(|path| Target::of(path, &served));
    drop(served);
    let query = Query::of(request.uri());
    // Before the body is read, and before an answer reveals what exists.
    let action = RequestAction::of(request.method().as_str(), request.uri().path(), query.as_ref().ok());
    core.access.check(&identity, action.action())?;
    let path = path.ok_or_else(Failure::no_such_path)?;
    if let Some(answer) = about_the_server(&core, &request, &path)? {
        return Ok(answer);
    }
    let target = target.filter(|target| target.agrees(&action.action())).ok_or_else(Failure::no_such_path)?;
    let query = query?;
    let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let caller = Caller {
        identity,
        external: request.extensions().get::<External>().is_some(),
        ahead: request.extensions().get::<Ahead>().is_some(),
        unhooked: request.extensions().get::<Unhooked>().is_some(),
        user_agent: agent.unwrap_or_default().to_owned(),
    };
    let has_rows = !target.resource.kind.is_review()
        && !matches!(target.subresource.as_str(), "binding" | "eviction" | "token");
    let form = if target.subresource.is_empty() || request.method() != Method::GET {
        accept::form(request.headers(), has_rows)?
    } else {
        // Logs and streams are not JSON; their clients accept anything.
        accept::form(request.headers(), has_rows).unwrap_or(accept::Form::Json)
    };
    let call = Call::new(core, caller, &target, query, form);
    if let Some(warning) = &call.kind().deprecation_warning {
        call.warn(warning.clone());
    }
    if is_watch(&request, &target, &call) {
        let warnings = call.take_warnings();
        return Ok(respond::with_warnings(watch::watch(call)?, warnings));
    }
    // A request whose body does not come is in progress too.
    let _place = call.external.then(|| call.core.requests.take(&call.identity)).transpose()?;
    let answer = about_objects(&call, &target, request).await;
    let mut response = answer.unwrap_or_else(IntoResponse::into_response);
    let annotations = call.annotations.take();
    if !annotations.is_empty() {
        response.extensions_mut().insert(Annotations(annotations));
    }
    Ok(respond::with_warnings(response, call.take_warnings()))
}

fn is_watch(request: &Request, target: &Target, call: &Call) -> bool {
    request.method() == Method::GET
        && target.subresource.is_empty()
        && !call.kind().is_review()
        && call.query.flag("watch")
}

async fn about_objects(call: &Call, target: &Target, request: Request) -> Result<Response, Failure> {
    if !target.subresource.is_empty() {
        return subresource::handle(call, target, request).await;
    }
    let media_type = body::media_type(request.headers());
    let (parts, incoming) = request.into_parts();
    if call.kind().is_review() {
        if parts.method != Method::POST || !target.name.is_empty() {
            return Err(Failure::method_not_allowed());
        }
        let bytes = body::read(incoming).await?;
        if let Some(admission) = Admission::of(call, Operation::Create, "", "", false) {
            let body = body::decode(&bytes, &media_type)?.value;
            admission.pass(Objects { new: Some(&body), ..Objects::default() }).await?;
        }
        return review::review(call, &bytes, &media_type);
    }
    let one = !target.name.is_empty();
    // What lies in namespaces is made and emptied in one of them.
    let placed = call.namespace.is_some() || !call.kind().namespaced;
    match (parts.method.as_str(), one) {
        ("GET", true) => get::get(call),
        ("GET", false) => list::list(call),
        ("POST", false) if placed => create::create(call, &body::read(incoming).await?, &media_type).await,
        ("PUT", true) => update::update(call, Part::Main, &body::read(incoming).await?, &media_type).await,
        ("PATCH", true) => patch::patch(call, Part::Main, &body::read(incoming).await?, &media_type).await,
        ("DELETE", true) => delete::delete(call, &body::read(incoming).await?, &media_type).await,
        ("DELETE", false) if placed => {
            delete_collection::delete_collection(call, &body::read(incoming).await?, &media_type).await
        }
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Health, version, discovery and OpenAPI.
fn about_the_server(core: &Core, request: &Request, path: &str) -> Result<Option<Response>, Failure> {
    let segments: Vec<&str> = path.split('/').collect();
    let known = matches!(
        segments.as_slice(),
        [""] | ["version" | "healthz" | "livez" | "readyz" | "openapi", ..]
            | ["api" | "apis"]
            | ["api", _]
            | ["apis", _]
            | ["apis", _, _]
    );
    if !known {
        return Ok(None);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Failure::method_not_allowed());
    }
    let served = core.registry.served();
    let kinds = || served.kinds();
    let accept =
        request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let form = discovery::Form::from_accept(accept);
    let address = core.address.get().map_or("localhost", String::as_str);
    let found = match segments.as_slice() {
        [""] => Some(
            json!({ "paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"] }),
        ),
        ["healthz" | "livez" | "readyz", ..] => return Ok(Some("ok".into_response())),
        ["version"] => Some(version()),
        ["api"] => {
            return Ok(Some(discovered(
                discovery::api(kinds(), form, address).to_string(),
                &form.content_type(),
            )));
        }
        ["apis"] => {
            return Ok(Some(discovered(discovery::apis(kinds(), form).to_string(), &form.content_type())));
        }
        ["api", version] => discovery::resources(kinds(), "", version),
        ["apis", group] => discovery::group(kinds(), group),
        ["apis", group, version] => discovery::resources(kinds(), group, version),
        ["openapi", "v2"] => {
            let found = served.old_openapi().form(accept);
            let (document, media_type) = found.ok_or_else(Failure::not_acceptable)?;
            return Ok(Some(discovered(document, media_type)));
        }
        ["openapi", "v3"] => Some(openapi::index(kinds())),
        ["openapi", "v3", rest @ ..] => openapi::document(kinds(), &rest.join("/"), SERVER_VERSION),
        _ => None,
    };
    let found = found.ok_or_else(Failure::no_such_path)?;
    Ok(Some(respond::json_value(StatusCode::OK, &found)))
}

fn discovered(text: impl Into<Bytes>, content_type: &str) -> Response {
    let mut response = respond::json_bytes(StatusCode::OK, text.into());
    if let Ok(content_type) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    response
}

fn version() -> serde_json::Value {
    let mut numbers = SERVER_VERSION.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next(), "minor": numbers.next(), "gitVersion": format!("{SERVER_VERSION}+hutch"),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc", "platform": format!("linux/{}", hutch_api::architecture()),
    })
}
