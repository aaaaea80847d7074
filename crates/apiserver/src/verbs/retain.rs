//! The number of Events in a namespace, which anyone who may create them could otherwise grow without end.

use hutch_store::Page;

use crate::call::Call;

/// Maximum Events of a namespace. Beyond that the oldest are dropped.
const EVENTS: usize = 4096;
/// Maximum Events that are dropped for a new one: more than one, so that what an earlier version stored gets fewer.
const DROPPED: usize = 4;

/// Drops the oldest Events of the namespace in which one was created, if there are too many.
pub(crate) async fn events(call: &Call) {
    let (collection, prefix) = (&call.resource.collection, call.prefix());
    let excess = call.store.count(collection, &prefix).saturating_sub(EVENTS).min(DROPPED);
    if excess == 0 {
        return;
    }
    let mut events = call.store.list(collection, Page { prefix: &prefix, ..Page::default() }).entries;
    events.sort_unstable_by_key(|event| event.created);
    for event in events.iter().take(excess) {
        let dropped = call.store.delete(collection, &event.name, event.revision, event.value.value()).await;
        if let Err(error) = dropped {
            // Someone else changed or deleted it.
            tracing::debug!(event = %event.name, %error, "failed to drop an old event");
        }
    }
}
