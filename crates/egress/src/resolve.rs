//! Addresses of names outside, which are kept for a short time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hutch_policy::HostName;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::descriptors::{Descriptors, LOOKUP};
use crate::way::Unreachable;

/// Maximum time to resolve a name.
const RESOLVE: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES: usize = 8;
/// Maximum names that are resolved at once, for one sandbox and for all. Each holds a thread of the process, of which it has
/// 512; the rest is for other work.
const RESOLVING: usize = 4;
const RESOLVING_OF_ALL: usize = 256;
static OF_ALL: Semaphore = Semaphore::const_new(RESOLVING_OF_ALL);
/// Time for which addresses are kept. The resolver of this machine does not say how long they are valid.
const KEPT: Duration = Duration::from_secs(30);
/// Maximum number of names whose addresses are kept.
const NAMES: usize = 256;

/// Resolves names for one sandbox, as this machine does. Another sandbox does not learn which names it has resolved.
pub(crate) struct Resolver {
    turns: Arc<Semaphore>,
    known: Mutex<HashMap<HostName, Known>>,
}

struct Known {
    until: Instant,
    addresses: Vec<IpAddr>,
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver { turns: Arc::new(Semaphore::new(RESOLVING)), known: Mutex::default() }
    }
}

impl Resolver {
    /// Returns the addresses of a name.
    ///
    /// # Errors
    /// It does not resolve, not in time, or there is no descriptor for it.
    pub(crate) async fn addresses(
        &self,
        name: &HostName,
        descriptors: &Descriptors,
    ) -> Result<Vec<IpAddr>, Unreachable> {
        let now = Instant::now();
        if let Some(known) = self.known().get(name).filter(|known| now < known.until) {
            return Ok(known.addresses.clone());
        }
        let late = |_| Unreachable::Name(io::ErrorKind::TimedOut.into());
        let found = timeout(RESOLVE, self.resolve(name, descriptors)).await.map_err(late)??;
        self.keep(name.clone(), found.clone());
        Ok(found)
    }

    /// Forgets the addresses of a name, of which none could be reached.
    pub(crate) fn forget(&self, name: &HostName) {
        self.known().remove(name);
    }

    /// Keeps addresses, unless those of too many names are kept.
    pub(crate) fn keep(&self, name: HostName, addresses: Vec<IpAddr>) {
        let (mut known, now) = (self.known(), Instant::now());
        if known.len() >= NAMES {
            known.retain(|_, known| now < known.until);
        }
        if known.len() < NAMES {
            known.insert(name, Known { until: now + KEPT, addresses });
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<HostName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn resolve(&self, name: &HostName, descriptors: &Descriptors) -> Result<Vec<IpAddr>, Unreachable> {
        let turn =
            self.turns.clone().acquire_owned().await.map_err(io::Error::other).map_err(Unreachable::Name)?;
        let of_all = OF_ALL.acquire().await.map_err(io::Error::other).map_err(Unreachable::Name)?;
        let lookup = descriptors.take(LOOKUP)?;
        let name = name.as_str().to_owned();
        let resolve = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            // A thread that waits for a slow server keeps these after the time has passed.
            drop((turn, of_all, lookup));
            found.map(|found| found.take(ADDRESSES).map(|address: SocketAddr| address.ip()).collect())
        };
        let found: io::Result<Vec<IpAddr>> = tokio::task::spawn_blocking(resolve)
            .await
            .map_err(io::Error::other)
            .map_err(Unreachable::Name)?;
        found.map_err(Unreachable::Name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_kept_for_half_a_minute() {
        let (resolver, descriptors) = (Resolver::default(), Descriptors::default());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        resolver.keep(name("a.invalid"), vec![address]);
        tokio::time::advance(KEPT.checked_sub(Duration::from_millis(1)).unwrap()).await;
        assert_eq!(resolver.addresses(&name("a.invalid"), &descriptors).await.unwrap(), [address]);
        tokio::time::advance(Duration::from_millis(1)).await;
        resolver.addresses(&name("a.invalid"), &descriptors).await.unwrap_err();
        let found = resolver.addresses(&name("localhost"), &descriptors).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(resolver.known().contains_key(&name("localhost")));
        resolver.forget(&name("localhost"));
        assert!(!resolver.known().contains_key(&name("localhost")));
    }

    #[tokio::test(start_paused = true)]
    async fn kept_names_are_bounded() {
        let resolver = Resolver::default();
        for number in 0..NAMES + 1 {
            resolver.keep(name(&format!("n{number}.invalid")), Vec::new());
        }
        assert_eq!(resolver.known().len(), NAMES);
        tokio::time::advance(KEPT).await;
        resolver.keep(name("later.invalid"), Vec::new());
        assert_eq!(resolver.known().len(), 1);
    }
}
