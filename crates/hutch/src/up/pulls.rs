//! Pulls of images as the root process sees them: a process makes them, which is started again when it dies.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_jail::{IdRange, IdRanges};
use hutch_node::{ImagePuller, PullSecret};
use hutch_privsep::Channel;
use hutch_registry::{Config, Connections, Digest, ImageName, Limits};
use tokio::sync::{mpsc, oneshot};

use super::lock;
use crate::cli::UpArguments;
use crate::egress::Process;
use crate::folder::DataFolder;
use crate::pull::{Answer, Credentials, Request, config, memory, spawn};

/// Folder of the images that were pulled for Pods, in the data folder.
const FOLDER: &str = "pulled-for-pods";
/// Pause before the process is started again.
const RESTART: Duration = Duration::from_secs(1);
/// Maximum number of known pairs of an image and credentials that can pull it. Then all of them are forgotten.
const KNOWN: usize = 16 << 10;
/// Maximum characters of a reason.
const MESSAGE: usize = 500;
/// Maximum bytes of a file with credentials.
const FILE: u64 = 1 << 20;
/// Maximum bytes of the credentials of a request.
const CREDENTIALS: usize = 4 << 20;

/// Pulls images for Pods.
pub(super) struct Pulls {
    folder: PathBuf,
    config: Config,
    /// Files with credentials for all Pods.
    credentials: Vec<PathBuf>,
    requests: mpsc::UnboundedSender<Asked>,
    last: AtomicU64,
    /// Images and credentials that have pulled them. After a restart, the registry decides again.
    known: Mutex<HashSet<String>>,
}

/// A request with its credentials, and the receiver of its answer.
struct Asked {
    request: Request,
    credentials: std::fs::File,
    answer: oneshot::Sender<Result<u64, String>>,
}

impl Pulls {
    /// Starts the process, if the arguments allow any pull. To be called on a thread that lasts: the kernel ends the process
    /// with it.
    pub(super) fn start(arguments: &UpArguments, data: &DataFolder) -> anyhow::Result<Option<Pulls>> {
        let pull_from = arguments.pull_from.clone();
        let yaml = match &arguments.image_config {
            Some(file) => {
                std::fs::read_to_string(file).with_context(|| format!("--image-config {}", file.display()))?
            }
            None => String::new(),
        };
        let mut config = config(&yaml, pull_from.as_deref())?;
        if config.allows_none() {
            return Ok(None);
        }
        let credentials = config.take_credentials();
        let folder = data.join(FOLDER);
        // Checks the files; what is in the folder is opened by the process alone, because an earlier one has made it.
        drop(Connections::new(config.clone(), Limits::default())?);
        let ids = IdRanges::open(rand::random())?.take()?;
        data.give_one(FOLDER, ids.base())?;
        let client = Client { folder: folder.clone(), yaml, pull_from, ids };
        let started = client.start().context("the process that pulls images")?;
        let (requests, receiver) = mpsc::unbounded_channel();
        tokio::spawn(client.run(started, receiver));
        let (last, known) = (AtomicU64::new(0), Mutex::default());
        Ok(Some(Pulls { folder, config, credentials, requests, last, known }))
    }

    /// Returns the Secrets, and the credentials for all Pods after them.
    fn credentials(&self, secrets: &[PullSecret]) -> Result<Vec<u8>, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut all: Credentials = secrets.iter().map(|s| (s.name.clone(), text(&s.content))).collect();
        for path in &self.credentials {
            let read = read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            all.push((path.display().to_string(), read));
        }
        let bytes = serde_json::to_vec(&all).map_err(|_| "credentials")?;
        match bytes.len() <= CREDENTIALS {
            true => Ok(bytes),
            false => Err(format!("the credentials have more than {CREDENTIALS} bytes")),
        }
    }

    async fn request(&self, name: &ImageName, secrets: &[PullSecret]) -> Result<u64, String> {
        let credentials = memory(&self.credentials(secrets)?).map_err(|error| error.to_string())?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let request = Request { number, image: name.to_string() };
        let (answer, receiver) = oneshot::channel();
        let ended = || "the process that pulls images has ended".to_owned();
        self.requests.send(Asked { request, credentials, answer }).map_err(|_| ended())?;
        let pulled = receiver.await.map_err(|_| ended())?;
        // It is the text of a process that parses what registries send.
        pulled.map_err(|why| why.chars().filter(|c| !c.is_control()).take(MESSAGE).collect())
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Distinguishes an image with credentials from all others.
fn key(name: &ImageName, secrets: &[PullSecret]) -> String {
    let mut bytes = name.to_string().into_bytes();
    for secret in secrets {
        bytes.push(0);
        bytes.extend((secret.content.len() as u64).to_le_bytes());
        bytes.extend(&secret.content);
    }
    Digest::of(&bytes).to_string()
}

impl ImagePuller for Pulls {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn check(&self, name: &ImageName) -> Result<(), String> {
        self.config
            .check(name)
            .map_err(|error| format!("{error}; hutch up --pull-from {} allows it", name.registry()))
    }

    fn has_pulled(&self, name: &ImageName, secrets: &[PullSecret]) -> bool {
        lock(&self.known).contains(&key(name, secrets))
    }

    fn pull(&self, name: &ImageName, secrets: Vec<PullSecret>) -> BoxFuture<'_, Result<u64, String>> {
        let name = name.clone();
        async move {
            let pulled = self.request(&name, &secrets).await;
            let mut known = lock(&self.known);
            match &pulled {
                Ok(_) => {
                    if known.len() >= KNOWN {
                        known.clear();
                    }
                    known.insert(key(&name, &secrets));
                }
                // They may have lost the right.
                Err(_) => drop(known.remove(&key(&name, &secrets))),
            }
            pulled
        }
        .boxed()
    }
}

/// The process, which can be started again.
struct Client {
    folder: PathBuf,
    yaml: String,
    pull_from: Option<String>,
    ids: IdRange,
}

impl Client {
    fn start(&self) -> anyhow::Result<(Process, Channel)> {
        let started = spawn(&self.folder, &self.yaml, self.pull_from.as_deref(), self.ids.base());
        let (process, channel) = started?;
        Ok((process, Channel::new(channel)?))
    }

    /// Passes requests to the process. When it ends, their senders see that and repeat them later.
    async fn run(self, mut started: (Process, Channel), mut requests: mpsc::UnboundedReceiver<Asked>) {
        let mut outstanding = HashMap::new();
        loop {
            let done = tokio::select! {
                asked = requests.recv() => {
                    let Some(Asked { request, credentials, answer }) = asked else { return };
                    outstanding.insert(request.number, answer);
                    started.1.send(&request, &[credentials.as_fd()]).await
                }
                message = started.1.receive_bare() => match message {
                    Ok(Some(message)) => message.decode().map(|Answer { number, pulled }| {
                        if let Some(receiver) = outstanding.remove(&number) {
                            let _ = receiver.send(pulled);
                        }
                    }),
                    Ok(None) => Err(std::io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => Err(error),
                },
            };
            let Err(error) = done else { continue };
            tracing::error!(%error, "the process that pulls images failed and is started again");
            outstanding.clear();
            started = loop {
                tokio::time::sleep(RESTART).await;
                match self.start() {
                    Ok(started) => break started,
                    Err(error) => {
                        tracing::error!("the process that pulls images cannot be started: {error:#}");
                    }
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pulls_differ_by_image_and_by_credentials() {
        let name = |text: &str| ImageName::parse(text).unwrap();
        let secret = |text: &str| PullSecret { name: "s".into(), content: text.into() };
        let keys = [
            key(&name("a:v1"), &[]),
            key(&name("a:v2"), &[]),
            key(&name("a:v1"), &[secret("")]),
            key(&name("a:v1"), &[secret("x")]),
            key(&name("a:v1"), &[secret("x"), secret("")]),
        ];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let renamed = PullSecret { name: "other".into(), content: "x".into() };
        assert_eq!(key(&name("a:v1"), &[renamed]), keys[3], "the content counts, not the name");
    }
}
