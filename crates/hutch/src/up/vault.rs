//! Vault as the root process sees it: a process that makes the requests, which is started again when it dies.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use hutch_jail::{IdRange, IdRanges};
use hutch_privsep::Channel;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::sources::{Found, Value, set};
use crate::cli::UpArguments;
use crate::credentials::{checked, file};
use crate::egress::{Outside, Process};
use crate::vault::{Address, Answer, Lease, Request, What, spawn};

/// Interval at which a secret that is only stored is read again, and a lease is checked: with the requests, what Vault has
/// changed counts within a second.
const LOOK: Duration = Duration::from_millis(800);
/// Maximum pause before the next request while Vault does not answer: each one is twice as long as the last.
const AGAIN: Duration = Duration::from_secs(5);
/// Pause before the process is started again.
const RESTART: Duration = Duration::from_millis(100);
/// Time for which a secret that is only stored counts while Vault does not answer.
const STALE: Duration = Duration::from_secs(10 * 60);
/// Minimum time between two requests about a lease.
const SHORTEST: Duration = Duration::from_secs(1);

/// The Vault of this machine.
pub(super) struct Vault {
    token: PathBuf,
    requests: mpsc::UnboundedSender<Asked>,
    last: AtomicU64,
}

/// A request, and the receiver of its answer.
type Asked = (Request, oneshot::Sender<Result<Lease, String>>);

/// Fields of a secret, or why they are missing; `None` as long as that is not known.
pub(super) type Secrets = Option<Result<Lease, String>>;

impl Vault {
    /// Starts the process, if the arguments name a Vault. To be called on a thread that lasts: the kernel ends the process
    /// with it.
    pub(super) fn start(arguments: &UpArguments) -> anyhow::Result<Option<Vault>> {
        let (Some(address), Some(token)) = (&arguments.vault, &arguments.vault_token_file) else {
            return Ok(None);
        };
        let token = std::path::absolute(token).context("--vault-token-file")?;
        let read = file(&token).and_then(|text| checked(&text).map_err(anyhow::Error::msg));
        read.with_context(|| format!("--vault-token-file: {}", token.display()))?;
        let authorities = match &arguments.vault_ca_file {
            Some(file) => {
                std::fs::read(file).with_context(|| format!("--vault-ca-file: {}", file.display()))?
            }
            None => Outside::new(None).bundle().context("the machine's authorities")?,
        };
        let client =
            Client { address: address.clone(), authorities, ids: IdRanges::open(rand::random())?.take()? };
        let started = client.start().context("the client of Vault")?;
        let (requests, receiver) = mpsc::unbounded_channel();
        tokio::spawn(client.run(started, receiver));
        Ok(Some(Vault { token, requests, last: AtomicU64::new(0) }))
    }

    async fn request(&self, what: What) -> Result<Lease, String> {
        // It may have been replaced.
        let token = file(&self.token).map_err(|error| format!("{error:#}")).and_then(|text| checked(&text));
        let token = token.map_err(|why| format!("--vault-token-file: {why}"))?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let ended = || "its client has ended".to_owned();
        self.requests.send((Request { number, token, what }, sender)).map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?
    }

    /// Sends the secret of a path, and prolongs its lease. Does not end.
    pub(super) async fn send(
        self: &Arc<Self>,
        path: &str,
        parameters: &BTreeMap<String, String>,
        sender: &watch::Sender<Secrets>,
    ) {
        let mut held = Held { vault: self.clone(), lease: None };
        let (mut until, mut pause) = (Instant::now(), LOOK);
        loop {
            let read = self.request(What::Read(path.to_owned(), parameters.clone())).await;
            let seconds = match &read {
                Ok(lease) if lease.id.is_some() => lease.seconds,
                _ => 0,
            };
            if let Ok(lease) = &read {
                held.replace(lease.id.clone());
                until = Instant::now() + if seconds == 0 { STALE } else { Duration::from_secs(seconds) };
            }
            pause = pause_after(pause, read.as_ref().err());
            publish(sender, read, Instant::now() < until);
            match seconds {
                0 => tokio::time::sleep(pause).await,
                seconds => until = self.prolong(&held, seconds, until).await,
            }
        }
    }

    /// Prolongs a lease as long as that works, and checks that Vault has not revoked it. Returns its end when a new one is
    /// needed.
    async fn prolong(&self, held: &Held, mut seconds: u64, mut until: Instant) -> Instant {
        let Some(lease) = &held.lease else { return until };
        let (first, mut pause, mut may_look) = (seconds, LOOK, true);
        let after = |seconds| Instant::now() + (Duration::from_secs(seconds) * 2 / 3).max(SHORTEST);
        let mut renewal = after(seconds);
        loop {
            let is_due = !may_look || renewal <= Instant::now() + pause;
            tokio::time::sleep_until(if is_due { renewal } else { Instant::now() + pause }).await;
            if !is_due {
                let looked = self.request(What::Look(lease.clone())).await.err();
                pause = pause_after(pause, looked.as_ref());
                match looked {
                    None => continue,
                    Some(why) if !is_refusal(&why) => continue,
                    // The token may have no right to look, or it is revoked. A renewal decides.
                    Some(why) if why.starts_with("403") => {
                        may_look = false;
                        tracing::warn!(
                            why,
                            "cannot look leases of Vault up: one that is revoked is found when it is renewed"
                        );
                    }
                    Some(_) => return Instant::now(),
                }
            }
            match self.request(What::Renew(lease.clone())).await {
                // Near its last possible end, each renewal is for less time.
                Ok(renewed) if renewed.seconds >= first / 2 && renewed.seconds > 0 => {
                    seconds = renewed.seconds;
                    (until, renewal) = (Instant::now() + Duration::from_secs(seconds), after(seconds));
                }
                _ => return until,
            }
        }
    }
}

/// Returns the pause after a request, and the error that it has had.
fn pause_after(before: Duration, error: Option<&String>) -> Duration {
    match error {
        // It does not answer.
        Some(why) if !is_refusal(why) => (before * 2).min(AGAIN),
        _ => LOOK,
    }
}

/// Returns true if Vault, or its token, decides that there is no value. While it does not answer, what was true last counts.
fn is_refusal(why: &str) -> bool {
    (why.starts_with('4') && !why.starts_with("429")) || why.starts_with("--")
}

/// Sends a secret, if it is another one. While Vault does not answer, its last answer `counts` for a time.
fn publish(sender: &watch::Sender<Secrets>, read: Result<Lease, String>, counts: bool) {
    sender.send_if_modified(|known| {
        let keeps = counts && matches!((&known, &read), (Some(Ok(_)), Err(why)) if !is_refusal(why));
        let differs = !keeps && known.as_ref() != Some(&read);
        if differs {
            *known = Some(read);
        }
        differs
    });
}

/// Sends the values of one field. Ends with the secret.
pub(super) async fn send_field(
    mut secrets: watch::Receiver<Secrets>,
    (path, field): (&str, &str),
    sender: &watch::Sender<Value>,
) {
    loop {
        let value = secrets.borrow_and_update().as_ref().map(|read| {
            let lease = read.as_ref().map_err(Clone::clone)?;
            let value = lease.fields.get(field).ok_or_else(|| format!("it has no text in {field:?}"))?;
            Ok(Found { secret: checked(value.expose())?, ends: None })
        });
        if let Some(value) = value {
            set(sender, value.map_err(|why: String| format!("Vault: {path}: {why}")));
        }
        if secrets.changed().await.is_err() {
            return;
        }
    }
}

/// A lease, which ends when this is dropped.
struct Held {
    vault: Arc<Vault>,
    lease: Option<String>,
}

impl Held {
    fn replace(&mut self, lease: Option<String>) {
        let earlier = std::mem::replace(&mut self.lease, lease);
        if let Some(earlier) = earlier.filter(|earlier| Some(earlier) != self.lease.as_ref()) {
            let vault = self.vault.clone();
            tokio::spawn(async move {
                if let Err(error) = vault.request(What::Revoke(earlier)).await {
                    tracing::warn!(error, "a lease of Vault is not revoked and lasts until its end");
                }
            });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.replace(None);
    }
}

/// The process, which can be started again.
struct Client {
    address: Address,
    authorities: Vec<u8>,
    ids: IdRange,
}

impl Client {
    fn start(&self) -> anyhow::Result<(Process, Channel)> {
        let (process, channel) = spawn(&self.address, &self.authorities, self.ids.base())?;
        Ok((process, Channel::new(channel)?))
    }

    /// Passes requests to the process. When it ends, their senders see that and repeat them.
    async fn run(self, mut started: (Process, Channel), mut requests: mpsc::UnboundedReceiver<Asked>) {
        let mut outstanding = HashMap::new();
        loop {
            let done = tokio::select! {
                asked = requests.recv() => {
                    let Some((request, receiver)) = asked else { return };
                    outstanding.insert(request.number, receiver);
                    started.1.send(&request, &[]).await
                }
                answer = started.1.receive_next() => answer.map(|Answer { number, answer }| {
                    if let Some(receiver) = outstanding.remove(&number) {
                        let _ = receiver.send(answer);
                    }
                }),
            };
            let Err(error) = done else { continue };
            tracing::error!(%error, "the client of Vault failed and is started again");
            outstanding.clear();
            started = loop {
                tokio::time::sleep(RESTART).await;
                match self.start() {
                    Ok(started) => break started,
                    Err(error) => tracing::error!("the client of Vault cannot be started: {error:#}"),
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_egress::Secret;

    use super::*;

    #[test]
    fn secret_counts_while_vault_does_not_answer_and_not_when_it_refuses() {
        let (sender, receiver) = watch::channel(None);
        let lease =
            Lease { fields: [("token".to_owned(), Secret::new("a".into()))].into(), ..Lease::default() };
        let known = || receiver.borrow().clone();
        let failed = |why: &str| Err(why.to_owned());
        for refusal in ["403: permission denied", "410", "--vault-token-file: no such file"] {
            publish(&sender, Ok(lease.clone()), true);
            for passing in ["it did not answer in time", "429", "503: Vault is sealed"] {
                publish(&sender, failed(passing), true);
                assert_eq!(known(), Some(Ok(lease.clone())), "{passing}");
            }
            publish(&sender, failed(refusal), true);
            assert_eq!(known(), Some(failed(refusal)));
        }
        publish(&sender, Ok(lease), true);
        publish(&sender, failed("503"), false);
        assert_eq!(known(), Some(failed("503")), "its time is over");
    }

    /// A Vault whose requests the test answers.
    fn vault() -> (Arc<Vault>, mpsc::UnboundedReceiver<Asked>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "hvs.token-of-the-test").unwrap();
        let (requests, receiver) = mpsc::unbounded_channel();
        (Arc::new(Vault { token, requests, last: AtomicU64::new(0) }), receiver, folder)
    }

    fn secret(value: &str, lease: Option<(&str, u64)>) -> Lease {
        let fields = [("token".to_owned(), Secret::new(value.into()))].into();
        let (id, seconds) = lease.map_or((None, 0), |(id, seconds)| (Some(id.to_owned()), seconds));
        Lease { fields, id, seconds }
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_a_stored_secret_counts_within_a_second() {
        let (vault, mut requests, _folder) = vault();
        let (sender, mut receiver) = watch::channel(None);
        tokio::spawn(async move { vault.send("secret/data/a", &BTreeMap::new(), &sender).await });
        let (_, answer) = requests.recv().await.unwrap();
        answer.send(Ok(secret("one", None))).unwrap();
        receiver.changed().await.unwrap();
        for refused in [Ok(secret("two", None)), Err("404".to_owned())] {
            let began = Instant::now();
            let (_, answer) = requests.recv().await.unwrap();
            answer.send(refused.clone()).unwrap();
            receiver.changed().await.unwrap();
            assert_eq!(*receiver.borrow(), Some(refused));
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        }
        // It is refused, and so read as often. Only while Vault does not answer, the pauses grow.
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let began = Instant::now();
            let (_, answer) = requests.recv().await.unwrap();
            pauses.push(began.elapsed().as_millis());
            answer.send(Err("it did not answer in time".to_owned())).unwrap();
        }
        assert_eq!(pauses, [800, 1600, 3200, 5000, 5000, 5000]);
    }

    #[tokio::test(start_paused = true)]
    async fn revoked_lease_ends_within_a_second_also_while_there_is_no_other() {
        let (vault, mut requests, _folder) = vault();
        let (sender, mut receiver) = watch::channel(None);
        tokio::spawn(async move { vault.send("database/creds/a", &BTreeMap::new(), &sender).await });
        let (_, answer) = requests.recv().await.unwrap();
        answer.send(Ok(secret("one", Some(("lease", 3600))))).unwrap();
        receiver.changed().await.unwrap();
        let began = Instant::now();
        let (look, answer) = requests.recv().await.unwrap();
        assert!(matches!(&look.what, What::Look(lease) if lease == "lease"), "{look:?}");
        answer.send(Err("400: invalid lease".to_owned())).unwrap();
        let (read, answer) = requests.recv().await.unwrap();
        assert!(matches!(read.what, What::Read(..)), "{read:?}");
        // The database is down.
        answer.send(Err("500: no connection".to_owned())).unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow(), Some(Err("500: no connection".to_owned())));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn token_without_the_right_to_look_renews_its_leases() {
        let (vault, mut requests, _folder) = vault();
        let (sender, mut receiver) = watch::channel(None);
        tokio::spawn(async move { vault.send("database/creds/a", &BTreeMap::new(), &sender).await });
        let (_, answer) = requests.recv().await.unwrap();
        answer.send(Ok(secret("one", Some(("lease", 60))))).unwrap();
        receiver.changed().await.unwrap();
        let (look, answer) = requests.recv().await.unwrap();
        assert!(matches!(look.what, What::Look(_)), "{look:?}");
        answer.send(Err("403: permission denied".to_owned())).unwrap();
        // At once, and then at two thirds of its time.
        for pause in [0, 40] {
            let began = Instant::now();
            let (renew, answer) = requests.recv().await.unwrap();
            assert!(matches!(renew.what, What::Renew(_)), "{renew:?}");
            assert_eq!(began.elapsed().as_secs(), pause);
            answer.send(Ok(secret("one", Some(("lease", 60))))).unwrap();
        }
        let (_, answer) = requests.recv().await.unwrap();
        answer.send(Err("403: permission denied".to_owned())).unwrap();
        let (_, answer) = requests.recv().await.unwrap();
        answer.send(Err("403: permission denied".to_owned())).unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow(), Some(Err("403: permission denied".to_owned())));
    }
}
