//! Destinations that the requests of one connection name.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use hutch_policy::Destination;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::refusal::{Reason, Refusal};
use crate::sandbox::{Rules, Sandbox};

/// Maximum destinations of one connection.
const MAX: usize = 256;

/// Destinations that requests of one connection have named, with the rules that allowed them.
pub(super) struct Named {
    known: Mutex<HashSet<String>>,
    new: UnboundedSender<(Destination, Rules)>,
}

impl Named {
    /// Returns an empty set, and the receiver of what is added, for [`changed`].
    pub(super) fn new() -> (Named, UnboundedReceiver<(Destination, Rules)>) {
        let (new, added) = unbounded_channel();
        (Named { known: Mutex::default(), new }, added)
    }

    /// Adds a destination that these rules allow.
    ///
    /// # Errors
    /// The connection has too many.
    pub(super) fn add(&self, destination: &Destination, rules: Rules) -> Result<(), Refusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let name = destination.to_string();
        if known.contains(&name) {
            return Ok(());
        }
        if known.len() == MAX {
            let reason = Reason::OtherName(format!("the connection names more than {MAX} destinations"));
            return Err(Refusal { destination: name, reason });
        }
        known.insert(name);
        // Its reader goes with the connection.
        let _ = self.new.send((destination.clone(), rules));
        Ok(())
    }
}

/// Waits until other rules decide about one of the destinations.
pub(super) async fn changed(sandbox: Arc<Sandbox>, mut added: UnboundedReceiver<(Destination, Rules)>) {
    let mut watched = JoinSet::new();
    loop {
        tokio::select! {
            Some((destination, rules)) = added.recv() => {
                let sandbox = sandbox.clone();
                watched.spawn(async move { sandbox.changed(&destination, rules).await });
            }
            Some(_) = watched.join_next() => return,
            else => std::future::pending().await,
        }
    }
}
