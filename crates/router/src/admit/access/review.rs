//! Checks tokens with TokenReview and caches the results.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

use super::shared::digest;
use crate::refusal::Refusal;

/// Maximum duration of one TokenReview.
const QUESTION_LIMIT: Duration = Duration::from_secs(3);
/// Minimum time that a failure is cached, so that a failing API does not receive a review for every request.
const FAILURE_SHORTEST: Duration = Duration::from_secs(1);
/// Divisor of the cache time for failures.
const FAILURE_PART: u32 = 3;

/// Audiences and cache of token reviews.
#[derive(Debug, Clone)]
pub struct ReviewConfig {
    /// Time that a result is cached.
    pub ttl: Duration,
    /// Maximum number of cached results; the least recently used one is evicted first.
    pub cache_size: usize,
    /// Audiences of which the token must have one; empty means the API server's own.
    pub audiences: Vec<String>,
}

impl Default for ReviewConfig {
    fn default() -> ReviewConfig {
        ReviewConfig { ttl: Duration::from_secs(30), cache_size: 2048, audiences: Vec::new() }
    }
}

type Verdict = Result<bool, String>;

/// Cached result of one token. A reviewing request holds `asking`, so each token has at most one review in
/// flight.
#[derive(Default)]
struct Entry {
    known: Mutex<Option<(Verdict, Instant)>>,
    asking: tokio::sync::Mutex<()>,
    used: AtomicU64,
}

/// Checks tokens with the Kubernetes API.
pub struct Reviewer {
    client: Client,
    config: ReviewConfig,
    entries: Mutex<HashMap<[u8; 32], Arc<Entry>>>,
    clock: AtomicU64,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Reviewer {
    /// Creates a reviewer with this client, which needs permission to create TokenReviews.
    pub fn new(client: Client, config: ReviewConfig) -> Reviewer {
        Reviewer { client, config, entries: Mutex::default(), clock: AtomicU64::new(0) }
    }

    /// Returns true if the API accepts the token.
    pub(crate) async fn accepts(&self, token: &str) -> Result<bool, Refusal> {
        let entry = self.entry(digest(token.as_bytes()));
        if let Some(verdict) = entry.fresh() {
            return outcome(verdict, true);
        }
        let _asking = entry.asking.lock().await;
        if let Some(verdict) = entry.fresh() {
            return outcome(verdict, true);
        }
        let verdict = self.ask(token).await;
        let ttl = match &verdict {
            Ok(_) => self.config.ttl,
            Err(_) => (self.config.ttl / FAILURE_PART).max(FAILURE_SHORTEST),
        };
        *entry.known.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((verdict.clone(), Instant::now() + ttl));
        outcome(verdict, false)
    }

    fn entry(&self, key: [u8; 32]) -> Arc<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if !entries.contains_key(&key) && entries.len() >= self.config.cache_size {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(key).or_default().clone();
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        entry
    }

    async fn ask(&self, token: &str) -> Verdict {
        let audiences = Some(self.config.audiences.clone()).filter(|audiences| !audiences.is_empty());
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences },
            ..TokenReview::default()
        };
        let api = Api::<TokenReview>::all(self.client.clone());
        let parameters = PostParams::default();
        let asked = tokio::time::timeout(QUESTION_LIMIT, api.create(&parameters, &review)).await;
        let answer = match asked {
            Err(_) => return Err(format!("no answer within {} s", QUESTION_LIMIT.as_secs())),
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to review token");
                return Err(public(&error));
            }
            Ok(Ok(answer)) => answer,
        };
        let Some(status) = answer.status else { return Ok(false) };
        let wanted = &self.config.audiences;
        let heard = status.audiences.unwrap_or_default();
        // An API server that does not support audiences omits them; its result is then not valid for this
        // audience.
        let for_us = wanted.is_empty() || wanted.iter().any(|audience| heard.contains(audience));
        Ok(status.authenticated == Some(true) && for_us)
    }
}

impl Entry {
    fn fresh(&self) -> Option<Verdict> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(verdict, _)| verdict.clone())
    }
}

fn outcome(verdict: Verdict, cached: bool) -> Result<bool, Refusal> {
    verdict.map_err(|text| match cached {
        true => Refusal::NotReviewed(format!("tokenreview (cached): {text}")),
        false => Refusal::NotReviewed(format!("tokenreview: {text}")),
    })
}

/// Describes a failure for clients, without the address of the API.
fn public(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("the API answered {}", status.code),
        _ => "the API cannot be asked".to_owned(),
    }
}
