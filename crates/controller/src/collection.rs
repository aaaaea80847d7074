//! Informer cache and client of one kind: objects are read from the [`Cache`] and written through the client. The response
//! to each write enters the cache before anything else happens.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt, TryStreamExt};
use hutch_api::{Read, Unreadable};
use hutch_serve::Ambient;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::{NamespaceResourceScope, PartialObjectMeta, PartialObjectMetaExt, Request, request};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::cache::{Cache, Change, Terms};
use crate::error::Error;
use crate::key::Key;
use crate::record::{Note, Recorder};
use crate::undecodable::Undecodable;

/// Name under which creates appear in an object's managed fields.
const FIELD_MANAGER: &str = "sandbox-controller";
/// Pause after the first failure of a watch.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
/// Maximum pause between two tries of a watch, without jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Kind of object that the controllers can watch and write.
pub(crate) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

pub(crate) struct Collection<K> {
    client: Client,
    cache: Cache<K>,
    trim: Box<dyn Fn(&mut K) + Send + Sync>,
    selector: Option<&'static str>,
    undecodable: Undecodable<K>,
}

impl<K: Object> Collection<K> {
    /// `trim` removes the parts of an object that the controllers never read.
    pub(crate) fn new(
        client: Client,
        terms: Terms<K>,
        trim: impl Fn(&mut K) + Send + Sync + 'static,
    ) -> Self {
        let undecodable = Undecodable::default();
        Collection { client, cache: Cache::new(terms), trim: Box::new(trim), selector: None, undecodable }
    }

    /// Watches only objects with that label.
    pub(crate) fn labeled(self, label: &'static str) -> Self {
        Collection { selector: Some(label), ..self }
    }

    /// Sets the listener for changes; called once, before [`Collection::feed`].
    pub(crate) fn listen(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.cache.listen(listener);
    }

    /// Sets the listener for undecodable objects and their removal; called once, before [`Collection::feed`].
    pub(crate) fn listen_to_undecodable(
        &self,
        listener: impl Fn(&PartialObjectMeta<K>) + Send + Sync + 'static,
    ) {
        self.undecodable.listen(listener);
    }

    /// Returns the objects that the owner controls and that could never be decoded.
    pub(crate) fn undecodable_of(&self, owner: &impl Resource) -> Vec<PartialObjectMeta<K>> {
        let mut undecodable = self.undecodable.controlled_by(owner);
        // An object that was decodable before is still in the cache.
        undecodable.retain(|object| {
            self.cache.get(&Key::of(object)).is_none_or(|known| known.uid() != object.uid())
        });
        undecodable
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.cache.get(key)
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.cache.all()
    }

    pub(crate) fn find(&self, term: &str) -> Vec<Arc<K>> {
        self.cache.find(term)
    }

    /// Creates the object, which may have more fields than are kept of its kind.
    pub(crate) async fn create<B>(&self, namespace: &str, object: Box<B>) -> Result<Arc<K>, Error>
    where
        B: Resource<DynamicType = ()> + Serialize,
    {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let name = object.meta().name.clone().or(object.meta().generate_name.clone()).unwrap_or_default();
        let bytes = serde_json::to_vec(&object).map_err(request::Error::SerializeBody);
        drop(object);
        let request = bytes.and_then(|bytes| request_for::<K>(namespace).create(&params, bytes));
        let failed = |source| Error::Create { kind: K::kind(&()).into_owned(), name, source };
        Ok(self.take_in(self.send(request).await.map_err(failed)?))
    }

    /// Sends a JSON merge patch. With `metadata.resourceVersion` in it, it fails if the object has changed.
    pub(crate) async fn patch(&self, key: &Key, patch: Value) -> Result<Arc<K>, Error> {
        let (object, change) = self.patch_quietly(key, patch).await?;
        self.tell(change);
        Ok(object)
    }

    /// Like [`Collection::patch`], but the listener is called only when the change is passed to [`Collection::tell`].
    pub(crate) async fn patch_quietly(
        &self,
        key: &Key,
        patch: Value,
    ) -> Result<(Arc<K>, Option<Change<K>>), Error> {
        let request =
            request_for::<K>(&key.namespace).patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch));
        drop(patch);
        Ok(self.keep(self.send(request).await.map_err(change_error::<K>(key))?))
    }

    /// Sends a JSON merge patch of the status.
    pub(crate) async fn patch_status(&self, key: &Key, patch: Value) -> Result<Arc<K>, Error> {
        let (params, body) = (PatchParams::default(), Patch::Merge(&patch));
        let request = request_for::<K>(&key.namespace).patch_subresource("status", &key.name, &params, &body);
        drop(patch);
        Ok(self.take_in(self.send(request).await.map_err(change_error::<K>(key))?))
    }

    /// Reads the object from the server, after a refusal has shown that the watch is behind.
    pub(crate) async fn refresh(&self, key: &Key) -> Result<(), Error> {
        match self.api(&key.namespace).get_opt(&key.name).boxed().await {
            Ok(Some(object)) => {
                self.take_in(object);
            }
            Ok(None) => self.tell(self.cache.deleted(key)),
            Err(source) => return Err(change_error::<K>(key)(source)),
        }
        Ok(())
    }

    /// Returns the object of the server: for what the watch may have not reported yet.
    pub(crate) async fn read(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        self.refresh(key).await?;
        Ok(self.get(key))
    }

    /// Returns the object of the cache, or that of the server if the cache does not have it.
    pub(crate) async fn fetch(&self, key: &Key) -> Result<Option<Arc<K>>, Error> {
        if self.get(key).is_none() {
            self.refresh(key).await?;
        }
        Ok(self.get(key))
    }

    /// Deletes the object if it still has the known uid. An object that is gone is not an error.
    pub(crate) async fn delete(
        &self,
        key: &Key,
        propagation: Option<PropagationPolicy>,
    ) -> Result<(), Error> {
        self.delete_if(key, None, propagation).await
    }

    /// Deletes the object only if it has not changed since that version.
    pub(crate) async fn delete_version(&self, key: &Key, version: String) -> Result<(), Error> {
        self.delete_if(key, Some(version), None).await
    }

    async fn delete_if(
        &self,
        key: &Key,
        version: Option<String>,
        propagation: Option<PropagationPolicy>,
    ) -> Result<(), Error> {
        let Some(known) = self.cache.get(key) else { return Ok(()) };
        let preconditions = Preconditions { uid: known.uid(), resource_version: version };
        let params = DeleteParams {
            propagation_policy: propagation,
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let answer = self.api(&key.namespace).delete(&key.name, &params).boxed().await;
        match answer.map(|answer| answer.left()) {
            Ok(Some(object)) if object.meta().deletion_timestamp.is_some() => {
                self.take_in(object);
                Ok(())
            }
            // Some servers respond with a Status although the object stays for a while. Then only the watch reports its end.
            Ok(None) if self.lingers(known.as_ref(), &params) => Ok(()),
            Ok(_) => {
                self.tell(self.cache.deleted(key));
                Ok(())
            }
            Err(source) => {
                let kind = K::kind(&()).into_owned();
                let error = Error::Delete { kind, name: key.name.clone(), source };
                if error.is_not_found() {
                    self.tell(self.cache.deleted(key));
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// Passes a change to the listener, after [`Collection::patch_quietly`].
    pub(crate) fn tell(&self, change: Option<Change<K>>) {
        if let Some(change) = change {
            self.cache.tell(&change);
        }
    }

    /// Keeps the cache like the server's state until the returned future is dropped; `synced` counts the kinds whose
    /// first list is complete. A watch that fails or is too old lists again, with backoff. An undecodable object is left
    /// out, or stays as it was known, and an event reports it.
    pub(crate) async fn feed(
        self: Arc<Self>,
        synced: watch::Sender<usize>,
        ambient: Ambient,
        recorder: Recorder,
    ) {
        let config =
            watcher::Config { label_selector: self.selector.map(str::to_owned), ..Default::default() };
        let stream = watcher::watcher(Api::<Read<K>>::all(self.client.clone()), config);
        let mut stream = std::pin::pin!(stream.backoff(Pauses::new(ambient.clone())).into_stream());
        let (mut listed, mut undecodable) = (Vec::new(), Vec::new());
        let mut first = true;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => {
                    listed.clear();
                    undecodable.clear();
                    self.cache.begin_list();
                }
                Ok(Event::InitApply(found)) => match self.readable(found, &recorder, &ambient) {
                    Ok(object) => listed.push(object),
                    Err(known) => undecodable.push(known),
                },
                Ok(Event::InitDone) => {
                    self.undecodable.retain(&undecodable);
                    self.take_list(std::mem::take(&mut listed), &undecodable).await;
                    if std::mem::take(&mut first) {
                        synced.send_modify(|count| *count += 1);
                    }
                }
                Ok(Event::Apply(found)) => match self.readable(found, &recorder, &ambient) {
                    Ok(object) => self.tell(self.cache.learn(object)),
                    Err((key, uid)) => {
                        if self.cache.get(&key).is_some_and(|known| known.uid() != uid) {
                            self.tell(self.cache.lose(&key));
                        }
                    }
                },
                Ok(Event::Delete(gone)) => {
                    self.tell(self.cache.forget(&gone));
                    self.undecodable.remove(&Key::of(&gone));
                }
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "watch interrupted, will be resumed")
                }
            }
        }
    }

    /// Returns the trimmed object; or key and uid of an undecodable one, after reporting it.
    fn readable(
        &self,
        found: Read<K>,
        recorder: &Recorder,
        ambient: &Ambient,
    ) -> Result<K, (Key, Option<String>)> {
        let key = Key::of(&found);
        let unreadable = match found {
            Read::Object(mut object) => {
                self.undecodable.remove(&key);
                (self.trim)(&mut object);
                return Ok(object);
            }
            Read::Unreadable(unreadable) => unreadable,
        };
        let Unreadable { metadata, problem } = *unreadable;
        let object: PartialObjectMeta<K> = metadata.into_response_partial();
        let uid = object.uid();
        if self.undecodable.put(object.clone(), &problem) {
            tracing::warn!(kind = %K::kind(&()), object = %key, problem, "undecodable object");
            recorder.record(&object, Note::undecodable(&problem), ambient.now(), ambient.number());
        }
        Err((key, uid))
    }

    async fn take_list(&self, objects: Vec<K>, undecodable: &[(Key, Option<String>)]) {
        let listed = self.cache.replace(objects, undecodable);
        for change in listed.changes {
            self.cache.tell(&change);
        }
        for key in listed.doubtful {
            if let Err(error) = self.refresh(&key).await {
                // If it exists after all, the watch reports it.
                tracing::debug!(kind = %K::kind(&()), object = %key, %error, "failed to read an object");
                self.tell(self.cache.lose(&key));
            }
        }
    }

    /// Adds an object as the watch would.
    #[cfg(test)]
    pub(crate) fn insert(&self, mut object: K) {
        (self.trim)(&mut object);
        self.cache.learn(object);
    }

    /// Removes the object, as before its first event.
    #[cfg(test)]
    pub(crate) fn unlearn(&self, key: &Key) {
        self.cache.lose(key);
    }

    /// Returns whether the object stays visible after a successful delete.
    fn lingers(&self, known: &K, params: &DeleteParams) -> bool {
        !known.finalizers().is_empty()
            || matches!(params.propagation_policy, Some(PropagationPolicy::Foreground))
    }

    fn take_in(&self, object: K) -> Arc<K> {
        let (object, change) = self.keep(object);
        self.tell(change);
        object
    }

    fn keep(&self, mut object: K) -> (Arc<K>, Option<Change<K>>) {
        (self.trim)(&mut object);
        let key = Key::of(&object);
        let copy = object.clone();
        let change = self.cache.learn_own(object);
        let kept = change.as_ref().and_then(|change| change.new.clone());
        (kept.or_else(|| self.cache.get(&key)).unwrap_or_else(|| Arc::new(copy)), change)
    }

    fn api(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Sends the request. Callers drop the object first: as a tree it takes many times the memory, and the response can take
    /// long. The future of every request here is boxed: inside another future it would take space while nothing is sent.
    fn send(&self, request: Built) -> BoxFuture<'_, Result<K, kube::Error>> {
        match request {
            Ok(request) => self.client.request(request).boxed(),
            Err(source) => future::ready(Err(kube::Error::BuildRequest(source))).boxed(),
        }
    }
}

/// Backoff of a watch that fails: each pause is twice the last, with up to 100% jitter, so that the clients of a restarted
/// server do not all connect at once.
pub(crate) struct Pauses {
    ambient: Ambient,
    last: Option<Duration>,
}

impl Pauses {
    pub(crate) fn new(ambient: Ambient) -> Pauses {
        Pauses { ambient, last: None }
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let next = self.last.map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE));
        self.last = Some(next);
        Some(next.mul_f64(1.0 + self.ambient.fraction()))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.last = None;
    }
}

type Built = Result<http::Request<Vec<u8>>, request::Error>;

/// Returns a request for the objects of a namespace.
fn request_for<K: Object>(namespace: &str) -> Request {
    Request::new(K::url_path(&(), Some(namespace)))
}

fn change_error<K: Resource<DynamicType = ()>>(key: &Key) -> impl FnOnce(kube::Error) -> Error {
    let name = key.name.clone();
    move |source| Error::Change { kind: K::kind(&()).into_owned(), name, source }
}
