//! Locks of namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// Locks by namespace, each as long as it is used.
#[derive(Debug, Default)]
pub(crate) struct NamespaceLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl NamespaceLocks {
    /// Waits for the lock of a namespace.
    pub(crate) async fn lock(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let own = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Drops unused locks.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(namespace.to_owned()).or_default().clone()
        };
        own.lock_owned().await
    }
}
