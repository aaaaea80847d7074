//! Registries that send other content than they promise.

use hutch_registry::Error;

use crate::fixture::{End, Image, Registry, Reply, Seen, blobs, broken, pull, puller, reply};

/// Pulls an image whose layer is answered by `lie`. No layer is kept, not even in part if it was all there.
async fn pull_with(lie: impl Fn(&Image, &Seen) -> Reply + Send + Sync + 'static) -> (Error, Registry) {
    let image = Image::new(&[200_000]);
    let layer = image.layers[0].clone();
    let path = format!("/v2/org/app/blobs/{layer}");
    let registry = Registry::serve(move |request| match request.path == path {
        true => lie(&image, request),
        false => image.answer(request),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let puller = puller(store.path(), &registry);
    let error = pull(&puller, &registry.name()).await.unwrap_err();
    // Only the configuration is there.
    assert_eq!(blobs(store.path()).len(), 1);
    assert!(puller.find(&registry.name()).unwrap().is_none());
    (error, registry)
}

fn layer(image: &Image) -> Vec<u8> {
    image.bytes(&image.layers[0])
}

#[tokio::test]
async fn other_content_of_the_same_length_is_refused_after_one_request() {
    let (error, registry) = pull_with(|image, _| {
        let mut bytes = layer(image);
        bytes[150_000] ^= 1;
        reply(200, &[], bytes)
    })
    .await;
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(registry.requests("/blobs/").len(), 2);
}

#[tokio::test]
async fn announced_length_that_differs_is_refused() {
    let (error, _) = pull_with(|_, _| reply(200, &[], "short")).await;
    assert!(error.to_string().contains("another length"), "{error}");
}

#[tokio::test]
async fn content_that_is_longer_is_refused() {
    let (error, _) = pull_with(|image, _| {
        let bytes = [layer(image), vec![0; 100]].concat();
        broken(200, &[], None, bytes, End::Silent)
    })
    .await;
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn connection_that_is_always_cut_is_an_error_after_its_attempts() {
    let (error, registry) =
        pull_with(|image, _| broken(200, &[], Some(layer(image).len()), vec![0; 10], End::Cut)).await;
    assert!(matches!(error, Error::Cut { .. } | Error::Network { .. }), "{error}");
    assert_eq!(registry.requests("/blobs/").len(), 1 + 3);
}

#[tokio::test]
async fn other_part_than_was_requested_is_refused() {
    let (error, _) = pull_with(|image, request| match request.range {
        None => broken(200, &[], Some(layer(image).len()), layer(image)[..50_000].to_vec(), End::Cut),
        Some(_) => reply(206, &[("content-range", "bytes 0-9/10")], "0123456789"),
    })
    .await;
    assert!(error.to_string().contains("another part"), "{error}");
}

#[tokio::test]
async fn endless_redirects_and_those_without_tls_are_not_followed() {
    let (error, _) = pull_with(|_, request| reply(307, &[("location", &request.path)], "")).await;
    assert!(error.to_string().contains("more than 5 times"), "{error}");
    for target in ["http://169.254.169.254/latest", "file:///etc/passwd", "//evil.example/x", "x"] {
        let (error, _) = pull_with(move |_, _| reply(307, &[("location", target)], "")).await;
        assert!(error.to_string().contains("not followed"), "{target}: {error}");
    }
}

#[tokio::test]
async fn text_of_an_answer_is_not_in_the_error() {
    let (error, _) = pull_with(|_, _| reply(400, &[], "hunter2")).await;
    assert!(error.to_string().contains("400") && !error.to_string().contains("hunter2"), "{error}");
}
