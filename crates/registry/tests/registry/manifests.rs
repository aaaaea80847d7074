//! Manifests and indexes.

use hutch_registry::{Digest, Error, Pulled};
use serde_json::{Value, json};

use crate::fixture::{
    End, Image, OCI_INDEX, OCI_MANIFEST, Registry, blobs, broken, descriptor, machine, pull, puller, reply,
};

async fn pull_image(image: Image) -> (Result<Pulled, Error>, Registry) {
    let registry = Registry::serve(move |request| image.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let outcome = pull(&puller(store.path(), &registry), &registry.name()).await;
    blobs(store.path());
    (outcome, registry)
}

fn index(manifests: &[Value]) -> Vec<u8> {
    serde_json::to_vec(&json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})).unwrap()
}

fn entry(manifest: &[u8], os: &str, architecture: &str) -> Value {
    let mut entry = descriptor(OCI_MANIFEST, manifest);
    entry["platform"] = json!({"os": os, "architecture": architecture});
    entry
}

#[tokio::test]
async fn image_of_this_machine_is_chosen_from_an_index() {
    let mut image = Image::new(&[10]);
    let manifest = image.manifest.clone();
    let index = index(&[
        entry(b"other", "linux", "s390x"),
        entry(b"x", "unknown", "unknown"),
        entry(&manifest, "linux", machine()),
    ]);
    let digest = image.add_manifest("v1", OCI_INDEX, index);
    let (outcome, _) = pull_image(image).await;
    assert_eq!(outcome.unwrap(), Pulled { digest, manifest: Digest::of(&manifest), evidence: None });
}

#[tokio::test]
async fn image_for_other_machines_is_refused_before_its_layers() {
    let mut image = Image::new(&[10]);
    image.add_manifest("v1", OCI_INDEX, index(&[entry(b"other", "linux", "s390x")]));
    let (outcome, registry) = pull_image(image).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("it is for linux/s390x"), "{error}");
    assert_eq!(registry.requests("/blobs/").len(), 0);

    let (outcome, registry) = pull_image(Image::for_machine(&[10], "s390x")).await;
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("it is for linux/s390x"), "{error}");
    assert_eq!(registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn endless_manifest_is_refused_at_its_limit() {
    let registry = Registry::serve(|_| broken(200, &[], None, vec![b' '; 5 << 20], End::Silent)).await;
    let store = tempfile::tempdir().unwrap();
    let error = pull(&puller(store.path(), &registry), &registry.name()).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(registry.requests("").len(), 1);
}

#[tokio::test]
async fn indexes_that_are_nested_too_deep_are_refused() {
    let mut image = Image::new(&[10]);
    let mut document = image.manifest.clone();
    for _ in 0..10 {
        document = index(&[entry(&document, "linux", machine())]);
        image.add_manifest("v1", OCI_INDEX, document.clone());
    }
    let (outcome, registry) = pull_image(image).await;
    assert!(matches!(outcome, Err(Error::TooLarge { .. })), "{outcome:?}");
    assert!(registry.requests("").len() <= 5);
}

#[tokio::test]
async fn index_with_too_many_entries_is_refused() {
    let mut image = Image::new(&[10]);
    let entries = vec![entry(&image.manifest, "linux", machine()); 2000];
    image.add_manifest("v1", OCI_INDEX, index(&entries));
    let (outcome, _) = pull_image(image).await;
    assert!(matches!(outcome, Err(Error::TooLarge { .. })), "{outcome:?}");
}

#[tokio::test]
async fn manifest_with_another_digest_is_refused() {
    let image = Image::new(&[10]);
    let manifest = image.manifest.clone();
    let named = Digest::of(b"other").to_string();
    let registry = Registry::serve(move |_| {
        reply(200, &[("content-type", OCI_MANIFEST), ("docker-content-digest", &named)], manifest.clone())
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let error = pull(&puller(store.path(), &registry), &registry.name()).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn first_schema_is_refused_by_name() {
    let mut image = Image::new(&[10]);
    let text = br#"{"schemaVersion":1,"name":"org/app","fsLayers":[]}"#;
    image.add_manifest("v1", "application/vnd.docker.distribution.manifest.v1+prettyjws", text.to_vec());
    let error = pull_image(image).await.0.unwrap_err().to_string();
    assert!(error.contains("schema 1"), "{error}");
}

#[tokio::test]
async fn missing_image_is_not_found() {
    let mut image = Image::new(&[10]);
    image.files.clear();
    let (outcome, registry) = pull_image(image).await;
    assert!(matches!(outcome, Err(Error::NotFound { .. })), "{outcome:?}");
    assert_eq!(registry.requests("").len(), 1);
}
