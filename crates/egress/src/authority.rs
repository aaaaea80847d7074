//! Certificate authority of one sandbox, by which TLS ends at the proxy. Only that sandbox trusts it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hutch_policy::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

/// Days for which an authority is valid. Programs load its certificate once, so a sandbox keeps its authority.
pub const DAYS: i64 = 30;
/// Days for which the certificate of a host is valid.
const LEAF_DAYS: i64 = 7;
/// Time by which a certificate is valid before it is made, since clocks differ.
const SKEW: Duration = Duration::hours(1);
/// Maximum hosts whose configuration is kept.
const HOSTS: usize = 256;
/// Maximum sessions of TLS that a client can continue.
const SESSIONS: usize = 256;

/// The certificate and the key cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[error("the authority of the sandbox: {0}")]
pub struct AuthorityError(String);

impl AuthorityError {
    fn of(error: impl std::fmt::Display) -> AuthorityError {
        AuthorityError(error.to_string())
    }
}

/// Certificate and key of an authority, as they are kept and sent. The key is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityKeys {
    /// Certificate, PEM. Programs in the sandbox trust it.
    pub certificate: String,
    /// Key, PEM. Secret.
    key: String,
}

/// Without the key.
impl std::fmt::Debug for AuthorityKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("AuthorityKeys").finish_non_exhaustive()
    }
}

impl AuthorityKeys {
    /// Makes a new authority. `name` is the name in its certificate.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn create(name: &str) -> Result<AuthorityKeys, AuthorityError> {
        AuthorityKeys::create_for(name, DAYS)
    }

    /// Makes a new authority that is valid for this number of days.
    ///
    /// # Errors
    /// As [`AuthorityKeys::create`].
    pub fn create_for(name: &str, days: i64) -> Result<AuthorityKeys, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::of)?;
        let mut params = parameters();
        params.distinguished_name.push(DnType::CommonName, name);
        let now = OffsetDateTime::now_utc();
        (params.not_before, params.not_after) = (now - SKEW, now + Duration::days(days));
        let certificate = params.self_signed(&key).map_err(AuthorityError::of)?;
        Ok(AuthorityKeys { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl AuthorityKeys {
    /// Reads an authority that was made elsewhere: its certificate, and the key that belongs to it.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together. The error holds nothing of the key.
    pub fn read(certificate: &str, key: &str) -> Result<AuthorityKeys, AuthorityError> {
        let wrong = |what| move |_| AuthorityError(format!("the {what} cannot be read"));
        let first = CertificateDer::from_pem_slice(certificate.as_bytes());
        let first = first.map_err(|_| AuthorityError("the certificate is not PEM".to_owned()))?;
        let pair = PrivateKeyDer::from_pem_slice(key.as_bytes());
        let pair = pair.map_err(|_| AuthorityError("the key is not PEM".to_owned()))?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        CertifiedKey::from_der(vec![first], pair, &provider)
            .map_err(|_| AuthorityError("the key does not belong to the certificate".to_owned()))?;
        let keys = AuthorityKeys { certificate: certificate.to_owned(), key: key.to_owned() };
        let pair = KeyPair::from_pem(key).map_err(wrong("key"))?;
        Issuer::from_ca_cert_pem(certificate, pair).map_err(wrong("certificate"))?;
        Ok(keys)
    }
}

fn parameters() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Authority that signs for hosts.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Key of every host's certificate.
    leaf: KeyPair,
    provider: Arc<CryptoProvider>,
    sessions: Arc<ServerSessionMemoryCache>,
    configs: Mutex<HashMap<Host, (OffsetDateTime, Arc<ServerConfig>)>>,
}

impl Authority {
    pub(crate) fn new(keys: &AuthorityKeys) -> Result<Authority, AuthorityError> {
        let key = KeyPair::from_pem(&keys.key).map_err(AuthorityError::of)?;
        let issuer = Issuer::from_ca_cert_pem(&keys.certificate, key).map_err(AuthorityError::of)?;
        let leaf = KeyPair::generate().map_err(AuthorityError::of)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let sessions = ServerSessionMemoryCache::new(SESSIONS);
        Ok(Authority { issuer, leaf, provider, sessions, configs: Mutex::default() })
    }

    /// Returns the configuration of TLS for a host.
    pub(crate) fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = OffsetDateTime::now_utc();
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, config)) = configs.get(host)
            && now < *until
        {
            return Ok(config.clone());
        }
        let mut config = self.sign(host, now)?;
        // For all hosts: a session continues only with the name with which it began.
        config.session_storage = self.sessions.clone();
        let config = Arc::new(config);
        if configs.len() >= HOSTS {
            configs.clear();
        }
        configs.insert(host.clone(), (now + Duration::days(LEAF_DAYS - 1), config.clone()));
        Ok(config)
    }

    /// Returns a configuration for one connection, of which nothing is kept: neither the certificate nor a session.
    pub(crate) fn config_once(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut config = self.sign(host, OffsetDateTime::now_utc())?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn sign(&self, host: &Host, now: OffsetDateTime) -> Result<ServerConfig, AuthorityError> {
        let name = match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(AuthorityError::of)?),
            Host::Address(address) => SanType::IpAddress(IpAddr::to_canonical(address)),
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.subject_alt_names = vec![name];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (now - SKEW, now + Duration::days(LEAF_DAYS));
        let certificate = params.signed_by(&self.leaf, &self.issuer).map_err(AuthorityError::of)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf.serialize_der()));
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(AuthorityError::of)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(AuthorityError::of)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::certificate::X509Certificate;
    use x509_parser::prelude::FromDer;

    use super::*;

    #[test]
    fn key_is_not_shown_and_authority_signs_names_and_addresses() {
        let keys = AuthorityKeys::create("Hutch sandbox a").unwrap();
        assert!(!format!("{keys:?}").contains("PRIVATE"));
        let authority = Authority::new(&keys).unwrap();
        for host in ["a.example", "192.0.2.1", "[2001:db8::1]"] {
            let host: Host = host.parse().unwrap();
            let first = authority.config(&host).unwrap();
            assert!(Arc::ptr_eq(&first, &authority.config(&host).unwrap()), "it is kept");
        }
        assert_ne!(AuthorityKeys::create("a").unwrap(), AuthorityKeys::create("a").unwrap());
    }

    /// Nothing that it signs can sign in turn.
    #[test]
    fn certificate_of_an_authority_signs_only_hosts_and_is_valid_for_its_days() {
        let now = || OffsetDateTime::now_utc().unix_timestamp();
        let name = "Hutch sandbox a";
        let before = now();
        let made = [(30, AuthorityKeys::create(name)), (2, AuthorityKeys::create_for(name, 2))];
        let after = now();
        for (days, keys) in made {
            let keys = keys.unwrap();
            let der = CertificateDer::from_pem_slice(keys.certificate.as_bytes()).unwrap();
            let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
            assert!(rest.is_empty());
            assert_eq!(certificate.subject().to_string(), "CN=Hutch sandbox a");
            assert_eq!(certificate.issuer().to_string(), "CN=Hutch sandbox a");
            let constraints = certificate.basic_constraints().unwrap().unwrap();
            assert!(constraints.critical && constraints.value.ca, "{constraints:?}");
            assert_eq!(constraints.value.path_len_constraint, Some(0));
            let usage = certificate.key_usage().unwrap().unwrap().value;
            assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature(), "{usage:?}");
            let validity = certificate.validity();
            let (hour, day) = (3600, 86400);
            let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
            assert!((before - hour..=after - hour).contains(&from), "{from} {before}");
            assert!((before + days * day..=after + days * day).contains(&until), "{until} {before}");
        }
    }

    #[test]
    fn authority_is_read_with_its_own_key_and_no_error_shows_a_key() {
        let [own, other] = ["own", "other"].map(|name| AuthorityKeys::create(name).unwrap());
        assert_eq!(AuthorityKeys::read(&own.certificate, &own.key).unwrap(), own);
        for (certificate, key) in
            [(&own.certificate, &other.key), (&own.key, &own.key), (&own.certificate, &own.certificate)]
        {
            let error = AuthorityKeys::read(certificate, key).unwrap_err().to_string();
            assert!(error.len() < 80 && !error.contains("BEGIN"), "{error}");
        }
    }
}
