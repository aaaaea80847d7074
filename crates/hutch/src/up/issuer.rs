//! Issues the values of credentials to the proxy, for the Pods whose policies offer them.
//!
//! A value goes from its source to the proxy, and nowhere else. When the source has another one, or none, the proxy gets
//! that at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use hutch_egress::{Issued, Secret};
use hutch_node::{EgressNews, Holder, Offer};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::broker::Broker;
use super::egress::Change;
use super::lock;
use super::sources::{Place, Sources, Value};
use crate::broker;
use crate::credentials::first_too_many;

/// Pause before placeholders that the broker did not make are requested again.
const AGAIN: Duration = Duration::from_secs(1);

/// Credentials of all Pods.
pub(super) struct Issuer {
    broker: Arc<Broker>,
    sources: Arc<Sources>,
    changes: mpsc::UnboundedSender<Change>,
    news: mpsc::Sender<EgressNews>,
    pods: Mutex<Pods>,
}

/// Tasks by the uids of their Pods.
#[derive(Default)]
struct Pods {
    tasks: HashMap<String, Running>,
    /// Number of the latest task.
    last: u64,
}

/// Task that ends when this is dropped.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Credential that is issued as long as its source has a value.
struct Following {
    offer: Offer,
    placeholder: String,
    /// Time at which the sandbox first had it, in seconds since 1970.
    begun: i64,
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
        Issuer { broker, sources, changes, news, pods: Mutex::default() }
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
            number,
            holder,
        };
        let earlier = pods.tasks.remove(&pod);
        if offers.is_empty() {
            return task.issue(Vec::new());
        }
        // The earlier one lasts until this one follows its sources too, so that no lease ends in between.
        let running = tokio::spawn(task.run(offers, earlier));
        pods.tasks.insert(pod, Running(running.abort_handle()));
    }

    /// Issues nothing more to a Pod.
    pub(super) fn end(&self, pod: &str) {
        lock(&self.pods).tasks.remove(pod);
    }
}

/// Returns what the broker needs to know of a credential.
pub(super) fn key(offer: &Offer) -> broker::CredentialKey {
    let credential = &offer.credential;
    broker::CredentialKey {
        policy: offer.policy.clone(),
        name: credential.name.clone(),
        shape: credential.shape(),
    }
}

/// Facts of the broker about the credentials of a Pod, in their order.
struct Prepared {
    placeholders: Vec<String>,
    /// Times at which the sandbox first had them.
    begun: Vec<i64>,
    /// Placeholders that are refused; empty if its memory has none of another Sandbox.
    refused: Vec<String>,
}

/// Returns a credential of the Sandbox from which one was forked. It is bound to no host, and has no value: its placeholder is
/// refused everywhere.
fn worthless(offer: &Offer, placeholder: String) -> Issued {
    Issued {
        name: format!("{} (of the Sandbox from which this one was forked)", offer.credential.name),
        value: Secret::new(placeholder.clone()),
        placeholder,
        binding: hutch_policy::Binding::default(),
        bounds: None,
        ends: None,
        missing: true,
    }
}

/// Issues the credentials of one Pod.
struct Task {
    broker: Arc<Broker>,
    sources: Arc<Sources>,
    changes: mpsc::UnboundedSender<Change>,
    news: mpsc::Sender<EgressNews>,
    number: u64,
    holder: Holder,
}

impl Task {
    async fn run(self, offers: Vec<Offer>, earlier: Option<Running>) {
        let (mut all, refused) = self.follow(offers).await;
        drop(earlier);
        loop {
            let mut issued: Vec<_> = all.iter_mut().map(|one| self.value(one)).collect();
            if let Some(at) = first_too_many(&issued) {
                self.report(&all[at].offer, "this value and further ones are too large together");
                issued.truncate(at);
            }
            issued.extend_from_slice(&refused);
            self.issue(issued);
            if all.is_empty() {
                return;
            }
            // Their senders live as long as the receivers.
            let _ = select_all(all.iter_mut().map(|one| one.value.changed().boxed())).await;
        }
    }

    /// Follows the sources of the credentials. Also returns those whose placeholders are refused.
    async fn follow(&self, offers: Vec<Offer>) -> (Vec<Following>, Vec<Issued>) {
        let keys: Vec<_> = offers.iter().map(key).collect();
        let Prepared { placeholders, begun, refused } = loop {
            match tokio::time::timeout(AGAIN, self.prepared(&keys)).await {
                Ok(Ok(prepared)) => break prepared,
                Ok(Err(error)) => {
                    tracing::warn!(error, "credentials are not issued yet");
                    self.issue(Vec::new());
                    tokio::time::sleep(AGAIN).await;
                }
                // Earlier ones do not count meanwhile.
                Err(_) => self.issue(Vec::new()),
            }
        };
        let following = |((offer, placeholder), begun): ((Offer, String), i64)| {
            let source = offer.provider.as_ref().filter(|_| self.holder.claimed).and_then(|of| of.source());
            let value = match source {
                Some(source) => self.sources.follow(Place::new(source, &self.holder)),
                None => self.sources.nothing(),
            };
            Following { offer, placeholder, begun, value, reported: None }
        };
        let refused =
            offers.iter().zip(refused).map(|(offer, placeholder)| worthless(offer, placeholder)).collect();
        (offers.into_iter().zip(placeholders).zip(begun).map(following).collect(), refused)
    }

    async fn prepared(&self, keys: &[broker::CredentialKey]) -> Result<Prepared, String> {
        let placeholders = self.broker.placeholders(&self.holder.placeholders, keys.to_vec()).await?;
        let refused = match &self.holder.refused {
            Some(source) => self.broker.placeholders(source, keys.to_vec()).await?,
            None => Vec::new(),
        };
        let begun = match self.holder.claimed {
            true => self.broker.begun(&self.holder.sandbox, keys.to_vec()).await?,
            false => vec![0; keys.len()],
        };
        Ok(Prepared { placeholders, begun, refused })
    }

    /// Returns a credential with its value. Without one, its placeholder is refused.
    fn value(&self, one: &mut Following) -> Issued {
        let found = one.value.borrow_and_update().clone();
        let problem = found.as_ref().and_then(|found| found.as_ref().err());
        if let Some(why) = problem.filter(|why| one.reported.as_ref() != Some(why)) {
            self.report(&one.offer, why);
        }
        one.reported = problem.cloned();
        let Offer { credential, provider, .. } = &one.offer;
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
            one.begun.saturating_add(seconds)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_of_the_source_of_a_fork_is_bound_to_no_host() {
        let credential = serde_json::from_value(
            serde_json::json!({"name": "github", "provider": "p", "hosts": ["a.example"],
            "env": "GITHUB_TOKEN"}),
        );
        let offer = Offer { policy: "team".into(), credential: credential.unwrap(), provider: None };
        let found = worthless(&offer, "ghp_of_the_source".into());
        assert!(found.missing && !found.binding.covers(&"a.example".parse().unwrap()), "{found:?}");
        assert!(
            found.name.starts_with("github ") && found.name != "github",
            "it is no other credential of this name"
        );
    }
}
