//! The common part of update, patch and apply: from the current object to the next one, with its fixed fields.

use std::collections::HashSet;
use std::sync::Arc;

use hutch_store::{Entry, Error};
use serde_json::{Map, Value};

use super::create::{changed, check, preview};
use super::delete::after_removal;
use crate::admit::{Admission, Objects};
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::hooks::rule::Operation;
use crate::kinds::Kind;
use crate::object::Object;
use crate::ownership::{self, Ownership};
use crate::{access, admission, certificates, convert, hooks, meta, quota, scale};

/// Maximum tries of a write without a precondition after conflicts.
const TRIES: usize = 16;
/// Fields of `metadata` that no client changes.
const SERVERS: &[&str] = &[
    "uid",
    "name",
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "generateName",
];

/// Part of an object that a request writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// The status, and nothing else.
    Status,
    /// A namespace's finalizers in its spec.
    Finalize,
    /// The conditions of a CertificateSigningRequest that approve or deny it.
    Approval,
    /// The ephemeral containers of a Pod, and nothing else.
    EphemeralContainers,
    /// The number of replicas, by `/scale`.
    Scale,
    /// A Pod's node or a condition of it. The change is the server's own.
    Server,
}

impl Part {
    /// Returns true if the object but its status is written.
    fn is_main(self) -> bool {
        matches!(self, Part::Main | Part::Scale)
    }

    /// Returns true if admission completes the object.
    fn is_completed(self) -> bool {
        self.is_main() || self == Part::EphemeralContainers
    }

    /// Returns the subresource to which the ownership of fields belongs; empty for the object itself.
    pub(crate) fn owner(self) -> &'static str {
        match self {
            Part::Status => "status",
            Part::EphemeralContainers => "ephemeralcontainers",
            Part::Main | Part::Finalize | Part::Approval | Part::Scale | Part::Server => "",
        }
    }

    /// Returns true if webhooks see and may change the object itself.
    fn is_object(self) -> bool {
        !matches!(self, Part::Scale | Part::Server)
    }

    /// The subresource that webhooks see; `None` if the request is not one for an update.
    fn subresource(self) -> Option<&'static str> {
        match self {
            Part::Main => Some(""),
            Part::Status => Some("status"),
            Part::Finalize => Some("finalize"),
            Part::Approval => Some("approval"),
            Part::EphemeralContainers => Some("ephemeralcontainers"),
            Part::Scale => Some("scale"),
            Part::Server => None,
        }
    }
}

/// Makes the next state from the current one; both are in the version of the request.
pub(crate) type Change<'a> = dyn FnMut(&Value) -> Result<Value, Failure> + Send + 'a;

/// Changes the object that the call names.
pub(crate) async fn modify(
    call: &Call,
    part: Part,
    ownership: Ownership,
    change: &mut Change<'_>,
) -> Result<Arc<Entry<Object>>, Failure> {
    let (kind, key) = (call.kind(), call.key(&call.name));
    let dry_run = call.dry_run()?;
    let subresource = part.subresource();
    let admission = subresource
        .and_then(|subresource| Admission::of(call, Operation::Update, subresource, &call.name, dry_run));
    for _ in 0..TRIES {
        admission.iter().for_each(Admission::renew);
        let Some(entry) = call.store.latest(&call.resource.collection, &key) else {
            return Err(Failure::not_found(kind, &call.name));
        };
        let stored = entry.value.value();
        let current = convert::from_storage(kind, stored.clone())?;
        let mut wanted = change(&current)?;
        let pinned = preconditions(kind, &current, &wanted)?;
        let versions = Versions { part, ownership, stored: &stored, current: &current };
        if let Some(admission) =
            admission.as_ref().filter(|admission| admission.mutates() && part.is_object())
        {
            let shown =
                versions.next(call, wanted.clone()).and_then(|next| convert::from_storage(kind, next));
            let shown = shown.unwrap_or_else(|_| wanted.clone());
            if let Some(mutated) = admission.mutate(&shown, Some(&current)).await? {
                wanted = mutated;
            }
        }
        let next = versions.next(call, wanted)?;
        if let Some(admission) = &admission {
            validate(call, part, admission, &current, &next).await?;
            call.check_served()?; // Webhooks take their time.
        }
        if is_over(&next) {
            match remove(call, &key, &entry, next, dry_run).await {
                Err(Error::Conflict { .. }) if !pinned => continue,
                other => return other.map_err(|error| Failure::of_store(error, kind, &call.name)),
            }
        }
        // Others may have grown while webhooks were called.
        let _turn = match part.is_main() {
            true => quota::admit_change(&call.core, kind, &stored, &next).await?,
            false => None,
        };
        if stored == next {
            if call.store.settled(&call.resource.collection, &entry).await {
                return Ok(entry);
            }
            continue;
        }
        if dry_run {
            return Ok(preview(&key, next, entry.revision));
        }
        match call.store.update(&call.resource.collection, &key, entry.revision, next).await {
            Ok(entry) => {
                changed(call).await;
                counted_again(call, &stored, &entry).await;
                return Ok(entry);
            }
            Err(Error::Conflict { .. }) if !pinned => {}
            Err(error) => return Err(Failure::of_store(error, kind, &call.name)),
        }
    }
    Err(Failure::modified(kind, &call.name))
}

/// An object before a change, and what is changed.
struct Versions<'a> {
    part: Part,
    ownership: Ownership,
    stored: &'a Value,
    /// In the version of the request.
    current: &'a Value,
}

impl Versions<'_> {
    /// The next object as it is stored, completed and checked, from the one that the request makes.
    fn next(&self, call: &Call, mut wanted: Value) -> Result<Value, Failure> {
        let Versions { part, ownership, stored, current } = *self;
        let kind = call.kind();
        if kind.group == access::GROUP {
            admission::rbac::default_references(&mut wanted);
            admission::escalation::check(call, Some(current), &wanted)?;
        }
        let mut next = settle(call, part, current, wanted)?;
        let subresource = part.owner();
        // Admission completes built-in kinds: fields that a client left out are compared with their defaults.
        let completed = part.is_completed() && !kind.is_custom() && convert::is_storage_version(kind);
        if !completed {
            ownership::record(call, ownership, subresource, Some(current), &mut next);
        }
        let mut next = convert::to_storage(kind, next)?;
        admit(call, part, stored, &mut next)?;
        if completed {
            count_generation(kind, stored, &mut next);
            ownership::record(call, ownership, subresource, Some(stored), &mut next);
        }
        Ok(next)
    }
}

/// Completes and checks the next object, as it will be stored.
fn admit(call: &Call, part: Part, stored: &Value, next: &mut Value) -> Result<(), Failure> {
    let kind = call.kind();
    match part {
        Part::Main | Part::Scale => {
            admission::creator::keep(call, stored, next)?;
            admission::update(&call.core, &call.resource, stored, next)?;
            admission::check_use(call, Some(stored), next)?;
            admission::warn(call, next);
            quota::check_change(&call.core, kind, stored, next)?;
        }
        Part::EphemeralContainers => {
            admission::pod::ephemeral::update(kind, stored, next)?;
            admission::pod::ephemeral::warn(call, stored, next);
        }
        Part::Status | Part::Finalize | Part::Approval | Part::Server => {}
    }
    admission::check_metadata(call, Some(stored), next)
}

/// Passes a change through the validating webhooks. That of a scale is about the Scale, which no webhook may change.
async fn validate(
    call: &Call,
    part: Part,
    admission: &Admission<'_>,
    current: &Value,
    next: &Value,
) -> Result<(), Failure> {
    let next = convert::from_storage(call.kind(), next.clone())?;
    match &call.kind().scale {
        Some(paths) if part == Part::Scale => {
            let [new, old] = [&next, current].map(|object| scale::of(paths, object));
            admission.pass(Objects { new: Some(&new), old: Some(&old), held: Some(&next) }).await
        }
        _ => admission.validate(Objects { new: Some(&next), old: Some(current), held: None }).await,
    }
}

async fn remove(
    call: &Call,
    key: &str,
    entry: &Arc<Entry<Object>>,
    last: Value,
    dry_run: bool,
) -> Result<Arc<Entry<Object>>, Error> {
    if dry_run {
        return Ok(preview(key, last, entry.revision));
    }
    let removed = call.store.delete(&call.resource.collection, key, entry.revision, last).await?;
    after_removal(call, &removed.value.value(), removed.revision).await;
    Ok(removed)
}

/// Counts what quotas bound again, where a change can make a difference.
async fn counted_again(call: &Call, before: &Value, entry: &Entry<Object>) {
    let counts = match call.kind().group_resource().as_str() {
        "resourcequotas" | "services" | "persistentvolumeclaims" => true,
        "pods" => before["status"]["phase"] != entry.value.value()["status"]["phase"],
        _ => false,
    };
    if counts {
        quota::refresh(&call.core, call.namespace.as_deref().unwrap_or_default()).await;
    }
}

/// Returns true if an object is terminating and nothing holds it any more.
fn is_over(object: &Value) -> bool {
    let graceful = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    let held = object["kind"] == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    meta::is_terminating(object) && meta::finalizers(object).is_empty() && !graceful && !held
}

/// Checks that the revision and the uid that the client names are the current ones. Returns true if it named a
/// revision.
fn preconditions(kind: &Kind, current: &Value, wanted: &Value) -> Result<bool, Failure> {
    let name = meta::text(current, "name");
    let (uid, own) = (meta::text(wanted, "uid"), meta::text(current, "uid"));
    if !uid.is_empty() && uid != own {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {own}");
        return Err(Failure::conflict(kind, name, &why));
    }
    let revision = meta::text(wanted, "resourceVersion");
    if revision.is_empty() || revision == "0" {
        return Ok(false);
    }
    if revision != meta::text(current, "resourceVersion") {
        return Err(Failure::modified(kind, name));
    }
    // A patch that names no revision gives the current one back; `patch` strips that before it comes here.
    Ok(true)
}

/// Joins the fields that the client wrote with those that it may not write.
fn settle(call: &Call, part: Part, current: &Value, mut wanted: Value) -> Result<Value, Failure> {
    let kind = call.kind();
    let mut next = match part {
        Part::Main | Part::Scale => {
            if kind.has_status {
                carry(current, &mut wanted, "status");
            }
            if call.resource.is("", "namespaces")
                || call.resource.is(certificates::GROUP, certificates::REQUESTS)
            {
                carry(current, &mut wanted, "spec");
            }
            wanted
        }
        Part::Status => status_of(kind, current, wanted),
        Part::Finalize => {
            let mut next = current.clone();
            next["spec"] = wanted["spec"].take();
            next["metadata"]["finalizers"] = wanted["metadata"]["finalizers"].take();
            next
        }
        Part::EphemeralContainers => {
            let mut next = current.clone();
            carry(&wanted["spec"], &mut next["spec"], "ephemeralContainers");
            carry(&wanted["metadata"], &mut next["metadata"], "managedFields");
            next
        }
        Part::Approval => {
            admission::certificate_request::may_approve(call, current)?;
            admission::certificate_request::decided(call, current, &wanted)?
        }
        Part::Server => wanted,
    };
    guard_metadata(kind, current, &mut next)?;
    check(call, &mut next, Some(current))?;
    if part.is_main() && kind.is_custom() {
        count_generation(kind, current, &mut next);
    }
    Ok(next)
}

/// Raises the generation of an object whose spec changes.
fn count_generation(kind: &Kind, current: &Value, next: &mut Value) {
    if spec_changed(kind, current, next) {
        let generation = current["metadata"]["generation"].as_i64().unwrap_or(0);
        next["metadata"]["generation"] = (generation + 1).into();
    }
}

/// The current object with the status that was written. Built-in kinds take labels and annotations along.
fn status_of(kind: &Kind, current: &Value, mut wanted: Value) -> Value {
    let mut next = current.clone();
    carry(&wanted, &mut next, "status");
    let taken: &[&str] =
        if kind.is_custom() { &["managedFields"] } else { &["managedFields", "labels", "annotations"] };
    let metadata = meta::metadata(&mut next);
    for field in taken {
        match meta::metadata(&mut wanted).remove(*field) {
            Some(value) => metadata.insert((*field).into(), value),
            None => metadata.remove(*field),
        };
    }
    next
}

/// Makes a field the same as elsewhere, absence included.
fn carry(from: &Value, to: &mut Value, field: &str) {
    let Some(to) = to.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => to.insert(field.into(), value.clone()),
        None => to.remove(field),
    };
}

fn guard_metadata(kind: &Kind, current: &Value, next: &mut Value) -> Result<(), Failure> {
    let before = current["metadata"].as_object().cloned().unwrap_or_default();
    let metadata = meta::metadata(next);
    for field in SERVERS.iter().chain(&["resourceVersion"]) {
        match before.get(*field) {
            Some(value) => metadata.insert((*field).into(), value.clone()),
            None => metadata.remove(*field),
        };
    }
    tidy(metadata);
    if meta::is_terminating(current) {
        let old: HashSet<&str> = meta::finalizers(current).into_iter().collect();
        let fresh: Vec<&str> =
            meta::finalizers(next).into_iter().filter(|name| !old.contains(name)).collect();
        if !fresh.is_empty() {
            let list: Vec<String> = fresh.iter().map(|name| format!("{name:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                list.join(", ")
            );
            let cause = Cause::forbidden("metadata.finalizers", &detail);
            return Err(Failure::invalid(kind, meta::text(current, "name"), vec![cause]));
        }
    }
    Ok(())
}

/// Empty lists and maps of metadata are not kept, so that writing them changes nothing.
fn tidy(metadata: &mut Map<String, Value>) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "managedFields"] {
        let empty = match metadata.get(field) {
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

/// Returns true if objects of a built-in kind count the generations of their spec.
pub(crate) fn counts_generations(group: &str, plural: &str) -> bool {
    match group {
        "apps" => plural != "controllerrevisions",
        "batch" | "networking.k8s.io" | "policy" | "apiextensions.k8s.io" | hooks::GROUP => true,
        "" => matches!(plural, "pods" | "podtemplates" | "replicationcontrollers"),
        _ => false,
    }
}

fn spec_changed(kind: &Kind, current: &Value, next: &Value) -> bool {
    if !kind.is_custom() {
        let field = match kind.plural.as_str() {
            "podtemplates" => "template",
            "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => "webhooks",
            _ => "spec",
        };
        return counts_generations(&kind.group, &kind.plural) && current.get(field) != next.get(field);
    }
    let rest = |object: &Value| {
        let mut rest = object.as_object().cloned().unwrap_or_default();
        rest.remove("metadata");
        if kind.has_status {
            rest.remove("status");
        }
        rest
    };
    rest(current) != rest(next)
}
