//! Tokens of ServiceAccounts, bound to Pods.

use std::time::Duration;

use hutch_node::Holder;
use hutch_policy::TokenSource;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Found, LOOK, Value, set};
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

/// Token that was sent.
struct Sent {
    /// Uid of its account.
    account: String,
    /// Time at which it ends, in seconds since 1970.
    ends: i64,
}

impl Sent {
    /// Returns true if it can still be used.
    fn counts(&self) -> bool {
        Timestamp::now().as_second() < self.ends
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

    /// Sends a token, and the next one before it ends or when its account is another one. Does not end.
    pub(super) async fn send(&self, client: &Client, sender: &watch::Sender<Value>) {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let mut sent: Option<Sent> = None;
        loop {
            let pause = match self.issue(&accounts).await {
                Ok((token, issued)) => {
                    set(sender, Ok(token));
                    sent = Some(issued);
                    // A fifth of its life is left when it is replaced.
                    Duration::from_secs(u64::from(self.seconds) * 4 / 5)
                }
                Err(NotIssued::Failed(why)) if sent.as_ref().is_some_and(Sent::counts) => {
                    let (namespace, account) = (&self.namespace, &self.account);
                    tracing::warn!(namespace, account, why, "no new token; the last one is used to its end");
                    AGAIN
                }
                Err(NotIssued::Gone(why) | NotIssued::Failed(why)) => {
                    sent = None;
                    self.refuse(sender, &why);
                    AGAIN
                }
            };
            match &sent {
                None => sleep(pause).await,
                Some(token) => {
                    if timeout(pause, replaced(&accounts, &self.account, &token.account)).await.is_ok() {
                        sent = None;
                        self.refuse(sender, "it was deleted");
                    }
                }
            }
        }
    }

    fn refuse(&self, sender: &watch::Sender<Value>, why: &str) {
        set(sender, Err(format!("token of ServiceAccount {}/{}: {why}", self.namespace, self.account)));
    }

    /// Returns a new token.
    async fn issue(&self, accounts: &Api<ServiceAccount>) -> Result<(Found, Sent), NotIssued> {
        // Before the token: an account that takes its place meanwhile is another one.
        let account = accounts.get(&self.account).await.map_err(NotIssued::of)?;
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
        let ends = ends.0.as_second();
        let found = Found { secret: checked(&token).map_err(NotIssued::Failed)?, ends: Some(ends) };
        Ok((found, Sent { account: account.metadata.uid.unwrap_or_default(), ends }))
    }
}

/// Returns when an account is deleted, or another one has its name. The node may read single accounts, and neither list nor
/// watch them. When the server does not answer, what was true last still counts.
async fn replaced(accounts: &Api<ServiceAccount>, name: &str, uid: &str) {
    loop {
        sleep(LOOK).await;
        let found = accounts.get_opt(name).await;
        if found.is_ok_and(|found| found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Request as HttpRequest, Response};
    use k8s_openapi::jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// Answers of a server: whether it fails, and the uid of the account.
    #[derive(Default)]
    struct Server {
        fails: AtomicBool,
        account: Mutex<Option<&'static str>>,
    }

    impl Server {
        fn answer(&self, request: &HttpRequest<Body>, seconds: i64) -> Response<Body> {
            let account = *self.account.lock().unwrap();
            let ends = Timestamp::now() + SignedDuration::from_secs(seconds);
            let is_token = request.uri().path().ends_with("/token");
            let (status, body) = match account {
                _ if self.fails.load(Ordering::Relaxed) => {
                    (500, json!({"kind": "Status", "code": 500, "message": "it fails"}))
                }
                None => (
                    404,
                    json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}),
                ),
                Some(uid) if is_token => {
                    let status = json!({"token": format!("token-of-{uid}"), "expirationTimestamp": ends});
                    (201, json!({"metadata": {}, "spec": {"audiences": []}, "status": status}))
                }
                Some(uid) => (200, json!({"metadata": {"name": "default", "uid": uid}})),
            };
            Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
        }
    }

    /// Follows a token of a server that issues tokens for so many seconds.
    fn follow(server: &Arc<Server>, seconds: i64) -> watch::Receiver<Value> {
        let server = server.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let answer = server.answer(&request, seconds);
            async move { Ok::<_, Infallible>(answer) }
        });
        let client = Client::new(service, "default");
        let text = |text: &str| text.to_owned();
        let request = Request {
            namespace: text("default"),
            account: text("default"),
            pod: text("box"),
            uid: text("u"),
            audience: text("a"),
            seconds: 600,
        };
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move { request.send(&client, &sender).await });
        receiver
    }

    async fn next(receiver: &mut watch::Receiver<Value>) -> Result<String, String> {
        receiver.changed().await.unwrap();
        let value = receiver.borrow_and_update().clone().unwrap();
        value.map(|found| found.secret.expose().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn token_ends_with_its_account_and_not_with_a_failed_renewal() {
        let server = Arc::new(Server { account: Mutex::new(Some("one")), ..Server::default() });
        let mut receiver = follow(&server, 600);
        assert_eq!(next(&mut receiver).await.unwrap(), "token-of-one");
        // Beyond its renewal, after which the server fails for a while.
        server.fails.store(true, Ordering::Relaxed);
        sleep(Duration::from_secs(550)).await;
        assert!(!receiver.has_changed().unwrap());
        server.fails.store(false, Ordering::Relaxed);
        // Another account takes its place.
        *server.account.lock().unwrap() = Some("other");
        while next(&mut receiver).await.as_deref() != Ok("token-of-other") {}
        *server.account.lock().unwrap() = None;
        let began = tokio::time::Instant::now();
        assert!(next(&mut receiver).await.is_err());
        assert!(began.elapsed() <= 2 * LOOK, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn token_that_has_ended_is_dropped_when_there_is_no_new_one() {
        let server = Arc::new(Server { account: Mutex::new(Some("one")), ..Server::default() });
        let mut receiver = follow(&server, -1);
        assert!(next(&mut receiver).await.is_ok());
        server.fails.store(true, Ordering::Relaxed);
        assert!(next(&mut receiver).await.is_err());
    }
}
