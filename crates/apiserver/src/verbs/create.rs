//! Making an object.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use hutch_store::{Entry, Error, Value as _};
use serde_json::Value;
use std::sync::Arc;

use super::delete;
use crate::admit::{Admission, Objects};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::hooks::rule::Operation;
use crate::journal::Created;
use crate::object::Object;
use crate::ownership::{self, Ownership};
use crate::{access, admission, body, certificates, convert, depth, fields, meta, number, quota, respond};

/// Names that are tried for a `generateName`.
const NAMES: usize = 8;
/// Fields of `metadata` that only the server sets.
const SERVERS: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "resourceVersion",
];

pub(crate) async fn create(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let mut decoded = body::decode(bytes, media_type)?;
    settle_type(call, &mut decoded.value)?;
    let object = fields::settle(call, decoded)?;
    if !meta::text(&object, "resourceVersion").is_empty() {
        return Err(Failure::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let entry = insert(call, object, Ownership::Track).await?;
    let mut response = respond::entry(call, StatusCode::CREATED, &entry)?;
    response.extensions_mut().insert(Created(entry.name.rsplit('/').next().unwrap_or_default().to_owned()));
    Ok(response)
}

/// Puts a new object into the store, completed and checked. It is in the version of the request.
pub(crate) async fn insert(
    call: &Call,
    mut object: Value,
    ownership: Ownership,
) -> Result<Arc<Entry<Object>>, Failure> {
    let dry_run = call.dry_run()?;
    check_place(call, &mut object)?;
    let generated = generate_name(call, &mut object);
    let kind = call.kind();
    let fresh = Fresh::new(call);
    fresh.set(call, &mut object);
    let name = meta::text(&object, "name").to_owned();
    let admission = Admission::of(call, Operation::Create, "", &name, dry_run);
    if let Some(admission) = admission.as_ref().filter(|admission| admission.mutates())
        && let Some(mutated) = admission.mutate(&completed(call, &object), None).await?
    {
        object = mutated;
        fresh.set(call, &mut object);
    }
    if call.resource.is("", "namespaces") {
        admission::namespace::label(&mut object);
    }
    if kind.group == access::GROUP {
        namespace_accepts(call, meta::text(&object, "name"))?;
        admission::rbac::default_references(&mut object);
        admission::escalation::check(call, None, &object)?;
    }
    if call.resource.is(certificates::GROUP, certificates::REQUESTS) {
        admission::certificate_request::create(call, &mut object)?;
    }
    admission::creator::record(call, &mut object)?;
    check(call, &mut object, None)?;
    ownership::record(call, ownership, "", None, &mut object);
    let mut stored = convert::to_storage(kind, object)?;
    namespace_accepts(call, meta::text(&stored, "name"))?;
    admission::create(&call.core, &call.resource, &mut stored)?;
    admission::check_use(call, None, &stored)?;
    admission::check_metadata(call, None, &stored)?;
    admission::warn(call, &stored);
    // Webhooks and policies have seen this name only.
    let names = if admission.is_some() { 1 } else { NAMES };
    if let Some(admission) = admission {
        let shown = convert::from_storage(kind, stored.clone())?;
        admission.validate(Objects { new: Some(&shown), ..Objects::default() }).await?;
        still_accepted(call, &name)?;
    }
    let _turn = quota::admit(&call.core, kind, &stored).await?;
    if dry_run {
        return dry(call, stored);
    }
    delete::remove_leftovers(call, meta::text(&stored, "name")).await;
    let mut tries = 0;
    loop {
        let name = meta::text(&stored, "name").to_owned();
        let draft = if generated.is_some() { stored.clone() } else { std::mem::take(&mut stored) };
        let written = call.store.create(&call.resource.collection, &call.key(&name), draft).await;
        tries += 1;
        match (written, &generated) {
            (Ok(entry), _) => {
                after(call, &name, &entry).await?;
                return Ok(entry);
            }
            (Err(Error::Exists), Some(base)) if tries < names => {
                meta::metadata(&mut stored)
                    .insert("name".into(), meta::generated_name(base, &call.core.ambient).into());
            }
            (Err(error), _) => return Err(Failure::of_store(error, kind, &name)),
        }
    }
}

/// Checks again what may have changed while webhooks were called.
fn still_accepted(call: &Call, name: &str) -> Result<(), Failure> {
    namespace_accepts(call, name)?;
    call.check_served()
}

/// Removes an object whose definition was deleted while it was stored: the objects of a definition go with it.
async fn still_served(call: &Call, entry: &Entry<Object>) -> Result<(), Failure> {
    let Err(failure) = call.check_served() else { return Ok(()) };
    let removed =
        call.store.delete(&call.resource.collection, &entry.name, entry.revision, entry.value.value()).await;
    match removed {
        // It may have gone with the others.
        Ok(_) | Err(Error::NotFound | Error::Conflict { .. }) => Err(failure),
        Err(error) => Err(Failure::of_store(error, call.kind(), &entry.name)),
    }
}

/// Fields that the server gives a new object.
struct Fresh {
    uid: String,
    created: String,
}

impl Fresh {
    fn new(call: &Call) -> Fresh {
        Fresh { uid: call.core.ambient.uuid().to_string(), created: meta::seconds(call.core.ambient.now()) }
    }

    /// Sets them, in place of what a client or a webhook wrote.
    fn set(&self, call: &Call, object: &mut Value) {
        let metadata = meta::metadata(object);
        for field in SERVERS {
            metadata.remove(*field);
        }
        metadata.insert("uid".into(), self.uid.as_str().into());
        metadata.insert("creationTimestamp".into(), self.created.as_str().into());
        if let Some(generation) = first_generation(call) {
            metadata.insert("generation".into(), generation.into());
        }
        if call.kind().has_status
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
    }
}

/// The object as mutating webhooks see it: with defaults. One that is not valid yet is shown as it is.
fn completed(call: &Call, object: &Value) -> Value {
    let complete = |mut draft: Value| {
        check(call, &mut draft, None)?;
        let mut stored = convert::to_storage(call.kind(), draft)?;
        admission::create(&call.core, &call.resource, &mut stored)?;
        convert::from_storage(call.kind(), stored)
    };
    complete(object.clone()).unwrap_or_else(|_: Failure| object.clone())
}

/// The answer to a create that is only tried.
fn dry(call: &Call, stored: Value) -> Result<Arc<Entry<Object>>, Failure> {
    let name = meta::text(&stored, "name").to_owned();
    if call.store.latest(&call.resource.collection, &call.key(&name)).is_some() {
        return Err(Failure::already_exists(call.kind(), &name));
    }
    Ok(preview(&call.key(&name), stored, 0))
}

/// An entry that is shown and not stored.
pub(crate) fn preview(key: &str, object: Value, revision: u64) -> Arc<Entry<Object>> {
    let value = Object::seal(object, revision);
    Arc::new(Entry { name: key.into(), revision, created: revision, value })
}

/// Actions after a create, by kind.
async fn after(call: &Call, name: &str, entry: &Entry<Object>) -> Result<(), Failure> {
    still_served(call, entry).await?;
    if call.resource.is("", "namespaces") {
        admission::namespace::furnish(&call.core, name).await?;
    }
    if call.kind().kind == "Event" && !call.kind().is_custom() {
        super::retain::events(call).await;
    }
    changed(call).await;
    quota::refresh(&call.core, call.namespace.as_deref().unwrap_or_default()).await;
    Ok(())
}

/// Brings up to date what the server derives from objects of this kind: the served kinds, the rules of aggregated roles,
/// the accepted certificates.
pub(crate) async fn changed(call: &Call) {
    if call.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        call.core.reload_definitions();
    } else if call.resource.is(access::GROUP, "clusterroles") {
        access::reconcile_aggregated(&call.core.access).await;
    } else if call.resource.is(certificates::GROUP, certificates::REQUESTS) {
        call.core.certificates.refresh();
    }
}

/// The body must be of the kind that the path names. One of a built-in kind may leave out what the path says already,
/// as typed clients do.
pub(crate) fn settle_type(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let kind = call.kind();
    if let Some(fields) = object.as_object_mut().filter(|_| !kind.is_custom()) {
        let given = [("apiVersion", kind.api_version().to_string()), ("kind", kind.kind.clone())];
        for (field, value) in given {
            if fields.get(field).is_none_or(|text| text.is_null() || text == "") {
                fields.insert(field.to_owned(), value.into());
            }
        }
    }
    check_type(call, object)
}

/// The body must be of the kind that the path names, in so many words.
pub(crate) fn check_type(call: &Call, object: &Value) -> Result<(), Failure> {
    let kind = call.kind();
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    if !object.is_object() {
        return Err(Failure::bad_request(
            "couldn't get version/kind; json parse error: the body is no object",
        ));
    }
    for (field, name) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
        if text(field).is_empty() {
            return Err(Failure::bad_request(format!("Object '{name}' is missing in '{}'", shown(object))));
        }
    }
    if text("apiVersion") != kind.api_version() {
        return Err(Failure::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            text("apiVersion"),
            kind.api_version()
        )));
    }
    if text("kind") != kind.kind && kind.is_custom() {
        let cause = Cause::invalid("kind", &text("kind").into(), &format!("must be {}", kind.kind));
        return Err(Failure::invalid(kind, meta::text(object, "name"), vec![cause]));
    }
    if text("kind") != kind.kind {
        return Err(Failure::bad_request(format!(
            "the kind in the data ({}) does not match the expected kind ({})",
            text("kind"),
            kind.kind
        )));
    }
    Ok(())
}

/// The start of an object, for a message.
fn shown(object: &Value) -> String {
    object.to_string().chars().take(200).collect()
}

/// The body must lie in the namespace that the path names.
pub(crate) fn check_place(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let namespace = meta::text(object, "namespace").to_owned();
    match &call.namespace {
        Some(own) if namespace.is_empty() => {
            meta::metadata(object).insert("namespace".into(), own.as_str().into());
            Ok(())
        }
        Some(own) if *own == namespace => Ok(()),
        Some(_) => Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        None => {
            meta::metadata(object).remove("namespace");
            Ok(())
        }
    }
}

/// Makes a name where one is to be generated, and gives what it starts with.
fn generate_name(call: &Call, object: &mut Value) -> Option<String> {
    let base = meta::text(object, "generateName").to_owned();
    if base.is_empty() || !meta::text(object, "name").is_empty() {
        return None;
    }
    meta::metadata(object).insert("name".into(), meta::generated_name(&base, &call.core.ambient).into());
    Some(base)
}

/// Kinds with a spec that someone reconciles count its generations.
fn first_generation(call: &Call) -> Option<u64> {
    let kind = call.kind();
    let counts = kind.is_custom() || crate::verbs::modify::counts_generations(&kind.group, &kind.plural);
    counts.then_some(1)
}

/// Fills in defaults and checks an object in the version of the request.
pub(crate) fn check(call: &Call, object: &mut Value, old: Option<&Value>) -> Result<(), Failure> {
    let kind = call.kind();
    depth::check(object, old)?;
    admission::policy::check_given(kind, object, old)?;
    let mut causes = match old {
        Some(_) => meta::check::object_of(kind, object),
        None => meta::check::new_object(kind, object),
    };
    if let Some(structural) = call.resource.structural() {
        structural.default(object);
        let replicas = kind.scale.as_ref().map(|scale| scale.spec_replicas.as_str());
        causes = structural.validate(object, old, replicas, causes);
        admission::policy::explain(kind, object, &mut causes);
        number::shorten(object);
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Failure::invalid(call.kind(), meta::text(object, "name"), causes))
}

/// Nothing can be made in a namespace that is not there or is going.
fn namespace_accepts(call: &Call, name: &str) -> Result<(), Failure> {
    let Some(namespace) = &call.namespace else { return Ok(()) };
    let kind = crate::kinds::Kind { plural: "namespaces".into(), ..crate::kinds::Kind::default() };
    let Some(object) = call.core.read("namespaces", namespace) else {
        return Err(Failure::not_found(&kind, namespace));
    };
    if !meta::is_terminating(&object) {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let message = format!("namespace {namespace} is being terminated");
    let cause = Cause::new("NamespaceTerminating", "metadata.namespace", message);
    Err(Failure::forbidden(call.kind(), name, &why, vec![cause]))
}
