//! Certificate authority, its certificates, and clients that trust it.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Returns certificate and key, PEM.
    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Writes `tls.crt`, `tls.key` and `ca.crt` into a folder.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        let (certificate, key) = self.sign(name, ExtendedKeyUsagePurpose::ServerAuth);
        for (file, text) in [("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &self.pem)] {
            std::fs::write(folder.join(file), text).unwrap();
        }
    }

    /// Writes only `ca.crt`.
    pub(crate) fn write_itself(&self, folder: &Path) {
        std::fs::write(folder.join("ca.crt"), &self.pem).unwrap();
    }
}

/// Client that trusts one authority and presents a certificate of another, or none.
pub(crate) fn client_config(trusted: &Authority, own: Option<&Authority>) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let Some(own) = own else { return builder.with_no_client_auth() };
    let (certificate, key) = own.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
}
