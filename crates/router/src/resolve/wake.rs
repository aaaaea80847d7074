//! Holds requests for suspended Sandboxes. Each Sandbox is woken once for all its requests, which then
//! continue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::{OnceCell, Semaphore};

use crate::refusal::Refusal;
use crate::{Resolve, Target};

/// Maximum number of held requests of all Sandboxes. Their bodies are not read meanwhile: each costs its head
/// and the buffer of its connection.
const HELD: usize = 4096;
/// Maximum time that a request is held: longer than a cold start.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Interval between checks for the Pod, if no watch reports it earlier.
const LOOK: Duration = Duration::from_millis(20);
/// Interval after which a Sandbox that is not reachable yet is woken again. It may have been suspended anew meanwhile, as on a
/// slow machine with a short idle time.
const AGAIN: Duration = Duration::from_secs(2);
/// Seconds of `Retry-After` for a rejected client.
const RETRY_AFTER: u32 = 2;

/// Wakes Sandboxes.
pub trait Wake: Send + Sync + 'static {
    /// Wakes a suspended Sandbox that a connection may wake. Returns false for any other Sandbox.
    fn wake<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<bool, String>>;
}

/// Returns the refusal of a request for a Sandbox that is not woken in time.
pub(crate) fn asleep(target: &Target) -> Refusal {
    Refusal::Asleep(target.id.clone(), RETRY_AFTER)
}

type Name = (String, String);
type Waking = Arc<OnceCell<()>>;

/// Held requests and the wakings that they wait for.
pub(crate) struct Sleepers {
    wake: Arc<dyn Wake>,
    room: Semaphore,
    wakings: Mutex<HashMap<Name, Weak<OnceCell<()>>>>,
}

impl Sleepers {
    pub(crate) fn new(wake: Arc<dyn Wake>) -> Sleepers {
        Sleepers { wake, room: Semaphore::new(HELD), wakings: Mutex::default() }
    }

    /// Returns when the Sandbox has a reachable Pod, or may not be woken. The caller bounds it by the timeout of
    /// the client.
    pub(crate) async fn wake(&self, target: &Target, resolver: &dyn Resolve) -> Result<(), Refusal> {
        let asleep = || asleep(target);
        let _place = self.room.try_acquire().map_err(|_| asleep())?;
        let waking = self.waking(target);
        // The first request wakes and polls for all that wait; if it is canceled, the next one takes over.
        let woken = waking.get_or_try_init(async || {
            if !self.wake.wake(target).await? {
                return Ok(());
            }
            // The first request may expect another address or UID than those that wait.
            let any = Target { pod_ip: None, uid: None, ..target.clone() };
            let mut woken_at = Instant::now();
            while resolver.resolve(&any).await.is_err() {
                if woken_at.elapsed() >= AGAIN {
                    // It may be starting since the first time, so neither outcome ends the wait.
                    let _ = self.wake.wake(target).await;
                    woken_at = Instant::now();
                }
                // The result does not matter: the next loop resolves again.
                let _ = tokio::time::timeout(LOOK, resolver.reachable(&any)).await;
            }
            Ok::<(), String>(())
        });
        match tokio::time::timeout(WAIT_LIMIT, woken).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::warn!(
                    sandbox = target.id,
                    namespace = target.namespace,
                    error,
                    "failed to wake sandbox"
                );
                Err(asleep())
            }
            Err(_) => Err(asleep()),
        }
    }

    /// Returns the waking of that Sandbox that is in progress.
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
