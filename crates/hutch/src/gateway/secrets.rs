//! Values of credentials in Secrets. The gateway watches single Secrets by their names, and may read no other ones.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use hutch_egress::Secret;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::credentials::of_secret;

/// Maximum values that are followed at once, each by a watch.
const FOLLOWED: usize = 4096;

/// First pause after a Secret was refused, and the longest one: each is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) key: String,
}

/// Value, or why it is missing; `None` as long as that is not known.
pub(super) type Value = Option<Result<Secret, String>>;

/// News of a watch.
pub(super) type Found = (Place, Result<Secret, String>);

/// Value that is followed.
pub(super) struct Followed {
    value: Value,
    /// A Pod needs it.
    used: bool,
    watch: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Values that Pods need.
pub(super) struct Secrets {
    client: Client,
    pub(super) followed: HashMap<Place, Followed>,
    found: mpsc::Sender<Found>,
}

impl Secrets {
    pub(super) fn new(client: Client, found: mpsc::Sender<Found>) -> Secrets {
        Secrets { client, followed: HashMap::new(), found }
    }

    /// Returns the value at a place, which is followed from now on.
    pub(super) fn value(&mut self, place: Place) -> Value {
        if self.followed.len() >= FOLLOWED && !self.followed.contains_key(&place) {
            return Some(Err(format!("the gateway follows {FOLLOWED} Secrets already")));
        }
        let (client, found) = (&self.client, &self.found);
        let followed = self.followed.entry(place).or_insert_with_key(|place| {
            let watch = tokio::spawn(follow(client.clone(), place.clone(), found.clone()));
            Followed { value: None, used: true, watch: watch.abort_handle() }
        });
        followed.used = true;
        followed.value.clone()
    }

    /// Takes news. Returns true if a value has changed.
    pub(super) fn take(&mut self, (place, value): Found) -> bool {
        let Some(followed) = self.followed.get_mut(&place) else { return false };
        let new = Some(value);
        let differs = followed.value != new;
        followed.value = new;
        differs
    }

    /// Ends the watches of values that were not needed since the last call.
    pub(super) fn forget_unused(&mut self) {
        self.followed.retain(|_, followed| std::mem::take(&mut followed.used));
    }
}

/// Sends the value at a place after each change. While the server does not answer, what was true last still counts.
async fn follow(client: Client, place: Place, found: mpsc::Sender<Found>) {
    let api: Api<SecretObject> = Api::namespaced(client, &place.namespace);
    let mut pause = FIRST_PAUSE;
    while let Some(end) = follow_watch(&api, &place, &found).await {
        if end == Watched::Something {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Progress of a watch until it was refused.
#[derive(PartialEq, Eq)]
enum Watched {
    Nothing,
    Something,
}

/// Follows a place until the server refuses that; `None` if nothing receives the news. A watch that is refused and continues
/// would report nothing about a Secret that has not changed, so the next one begins with a list.
async fn follow_watch(
    api: &Api<SecretObject>,
    place: &Place,
    found: &mpsc::Sender<Found>,
) -> Option<Watched> {
    // By its name, so that a role for this name is enough.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", place.name));
    let mut events = watcher(api.clone(), config).default_backoff().boxed();
    let (mut listed, mut watched) = (None, Watched::Nothing);
    while let Some(event) = events.next().await {
        let (value, ends) = match event {
            Ok(watcher::Event::Init) => {
                listed = None;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(watcher::Event::InitDone) => (of_secret(listed.take().as_ref(), &place.key), false),
            Ok(watcher::Event::Apply(object)) => (of_secret(Some(&object), &place.key), false),
            Ok(watcher::Event::Delete(_)) => (of_secret(None, &place.key), false),
            Err(error) if is_forbidden(&error) => {
                (Err("the gateway may not list and watch it".to_owned()), true)
            }
            Err(error) => {
                tracing::warn!(secret = place.name, namespace = place.namespace, %error, "a watch failed and is tried again");
                continue;
            }
        };
        let value = value.map_err(|why| format!("Secret {}/{}: {why}", place.namespace, place.name));
        found.send((place.clone(), value)).await.ok()?;
        if ends {
            break;
        }
        watched = Watched::Something;
    }
    Some(watched)
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code == 403,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::response::IntoResponse;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn value_is_back_after_a_refusal_although_the_secret_has_not_changed() {
        let watched = Arc::new(AtomicUsize::new(0));
        let answer = move |request: axum::extract::Request| {
            let watches = request.uri().query().unwrap_or_default().contains("watch=");
            let is_refused = watches && watched.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let meta = json!({"name": "github", "namespace": "d", "resourceVersion": "5"});
                let secret =
                    json!({"metadata": meta, "data": {"token": "Zmlyc3QtcmVhbC12YWx1ZS1vZi10aGUtc2VjcmV0"}});
                match (watches, is_refused) {
                    (_, true) => {
                        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                            "reason": "Forbidden", "message": "no"});
                        (axum::http::StatusCode::FORBIDDEN, axum::Json(status)).into_response()
                    }
                    (true, false) => std::future::pending().await,
                    (false, _) => axum::Json(json!({"kind": "SecretList", "apiVersion": "v1",
                        "metadata": {"resourceVersion": "5"}, "items": [secret]}))
                    .into_response(),
                }
            }
        };
        let client = Client::new(axum::Router::new().fallback(answer), "d");
        let place = Place { namespace: "d".to_owned(), name: "github".to_owned(), key: "token".to_owned() };
        let (sender, mut found) = mpsc::channel(8);
        tokio::spawn(follow(client, place, sender));
        let mut values = Vec::new();
        for _ in 0..3 {
            values.push(found.recv().await.expect("news").1.is_ok());
        }
        assert_eq!(values, [true, false, true]);
    }
}
