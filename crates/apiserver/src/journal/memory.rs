//! Log in memory, for tests.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_audit::Record;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Audit, Make};

/// Log in memory, which takes a record when its gate is open.
pub(crate) struct Records {
    events: Arc<Mutex<Vec<Value>>>,
    pub(crate) gate: Arc<Semaphore>,
}

impl Records {
    pub(crate) fn new(open: usize) -> Arc<Records> {
        Arc::new(Records { events: Arc::default(), gate: Arc::new(Semaphore::new(open)) })
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn clear(&self) {
        self.events.lock().unwrap().clear();
    }
}

impl Audit for Records {
    fn is_strict(&self) -> bool {
        false
    }

    fn record(&self, record: Record) -> BoxFuture<'static, Result<(), String>> {
        self.enqueue(Box::new(move || record)).map(Ok).boxed()
    }

    fn enqueue(&self, make: Make) -> BoxFuture<'static, ()> {
        let (events, gate) = (self.events.clone(), self.gate.clone());
        async move {
            let _place = gate.acquire().await.unwrap();
            events.lock().unwrap().push(serde_json::from_slice(make().as_bytes()).unwrap());
        }
        .boxed()
    }

    fn push(&self, make: Make) {
        self.events.lock().unwrap().push(serde_json::from_slice(make().as_bytes()).unwrap());
    }
}
