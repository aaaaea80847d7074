//! The broker as the root process sees it: a process of its own, which is started again when it dies.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_egress::AuthorityKeys;
use hutch_jail::{IdRange, IdRanges};
use hutch_privsep::Channel;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::broker::{Answer, CredentialKey, Request, spawn};
use crate::egress::Process;
use crate::folder::DataFolder;

/// Folder of the broker in the data folder.
const FOLDER: &str = "broker";
/// Pause before the process is started again.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum time of an answer, before the process is started again: 30 s. It signs and writes one file.
const ANSWER: Duration = Duration::from_secs(30);

/// The broker.
pub(super) struct Broker {
    requests: mpsc::UnboundedSender<Asked>,
}

/// A request, and the receiver of its answer.
type Asked = (Request, Option<oneshot::Sender<Answer>>);

impl Broker {
    /// Starts the process. Returns also the names of the sandboxes that have an authority. To be called on a thread that
    /// lasts: the kernel ends the process with it.
    pub(super) async fn start(data: &DataFolder) -> anyhow::Result<(Broker, HashSet<String>)> {
        let ids = IdRanges::open(rand::random())?.take()?;
        data.give_one(FOLDER, ids.base())?;
        let mut started = Started { ids, folder: data.join(FOLDER), running: None };
        let known = started.restart().await?;
        let (requests, receiver) = mpsc::unbounded_channel();
        tokio::spawn(supervise(started, receiver));
        Ok((Broker { requests }, known))
    }

    /// Returns the authority of a sandbox: the same one as long as it is not forgotten and does not end soon.
    pub(super) async fn authority(&self, sandbox: &str) -> Result<AuthorityKeys, String> {
        match self.answer(Request::Authority(sandbox.to_owned())).await? {
            Answer::Authority(keys) => Ok(keys),
            Answer::Failed(why) => Err(format!("the authority of the sandbox: {why}")),
            _ => Err("the broker gave another answer".to_owned()),
        }
    }

    /// Returns the placeholders of credentials of a sandbox, in their order: always the same ones.
    pub(super) async fn placeholders(
        &self,
        sandbox: &str,
        keys: Vec<CredentialKey>,
    ) -> Result<Vec<String>, String> {
        let count = keys.len();
        match self.answer(Request::Placeholders(sandbox.to_owned(), keys)).await? {
            Answer::Placeholders(all) if all.len() == count => Ok(all),
            Answer::Failed(why) => Err(format!("the placeholders of credentials: {why}")),
            _ => Err("the broker gave another answer".to_owned()),
        }
    }

    /// Returns the times at which a sandbox first had credentials, in seconds since 1970, in their order.
    pub(super) async fn begun(&self, sandbox: &str, keys: Vec<CredentialKey>) -> Result<Vec<i64>, String> {
        let count = keys.len();
        match self.answer(Request::Begun(sandbox.to_owned(), keys)).await? {
            Answer::Begun(all) if all.len() == count => Ok(all),
            Answer::Failed(why) => Err(format!("the times of credentials: {why}")),
            _ => Err("the broker gave another answer".to_owned()),
        }
    }

    async fn answer(&self, request: Request) -> Result<Answer, String> {
        let (sender, receiver) = oneshot::channel();
        let ended = || "the broker has ended".to_owned();
        self.requests.send((request, Some(sender))).map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())
    }

    /// Removes the authority of a sandbox.
    pub(super) fn forget(&self, sandbox: &str) {
        // Its task ends with this only.
        let _ = self.requests.send((Request::Forget(sandbox.to_owned()), None));
    }
}

/// The process, which can be started again.
struct Started {
    ids: IdRange,
    folder: PathBuf,
    running: Option<(Process, Channel)>,
}

impl Started {
    /// Starts the process, after the end of an earlier one, and waits until it is ready.
    async fn restart(&mut self) -> anyhow::Result<HashSet<String>> {
        self.running = None;
        let (process, channel) = spawn(&self.folder, self.ids.base()).context("cannot start the broker")?;
        let channel = Channel::new(channel)?;
        let mut known = HashSet::new();
        loop {
            let message = channel.receive_bare().await.context("the broker")?;
            match message.context("the broker ended while it started")?.decode().context("the broker")? {
                Answer::Known(names) => known.extend(names),
                Answer::Ready => break,
                Answer::Failed(why) => bail!("the broker in {}: {why}", self.folder.display()),
                _ => bail!("the broker answers without a request"),
            }
        }
        self.running = Some((process, channel));
        Ok(known)
    }

    fn channel(&self) -> io::Result<&Channel> {
        self.running.as_ref().map(|(_, channel)| channel).ok_or(io::ErrorKind::NotConnected.into())
    }
}

/// Passes requests to the process, one after the other, and starts it again when it has ended. A request without an answer is
/// then repeated. With several at once, both sides could wait for room for what the other does not read.
async fn supervise(mut started: Started, mut requests: mpsc::UnboundedReceiver<Asked>) {
    while let Some((request, receiver)) = requests.recv().await {
        let answer = loop {
            let error = match timeout(ANSWER, ask(&started, &request)).await {
                Ok(Ok(answer)) => break answer,
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            tracing::error!(%error, "the broker failed and is started again");
            restart(&mut started).await;
        };
        settle(&request, receiver, answer);
    }
}

async fn restart(started: &mut Started) {
    loop {
        tokio::time::sleep(PAUSE).await;
        match started.restart().await {
            Ok(_) => return,
            Err(error) => tracing::error!(%error, "the broker failed and is started again"),
        }
    }
}

async fn ask(started: &Started, request: &Request) -> io::Result<Answer> {
    let channel = started.channel()?;
    channel.send(request, &[]).await?;
    match channel.receive_bare().await? {
        Some(message) => message.decode(),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Gives an answer to whom it is for.
fn settle(request: &Request, receiver: Option<oneshot::Sender<Answer>>, answer: Answer) {
    match (receiver, answer) {
        // A Pod that has ended meanwhile does not need it.
        (Some(receiver), answer) => drop(receiver.send(answer)),
        (None, Answer::Forgotten) => {}
        (None, answer) => tracing::warn!(?request, ?answer, "an authority is not removed"),
    }
}
