//! Pulls images.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::config::Config;
use crate::download::download;
use crate::flight::{Flight, Flights};
use crate::http_client::HttpClient;
use crate::keychain::{Credential, Keychain, fingerprint};
use crate::layout::{Layout, Stored};
use crate::manifest::Blob;
use crate::names::DOCKER;
use crate::resolve::{Resolved, resolve};
use crate::session::Session;
use crate::signature::{self, Evidence, Signers};
use crate::{Digest, Error, ImageName, Limits};

/// Pulls images into one store. Clones share their work.
#[derive(Clone)]
pub struct Puller {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    http: Arc<HttpClient>,
    signers: Signers,
    layout: Layout,
    resolving: Flights<Arc<Resolved>>,
    downloading: Flights<()>,
    by_digest: bool,
}

/// An image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Digest that the registry has for the name. It may be that of an index.
    pub digest: Digest,
    /// Digest of the manifest for this machine.
    pub manifest: Digest,
    /// The signature that counted, if the image needs one.
    pub evidence: Option<Evidence>,
}

impl Pulled {
    pub(crate) fn of(stored: &Stored) -> Pulled {
        Pulled { digest: stored.pulled.clone(), manifest: stored.manifest.digest.clone(), evidence: None }
    }
}

/// An image whose blobs are all in the store, and that has no name yet. While this exists, no removal takes its blobs.
pub struct Fetched {
    pub(crate) layout: Layout,
    pub(crate) name: ImageName,
    pub(crate) others: Vec<ImageName>,
    pub(crate) stored: Stored,
    pub(crate) evidence: Option<Evidence>,
    pub(crate) by_digest: bool,
    pub(crate) _pulling: File,
}

impl Fetched {
    /// Name that it will have.
    pub fn name(&self) -> &ImageName {
        &self.name
    }

    /// All names that it will have, [`Fetched::name`] first.
    pub fn names(&self) -> impl Iterator<Item = &ImageName> {
        std::iter::once(&self.name).chain(&self.others)
    }

    /// Digest, size in bytes and media type of its manifest.
    pub fn manifest(&self) -> (&Digest, u64, &str) {
        (&self.stored.manifest.digest, self.stored.manifest.size, &self.stored.media_type)
    }

    /// Gives it its names, which earlier images lose.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn keep(self) -> Result<Pulled, Error> {
        self.layout.name(self.names(), &self.stored, self.by_digest)?;
        Ok(Pulled { evidence: self.evidence, ..Pulled::of(&self.stored) })
    }
}

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The manifest is known.
    Resolved {
        /// Digest that the registry has for the name.
        digest: Digest,
        /// Number of layers.
        layers: usize,
        /// Bytes of all layers.
        bytes: u64,
    },
    /// Bytes of a layer are there.
    Layer {
        /// Digest of the layer.
        digest: Digest,
        /// Bytes that are there.
        done: u64,
        /// Bytes of the layer.
        size: u64,
    },
}

/// Configuration of a puller whose files have been read, but for those with credentials.
pub struct Connections {
    config: Config,
    http: Arc<HttpClient>,
    signers: Signers,
}

impl Connections {
    /// Reads the files with authorities and with the keys of signers.
    ///
    /// # Errors
    /// When a file cannot be read, or has no certificate or key.
    pub fn new(config: Config, limits: Limits) -> Result<Connections, Error> {
        let (http, signers) = (Arc::new(HttpClient::new(&config, limits)?), Signers::read(&config)?);
        Ok(Connections { http, signers, config })
    }

    /// Keeps the keys of signers alone, for a process that checks what another one pulls.
    pub fn into_signers(self) -> Signers {
        self.signers
    }
}

impl Puller {
    /// Opens the store, creating it if it is missing.
    ///
    /// # Errors
    /// When the store cannot be opened, or a file of the configuration cannot be read.
    pub fn open(store: &Path, config: Config, limits: Limits) -> Result<Puller, Error> {
        Puller::with_connections(store, Connections::new(config, limits)?, false)
    }

    /// As [`Puller::open`], for a process that could read the files of the configuration only before. With `by_digest`,
    /// images have the name of their manifest's digest, so that no pull changes what a name means for another user, and the
    /// oldest ones are forgotten when there are too many.
    ///
    /// # Errors
    /// When the store cannot be opened.
    pub fn with_connections(
        store: &Path,
        connections: Connections,
        by_digest: bool,
    ) -> Result<Puller, Error> {
        let Connections { config, http, signers } = connections;
        let layout = Layout::open(store)?;
        let (resolving, downloading) = (Flights::default(), Flights::default());
        let inner = Inner { config, http, signers, layout, resolving, downloading, by_digest };
        Ok(Puller { inner: Arc::new(inner) })
    }

    /// Folder of the store, an OCI layout. Its tags are full names, as [`ImageName`] displays them.
    pub fn store(&self) -> &Path {
        self.inner.layout.dir()
    }

    /// Returns the image of a name that was pulled before.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn find(&self, name: &ImageName) -> Result<Option<Pulled>, Error> {
        Ok(self.inner.layout.find(name)?.map(|stored| Pulled::of(&stored)))
    }

    /// Pulls an image. Credentials of `secrets` are tried before those of the configuration. Blobs that are in the store
    /// are not requested again, whatever credentials brought them: knowing a digest is the right to read its blob.
    ///
    /// # Errors
    /// When the configuration does not allow it, or it cannot be had.
    pub async fn pull(
        &self,
        name: &ImageName,
        secrets: &Keychain,
        progress: impl Fn(Event) + Sync,
    ) -> Result<Pulled, Error> {
        let fetched = self.fetch(name, secrets, progress).await?;
        blocking(move || fetched.keep()).await
    }

    /// As [`Puller::pull`], but the image has its name only when the caller keeps it.
    ///
    /// # Errors
    /// As [`Puller::pull`].
    pub async fn fetch(
        &self,
        name: &ImageName,
        secrets: &Keychain,
        progress: impl Fn(Event) + Sync,
    ) -> Result<Fetched, Error> {
        let inner = &self.inner;
        inner.config.check(name)?;
        let (sessions, identity) = inner.sessions(name, secrets).await?;
        let pulling = inner.layout.pulling().await?;
        let key = format!("{name} {identity}");
        let resolved = inner.resolving(&key, name, &sessions).await?;
        let stored = &resolved.stored;
        let layers = &resolved.image.layers;
        // Before anything is downloaded that is not signed.
        let evidence = signature::find(&inner.signers, name, &sessions, &resolved).await?;
        progress(Event::Resolved {
            digest: stored.pulled.clone(),
            layers: layers.len(),
            bytes: layers.iter().map(|layer| layer.size).sum(),
        });
        let place = format!("{}/{} {identity}", name.registry(), name.repository());
        // The configuration first: what is not for this machine is not downloaded.
        inner.downloading(&place, &resolved.image.config, &sessions).outcome.await?;
        inner.layout.check_platform(&resolved.image.config)?;
        let layer = |blob: Blob| {
            let flight = inner.downloading(&place, &blob, &sessions);
            wait(flight, blob, &progress)
        };
        let parallel = inner.http.limits.parallel.max(1);
        futures::stream::iter(layers.clone())
            .map(layer)
            .buffer_unordered(parallel)
            .try_collect::<()>()
            .await?;
        let (layout, by_digest) = (inner.layout.clone(), inner.by_digest);
        let name = if by_digest { name.with_digest(&stored.manifest.digest) } else { name.clone() };
        blocking(move || {
            resolved.store(&layout)?;
            let stored = resolved.stored.clone();
            let others = Vec::new();
            Ok(Fetched { layout, name, others, stored, evidence, by_digest, _pulling: pulling })
        })
        .await
    }
}

impl Inner {
    /// Opens a session for each place, and returns what distinguishes their credentials.
    async fn sessions(
        &self,
        name: &ImageName,
        secrets: &Keychain,
    ) -> Result<(Vec<Arc<Session>>, Digest), Error> {
        // Read every time: logging in changes the files.
        let own = self.config.credentials().iter().map(|path| Keychain::read(path));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let places = self.config.places(name.registry());
        let last = places.len() - 1;
        let mut sessions = Vec::new();
        let mut all: Vec<Credential> = Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            let repository = place.repository(name.repository());
            let registry = if i == last { name.registry() } else { registry_of(&place.host) };
            let mut credentials = Vec::new();
            for keychain in std::iter::once(secrets).chain(&own) {
                credentials.extend(keychain.find(registry, &repository).await?);
            }
            all.extend(credentials.iter().cloned());
            let session = Session::new(self.http.clone(), place, name.repository(), credentials);
            sessions.push(Arc::new(session));
        }
        Ok((sessions, fingerprint(&all)))
    }

    /// Finds the image, once for all who request it with the same credentials.
    async fn resolving(
        &self,
        key: &str,
        name: &ImageName,
        sessions: &[Arc<Session>],
    ) -> Result<Arc<Resolved>, Error> {
        let (sessions, reference) = (sessions.to_vec(), name.reference());
        let work = async move { resolve(&sessions, &reference).await.map(Arc::new) };
        self.resolving.join(key.to_owned(), |_| work.boxed()).outcome.await
    }

    /// Downloads a blob, once for all who need it from the same place.
    fn downloading(&self, place: &str, blob: &Blob, sessions: &[Arc<Session>]) -> Flight<()> {
        let (layout, http) = (self.layout.clone(), self.http.clone());
        let (sessions, wanted) = (sessions.to_vec(), blob.clone());
        self.downloading.join(format!("{} {place}", blob.digest), |progress| {
            async move { download(&layout, &sessions, &wanted, &http.limits, &progress).await }.boxed()
        })
    }
}

/// Waits for a layer and reports its progress.
async fn wait(mut flight: Flight<()>, layer: Blob, progress: &(impl Fn(Event) + Sync)) -> Result<(), Error> {
    let report = |done| progress(Event::Layer { digest: layer.digest.clone(), done, size: layer.size });
    loop {
        tokio::select! {
            outcome = &mut flight.outcome => {
                outcome?;
                report(layer.size);
                return Ok(());
            }
            Ok(()) = flight.progress.changed() => {
                let done = *flight.progress.borrow_and_update();
                // The end is reported once, after the digest was checked.
                if done < layer.size {
                    report(done);
                }
            }
        }
    }
}

/// Registry whose credentials are for a host.
fn registry_of(host: &str) -> &str {
    if host == "registry-1.docker.io" { DOCKER } else { host }
}

async fn blocking<T: Send + 'static>(
    step: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let failed = |e: tokio::task::JoinError| Error::file("write", Path::new("the store"))(e);
    tokio::task::spawn_blocking(step).await.map_err(failed)?
}
