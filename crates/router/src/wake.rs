//! Sandboxes that sleep: a request for one is held, the Sandbox woken once however many wait, then the request goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{OnceCell, Semaphore};

use crate::refusal::Refusal;
use crate::{Resolve, Target};

/// Requests that are held at once, over all Sandboxes. Their bodies are not read meanwhile: each costs its head and the
/// buffer of its connection.
const HELD: usize = 4096;
/// How long a request is held: longer than a cold start.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between questions whether the Pod is there, unless a watch tells it.
const LOOK: Duration = Duration::from_millis(20);
/// What a client that is sent away is told to wait, in seconds.
const COME_AGAIN: u32 = 2;

/// Wakes Sandboxes.
pub trait Wake: Send + Sync + 'static {
    /// Wakes the Sandbox if it sleeps and may be woken by a connection. False when it may not or does not sleep.
    fn wake<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<bool, String>>;
}

type Name = (String, String);
type Waking = Arc<OnceCell<()>>;

/// Who waits for what.
pub(crate) struct Sleepers {
    wake: Arc<dyn Wake>,
    room: Semaphore,
    wakings: Mutex<HashMap<Name, Weak<OnceCell<()>>>>,
}

impl Sleepers {
    pub(crate) fn new(wake: Arc<dyn Wake>) -> Sleepers {
        Sleepers { wake, room: Semaphore::new(HELD), wakings: Mutex::default() }
    }

    /// Returns when the Sandbox has a Pod that can be reached, or is not one to be woken.
    pub(crate) async fn wake(&self, target: &Target, resolver: &dyn Resolve) -> Result<(), Refusal> {
        let asleep = || Refusal::Asleep(target.id.clone(), COME_AGAIN);
        let _place = self.room.try_acquire().map_err(|_| asleep())?;
        let waking = self.waking(target);
        // Whoever came first asks and looks, for all who wait; when it goes away, the next one does.
        let woken = waking.get_or_try_init(async || {
            if !self.wake.wake(target).await? {
                return Ok(());
            }
            // The first that came may know another address or uid than those that wait.
            let any = Target { pod_ip: None, uid: None, ..target.clone() };
            while resolver.resolve(&any).await.is_err() {
                // No matter which: the next look tells.
                let _ = tokio::time::timeout(LOOK, resolver.reachable(&any)).await;
            }
            Ok::<(), String>(())
        });
        let limit = target.timeout.map_or(PATIENCE, |asked| asked.min(PATIENCE));
        match tokio::time::timeout(limit, woken).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::warn!(sandbox = target.id, namespace = target.namespace, error, "not woken");
                Err(asleep())
            }
            Err(_) => Err(asleep()),
        }
    }

    /// The one waking of that Sandbox that is in progress.
    fn waking(&self, target: &Target) -> Waking {
        let mut wakings = self.wakings.lock().unwrap_or_else(PoisonError::into_inner);
        wakings.retain(|_, waking| waking.strong_count() > 0);
        let name = (target.namespace.clone(), target.id.clone());
        if let Some(waking) = wakings.get(&name).and_then(Weak::upgrade) {
            return waking;
        }
        let waking = Waking::default();
        wakings.insert(name, Arc::downgrade(&waking));
        waking
    }
}
