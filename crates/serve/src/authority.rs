use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::{Error, write_private};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Days that the authority is good for: the life of a data folder.
const AUTHORITY_DAYS: u32 = 3650;
/// Days that a leaf certificate is good for. Server certificates are made anew at each start.
const LEAF_DAYS: u32 = 365;

/// The certificate authority of a data folder. It signs for this machine's names only.
pub struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for a client, with its key.
pub struct ClientCertificate {
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// The private key, PEM. Secret.
    pub key_pem: String,
    /// The certificate, DER: what [`crate::PeerCertificate`] will hold.
    pub der: Vec<u8>,
}

/// Without the key.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Loads the authority of a folder, or creates it there (folder 0700, files 0600) when missing.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Unusable`], [`Error::Certificate`].
    pub fn open(folder: &Path) -> Result<Authority, Error> {
        let certificate = folder.join("ca.crt");
        let key = folder.join("ca.key");
        let read = |path: &Path| match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(Error::File { path: path.into(), cause }),
        };
        if let (Some(pem), Some(key_pem)) = (read(&certificate)?, read(&key)?) {
            let unusable = |cause: String| Error::Unusable { path: key.clone(), what: "private key", cause };
            let key_pair = KeyPair::from_pem(&key_pem).map_err(|error| unusable(error.to_string()))?;
            return Authority::load(&certificate, pem, key_pair);
        }
        let (pem, key_pair) = make_authority()?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|cause| Error::File { path: folder.into(), cause })?;
        // The key first: a certificate without its key would be taken for a damaged authority.
        write_private(&key, &key_pair.serialize_pem())?;
        write_private(&certificate, &pem)?;
        Authority::load(&certificate, pem, key_pair)
    }

    fn load(path: &Path, pem: String, key: KeyPair) -> Result<Authority, Error> {
        let unusable = |cause: String| Error::Unusable { path: path.into(), what: "certificate", cause };
        let der =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| unusable(error.to_string()))?;
        // The issuer only lends its name, usages and key to what it signs; these are always the same.
        let issuer = Issuer::new(authority_params(), key);
        Ok(Authority { pem, der, issuer })
    }

    /// The authority's certificate, PEM: what clients trust.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// Returns a TLS configuration: a new server certificate for localhost, the loopback addresses, this host's
    /// name and `extra` names or addresses. Clients may show a certificate of this authority, and need not.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn server_config(&self, extra: &[String]) -> Result<Arc<rustls::ServerConfig>, Error> {
        let mut names: Vec<String> =
            ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
                .map(String::from)
                .to_vec();
        if let Ok(host) = rustix::system::uname().nodename().to_str()
            && !host.is_empty()
        {
            names.push(host.to_owned());
        }
        names.extend_from_slice(extra);
        names.sort();
        names.dedup();
        let made = |error: rcgen::Error| Error::Certificate(error.to_string());
        let mut params = CertificateParams::new(names).map_err(made)?;
        params.distinguished_name.push(DnType::CommonName, "hutch");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = self.sign(params)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let failed = |error: &dyn std::fmt::Display| Error::Certificate(error.to_string());

        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der.clone()).map_err(|error| failed(&error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| failed(&error))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone(), self.der.clone()], key)
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A certificate with which a client shows who it is. `name` and `groups` become its subject.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn client_certificate(&self, name: &str, groups: &[&str]) -> Result<ClientCertificate, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(params)?;
        Ok(ClientCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().to_vec(),
        })
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    fn sign(&self, mut params: CertificateParams) -> Result<(rcgen::Certificate, KeyPair), Error> {
        let made = |error: rcgen::Error| Error::Certificate(error.to_string());
        validity(&mut params, DAY * LEAF_DAYS);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(made)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(made)?;
        Ok((certificate, key))
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "hutch-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn make_authority() -> Result<(String, KeyPair), Error> {
    let made = |error: rcgen::Error| Error::Certificate(error.to_string());
    let key = KeyPair::generate().map_err(made)?;
    let mut params = authority_params();
    validity(&mut params, DAY * AUTHORITY_DAYS);
    let certificate = params.self_signed(&key).map_err(made)?;
    Ok((certificate.pem(), key))
}

/// From an hour ago, because the clocks of two machines differ.
pub(crate) fn validity(params: &mut CertificateParams, life: Duration) {
    let now = std::time::SystemTime::now();
    params.not_before = (now - DAY / 24).into();
    params.not_after = (now + life).into();
}
