//! Certificate of a listener, reloaded when its files change.

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
use crate::observe::metrics::Metrics;

/// Interval between checks of the files. Symbolic links are followed, so that a replaced directory link, as
/// Kubernetes uses for Secrets, is detected too.
const LOOK: Duration = Duration::from_millis(500);

/// Requirement for client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Requests no certificate.
    Off,
    /// Verifies a certificate if the client presents one.
    Optional,
    /// Requires a certificate that the authority signed.
    Required,
}

/// Paths of certificate and key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Certificate authorities of clients, PEM.
    pub client_authority: Option<PathBuf>,
    /// Requirement for client certificates.
    pub client: ClientCertificates,
}

/// Certificate that follows its files. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

/// State of the files, compared to detect a change.
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

    /// Reloads the files whenever they change, until the shutdown. Invalid files leave the old certificate in
    /// use.
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
            // The files are written one after the other. Waiting avoids a failure from half of a change.
            tokio::time::sleep(LOOK / 2).await;
            seen = self.files.mark();
            let outcome = match self.files.read() {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!("reloaded certificate");
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
                return Err(Error::Tls(PathBuf::new(), "no certificate authority of clients".into()));
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
