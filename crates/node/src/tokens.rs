//! Tokens of ServiceAccounts in projected volumes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::PostParams;
use kube::{Api, Client};

/// Lifetime of a token that names none, in seconds.
const DEFAULT_SECONDS: i64 = 3600;
/// A token is renewed at this part of its lifetime, in percent, as by a kubelet.
const RENEW_PERCENT: i64 = 80;
/// Longest time until a token is renewed.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// Tokens in the volumes of a Pod, by volume and path.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<(String, String), Token>>);

struct Token {
    value: String,
    renew_at: Timestamp,
}

impl Tokens {
    /// A panic while the lock was held leaves whole values, so the lock stays usable.
    fn all(&self) -> MutexGuard<'_, BTreeMap<(String, String), Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a token of the Pod's ServiceAccount that is bound to the Pod. It is the same one until it is to be renewed.
    pub(crate) async fn get(
        &self,
        client: &Client,
        pod: &Pod,
        volume: &str,
        source: &ServiceAccountTokenProjection,
    ) -> Result<String, String> {
        let key = (volume.to_owned(), source.path.clone());
        let now = Timestamp::now();
        if let Some(token) = self.all().get(&key).filter(|token| now < token.renew_at) {
            return Ok(token.value.clone());
        }
        let token = issue(client, pod, source, now).await?;
        let value = token.value.clone();
        self.all().insert(key, token);
        Ok(value)
    }
}

async fn issue(
    client: &Client,
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    now: Timestamp,
) -> Result<Token, String> {
    let metadata = &pod.metadata;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
    if !hutch_api::syntax::is_path_segment(account) {
        return Err(format!("serviceaccount {account:?} not found"));
    }
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
    };
    let spec = TokenRequestSpec {
        audiences: Some(source.audience.iter().cloned().collect()),
        bound_object_ref: Some(bound),
        expiration_seconds: Some(source.expiration_seconds.unwrap_or(DEFAULT_SECONDS)),
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let failed = |error: String| format!("failed to fetch token: {error}");
    let status = made.map_err(|error| failed(error.to_string()))?.status.unwrap_or_default();
    let none = || failed("the server sent none".to_owned());
    let value = status.token.ok_or_else(none)?;
    let ends = status.expiration_timestamp.ok_or_else(none)?.0;
    Ok(Token { value, renew_at: renew_at(now, ends) })
}

fn renew_at(issued: Timestamp, ends: Timestamp) -> Timestamp {
    let lifetime = ends.duration_since(issued).max(SignedDuration::ZERO);
    let part = SignedDuration::from_secs(lifetime.as_secs().saturating_mul(RENEW_PERCENT) / 100);
    issued.checked_add(part.min(LONGEST)).unwrap_or(issued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_renewed_after_four_fifths_of_its_time_or_a_day() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        for (ends, renewed) in [(600, 480), (3600, 2880), (172_800, 86_400), (0, 0), (-5, 0)] {
            assert_eq!(renew_at(at(0), at(ends)), at(renewed), "{ends}");
        }
    }
}
