//! Tokens of ServiceAccounts, bound to Pods.

use std::time::Duration;

use hutch_node::Holder;
use hutch_policy::TokenSource;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;

use super::{Found, Value, set};
use crate::credentials::checked;

/// Pause before a token that was not issued is requested again.
const AGAIN: Duration = Duration::from_secs(5);

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

    /// Sends a token, and the next one before it ends. Does not end.
    pub(super) async fn send(&self, client: &Client, sender: &watch::Sender<Value>) {
        loop {
            let token = self.issue(client).await;
            let pause = match token {
                // A fifth of its life is left when it is replaced.
                Ok(_) => Duration::from_secs(u64::from(self.seconds) * 4 / 5),
                Err(_) => AGAIN,
            };
            let failed = |why| format!("token of ServiceAccount {}/{}: {why}", self.namespace, self.account);
            set(sender, token.map_err(failed));
            tokio::time::sleep(pause).await;
        }
    }

    async fn issue(&self, client: &Client) -> Result<Found, String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
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
        let status = made.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let none = || "the server sent none".to_owned();
        let (token, ends) = (status.token.ok_or_else(none)?, status.expiration_timestamp.ok_or_else(none)?);
        Ok(Found { secret: checked(&token)?, ends: Some(ends.0.as_second()) })
    }
}
