//! Objects that select Pods by labels, and the Pods that they selected last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hutch_api::Read;
use hutch_reconcile::cache::Cache;
use hutch_reconcile::controller::Object;
use hutch_reconcile::key::Key;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;

/// Pods whose selecting objects are remembered. Beyond that the memory starts anew, and a Pod that loses its labels is only
/// noticed at the next event of the object that selected it.
const MAX_REMEMBERED: usize = 100_000;

/// Objects that select each Pod, and that did at its last event.
pub(crate) struct Members<K> {
    objects: Arc<Cache<Read<K>>>,
    selects: fn(&K, &Read<Pod>) -> bool,
    /// Objects by Pod.
    last: Mutex<HashMap<Key, Vec<Key>>>,
}

impl<K: Object> Members<K> {
    pub(crate) fn new(objects: Arc<Cache<Read<K>>>, selects: fn(&K, &Read<Pod>) -> bool) -> Self {
        Members { objects, selects, last: Mutex::default() }
    }

    /// Returns the objects that an event of the Pod affects: those that select it now, and those that did before.
    pub(crate) fn of(&self, pod: &Read<Pod>) -> Vec<Key> {
        let objects = self.objects.all();
        let selecting = objects.iter().filter(|object| match &***object {
            Read::Object(object) => (self.selects)(object, pod),
            Read::Unreadable(_) => false,
        });
        let now: Vec<_> = selecting.map(|object| Key::of(&**object)).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= MAX_REMEMBERED {
            last.clear();
        }
        let key = Key::of(pod);
        let before = if now.is_empty() || pod.meta().deletion_timestamp.is_some() {
            last.remove(&key)
        } else {
            last.insert(key, now.clone())
        };
        let mut touched = now;
        for object in before.into_iter().flatten() {
            if !touched.contains(&object) {
                touched.push(object);
            }
        }
        touched
    }
}
