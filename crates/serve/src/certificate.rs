use std::sync::{Arc, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;

/// The certificate of a TLS listener. It can be replaced while the listener serves: handshakes from then on show the new
/// one, connections that are there stay. Clones share it.
#[derive(Debug, Clone)]
pub struct ServerCertificate(Arc<Current>);

#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ServerCertificate {
    /// From a chain (PEM, the server's certificate first) and its private key (PEM: PKCS#8, SEC1 or PKCS#1).
    ///
    /// Expiry is not checked here: clients check it.
    ///
    /// # Errors
    /// [`Error::Pair`] when either cannot be read, or the key is another certificate's.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServerCertificate, Error> {
        let certified = certified(chain, key)?;
        Ok(ServerCertificate(Arc::new(Current(RwLock::new(Arc::new(certified))))))
    }

    /// Shows another certificate from now on. On an error the one that is there stays.
    ///
    /// # Errors
    /// As [`ServerCertificate::from_pem`].
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        let certified = Arc::new(certified(chain, key)?);
        *self.0.0.write().expect("a holder of the lock never panics") = certified;
        Ok(())
    }

    /// Returns a TLS configuration: this certificate, HTTP/2 and HTTP/1.1 by ALPN, no client certificates.
    ///
    /// # Errors
    /// [`Error::Certificate`] when the TLS library refuses its own defaults.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Certificate(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(self.0.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().expect("a holder of the lock never panics").clone())
    }
}

fn certified(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, Error> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| Error::Pair(format!("{what}: {error}"));
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong("the certificate is not PEM", &error))?;
    if chain.is_empty() {
        return Err(Error::Pair("there is no certificate in the PEM".into()));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| wrong("the key is not a private key in PEM", &error))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider)
        .map_err(|error| wrong("certificate and key do not go together", &error))
}
