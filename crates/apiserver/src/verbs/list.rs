//! Reading many objects, in pages if the client wants.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hutch_store::{Entry, Page};
use serde_json::{Map, Value, json};

use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::filter::Filter;
use crate::object::Object;
use crate::respond;

pub(crate) fn list(call: &Call) -> Result<Response, Failure> {
    let filter = Filter::of(call)?;
    let limit = call.query.positive("limit")?;
    call.query.number("timeoutSeconds")?;
    let start = match call.query.get("continue") {
        None | Some("") => None,
        Some(token) => Some(Start::decode(token)?),
    };
    let asked = call.query.revision().map_err(Failure::bad_request)?.unwrap_or(0);
    check_match(call, asked, start.is_some())?;
    not_of_the_future(call, start.as_ref().and_then(|start| start.revision).unwrap_or(asked))?;

    let exact = call.query.get("resourceVersionMatch") == Some("Exact");
    let revision = start.as_ref().and_then(|start| start.revision).or_else(|| exact.then_some(asked));
    let found = find(call, &filter, start.as_ref(), (limit, revision))?;
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), found.revision.to_string().into());
    if let Some(next) = found.next {
        metadata.insert("continue".into(), next.encode().into());
        // With a selector the number of matches in the rest is unknown.
        if filter.is_empty() {
            metadata.insert("remainingItemCount".into(), found.remaining.into());
        }
    }
    respond::list(call, &found.entries, metadata)
}

struct Found {
    entries: Vec<Arc<Entry<Object>>>,
    revision: u64,
    next: Option<Start>,
    remaining: usize,
}

/// Finds a page, as it was at a revision if there is one.
fn find(
    call: &Call,
    filter: &Filter,
    start: Option<&Start>,
    (limit, revision): (Option<u64>, Option<u64>),
) -> Result<Found, Failure> {
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let prefix = call.prefix();
    // With a selector the page is cut after selecting, so all are read.
    let page = Page {
        prefix: &prefix,
        after: start.map(|s| s.after.as_str()),
        limit: limit.filter(|_| filter.is_empty()),
    };
    if let (Some(name), Some(_), None) = (filter.name(), &call.namespace, revision) {
        let revision = call.store.current_revision();
        let entry = call.store.get(&call.resource.collection, &call.key(name));
        let entries = entry.into_iter().filter(|entry| filter.matches(entry)).collect();
        return Ok(Found { entries, revision, next: None, remaining: 0 });
    }
    // All pages show the state of the first one.
    let list = match revision {
        Some(revision) => call.store.list_at(&call.resource.collection, page, revision),
        None => Ok(call.store.list(&call.resource.collection, page)),
    };
    let list = list.map_err(|_| match start {
        Some(start) => Failure::expired_list(Start { revision: None, ..start.clone() }.encode()),
        None => Failure::expired("The provided resource version is too old"),
    })?;
    let revision = list.revision;
    let (mut entries, mut remaining) = (list.entries, list.remaining);
    if !filter.is_empty() {
        entries.retain(|entry| filter.matches(entry));
        if let Some(limit) = limit
            && entries.len() > limit
        {
            remaining = entries.len() - limit;
            entries.truncate(limit);
        }
    }
    let last = entries.last().filter(|_| remaining > 0);
    let next = last.map(|last| Start { revision: Some(revision), after: last.name.to_string() });
    Ok(Found { entries, revision, next, remaining })
}

/// Start of a page: a continue token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Revision of the first page; `None` means the current one, whose pages may differ from the first.
    revision: Option<u64>,
    after: String,
}

/// Content of a continue token.
const TOKEN: &str = "hutch/v1";

impl Start {
    pub(crate) fn encode(&self) -> String {
        let revision = self.revision.map_or(json!(-1), Value::from);
        let token = json!({ "v": TOKEN, "rv": revision, "start": self.after });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    pub(crate) fn decode(token: &str) -> Result<Start, Failure> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        let value: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        value.and_then(Start::read).ok_or_else(|| Failure::bad_request("continue key is not valid"))
    }

    fn read(token: Value) -> Option<Start> {
        let revision = token["rv"].as_i64().filter(|revision| *revision != 0)?;
        let after = token["start"].as_str()?;
        // The place is one below the prefix of the list, never beside it.
        let mut steps = after.strip_prefix('/').unwrap_or(after).split('/');
        let plain = steps.all(|step| !matches!(step, "" | "." | ".."));
        (token["v"] == TOKEN && plain)
            .then(|| Start { revision: u64::try_from(revision).ok(), after: after.to_owned() })
    }
}

/// Refuses combinations that say nothing.
fn check_match(call: &Call, asked: u64, continued: bool) -> Result<(), Failure> {
    let given = call.query.get("resourceVersion").is_some_and(|text| !text.is_empty());
    if continued && asked != 0 {
        return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
    }
    let matching = call.query.get("resourceVersionMatch").unwrap_or_default();
    let wrong = |text: &str| {
        let cause = Cause::forbidden("resourceVersionMatch", text);
        Err(Failure::invalid_options("ListOptions", cause))
    };
    match matching {
        "" => Ok(()),
        _ if !given => wrong("resourceVersionMatch is forbidden unless resourceVersion is provided"),
        "NotOlderThan" => Ok(()),
        "Exact" if asked == 0 => {
            wrong("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        "Exact" => Ok(()),
        other => {
            let message = format!(
                "Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\", \"\""
            );
            let cause = Cause::new("FieldValueNotSupported", "resourceVersionMatch", message);
            Err(Failure::invalid_options("ListOptions", cause))
        }
    }
}

pub(crate) fn not_of_the_future(call: &Call, asked: u64) -> Result<(), Failure> {
    let current = call.store.current_revision();
    if asked > current { Err(Failure::too_large_resource_version(asked, current)) } else { Ok(()) }
}
