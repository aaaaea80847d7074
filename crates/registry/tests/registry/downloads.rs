//! Downloads that are whole, resumed and shared.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use hutch_registry::{Error, Event, ImageName, Keychain, Limits, Puller};

use crate::fixture::{End, Image, Registry, Reply, blobs, broken, config, limits, pull, puller, reply};

#[tokio::test]
async fn pulled_image_resolves_like_a_layout_folder() {
    let image = Image::new(&[100, 300_000]);
    let served = image.clone();
    let registry = Registry::serve(move |request| served.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let puller = puller(store.path(), &registry);
    assert!(puller.find(&registry.name()).unwrap().is_none());
    let events = Mutex::new(Vec::new());
    let pulled = puller
        .pull(&registry.name(), &Keychain::default(), |event| events.lock().unwrap().push(event))
        .await
        .unwrap();
    assert_eq!(puller.find(&registry.name()).unwrap(), Some(pulled.clone()));
    for digest in &image.layers {
        let size = image.bytes(digest).len() as u64;
        let whole = Event::Layer { digest: digest.clone(), done: size, size };
        assert_eq!(events.lock().unwrap().iter().filter(|event| **event == whole).count(), 1);
    }
    let unpacked = tempfile::tempdir().unwrap();
    let images = hutch_image::Store::open(unpacked.path()).unwrap();
    let resolved = images.resolve_pulled(puller.store(), &registry.name().to_string()).unwrap();
    assert_eq!(resolved.id, pulled.manifest.to_string());
    assert_eq!(resolved.config.cmd, ["/bin/app"]);
    assert_eq!(std::fs::metadata(resolved.layers[0].join("file1")).unwrap().len(), 300_000);
    assert_eq!(blobs(store.path()).len(), 4);
}

#[tokio::test]
async fn second_pull_requests_only_the_manifest() {
    let image = Image::new(&[1000]);
    let registry = Registry::serve(move |request| image.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        pull(&puller(store.path(), &registry), &registry.name()).await.unwrap();
    }
    assert_eq!(registry.requests("/blobs/").len(), 2);
    assert_eq!(registry.requests("/manifests/").len(), 2);
}

#[tokio::test]
async fn cut_connection_is_resumed_where_it_ended() {
    let image = Image::new(&[400_000]);
    let (layer, served) = (image.layers[0].clone(), image.clone());
    let part = format!("/blobs/{layer}");
    let wanted = part.clone();
    let registry = Registry::serve(move |request| match request.range {
        None if request.path.ends_with(&wanted) => {
            let bytes = served.bytes(&layer);
            broken(200, &[], Some(bytes.len()), bytes[..100_000].to_vec(), End::Cut)
        }
        _ => served.answer(request),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    pull(&puller(store.path(), &registry), &registry.name()).await.unwrap();
    let requests = registry.requests(&part);
    assert_eq!(requests.len(), 2);
    assert!(requests[1].range.is_some_and(|from| from > 0 && from <= 100_000), "{requests:?}");
    assert_eq!(blobs(store.path()).len(), 3);
}

/// Leaves the first bytes of the layer as a killed process does, and pulls again.
async fn pull_after_a_kill(change: impl FnOnce(&mut Vec<u8>)) -> Vec<Option<u64>> {
    let image = Image::new(&[400_000]);
    let (layer, served) = (image.layers[0].clone(), image.clone());
    let registry = Registry::serve(move |request| served.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let puller = puller(store.path(), &registry);
    let mut start = image.bytes(&layer)[..100_000].to_vec();
    change(&mut start);
    std::fs::write(store.path().join("partial").join(layer.hex()), start).unwrap();
    pull(&puller, &registry.name()).await.unwrap();
    assert_eq!(blobs(store.path()).len(), 3);
    assert_eq!(std::fs::read_dir(store.path().join("partial")).unwrap().count(), 0);
    registry.requests(layer.hex()).into_iter().map(|request| request.range).collect()
}

#[tokio::test]
async fn download_of_a_killed_process_is_continued() {
    assert_eq!(pull_after_a_kill(|_| {}).await, [Some(100_000)]);
}

#[tokio::test]
async fn damaged_start_of_a_killed_process_is_downloaded_again() {
    assert_eq!(pull_after_a_kill(|start| start[99_000..].fill(0)).await, [Some(100_000), None]);
}

#[tokio::test]
async fn start_that_is_too_long_is_downloaded_again() {
    assert_eq!(pull_after_a_kill(|start| start.resize(500_000, 0)).await, [None]);
}

#[tokio::test]
async fn server_without_ranges_sends_all_again() {
    let image = Image::new(&[400_000]);
    let layer = image.layers[0].clone();
    let served = image.clone();
    let registry = Registry::serve(move |request| {
        served.answer(&crate::fixture::Seen { range: None, ..request.clone() })
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let puller = puller(store.path(), &registry);
    std::fs::write(store.path().join("partial").join(layer.hex()), &image.bytes(&layer)[..1000]).unwrap();
    pull(&puller, &registry.name()).await.unwrap();
    assert_eq!(blobs(store.path()).len(), 3);
}

#[tokio::test]
async fn concurrent_pulls_share_every_download() {
    let image = Image::new(&[200_000, 100_000, 5, 6, 7]);
    let registry = Registry::serve(move |request| image.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let (one, other) = (puller(store.path(), &registry), puller(store.path(), &registry));
    let name = registry.name();
    // Two pulls of one process, and one of another with the same store.
    let outcome = tokio::try_join!(pull(&one, &name), pull(&one, &name), pull(&other, &name)).unwrap();
    assert_eq!(outcome.0, outcome.2);
    assert_eq!(registry.requests("/blobs/").len(), 6);
    assert_eq!(registry.requests("/manifests/").len(), 2);
}

#[tokio::test]
async fn dropped_pull_leaves_its_bytes_to_the_next() {
    let image = Image::new(&[600_000]);
    let (layer, served) = (image.layers[0].clone(), image.clone());
    let registry = Registry::serve(move |request| match request.range {
        None if request.path.ends_with(layer.hex()) => {
            let bytes = served.bytes(&layer);
            broken(200, &[], Some(bytes.len()), bytes[..400_000].to_vec(), End::Silent)
        }
        _ => served.answer(request),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let puller = puller(store.path(), &registry);
    let layer = image.layers[0].clone();
    let partial: PathBuf = store.path().join("partial").join(layer.hex());
    let there = || std::fs::metadata(&partial).map_or(0, |m| m.len());
    let name = registry.name();
    tokio::select! {
        outcome = pull(&puller, &name) => panic!("{outcome:?}"),
        () = async { while there() < 256 << 10 { tokio::task::yield_now().await } } => {}
    }
    pull(&puller, &name).await.unwrap();
    let ranges: Vec<_> = registry.requests(layer.hex()).into_iter().map(|request| request.range).collect();
    assert!(ranges.len() == 2 && ranges[1].is_some_and(|from| from >= 256 << 10), "{ranges:?}");
}

#[tokio::test]
async fn busy_registry_is_tried_again_after_its_pause() {
    let image = Image::new(&[10]);
    let count = AtomicUsize::new(0);
    let registry = Registry::serve(move |request| match count.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => reply(429, &[("retry-after", "0")], "slow down"),
        _ => image.answer(request),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    pull(&puller(store.path(), &registry), &registry.name()).await.unwrap();
}

#[tokio::test]
async fn pause_beyond_the_limit_is_an_error_with_its_length() {
    let registry = Registry::serve(|_| reply(503, &[("retry-after", "3600")], "")).await;
    let store = tempfile::tempdir().unwrap();
    let error = pull(&puller(store.path(), &registry), &registry.name()).await.unwrap_err().to_string();
    assert!(error.contains("answered 503 and wants a pause of 3600 s"), "{error}");
    assert_eq!(registry.requests("").len(), 1);
}

/// Pulls an image whose layer is answered like this, which takes too long.
async fn takes_too_long(answer: impl Fn() -> Reply + Send + Sync + 'static) {
    let image = Image::new(&[400_000]);
    let layer = image.layers[0].clone();
    let registry = Registry::serve(move |request| match request.path.ends_with(layer.hex()) {
        true => answer(),
        false => image.answer(request),
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let limits = Limits { silence: std::time::Duration::from_millis(300), attempts: 1, ..limits() };
    let puller = Puller::open(store.path(), config(&[&registry], ""), limits).unwrap();
    let error = pull(&puller, &registry.name()).await.unwrap_err();
    assert!(matches!(error, Error::Silent { .. }), "{error}");
}

#[tokio::test]
async fn silent_registry_is_an_error() {
    takes_too_long(|| broken(200, &[], None, vec![0; 1000], End::Silent)).await;
}

#[tokio::test]
async fn image_that_is_not_allowed_is_not_requested() {
    let registry = Registry::serve(|_| reply(500, &[], "")).await;
    let store = tempfile::tempdir().unwrap();
    let config = hutch_registry::Config::pull_from("docker.io").unwrap();
    let puller = Puller::open(store.path(), config, limits()).unwrap();
    assert!(matches!(pull(&puller, &registry.name()).await, Err(Error::NotAllowed { .. })));
    assert_eq!(registry.requests("").len(), 0);
}

#[tokio::test]
async fn failing_mirror_is_followed_by_the_next_place() {
    let image = Image::new(&[1000]);
    let served = image.clone();
    let registry = Registry::serve(move |request| served.answer(request)).await;
    // The mirror has the manifest, and other content for every blob.
    let mirror = Registry::serve(move |request| {
        let path = request.path.replace("/hub/", "/");
        if path.contains("/blobs/") {
            reply(200, &[], "lie")
        } else {
            image.answer(&crate::fixture::Seen { path, ..request.clone() })
        }
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    let more = format!("mirrors: {{'{}': ['{}/hub']}}", registry.host, mirror.host);
    let puller = Puller::open(store.path(), config(&[&registry, &mirror], &more), limits()).unwrap();
    pull(&puller, &registry.name()).await.unwrap();
    assert_eq!(registry.requests("/manifests/").len(), 0);
    assert_eq!((mirror.requests("/v2/hub/org/app/blobs/").len(), registry.requests("/blobs/").len()), (2, 2));
    assert_eq!(blobs(store.path()).len(), 3);
}

#[tokio::test]
async fn image_is_pulled_by_its_digest() {
    let image = Image::new(&[10]);
    let digest = hutch_registry::Digest::of(&image.manifest);
    let registry = Registry::serve(move |request| image.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let name = ImageName::parse(&format!("{}/org/app:gone@{digest}", registry.host)).unwrap();
    let pulled = pull(&puller(store.path(), &registry), &name).await.unwrap();
    assert_eq!((&pulled.digest, &pulled.manifest), (&digest, &digest));
}

#[tokio::test]
async fn slow_download_holds_no_pull_from_another_place_back() {
    let image = Image::new(&[400_000]);
    let (layer, served) = (image.layers[0].clone(), image.clone());
    let slow = Registry::serve(move |request| match request.path.ends_with(layer.hex()) {
        true => broken(200, &[], None, vec![0; 300_000], End::Silent),
        false => served.answer(request),
    })
    .await;
    let layer = image.layers[0].clone();
    let registry = Registry::serve(move |request| image.answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let partial = store.path().join("partial").join(layer.hex());
    let (held, other) = (puller(store.path(), &slow), puller(store.path(), &registry));
    let (of_slow, name) = (slow.name(), registry.name());
    tokio::select! {
        outcome = pull(&held, &of_slow) => panic!("{outcome:?}"),
        outcome = async {
            while !partial.exists() { tokio::task::yield_now().await }
            pull(&other, &name).await
        } => drop(outcome.unwrap()),
    }
    assert_eq!(blobs(store.path()).len(), 3);
}

#[tokio::test]
async fn registry_that_sends_a_layer_too_slowly_is_an_error() {
    use http_body_util::BodyExt;

    takes_too_long(|| {
        let bytes = futures::stream::repeat(()).then(async |()| {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            Ok(hyper::body::Frame::data(bytes::Bytes::from_static(b"x")))
        });
        http::Response::new(http_body_util::StreamBody::new(Box::pin(bytes)).boxed_unsync())
    })
    .await;
}

#[tokio::test]
async fn pull_by_one_user_changes_no_image_of_another() {
    let images = [Image::new(&[10]), Image::new(&[20])];
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let now = count.clone();
    let registry = Registry::serve(move |request| images[now.load(Ordering::SeqCst)].answer(request)).await;
    let store = tempfile::tempdir().unwrap();
    let connections = hutch_registry::Connections::new(config(&[&registry], ""), limits()).unwrap();
    let puller = Puller::with_connections(store.path(), connections, true).unwrap();
    let name = registry.name();
    let one = pull(&puller, &name).await.unwrap();
    count.store(1, Ordering::SeqCst);
    let other = pull(&puller, &name).await.unwrap();
    assert_ne!(one.manifest, other.manifest);
    assert_eq!(puller.find(&name).unwrap(), None, "a tag means nothing here");
    for pulled in [one, other] {
        let stored = puller.find(&name.with_digest(&pulled.manifest)).unwrap().unwrap();
        assert_eq!(stored.manifest, pulled.manifest);
    }
}

/// Counts answers in work.
#[derive(Default)]
struct Work {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[tokio::test]
async fn several_layers_are_downloaded_at_once_and_no_more_than_the_limit() {
    use http_body_util::BodyExt;

    let image = Image::new(&[10, 20, 30, 40, 50, 60, 70, 80]);
    let (served, work) = (image.clone(), std::sync::Arc::new(Work::default()));
    let most = work.clone();
    let parallel = limits().parallel;
    let registry = Registry::serve(move |request| {
        let Some(layer) = served.layers.iter().find(|layer| request.path.ends_with(layer.hex())) else {
            return served.answer(request);
        };
        let (bytes, work) = (served.bytes(layer), work.clone());
        let length = bytes.len();
        let body = futures::stream::once(async move {
            work.most.fetch_max(work.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Without parallel downloads, the others never come. One that is too many would come meanwhile.
            while work.most.load(Ordering::SeqCst) < parallel {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            work.now.fetch_sub(1, Ordering::SeqCst);
            Ok(hyper::body::Frame::data(bytes::Bytes::from(bytes)))
        });
        let body = http_body_util::StreamBody::new(Box::pin(body)).boxed_unsync();
        http::Response::builder().header("content-length", length).body(body).unwrap()
    })
    .await;
    let store = tempfile::tempdir().unwrap();
    pull(&puller(store.path(), &registry), &registry.name()).await.unwrap();
    assert_eq!(most.most.load(Ordering::SeqCst), parallel);
    assert!(parallel > 1);
    assert_eq!(blobs(store.path()).len(), 10);
}
