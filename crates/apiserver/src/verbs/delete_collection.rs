//! Removing all objects that selectors match.

use axum::response::Response;
use bytes::Bytes;
use hutch_store::Page;
use serde_json::Map;

use super::delete::{Options, remove};
use crate::call::Call;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::respond;

pub(crate) async fn delete_collection(
    call: &Call,
    bytes: &Bytes,
    media_type: &str,
) -> Result<Response, Failure> {
    let options = Options::of(call, bytes, media_type)?;
    let filter = Filter::of(call)?;
    let prefix = call.prefix();
    let page = Page { prefix: &prefix, ..Page::default() };
    let list = call.store.list(&call.resource.collection, page);
    let entries: Vec<_> = list.entries.into_iter().filter(|entry| filter.matches(entry)).collect();
    for entry in &entries {
        // A list over all namespaces cannot be deleted, so what follows the prefix is the name.
        let name = entry.name.strip_prefix(&*prefix).unwrap_or(&entry.name);
        match remove(call, name, &options).await {
            Err(failure) if !failure.is("NotFound") => return Err(failure),
            _ => {}
        }
    }
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), call.store.current_revision().to_string().into());
    respond::list(call, &entries, metadata)
}
