//! Values of credentials in Secrets. The gateway watches single Secrets by their names, and may read no other ones.

use std::collections::HashMap;

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
    // By its name, so that a role for this name is enough.
    let config = watcher::Config::default().fields(&format!("metadata.name={}", place.name));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        let value = match event {
            Ok(watcher::Event::Init) => {
                listed = None;
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(watcher::Event::InitDone) => of_secret(listed.take().as_ref(), &place.key),
            Ok(watcher::Event::Apply(object)) => of_secret(Some(&object), &place.key),
            Ok(watcher::Event::Delete(_)) => of_secret(None, &place.key),
            Err(error) if is_forbidden(&error) => Err("the gateway may not list and watch it".to_owned()),
            Err(error) => {
                tracing::warn!(secret = place.name, namespace = place.namespace, %error, "a watch failed and is tried again");
                continue;
            }
        };
        let value = value.map_err(|why| format!("Secret {}/{}: {why}", place.namespace, place.name));
        if found.send((place.clone(), value)).await.is_err() {
            return;
        }
    }
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
