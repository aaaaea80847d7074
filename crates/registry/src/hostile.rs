//! Untrusted input of registries and of users, each as one function of any bytes: it neither panics nor runs without end.

use crate::keychain::Keychain;
use crate::manifest::Manifest;
use crate::platform::Platform;
use crate::signature::{Evidence, Signers, evidence_of};
use crate::{Config, Digest, ImageName, challenge, choice};

/// A name. What is taken displays as a text that means the same.
///
/// # Panics
/// When it does not.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(name) = ImageName::parse(text) else { return };
    assert_eq!(ImageName::parse(&name.to_string()).expect("a full name is valid"), name);
    let path = format!("/v2/{}/manifests/{}", name.repository(), name.reference());
    assert!(!path.contains("/../") && !path.contains("//") && !path.contains(['?', '#', '%', ' ']), "{path}");
}

/// A manifest or an index.
///
/// # Panics
/// When a bound is exceeded.
pub fn manifests(bytes: &[u8]) {
    for content_type in [None, Some("application/vnd.oci.image.index.v1+json")] {
        match Manifest::parse(bytes, content_type) {
            Ok(Manifest::Image(image)) => {
                assert!((1..=127).contains(&image.layers.len()));
                assert!(image.layers.iter().all(|layer| layer.size <= 16 << 30));
            }
            Ok(Manifest::Index(entries)) => {
                let _ = choice::choose(&entries, &Platform::of_this_machine());
            }
            Err(_) => {}
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert!(Digest::parse(text).is_none_or(|digest| digest.hex().len() == 64));
    }
}

/// A header `WWW-Authenticate`.
pub fn challenges(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = challenge::parse(text);
    }
}

/// The content of a Secret with credentials, and the configuration.
pub fn credentials(bytes: &[u8]) {
    let _ = Keychain::from_secrets([("secret", bytes)]);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Config::parse(text);
    }
}

/// A bundle of a signature, and a signature as another process passes it on.
///
/// # Panics
/// When one counts for an image of another digest than the recorded one.
pub fn signatures(bytes: &[u8]) {
    let name = ImageName::parse("localhost/org/app").expect("a valid name");
    let signers = Signers::of_all(include_str!("../tests/cosign/p256.pub"));
    let passed_on: Option<Evidence> = serde_json::from_slice(bytes).ok();
    for evidence in evidence_of(bytes).into_iter().chain(passed_on) {
        for digest in signers.check(&name, &evidence).unwrap_or_default() {
            assert_eq!(digest.hex(), include_str!("../tests/cosign/signed").trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("registry_names", super::names);
        feed("registry_manifests", super::manifests);
        feed("registry_challenges", super::challenges);
        feed("registry_credentials", super::credentials);
        feed("registry_signatures", super::signatures);
    }
}
