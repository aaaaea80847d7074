//! Events are deleted by age, as they have no owner.

use std::sync::Arc;
use std::time::Duration;

use hutch_api::Read;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

use crate::Error;
use crate::error::gone_is_fine;
use crate::reader::Reader;

/// Number of checks of its age in the life of an Event.
const CHECKS: u32 = 12;
/// Shortest pause between two checks.
const SHORTEST: Duration = Duration::from_millis(100);

/// Deletes Events that are older than `age`, until dropped.
pub(crate) async fn run(reader: Arc<Reader>, age: Duration) -> Result<(), Error> {
    let mut checks = tokio::time::interval((age / CHECKS).max(SHORTEST));
    checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        checks.tick().await;
        if let Err(error) = sweep(&reader, age).await {
            tracing::warn!(%error, "old Events stay until the next check");
        }
    }
}

async fn sweep(reader: &Reader, age: Duration) -> Result<(), Error> {
    let client = reader.client();
    let all: Api<Read<Event>> = Api::all(client.clone());
    let events = reader.list(&all, &ListParams::default(), "Events").await?;
    let now = Timestamp::now();
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    for event in events.iter().filter(|event| now.duration_since(last(event)) > age) {
        let namespace = event.namespace().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let answer = api.delete(&event.name_any(), &DeleteParams::default()).await;
        gone_is_fine(answer).map_err(Error::write(format!("Event {namespace}/{}", event.name_any())))?;
    }
    Ok(())
}

/// When the Event happened last, as far as it says.
fn last(event: &Event) -> Timestamp {
    let series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let times = [
        event.metadata.creation_timestamp.as_ref().map(|time| time.0),
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        series,
    ];
    // Without any time it is as old as can be.
    times.into_iter().flatten().max().unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_its_times_counts() {
        let event = |text: &str| serde_json::from_str::<Event>(text).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let created = r#"{"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "involvedObject": {}}"#;
        assert_eq!(last(&event(created)), at("2026-01-01T00:00:00Z"));
        let repeated = r#"{"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "involvedObject": {},
            "lastTimestamp": "2026-01-01T02:00:00Z", "series": {"lastObservedTime": "2026-01-01T03:00:00.000000Z"}}"#;
        assert_eq!(last(&event(repeated)), at("2026-01-01T03:00:00Z"));
        assert_eq!(last(&event(r#"{"metadata": {}, "involvedObject": {}}"#)), Timestamp::UNIX_EPOCH);
    }
}
