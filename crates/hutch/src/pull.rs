//! The process of `hutch up` that pulls images. It parses what registries send, so it has a user of its own and no
//! capability, and its only folder is that of the images that it has pulled. Credentials come with each request.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use hutch_jail::service::{Confinement, confine};
use hutch_privsep::{Channel, send_now};
use hutch_registry::{Config, Connections, Event, Evidence, ImageName, Keychain, Limits, Proxy, Puller};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;

use crate::egress::{Process, files_for_names};
use crate::runtime::{first_message, runtime};

/// Name of the program as the root process starts it. Not a command for users.
pub(crate) const NAME: &str = "hutch-pull";
/// The working directory, by a path that does not lead through folders that the process cannot pass.
const STORE: &str = "/proc/self/cwd";
/// Maximum bytes of the credentials of a request.
const CREDENTIALS: u64 = 8 << 20;

/// First message to the process; requests follow. A file with `images.yaml` comes with it.
#[derive(Serialize, Deserialize)]
struct Start {
    /// User and group id of the process.
    id: u32,
    /// Value of `--pull-from`.
    pull_from: Option<String>,
    /// Proxy of the environment of the server. Its password is in no environment of this process.
    proxy: Proxy,
}

/// Request to the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Pull an image. A file with [`Credentials`] comes with it.
    Pull {
        /// Number, which the answer has too.
        number: u64,
        /// Name of the image.
        image: String,
    },
    /// End a pull, which nothing waits for any more.
    Cancel {
        /// Its number.
        number: u64,
    },
}

/// Names and contents of Secrets, in the order in which they are tried.
pub(crate) type Credentials = Vec<(String, String)>;

/// Answer of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) pulled: Result<Pulled, Failure>,
}

/// An image that was pulled.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pulled {
    /// Digest of its manifest, by which it is stored.
    pub(crate) manifest: String,
    /// Bytes of all layers.
    pub(crate) bytes: u64,
    /// The signature that counted, if the image needs one.
    pub(crate) evidence: Option<Evidence>,
}

/// Reason why an image was not pulled.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// The registry has decided so.
    pub(crate) refused: bool,
    /// It has no valid signature.
    pub(crate) unsigned: bool,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let cause = error.downcast_ref::<hutch_registry::Error>();
        let refused = cause.is_some_and(|error| error.is_refusal());
        let unsigned = matches!(cause, Some(hutch_registry::Error::Unsigned { .. }));
        Failure { why: format!("{error:#}"), refused, unsigned }
    }
}

/// Reads the configuration of pulls.
pub(crate) fn config(yaml: &str, pull_from: Option<&str>) -> Result<Config, hutch_registry::Error> {
    let config = if yaml.is_empty() { Config::default() } else { Config::parse(yaml)? };
    match pull_from {
        Some(prefixes) => config.with_pull_from(prefixes),
        None => Ok(config),
    }
}

/// Returns a file in memory with these bytes, to be sent to another process.
pub(crate) fn memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Starts the process in the folder of its images, which belongs to it. To be called on a thread that lasts: the kernel
/// ends the process with it.
pub(crate) fn spawn(
    folder: &Path,
    yaml: &str,
    pull_from: Option<&str>,
    proxy: Proxy,
    id: u32,
) -> io::Result<(Process, OwnedFd)> {
    let (process, ours) = Process::start(NAME, folder)?;
    let start = Start { id, pull_from: pull_from.map(str::to_owned), proxy };
    send_now(ours.as_fd(), &start, &[memory(yaml.as_bytes())?.as_fd()])?;
    Ok((process, ours))
}

/// Answers until the process that started it ends.
pub(crate) fn main() -> ExitCode {
    crate::runtime::log("warn,hutch=info");
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let input = rustix::stdio::stdin();
    let (Start { id, pull_from, proxy }, files) = first_message(c"hutch-pull")?;
    let mut yaml = String::new();
    for file in files {
        File::from(file).read_to_string(&mut yaml).context("the configuration")?;
    }
    hutch_serve::raise_descriptor_limit();
    hutch_serve::forbid_core_files();
    let mut config = config(&yaml, pull_from.as_deref())?.with_proxy(proxy);
    // They come with each request.
    config.take_credentials();
    // Before the process is confined: it then cannot read the authorities.
    let connections = Connections::new(config, Limits::default())?;
    let readable = files_for_names();
    let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
    let writable = [Path::new(".")];
    confine(&Confinement { uid: id, gid: id, writable: &writable, readable: &readable, connects: true })
        .context("cannot be confined")?;
    let puller = Puller::with_connections(Path::new(STORE), connections, true)?;
    let input = input.try_clone_to_owned().context("the channel")?;
    runtime()?.block_on(serve(puller, input))
}

async fn serve(puller: Puller, input: OwnedFd) -> anyhow::Result<()> {
    let channel = std::sync::Arc::new(Channel::new(input)?);
    let mut pulls: HashMap<u64, AbortHandle> = HashMap::new();
    while let Some(message) = channel.receive().await? {
        pulls.retain(|_, pull| !pull.is_finished());
        let (number, image) = match message.decode()? {
            Request::Pull { number, image } => (number, image),
            Request::Cancel { number } => {
                pulls.remove(&number).iter().for_each(AbortHandle::abort);
                continue;
            }
        };
        let (puller, channel) = (puller.clone(), channel.clone());
        let pull = tokio::spawn(async move {
            let pulled = pull(&puller, &image, message.descriptors).await.map_err(Failure::from);
            // A closed channel is the end of this process.
            let _ = channel.send(&Answer { number, pulled }, &[]).await;
        });
        pulls.insert(number, pull.abort_handle());
    }
    Ok(())
}

async fn pull(puller: &Puller, image: &str, files: Vec<OwnedFd>) -> anyhow::Result<Pulled> {
    let mut text = zeroize::Zeroizing::new(String::new());
    for file in files {
        File::from(file).take(CREDENTIALS).read_to_string(&mut text).context("the credentials")?;
    }
    let credentials: Credentials = serde_json::from_str(&text).map_err(|_| anyhow::anyhow!("credentials"))?;
    let credentials = credentials.iter().map(|(name, content)| (name.as_str(), content.as_bytes()));
    let keychain = Keychain::from_secrets(credentials)?;
    let name = ImageName::parse(image)?;
    let all = AtomicU64::new(0);
    let progress = |event| {
        if let Event::Resolved { bytes, .. } = event {
            all.store(bytes, Ordering::Relaxed);
        }
    };
    let pulled = puller.pull(&name, &keychain, progress).await?;
    let (manifest, evidence) = (pulled.manifest.to_string(), pulled.evidence);
    Ok(Pulled { manifest, bytes: all.into_inner(), evidence })
}
