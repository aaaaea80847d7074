//! Objects as the reconcilers read them. An unreadable one is reported by an Event and left as it is, and so are its
//! dependents, because the right action is unknown. All others continue.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hutch_api::{Read, Unreadable};
use hutch_reconcile::controller::Object;
use hutch_reconcile::record::{Note, Recorder};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::Error;

/// Maximum objects whose last report is kept. Beyond that a report is repeated.
const REPORTS_MAX: usize = 1000;
/// Reason of the reports about objects that cannot be read.
const UNDECODABLE: &str = "Unreadable";

/// Reads objects for all reconcilers.
pub(crate) struct Reader {
    client: Client,
    recorder: Recorder,
    /// Last report by UID and reason.
    reported: Mutex<HashMap<(String, &'static str), String>>,
}

impl Reader {
    pub(crate) fn new(client: Client, recorder: Recorder) -> Self {
        Reader { client, recorder, reported: Mutex::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the object as it is now; `None` when it is gone, or unreadable, which is then reported.
    pub(crate) async fn get<K: Object>(
        &self,
        api: &Api<Read<K>>,
        name: &str,
        what: &str,
    ) -> Result<Option<K>, Error> {
        let found = api.get_opt(name).await.map_err(Error::read(what))?;
        Ok(found.and_then(|found| self.readable(found)))
    }

    /// All of a list that can be read.
    pub(crate) async fn list<K: Object>(
        &self,
        api: &Api<Read<K>>,
        parameters: &ListParams,
        what: &str,
    ) -> Result<Vec<K>, Error> {
        let found = api.list(parameters).await.map_err(Error::read(what))?;
        let mut all = Vec::with_capacity(found.items.len());
        for found in found.items {
            all.extend(self.readable(found));
        }
        Ok(all)
    }

    /// The object, or nothing and an Event when it cannot be read.
    pub(crate) fn readable<K: Object>(&self, found: Read<K>) -> Option<K> {
        let unreadable = match found {
            Read::Object(object) => {
                self.recovered(&object, UNDECODABLE);
                return Some(object);
            }
            Read::Unreadable(unreadable) => unreadable,
        };
        let Unreadable { metadata, problem } = *unreadable;
        if !self.is_new(metadata.uid.clone().unwrap_or_default(), UNDECODABLE, &problem) {
            return None;
        }
        let kind = K::kind(&());
        tracing::warn!(%kind, namespace = metadata.namespace, name = metadata.name, problem, "an object cannot be read");
        let note = Note::undecodable(&problem);
        let about = Read::<K>::Unreadable(Box::new(Unreadable { metadata, problem }));
        self.recorder.record(&about, note, Timestamp::now(), 0);
        None
    }

    /// Records a warning about an object, unless it is the one that was recorded last.
    pub(crate) fn warn<K: Object>(
        &self,
        object: &K,
        reason: &'static str,
        action: &'static str,
        text: String,
    ) {
        if self.is_new(object.uid().unwrap_or_default(), reason, &text) {
            let note = Note { warning: true, reason, action, text };
            self.recorder.record(object, note, Timestamp::now(), 0);
        }
    }

    /// Forgets the last warning about an object: the next one is recorded again.
    pub(crate) fn recovered<K: Object>(&self, object: &K, reason: &'static str) {
        self.reported().remove(&(object.uid().unwrap_or_default(), reason));
    }

    /// Records a report; returns whether it differs from the last one.
    fn is_new(&self, uid: String, reason: &'static str, problem: &str) -> bool {
        let mut reported = self.reported();
        if reported.len() >= REPORTS_MAX {
            reported.clear();
        }
        reported.insert((uid, reason), problem.to_owned()).as_deref() != Some(problem)
    }

    fn reported(&self) -> std::sync::MutexGuard<'_, HashMap<(String, &'static str), String>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use hutch_apiserver::{ApiServer, Config, Identity};
    use hutch_reconcile::record;

    use super::*;

    /// A reader of an API server of its own, beside which no controller runs.
    pub(crate) async fn reader() -> Arc<Reader> {
        let client = ApiServer::open(Config::default()).await.unwrap().client(Identity::admin(), "default");
        let (recorder, writer) = record::recorder(client.clone(), "test");
        tokio::spawn(writer.run(|| std::future::ready(()), std::future::pending()));
        Arc::new(Reader::new(client, recorder))
    }
}
