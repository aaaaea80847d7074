//! Tokens of ServiceAccounts, bound to Pods.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use hutch_node::Holder;
use hutch_policy::TokenSource;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;

use super::{Found, Value, set};
use crate::credentials::checked;

/// Pause before a token that was not issued is requested again.
const AGAIN: Duration = Duration::from_secs(5);

/// Reason why there is no token.
enum NotIssued {
    /// Its account, or its Pod, is gone.
    Gone(String),
    /// Another request may succeed.
    Failed(String),
}

impl NotIssued {
    fn of(error: kube::Error) -> NotIssued {
        match &error {
            kube::Error::Api(status) if status.code == 404 => NotIssued::Gone(error.to_string()),
            _ => NotIssued::Failed(error.to_string()),
        }
    }
}

/// Token that is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::up) struct Request {
    namespace: String,
    account: String,
    pod: String,
    uid: String,
    audience: String,
    seconds: u32,
}

impl Request {
    pub(super) fn new(source: &TokenSource, holder: &Holder) -> Request {
        Request {
            namespace: holder.pod.namespace.clone(),
            account: holder.account.clone(),
            pod: holder.pod.name.clone(),
            uid: holder.pod.uid.clone(),
            audience: source.audience.clone(),
            seconds: source.expiration_seconds,
        }
    }

    /// Sends a token, and the next one before it ends or when its account is deleted. Does not end.
    pub(super) async fn send(&self, client: &Client, sender: &watch::Sender<Value>) {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        // Time at which the last token ends, in seconds since 1970.
        let mut ends = None;
        loop {
            let token = self.issue(&accounts).await;
            let pause = match token {
                // A fifth of its life is left when it is replaced.
                Ok(_) => Duration::from_secs(u64::from(self.seconds) * 4 / 5),
                Err(_) => AGAIN,
            };
            match token {
                // The one before may be used to its end, unless its account is gone.
                Err(NotIssued::Failed(why))
                    if ends.is_some_and(|ends| Timestamp::now().as_second() < ends) =>
                {
                    tracing::warn!(namespace = self.namespace, account = self.account, why, "no new token");
                }
                token => {
                    ends = token.as_ref().ok().and_then(|token| token.ends);
                    let failed = |(NotIssued::Gone(why) | NotIssued::Failed(why))| {
                        format!("token of ServiceAccount {}/{}: {why}", self.namespace, self.account)
                    };
                    set(sender, token.map_err(failed));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.deleted(&accounts), if ends.is_some() => ends = None,
            }
        }
    }

    /// Waits until the account is deleted.
    async fn deleted(&self, accounts: &Api<ServiceAccount>) {
        let mut states = pin!(watch_object(accounts.clone(), &self.account).default_backoff());
        while let Some(state) = states.next().await {
            if matches!(state, Ok(None)) {
                return;
            }
        }
    }

    async fn issue(&self, accounts: &Api<ServiceAccount>) -> Result<Found, NotIssued> {
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.pod.clone()),
            uid: Some(self.uid.clone()),
        };
        let spec = TokenRequestSpec {
            audiences: Some(vec![self.audience.clone()]),
            bound_object_ref: Some(bound),
            expiration_seconds: Some(i64::from(self.seconds)),
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let made = accounts.create_token_request(&self.account, &PostParams::default(), &request).await;
        let status = made.map_err(NotIssued::of)?.status.unwrap_or_default();
        let none = || NotIssued::Failed("the server sent none".to_owned());
        let (token, ends) = (status.token.ok_or_else(none)?, status.expiration_timestamp.ok_or_else(none)?);
        Ok(Found { secret: checked(&token).map_err(NotIssued::Failed)?, ends: Some(ends.0.as_second()) })
    }
}
