//! Idle connections of HTTP/1.1, each for the next request to the same origin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::client::conn::http1::SendRequest;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::Server;
use crate::body::Body;
use crate::origin::Origin;

/// Maximum idle connections to one origin, and the time for which they are kept.
pub(super) const CONNECTIONS: usize = 4;
pub(super) const TIME: Duration = Duration::from_secs(30);

/// Idle connections of one sandbox. Those that were made before [`Idle::forget`] do not come back.
#[derive(Clone)]
pub(super) struct Idle {
    kept: Arc<Mutex<Kept>>,
    /// Places of all connections of the sandbox.
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    /// The newest last.
    connections: Vec<Connection>,
    /// Number of times at which all were forgotten.
    generation: u64,
    /// A task removes what is too old.
    is_watched: bool,
}

struct Connection {
    origin: Arc<Origin>,
    open: Open,
    since: Instant,
}

/// Connection of HTTP/1.1, and its server.
pub(super) struct Open {
    pub(super) sender: SendRequest<Body>,
    pub(super) server: Server,
}

impl Idle {
    pub(super) fn new(places: &Arc<Semaphore>) -> Idle {
        Idle { kept: Arc::default(), places: places.clone() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    /// Returns true if no further connection can be made.
    pub(super) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Closes all connections.
    pub(super) fn forget(&self) {
        let mut kept = self.kept();
        kept.generation += 1;
        kept.connections.clear();
    }

    /// Returns the present generation, to which a connection belongs that is made now.
    pub(super) fn generation(&self) -> u64 {
        self.kept().generation
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.kept().connections.len()
    }

    /// Takes the newest connection to an origin.
    pub(super) fn take(&self, origin: &Origin) -> Option<Open> {
        let mut kept = self.kept();
        loop {
            let place = kept.connections.iter().rposition(|one| *one.origin == *origin)?;
            let Connection { open, since, .. } = kept.connections.remove(place);
            if open.sender.is_ready() && since.elapsed() < TIME {
                return Some(open);
            }
        }
    }

    /// Keeps a connection for the next request, as soon as the answer to the last one has been read.
    pub(super) fn keep(&self, origin: &Arc<Origin>, mut open: Open, generation: u64) {
        if open.sender.is_ready() {
            return self.put(origin, open, generation);
        }
        let (idle, origin) = (self.clone(), origin.clone());
        tokio::spawn(async move {
            // One that has failed or closed is never ready.
            if open.sender.ready().await.is_ok() {
                idle.put(&origin, open, generation);
            }
        });
    }

    /// Keeps a connection, unless it is one too many or others wait for its place.
    fn put(&self, origin: &Arc<Origin>, open: Open, generation: u64) {
        let mut kept = self.kept();
        kept.connections.retain(|one| !one.open.sender.is_closed());
        let to_same = kept.connections.iter().filter(|one| one.origin == *origin).count();
        if generation != kept.generation || to_same >= CONNECTIONS || self.is_full() {
            return;
        }
        kept.connections.push(Connection { origin: origin.clone(), open, since: Instant::now() });
        if !kept.is_watched {
            kept.is_watched = true;
            tokio::spawn(watch(Arc::downgrade(&self.kept)));
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes connections that are too old, until none is left.
async fn watch(kept: Weak<Mutex<Kept>>) {
    loop {
        let oldest = {
            let Some(kept) = kept.upgrade() else { return };
            let mut kept = lock(&kept);
            kept.connections.retain(|one| one.since.elapsed() < TIME && !one.open.sender.is_closed());
            match kept.connections.iter().map(|one| one.since).min() {
                Some(oldest) => oldest,
                None => return kept.is_watched = false,
            }
        };
        sleep_until(oldest + TIME).await;
    }
}
