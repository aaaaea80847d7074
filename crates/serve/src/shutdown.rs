use std::future::Future;

use tokio_util::sync::CancellationToken;

/// Signals services to stop. Clones share it; it is triggered once and stays so.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Not triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Signals all clones.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Returns `true` once it was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when it was triggered.
    pub fn wait(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().cancelled_owned()
    }

    /// One that is triggered with this one, or alone.
    pub fn child(&self) -> Self {
        Shutdown(self.0.child_token())
    }
}
