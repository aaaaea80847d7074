//! Issues the values of credentials to the proxy, for the Pods whose policies offer them.
//!
//! A value goes from its source to the proxy, and nowhere else. When the source has another one, or none, the proxy gets
//! that at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::select_all;
use hutch_egress::{Issued, Secret};
use hutch_node::{EgressNews, Holder, Offer};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::broker::Broker;
use super::egress::Change;
use super::sources::{Place, Sources, Value};
use crate::broker;

/// Pause before placeholders that the broker did not make are requested again.
const AGAIN: Duration = Duration::from_secs(1);

/// Credentials of all Pods.
pub(super) struct Issuer {
    broker: Arc<Broker>,
    sources: Arc<Sources>,
    changes: mpsc::UnboundedSender<Change>,
    news: mpsc::Sender<EgressNews>,
    pods: Mutex<Pods>,
    started: Arc<Started>,
}

/// Tasks by the uids of their Pods.
#[derive(Default)]
struct Pods {
    tasks: HashMap<String, AbortHandle>,
    /// Number of the latest task.
    last: u64,
}

/// Times of the first issue of the credentials of each sandbox, in seconds since 1970.
#[derive(Default)]
struct Started(Mutex<HashMap<String, Times>>);

/// Times by policy and name of the credential.
type Times = HashMap<(String, String), i64>;

/// Credential that is issued as long as its source has a value.
struct Following {
    offer: Offer,
    placeholder: String,
    value: watch::Receiver<Value>,
    /// Reason why it has no value, as it was reported.
    reported: Option<String>,
}

impl Issuer {
    pub(super) fn new(
        broker: Arc<Broker>,
        sources: Arc<Sources>,
        changes: mpsc::UnboundedSender<Change>,
        news: mpsc::Sender<EgressNews>,
    ) -> Issuer {
        Issuer { broker, sources, changes, news, pods: Mutex::default(), started: Arc::default() }
    }

    /// Issues these credentials to a Pod from now on, in place of others.
    pub(super) fn set(&self, holder: Holder, offers: Vec<Offer>) {
        let mut pods = lock(&self.pods);
        pods.last += 1;
        let (number, pod) = (pods.last, holder.pod.uid.clone());
        let task = Task {
            broker: self.broker.clone(),
            sources: self.sources.clone(),
            changes: self.changes.clone(),
            news: self.news.clone(),
            started: self.started.clone(),
            number,
            holder,
        };
        // Sources that both tasks follow are not left in between.
        let earlier = match offers.is_empty() {
            true => {
                task.issue(Vec::new());
                pods.tasks.remove(&pod)
            }
            false => pods.tasks.insert(pod, tokio::spawn(task.run(offers)).abort_handle()),
        };
        if let Some(earlier) = earlier {
            earlier.abort();
        }
    }

    /// Issues nothing more to a Pod.
    pub(super) fn end(&self, pod: &str) {
        if let Some(task) = lock(&self.pods).tasks.remove(pod) {
            task.abort();
        }
    }

    /// Forgets a sandbox that is gone.
    pub(super) fn forget(&self, sandbox: &str) {
        lock(&self.started.0).remove(sandbox);
    }
}

/// Returns what the broker needs to know of a credential.
pub(super) fn place(offer: &Offer) -> broker::Place {
    let credential = &offer.credential;
    broker::Place { policy: offer.policy.clone(), name: credential.name.clone(), shape: credential.shape() }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Issues the credentials of one Pod.
struct Task {
    broker: Arc<Broker>,
    sources: Arc<Sources>,
    changes: mpsc::UnboundedSender<Change>,
    news: mpsc::Sender<EgressNews>,
    started: Arc<Started>,
    number: u64,
    holder: Holder,
}

impl Task {
    async fn run(self, offers: Vec<Offer>) {
        let mut all = self.follow(offers).await;
        loop {
            let issued = all.iter_mut().map(|one| self.value(one)).collect();
            self.issue(issued);
            if all.is_empty() {
                return;
            }
            // Their senders live as long as the receivers.
            let _ = select_all(all.iter_mut().map(|one| one.value.changed().boxed())).await;
        }
    }

    /// Follows the sources of the credentials.
    async fn follow(&self, offers: Vec<Offer>) -> Vec<Following> {
        let places: Vec<_> = offers.iter().map(place).collect();
        let placeholders = loop {
            match self.broker.placeholders(&self.holder.sandbox, places.clone()).await {
                Ok(placeholders) => break placeholders,
                Err(error) => tracing::warn!(error, "credentials are not issued yet"),
            }
            self.issue(Vec::new());
            tokio::time::sleep(AGAIN).await;
        };
        let following = |(offer, placeholder): (Offer, String)| {
            let source = offer.provider.as_ref().filter(|_| self.holder.claimed).and_then(|of| of.source());
            let value = match source {
                Some(source) => self.sources.follow(Place::new(source, &self.holder)),
                None => self.sources.nothing(),
            };
            Following { offer, placeholder, value, reported: None }
        };
        offers.into_iter().zip(placeholders).map(following).collect()
    }

    /// Returns a credential with its value. Without one, its placeholder is refused.
    fn value(&self, one: &mut Following) -> Issued {
        let found = one.value.borrow_and_update().clone();
        let problem = found.as_ref().and_then(|found| found.as_ref().err());
        if let Some(why) = problem.filter(|why| one.reported.as_ref() != Some(why)) {
            self.report(&one.offer, why);
        }
        one.reported = problem.cloned();
        let Offer { policy, credential, provider } = &one.offer;
        let issued = Issued {
            name: credential.name.clone(),
            placeholder: one.placeholder.clone(),
            value: Secret::new(one.placeholder.clone()),
            binding: credential.binding.clone(),
            bounds: provider.as_ref().map(|provider| provider.bounds()),
            ends: None,
            missing: true,
        };
        let Some(Ok(found)) = found else { return issued };
        let ends = credential.expires.map(|expires| {
            let seconds = i64::try_from(expires.duration().as_secs()).unwrap_or(i64::MAX);
            self.started.of(&self.holder.sandbox, policy, &credential.name).saturating_add(seconds)
        });
        let ends = [ends, found.ends].into_iter().flatten().min();
        Issued { value: found.secret, ends, missing: false, ..issued }
    }

    fn issue(&self, issued: Vec<Issued>) {
        // Its receiver ends with the program only.
        let _ = self.changes.send(Change::Credentials(self.holder.pod.uid.clone(), self.number, issued));
    }

    fn report(&self, offer: &Offer, why: &str) {
        let line = format!("credential {:?} of policy {:?}: {why}", offer.credential.name, offer.policy);
        // Many events say no more than some.
        let _ = self.news.try_send(EgressNews::NotIssued { pod: self.holder.pod.uid.clone(), line });
    }
}

impl Started {
    /// Returns the time of the first issue: now, if there was none.
    fn of(&self, sandbox: &str, policy: &str, name: &str) -> i64 {
        let mut all = lock(&self.0);
        let of = all.entry(sandbox.to_owned()).or_default();
        let now = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        };
        *of.entry((policy.to_owned(), name.to_owned())).or_insert_with(now)
    }
}
