//! Makes an authority and the one certificate that it signs.

use std::time::{Duration, SystemTime};

use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use crate::key_material::{KeyMaterial, pem_of};
use crate::{Error, Settings};

/// Name of every authority; a renewal has the same name and another key.
const AUTHORITY_NAME: &str = "agent-sandbox-conversion-webhook-ca";
/// How long authority and certificate are good for.
pub(crate) const LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// They are good from so long ago, because the clocks of two machines differ.
const BACKDATED: Duration = Duration::from_secs(3600);

/// A new authority (ECDSA P-256), a certificate for the webhook's names, and its key. The authority's key is dropped.
pub(crate) fn issue(settings: &Settings, now: SystemTime) -> Result<KeyMaterial, Error> {
    let failed = |error: rcgen::Error| Error::Issue(error.to_string());
    let authority_key = KeyPair::generate().map_err(failed)?;
    let mut authority = params(Vec::new(), AUTHORITY_NAME, now)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority_certificate = authority.self_signed(&authority_key).map_err(failed)?;
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate().map_err(failed)?;
    let mut leaf = params(settings.names(), &settings.server_name(), now)?;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let certificate = leaf.signed_by(&key, &issuer).map_err(failed)?;
    Ok(KeyMaterial {
        authorities: pem_of("CERTIFICATE", authority_certificate.der()),
        certificate: pem_of("CERTIFICATE", certificate.der()),
        key: pem_of("EC PRIVATE KEY", &sec1(&key)?),
    })
}

fn params(names: Vec<String>, common_name: &str, now: SystemTime) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names).map_err(|error| Error::Issue(error.to_string()))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + LIFE).into();
    Ok(params)
}

/// The key in the form (RFC 5915) that the Go controller writes.
fn sec1(key: &KeyPair) -> Result<Vec<u8>, Error> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.serialized_der())
        .map_err(|error| Error::Issue(error.to_string()))?;
    let der: EcPrivateKeyRfc5915Der<'_> =
        pair.private_key().as_der().map_err(|error| Error::Issue(error.to_string()))?;
    Ok(der.as_ref().to_vec())
}
