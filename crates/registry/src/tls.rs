//! Trust of TLS connections: this machine's store and the configured files.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::Error;
use crate::config::read_text;

/// Maximum bytes of a file with certificates.
const MAX_FILE: u64 = 4 << 20;

/// Makes the configuration of connections.
pub(crate) fn client(ca_files: &[PathBuf]) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A machine's store may have certificates that are no authorities.
        let _ = roots.add(certificate);
    }
    for path in ca_files {
        let text = read_text(path, MAX_FILE)?;
        let invalid =
            |reason: String| Error::InvalidConfig { field: format!("caFiles: {}", path.display()), reason };
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let certificate = certificate.map_err(|e| invalid(format!("not PEM: {e}")))?;
            roots.add(certificate).map_err(|e| invalid(format!("not an authority: {e}")))?;
            count += 1;
        }
        if count == 0 {
            return Err(invalid("has no certificate in PEM".into()));
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| Error::InvalidConfig { field: "TLS".into(), reason: e.to_string() })?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
