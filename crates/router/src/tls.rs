//! The certificate of a listener, from files that are read again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hutch_serve::Shutdown;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;
use crate::metrics::Metrics;

/// How often the files are looked at. What is looked at is the file behind the name, so that a directory that is
/// swapped by a symbolic link, as Kubernetes does with Secrets, is seen too.
const LOOK: Duration = Duration::from_millis(500);

/// What clients must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Nothing.
    Off,
    /// A certificate, if any, that the authority signed.
    Optional,
    /// A certificate that the authority signed.
    Required,
}

/// Where certificate and key are.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
    /// Authorities of clients, PEM.
    pub client_authority: Option<PathBuf>,
    /// What clients must show.
    pub client: ClientCertificates,
}

/// A certificate that follows its files. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

/// What tells one state of a file from another.
type Mark = Vec<Option<(u64, u64, i64, i64, u64)>>;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Tls`], which names the file.
    pub fn open(files: TlsFiles) -> Result<Tls, Error> {
        let current = Arc::new(RwLock::new(files.read()?));
        Ok(Tls { files, current })
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again whenever they change, until the shutdown. What cannot be used leaves the old one in use.
    pub async fn follow(self, metrics: Metrics, shutdown: Shutdown) {
        let mut seen = self.files.mark();
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let mark = self.files.mark();
            if mark == seen {
                continue;
            }
            // Both files are written one after the other; half of a change would be a failure that is none.
            tokio::time::sleep(LOOK / 2).await;
            seen = self.files.mark();
            let outcome = match self.files.read() {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!("the certificate was read anew");
                    "success"
                }
                Err(error) => {
                    tracing::error!(%error, "the certificate cannot be read anew; the old one stays in use");
                    "failure"
                }
            };
            metrics.0.cert_reloads.with_label_values(&[outcome]).inc();
        }
    }
}

impl TlsFiles {
    fn mark(&self) -> Mark {
        let files = [Some(&self.certificate), Some(&self.key), self.client_authority.as_ref()];
        let marks = files.into_iter().flatten().map(|file| {
            let of = std::fs::metadata(file).ok()?;
            Some((of.dev(), of.ino(), of.mtime(), of.mtime_nsec(), of.size()))
        });
        marks.collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, Error> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| Error::Tls(self.key.clone(), error.to_string()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Tls(self.certificate.clone(), error.to_string()))?;
        let builder = match (&self.client_authority, self.client) {
            (Some(file), ClientCertificates::Optional | ClientCertificates::Required) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(file)? {
                    roots.add(authority).map_err(|error| Error::Tls(file.clone(), error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match self.client {
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let built = verifier.build().map_err(|error| Error::Tls(file.clone(), error.to_string()))?;
                builder.with_client_cert_verifier(built)
            }
            (None, ClientCertificates::Optional | ClientCertificates::Required) => {
                return Err(Error::Tls(PathBuf::new(), "there is no authority of clients".into()));
            }
            (_, ClientCertificates::Off) => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| Error::Tls(self.certificate.clone(), error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |cause: String| Error::Tls(file.to_owned(), cause);
    let read = CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
    let chain: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if chain.is_empty() { Err(wrong("no certificate in it".into())) } else { Ok(chain) }
}
