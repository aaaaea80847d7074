//! Requests for client certificates (PKCS#10).

use std::time::Duration;

use rcgen::{
    CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, PublicKeyData, SigningKey,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::authority::validity;
use crate::{Authority, Error};

/// Tags of DER.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Object identifier of the signature of [`NewRequest`], encoded.
const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// Object identifiers of the parts of a name, encoded.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// A request whose signature proves that its sender holds the key.
pub struct ClientRequest {
    params: CertificateSigningRequestParams,
    /// Common name: the user.
    pub name: String,
    /// Organizations: the groups.
    pub groups: Vec<String>,
}

/// A certificate that was signed for a request.
pub struct SignedRequest {
    /// PEM.
    pub certificate_pem: String,
    /// DER: what [`crate::PeerCertificate`] will hold.
    pub der: Vec<u8>,
}

/// A certificate that some authority has issued.
pub struct IssuedCertificate {
    /// DER.
    pub der: Vec<u8>,
    /// Its last second, as seconds since 1970.
    pub end: i64,
    /// Public key (SubjectPublicKeyInfo, DER).
    public_key: Vec<u8>,
}

/// A request that was made here, and the key that it is for.
pub struct NewRequest {
    /// The request, DER.
    pub der: Vec<u8>,
    /// The private key, PEM. Secret.
    pub key_pem: String,
}

impl NewRequest {
    /// Makes a key (ECDSA on P-256) and a request for a certificate of a user in groups.
    ///
    /// # Errors
    /// [`Error::Certificate`] when no key can be made.
    pub fn new(name: &str, groups: &[String]) -> Result<NewRequest, Error> {
        let made = |error: rcgen::Error| Error::Certificate(error.to_string());
        let key = KeyPair::generate().map_err(made)?;
        // The library that makes certificates keeps one organization of a name only.
        let groups = groups.iter().map(|group| part_of_name(&ORGANIZATION, group));
        let subject: Vec<u8> = groups.chain([part_of_name(&COMMON_NAME, name)]).flatten().collect();
        let no_attributes = element(0xa0, &[]);
        let info = [
            element(INTEGER, &[0]),
            element(SEQUENCE, &subject),
            key.subject_public_key_info(),
            no_attributes,
        ];
        let info = element(SEQUENCE, &info.concat());
        let signature = [vec![0], key.sign(&info).map_err(made)?].concat();
        let algorithm = element(SEQUENCE, &element(IDENTIFIER, &ECDSA_WITH_SHA256));
        let der = element(SEQUENCE, &[info, algorithm, element(BIT_STRING, &signature)].concat());
        Ok(NewRequest { der, key_pem: key.serialize_pem() })
    }
}

fn part_of_name(identifier: &[u8], text: &str) -> Vec<u8> {
    let pair = [element(IDENTIFIER, identifier), element(UTF8_STRING, text.as_bytes())].concat();
    element(SET, &element(SEQUENCE, &pair))
}

/// An element of DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut element = vec![tag];
    if content.len() < 0x80 {
        element.push(length.first().copied().unwrap_or(0));
    } else {
        element.push(0x80 | length.len() as u8);
        element.extend_from_slice(length);
    }
    element.extend_from_slice(content);
    element
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Certificate(format!("the request: {error}"))
}

impl IssuedCertificate {
    /// Reads a certificate (PEM). Its signature is not checked.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn from_pem(pem: &[u8]) -> Result<IssuedCertificate, Error> {
        let unreadable =
            |error: &dyn std::fmt::Display| Error::Certificate(format!("the certificate: {error}"));
        let der = CertificateDer::from_pem_slice(pem).map_err(|error| unreadable(&error))?;
        let (_, read) = X509Certificate::from_der(&der).map_err(|error| unreadable(&error))?;
        let (end, public_key) = (read.validity.not_after.timestamp(), read.public_key().raw.to_vec());
        Ok(IssuedCertificate { end, public_key, der: der.to_vec() })
    }
}

impl ClientRequest {
    /// Reads a request (PEM) and checks its signature.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn from_pem(pem: &[u8]) -> Result<ClientRequest, Error> {
        let der = CertificateSigningRequestDer::from_pem_slice(pem).map_err(unreadable)?;
        let params = CertificateSigningRequestParams::from_der(&der).map_err(unreadable)?;
        let (_, request) = X509CertificationRequest::from_der(&der).map_err(unreadable)?;
        let subject = &request.certification_request_info.subject;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).map_err(unreadable)
        };
        let name = subject.iter_common_name().next().map(text).transpose()?.unwrap_or_default();
        let groups = subject.iter_organization().map(text).collect::<Result<_, _>>()?;
        Ok(ClientRequest { params, name, groups })
    }

    /// Returns true if a certificate has the key of this request.
    #[must_use]
    pub fn has_key_of(&self, certificate: &IssuedCertificate) -> bool {
        self.params.public_key.subject_public_key_info() == certificate.public_key
    }
}

impl Authority {
    /// Signs a certificate with which the sender of a request shows who it is, good from an hour ago for `life`.
    ///
    /// Its subject has the common name alone: groups belong to the record of who may use the certificate.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn sign_request(&self, request: &ClientRequest, life: Duration) -> Result<SignedRequest, Error> {
        let mut signed = request.params.clone();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, request.name.as_str());
        // What else the request names is not taken over.
        signed.params = rcgen::CertificateParams::default();
        signed.params.distinguished_name = subject;
        signed.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        signed.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        signed.params.use_authority_key_identifier_extension = true;
        validity(&mut signed.params, life);
        let certificate =
            signed.signed_by(self.issuer()).map_err(|error| Error::Certificate(error.to_string()))?;
        Ok(SignedRequest { certificate_pem: certificate.pem(), der: certificate.der().to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(der: &[u8]) -> String {
        let digits = k8s_openapi::ByteString(der.to_vec());
        let text = serde_json::to_value(digits).unwrap();
        let text = text.as_str().unwrap();
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
    }

    #[test]
    fn request_names_a_user_and_all_its_groups() {
        let long = "g".repeat(200);
        let groups = ["devs".to_owned(), "ops".to_owned(), long.clone()];
        let request = NewRequest::new("alice", &groups).unwrap();
        let read = ClientRequest::from_pem(pem(&request.der).as_bytes()).unwrap();
        assert_eq!((read.name.as_str(), read.groups.as_slice()), ("alice", &groups[..]));
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path()).unwrap();
        let signed = authority.sign_request(&read, Duration::from_secs(600)).unwrap();
        let (_, certificate) = X509Certificate::from_der(&signed.der).unwrap();
        let life = certificate.validity.not_after.timestamp() - certificate.validity.not_before.timestamp();
        assert_eq!(life, 3600 + 600);
        let issued = IssuedCertificate::from_pem(signed.certificate_pem.as_bytes()).unwrap();
        assert_eq!((&issued.der, issued.end), (&signed.der, certificate.validity.not_after.timestamp()));
        assert!(read.has_key_of(&issued));
        let other = NewRequest::new("alice", &groups).unwrap();
        assert!(!ClientRequest::from_pem(pem(&other.der).as_bytes()).unwrap().has_key_of(&issued));
    }

    #[test]
    fn request_with_another_signature_is_refused() {
        let mut request = NewRequest::new("alice", &[]).unwrap();
        let place = request.der.iter().position(|byte| *byte == b'a').unwrap();
        request.der[place] = b'b';
        assert!(ClientRequest::from_pem(pem(&request.der).as_bytes()).is_err());
        assert!(ClientRequest::from_pem(b"nothing").is_err());
    }
}
