//! Launches jails by the node's warden, one after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use hutch_jail::{NetworkNamespace, NetworkPlan, Spec, Warden};
use tokio::sync::Semaphore;

use super::StartError;
use super::jail::JailHandle;

/// Maximum number of launches at once: the one that the warden works at, and the next. If all waited for it as threads,
/// some would wait three times as long as others.
const LAUNCHES: usize = 2;

/// The node's warden, which is replaced when it dies.
pub(crate) struct Launcher {
    warden: Mutex<Arc<Warden>>,
    /// Turns to launch a jail, given in the order of the requests.
    turns: Semaphore,
}

impl Launcher {
    pub(crate) fn new(warden: Warden) -> Launcher {
        Launcher { warden: Mutex::new(Arc::new(warden)), turns: Semaphore::new(LAUNCHES) }
    }

    pub(crate) fn warden(&self) -> Arc<Warden> {
        self.warden.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses another warden from now on.
    pub(crate) fn replace(&self, warden: Warden) {
        *self.warden.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(warden);
    }

    /// Creates the network namespace of a Pod, with the listeners of its plan.
    pub(crate) async fn network(&self, plan: NetworkPlan) -> Result<NetworkNamespace, StartError> {
        let _turn = self.turns.acquire().await?;
        let warden = self.warden();
        Ok(tokio::task::spawn_blocking(move || warden.network(&plan)).await??)
    }

    /// Launches a jail in a network namespace.
    pub(super) async fn launch(
        &self,
        spec: Spec,
        network: &Arc<OwnedFd>,
    ) -> Result<Arc<JailHandle>, StartError> {
        let turn = self.turns.acquire().await?;
        let (warden, network) = (self.warden(), network.clone());
        let launched = tokio::task::spawn_blocking(move || warden.launch(&spec, network.as_fd())).await;
        drop(turn);
        let jail = launched?.map_err(StartError::of_jail)?;
        Ok(JailHandle::adopt(jail)?)
    }
}
