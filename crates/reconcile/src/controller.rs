//! Controller of a reconciler that reads its objects live: watches request reconciles by key.
//!
//! It takes the place of `kube::runtime::Controller`, so that all reconcilers share the [`Queue`]. An object is reconciled
//! when it appears or changes, and when an object that maps to it appears, changes or goes. A key without an object is not
//! reconciled, so the dependents of a deleted object cost no requests, and what maps to objects is watched when there is one.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch as latest;
use tokio::task::JoinSet;

use crate::cache::Cache;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::queue::{Backoff, Queue};

/// Wait for further events about an object before it is reconciled: one write can cause several.
const GATHER: Duration = Duration::from_millis(1);

/// Kind that can be watched.
pub trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Object for K {}

/// Watches that fill a queue with the keys of objects of kind `K`.
pub struct Controller<K> {
    objects: Arc<Cache<K>>,
    queue: Arc<Queue>,
    /// True once an object was there.
    present: latest::Receiver<bool>,
    watches: JoinSet<()>,
}

impl<K: Object> Controller<K> {
    /// Returns a controller of these objects. Each is reconciled once at a time; there is no other limit.
    pub fn new(objects: Api<K>) -> Self {
        let cache = Arc::new(Cache::new(|_| Vec::new()));
        let queue = Queue::new(usize::MAX, Backoff::default(), ());
        let mut watches = JoinSet::new();
        let (sender, present) = latest::channel(false);
        watches.spawn(follow(objects, cache.clone(), queue.clone(), sender));
        Controller { objects: cache, queue, present, watches }
    }

    /// Returns the cache of the objects.
    pub fn objects(&self) -> Arc<Cache<K>> {
        self.objects.clone()
    }

    /// Reconciles the owners of each of these objects.
    #[must_use]
    pub fn owns<O: Object>(self, owned: Api<O>, config: watcher::Config) -> Self {
        self.watches(owned, config, |object| {
            let namespace = object.namespace().unwrap_or_default();
            let (version, kind) = (K::api_version(&()), K::kind(&()));
            let owners = object.owner_references().iter();
            let owners = owners.filter(|owner| owner.api_version == version && owner.kind == kind);
            owners.map(|owner| Key::new(&namespace, &owner.name)).collect::<Vec<_>>()
        })
    }

    /// Reconciles the objects that `map` returns for each of the watched objects.
    #[must_use]
    pub fn watches<O: Object, I: IntoIterator<Item = Key>>(
        mut self,
        watched: Api<O>,
        config: watcher::Config,
        map: impl Fn(&O) -> I + Send + 'static,
    ) -> Self {
        let (queue, mut present) = (self.queue.clone(), self.present.clone());
        self.watches.spawn(async move {
            // Without an object nothing is reconciled. An error means that the controller ends.
            if present.wait_for(|present| *present).await.is_err() {
                return;
            }
            let mut objects = watcher(watched, config).default_backoff().touched_objects().boxed();
            while let Some(object) = objects.next().await {
                match object {
                    Ok(object) => map(&object).into_iter().for_each(|key| queue.add_later(key, GATHER)),
                    Err(error) => log::<O>(&error),
                }
            }
        });
        self
    }

    /// Reconciles until the returned future is dropped, which cancels the reconciles in progress.
    pub async fn run<F>(self, reconcile: impl Fn(Key) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let Controller { objects, queue, watches: _watches, .. } = self;
        let reconcile = move |key: Key| match objects.get(&key) {
            Some(_) => reconcile(key).left_future(),
            None => futures::future::ready(Outcome::Settled).right_future(),
        };
        queue.run(reconcile).await;
    }
}

/// Keeps the cache like the server's state and requests a reconcile of each listed or changed object.
async fn follow<K: Object>(
    api: Api<K>,
    cache: Arc<Cache<K>>,
    queue: Arc<Queue>,
    present: latest::Sender<bool>,
) {
    let found = || present.send_if_modified(|present| !std::mem::replace(present, true));
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                listed.clear();
                cache.begin_list();
            }
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => {
                let keys: Vec<Key> = listed.iter().map(Key::of).collect();
                cache.replace(std::mem::take(&mut listed), &[]);
                if !keys.is_empty() {
                    found();
                }
                keys.into_iter().for_each(|key| queue.add_later(key, GATHER));
            }
            Ok(Event::Apply(object)) => {
                let key = Key::of(&object);
                cache.learn(object);
                found();
                queue.add_later(key, GATHER);
            }
            Ok(Event::Delete(object)) => {
                cache.forget(&object);
            }
            Err(error) => log::<K>(&error),
        }
    }
}

fn log<K: Object>(error: &watcher::Error) {
    tracing::debug!(kind = %K::kind(&()), %error, "watch interrupted, will be resumed");
}
