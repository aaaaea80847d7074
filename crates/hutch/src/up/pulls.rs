//! Pulls of images as the root process sees them: a process makes them, which is started again when it dies.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_image::Store;
use hutch_jail::{IdRange, IdRanges};
use hutch_node::{ImagePuller, PullFailure, PullSecret};
use hutch_privsep::Channel;
use hutch_registry::{Config, Connections, Digest, Evidence, ImageName, Limits, Proxy, Signers};
use tokio::sync::{mpsc, oneshot};

use super::lock;
use crate::cli::UpArguments;
use crate::egress::Process;
use crate::folder::DataFolder;
use crate::image::PULLED_FOR_PODS;
use crate::pull::{Answer, Credentials, Failure, Pulled, Request, config, memory, spawn};

/// Pause before the process is started again.
const RESTART: Duration = Duration::from_secs(1);
/// Maximum number of known pairs of an image and credentials that can pull it. Then one of them is forgotten.
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
    /// Checks signatures again: what registries send may have taken over the process.
    signers: Signers,
    /// Files with credentials for all Pods.
    credentials: Vec<PathBuf>,
    requests: mpsc::UnboundedSender<Asked>,
    last: AtomicU64,
    /// Digests that names had when they were pulled with credentials. After a restart, the registry decides again.
    known: Mutex<HashMap<String, ImageName>>,
}

/// A request of a pull with its credentials, and the receiver of its answer.
enum Asked {
    Pull(u64, String, std::fs::File, oneshot::Sender<Result<Pulled, Failure>>),
    Cancel(u64),
}

/// A pull that something waits for. Dropping it ends the pull.
struct Waiting<'a>(&'a Pulls, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Without a process there is no pull.
        let _ = self.0.requests.send(Asked::Cancel(self.1));
    }
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
        if config.allows_none() && config.has_signature_rules() {
            bail!(
                "signatures are required and no image may be pulled: name registries in allow or --pull-from"
            );
        }
        if config.allows_none() {
            return Ok(None);
        }
        let credentials = config.take_credentials();
        let folder = data.join(PULLED_FOR_PODS);
        // Checks the files; what is in the folder is opened by the process alone, because an earlier one has made it.
        let signers = Connections::new(config.clone(), Limits::default())?.into_signers();
        let ids = IdRanges::open(rand::random())?.take()?;
        data.give_one(PULLED_FOR_PODS, ids.base())?;
        let proxy = Proxy::of_environment()?;
        let client = Client { folder: folder.clone(), yaml, pull_from, proxy, ids };
        let started = client.start().context("the process that pulls images")?;
        let (requests, receiver) = mpsc::unbounded_channel();
        tokio::spawn(client.run(started, receiver));
        let (last, known) = (AtomicU64::new(0), Mutex::default());
        Ok(Some(Pulls { folder, config, signers, credentials, requests, last, known }))
    }

    /// Returns the Secrets, and the credentials for all Pods after them.
    fn credentials(&self, secrets: &[PullSecret]) -> Result<Vec<u8>, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut all: Credentials = secrets.iter().map(|s| (s.name.clone(), text(&s.content))).collect();
        for path in &self.credentials {
            let read = read(path).map_err(|error| {
                tracing::error!(%error, "cannot read the credentials {}", path.display());
                "credentials of this server cannot be read"
            })?;
            all.push((path.display().to_string(), read));
        }
        let bytes = serde_json::to_vec(&all).map_err(|_| "credentials")?;
        match bytes.len() <= CREDENTIALS {
            true => Ok(bytes),
            false => Err(format!("the credentials have more than {CREDENTIALS} bytes")),
        }
    }

    async fn request(&self, name: &ImageName, credentials: &[u8]) -> Result<Pulled, Failure> {
        let failed = |why: String| Failure { why, refused: false, unsigned: false };
        let credentials = memory(credentials).map_err(|error| failed(error.to_string()))?;
        let waiting = Waiting(self, self.last.fetch_add(1, Ordering::Relaxed));
        let (answer, receiver) = oneshot::channel();
        let ended = || failed("the process that pulls images has ended".to_owned());
        let asked = Asked::Pull(waiting.1, name.to_string(), credentials, answer);
        self.requests.send(asked).map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?
    }

    /// Checks that the process reports the image of the digest that a name has: what registries send may have taken it
    /// over. The content of an image is checked where it is read.
    async fn check_pinned(&self, name: &ImageName, manifest: &Digest) -> Result<(), String> {
        let Some(pinned) = name.digest().map(ToString::to_string) else { return Ok(()) };
        let (folder, manifest) = (self.folder.clone(), manifest.to_string());
        let check = move || Store::check_pinned(&folder, &pinned, &manifest);
        let checked = tokio::task::spawn_blocking(check).await.map_err(|error| error.to_string())?;
        checked.map_err(|error| error.to_string())
    }

    /// Checks that the manifest is that of an image with a valid signature, or one to which an index with one leads.
    async fn check_signed(
        &self,
        name: &ImageName,
        manifest: &Digest,
        evidence: Option<Evidence>,
    ) -> Result<(), PullFailure> {
        if !self.signers.cover(name) {
            return Ok(());
        }
        let unsigned =
            |why: &str| PullFailure::Unsigned(format!("image {name} has no valid signature: {why}"));
        let evidence = evidence.ok_or_else(|| unsigned("none was reported"))?;
        let signed =
            self.signers.check(name, &evidence).map_err(|error| PullFailure::Unsigned(error.to_string()))?;
        for digest in signed {
            if self.check_pinned(&name.with_digest(&digest), manifest).await.is_ok() {
                return Ok(());
            }
        }
        Err(unsigned("the signature is of another image"))
    }

    /// Returns the name by digest of what was pulled.
    async fn pull_once(
        &self,
        name: &ImageName,
        secrets: &[PullSecret],
    ) -> Result<(ImageName, u64), PullFailure> {
        let credentials = self.credentials(secrets).map_err(PullFailure::Failed)?;
        let key = key(name, &credentials);
        match self.request(name, &credentials).await {
            Ok(Pulled { manifest, bytes, evidence }) => {
                let none = || PullFailure::Failed("the image that was pulled has no digest".into());
                let digest = Digest::parse(&manifest).ok_or_else(none)?;
                self.check_pinned(name, &digest).await.map_err(PullFailure::Failed)?;
                self.check_signed(name, &digest, evidence).await?;
                let stored = name.with_digest(&digest);
                let mut known = lock(&self.known);
                if known.len() >= KNOWN
                    && let Some(other) = known.keys().next().cloned()
                {
                    known.remove(&other);
                }
                known.insert(key, stored.clone());
                Ok((stored, bytes))
            }
            Err(Failure { why, refused, unsigned }) => {
                if refused || unsigned {
                    // They have lost the right.
                    lock(&self.known).remove(&key);
                }
                // It is the text of a process that parses what registries send.
                let why = why.chars().filter(|c| !c.is_control()).take(MESSAGE).collect();
                Err(if unsigned { PullFailure::Unsigned(why) } else { PullFailure::Failed(why) })
            }
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Distinguishes an image with credentials from all others.
fn key(name: &ImageName, credentials: &[u8]) -> String {
    Digest::of(&[name.to_string().as_bytes(), &[0], credentials].concat()).to_string()
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

    fn has_pulled(&self, name: &ImageName, secrets: &[PullSecret]) -> Option<ImageName> {
        let credentials = self.credentials(secrets).ok()?;
        lock(&self.known).get(&key(name, &credentials)).cloned()
    }

    fn needs_signature(&self, name: &ImageName) -> bool {
        self.signers.cover(name)
    }

    fn pull(
        &self,
        name: &ImageName,
        secrets: Vec<PullSecret>,
    ) -> BoxFuture<'_, Result<(ImageName, u64), PullFailure>> {
        let name = name.clone();
        async move { self.pull_once(&name, &secrets).await }.boxed()
    }
}

/// The process, which can be started again.
struct Client {
    folder: PathBuf,
    yaml: String,
    pull_from: Option<String>,
    proxy: Proxy,
    ids: IdRange,
}

impl Client {
    fn start(&self) -> anyhow::Result<(Process, Channel)> {
        let (pull_from, proxy) = (self.pull_from.as_deref(), self.proxy.clone());
        let started = spawn(&self.folder, &self.yaml, pull_from, proxy, self.ids.base());
        let (process, channel) = started?;
        Ok((process, Channel::new(channel)?))
    }

    /// Passes requests to the process. When it ends, their senders see that and repeat them later.
    async fn run(self, mut started: (Process, Channel), mut requests: mpsc::UnboundedReceiver<Asked>) {
        let mut outstanding = HashMap::new();
        loop {
            let done = tokio::select! {
                asked = requests.recv() => {
                    match asked {
                        None => return,
                        Some(Asked::Pull(number, image, credentials, answer)) => {
                            outstanding.insert(number, answer);
                            started.1.send(&Request::Pull { number, image }, &[credentials.as_fd()]).await
                        }
                        Some(Asked::Cancel(number)) => match outstanding.remove(&number) {
                            Some(_) => started.1.send(&Request::Cancel { number }, &[]).await,
                            None => Ok(()),
                        },
                    }
                }
                answer = started.1.receive_next() => answer.map(|Answer { number, pulled }| {
                    if let Some(receiver) = outstanding.remove(&number) {
                        let _ = receiver.send(pulled);
                    }
                }),
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

    /// The process that pulls is not believed.
    #[tokio::test]
    async fn image_without_evidence_or_with_that_of_another_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read = |path: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../registry/tests/cosign").join(path);
            std::fs::read_to_string(path).unwrap()
        };
        let key = folder.path().join("key.pub");
        std::fs::write(&key, read("p256.pub")).unwrap();
        let config =
            Config::parse(&format!("signatures: [{{prefix: ghcr.io, keys: ['{}']}}]", key.display()));
        let config = config.unwrap();
        let pulls = Pulls {
            folder: folder.path().to_owned(),
            signers: Signers::read(&config).unwrap(),
            config,
            credentials: Vec::new(),
            requests: mpsc::unbounded_channel().0,
            last: AtomicU64::new(0),
            known: Mutex::default(),
        };
        let signed = Digest::parse(&format!("sha256:{}", read("signed").trim())).unwrap();
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/registry_signatures");
        let evidence = std::fs::read_to_string(corpus.join("evidence-1")).unwrap();
        let evidence: Evidence = serde_json::from_str(&evidence).unwrap();
        let name = ImageName::parse("ghcr.io/org/app:v1").unwrap();
        let of = |evidence: Option<Evidence>, manifest: &Digest| {
            let (pulls, name, manifest) = (&pulls, &name, manifest.clone());
            async move { pulls.check_signed(name, &manifest, evidence).await }
        };
        assert_eq!(of(Some(evidence.clone()), &signed).await, Ok(()));
        let other = Digest::of(b"other");
        for (evidence, reason) in
            [(None, "none was reported"), (Some(evidence), "the signature is of another image")]
        {
            let refused = of(evidence, &other).await;
            assert!(
                matches!(&refused, Err(PullFailure::Unsigned(why)) if why.ends_with(reason)),
                "{refused:?}"
            );
        }
        let free = ImageName::parse("docker.io/library/python").unwrap();
        assert_eq!(pulls.check_signed(&free, &other, None).await, Ok(()));
    }

    #[test]
    fn known_pulls_differ_by_image_and_by_credentials() {
        let name = |text: &str| ImageName::parse(text).unwrap();
        let keys = [("a:v1", ""), ("a:v2", ""), ("a:v1", "x"), ("a:v1x", "")]
            .map(|(n, c)| key(&name(n), c.as_bytes()));
        assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), keys.len());
    }
}
