//! State of all namespaces, kept up to date by watches.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use hutch_testkit::cluster::Cluster;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::kind;

/// Objects of a namespace by kind and name; an event's kind is `Event`.
pub(crate) type Objects = BTreeMap<(String, String), Value>;

#[derive(Default)]
struct Seen {
    objects: Objects,
    changed: Option<Instant>,
}

/// Everything that is seen.
pub(crate) struct Observatory {
    namespaces: Arc<Mutex<HashMap<String, Seen>>>,
    _watches: JoinSet<()>,
}

impl Observatory {
    pub(crate) async fn open(cluster: &Cluster) -> anyhow::Result<Observatory> {
        let namespaces = Arc::new(Mutex::new(HashMap::new()));
        let mut watches = JoinSet::new();
        let kinds =
            kind::KINDS.iter().map(|(_, kind, _)| kind::resource(kind)).collect::<Result<Vec<_>, _>>()?;
        for resource in kinds.into_iter().chain([kind::events()]) {
            // Connections of their own, so that no watch waits behind another's list.
            let client = cluster.client("observer").await?;
            watches.spawn(watch(Api::all_with(client, &resource), resource, namespaces.clone()));
        }
        Ok(Observatory { namespaces, _watches: watches })
    }

    /// Returns the objects, if nothing has changed for so long.
    pub(crate) fn quiet(&self, namespace: &str, since: Instant, long: Duration) -> Option<Objects> {
        let namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = namespaces.get(namespace) else {
            return (since.elapsed() >= long).then(Objects::new);
        };
        let last = seen.changed.map_or(since, |changed| changed.max(since));
        (last.elapsed() >= long).then(|| seen.objects.clone())
    }
}

/// The four kinds in the older version, as kinds of their own.
pub(crate) async fn in_older_version(client: &Client, namespace: &str) -> anyhow::Result<Objects> {
    let mut objects = Objects::new();
    for kind in kind::OLDER {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind::resource(kind)?);
        match api.list(&ListParams::default()).await {
            Ok(list) => {
                for object in list {
                    objects.insert((kind.into(), object.name_any()), serde_json::to_value(&object)?);
                }
            }
            // Objects that cannot be converted cannot be listed.
            Err(kube::Error::Api(status)) => {
                objects.insert((kind.into(), "*".into()), json!({"refused": status.code}));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(objects)
}

async fn watch(
    api: Api<DynamicObject>,
    resource: ApiResource,
    namespaces: Arc<Mutex<HashMap<String, Seen>>>,
) {
    let mut stream =
        std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff().into_stream());
    while let Some(event) = stream.next().await {
        let (object, gone) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                eprintln!("watch of {}: {error}", resource.plural);
                continue;
            }
        };
        let key = (resource.kind.clone(), object.name_any());
        let mut namespaces = namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let seen: &mut Seen = namespaces.entry(object.namespace().unwrap_or_default()).or_default();
        seen.changed = Some(Instant::now());
        match serde_json::to_value(&object) {
            Ok(value) if !gone => drop(seen.objects.insert(key, value)),
            _ => drop(seen.objects.remove(&key)),
        }
    }
}
