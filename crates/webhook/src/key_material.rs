//! Authorities, certificate and key as they are in the Secret, and whether they are good.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hutch_serve::ServerCertificate;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Keys of the Secret.
pub(crate) const AUTHORITIES_KEY: &str = "ca.crt";
pub(crate) const CERTIFICATE_KEY: &str = "tls.crt";
pub(crate) const PRIVATE_KEY: &str = "tls.key";

/// How long before the end a renewal is due: months of failing renewals before anything breaks.
pub(crate) const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Older authorities in the bundle at most. Each lives a year and a renewal comes after eleven months, so there is one;
/// more come of Secrets that were deleted or broken meanwhile.
const OLDER_AUTHORITIES: usize = 4;

/// PEM texts, as in the Secret. Not `Debug`: the key is secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyMaterial {
    /// One or more certificates: what clients trust.
    pub(crate) authorities: String,
    /// The server's certificate, with its chain.
    pub(crate) certificate: String,
    /// Its private key.
    pub(crate) key: String,
}

/// Result of the check whether material can be shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can, and for long enough.
    Good,
    /// It can, but ends soon: when.
    Due(String),
    /// A client would refuse it: why.
    Useless(String),
}

impl KeyMaterial {
    /// Reads the data of a Secret. The error names the key.
    pub(crate) fn read(data: &BTreeMap<String, ByteString>) -> Result<KeyMaterial, String> {
        let text = |key: &str| {
            let bytes = data.get(key).ok_or_else(|| format!("{key} is missing"))?;
            String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key} is not PEM"))
        };
        Ok(KeyMaterial {
            authorities: text(AUTHORITIES_KEY)?,
            certificate: text(CERTIFICATE_KEY)?,
            key: text(PRIVATE_KEY)?,
        })
    }

    /// The data of a Secret.
    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let entry = |key: &str, text: &str| (key.to_owned(), ByteString(text.as_bytes().to_vec()));
        BTreeMap::from([
            entry(AUTHORITIES_KEY, &self.authorities),
            entry(CERTIFICATE_KEY, &self.certificate),
            entry(PRIVATE_KEY, &self.key),
        ])
    }

    /// Checks it as a client does that trusts the authorities and connects to that name, now and at the latest renewal.
    pub(crate) fn standing(&self, server_name: &str, now: SystemTime) -> Standing {
        if let Err(error) = ServerCertificate::from_pem(self.certificate.as_bytes(), self.key.as_bytes()) {
            return Standing::Useless(error.to_string());
        }
        if let Err(refusal) = self.verify(server_name, now) {
            return Standing::Useless(refusal);
        }
        match self.verify(server_name, now + RENEW_BEFORE) {
            Ok(()) => Standing::Good,
            Err(_) => Standing::Due(
                validity_of(self.certificate.as_bytes()).map_or_else(|| "soon".into(), |end| day(end.1)),
            ),
        }
    }

    fn verify(&self, server_name: &str, at: SystemTime) -> Result<(), String> {
        let chain = certificates(self.certificate.as_bytes())
            .ok_or_else(|| format!("{CERTIFICATE_KEY} holds no certificate"))?;
        let authorities = certificates(self.authorities.as_bytes())
            .ok_or_else(|| format!("{AUTHORITIES_KEY} holds no certificate"))?;
        let mut roots = RootCertStore::empty();
        // The library takes every certificate for an authority; the API server also checks its dates.
        for authority in authorities.into_iter().filter(|der| is_valid(der, at)) {
            roots.add(authority).map_err(|error| format!("{AUTHORITIES_KEY}: {error}"))?;
        }
        if roots.is_empty() {
            return Err(format!("no authority in {AUTHORITIES_KEY} is valid at {}", day(at)));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| error.to_string())?;
        let name = ServerName::try_from(server_name).map_err(|error| error.to_string())?;
        let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap_or_default());
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], at)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    /// This material, which also trusts those older authorities that have not expired.
    pub(crate) fn trusting_too(mut self, older: &[u8], now: SystemTime) -> KeyMaterial {
        let own = certificates(self.authorities.as_bytes()).unwrap_or_default();
        let older = certificates(older).unwrap_or_default();
        let kept = older.iter().filter(|der| is_valid(der, now) && !own.contains(der));
        for authority in kept.take(OLDER_AUTHORITIES) {
            self.authorities.push_str(&pem_of("CERTIFICATE", authority));
        }
        self
    }
}

/// Returns all certificates of a PEM text; `None` for an empty text or a broken certificate.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let list: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!list.is_empty()).then_some(list)
}

fn is_valid(der: &CertificateDer<'_>, at: SystemTime) -> bool {
    validity(der).is_some_and(|(from, to)| from <= at && at <= to)
}

/// From when to when the first certificate of a PEM text is good.
pub(crate) fn validity_of(pem: &[u8]) -> Option<(SystemTime, SystemTime)> {
    certificates(pem).and_then(|list| validity(&list[0]))
}

fn validity(der: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = certificate.validity();
    Some((time(validity.not_before.timestamp()), time(validity.not_after.timestamp())))
}

/// A time for people.
pub(crate) fn day(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "an unknown time".into(), |time| format!("{time:.0}"))
}

/// One PEM block with line feeds.
pub(crate) fn pem_of(tag: &str, der: &[u8]) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), lines)
}
