//! The registry of Debian, over TLS and with passwords.

use std::path::Path;

use base64::Engine as _;
use hutch_registry::{Config, Digest, Error, ImageName, Keychain, Puller};
use hutch_testkit::registry::{PASSWORD, Registry, USER};
use hutch_testkit::require;
use serde_json::json;

use crate::fixture::{Image, OCI_INDEX, OCI_MANIFEST, blobs, descriptor, limits, machine, pull};

/// A running registry.
struct Server(Registry);

impl Server {
    async fn start() -> Server {
        Server(tokio::task::spawn_blocking(Registry::start).await.unwrap())
    }

    /// Uploads an image with the API of the registry.
    fn push(&self, image: &Image) {
        let (manifests, blobs): (Vec<_>, Vec<_>) =
            image.files.iter().partition(|(path, _)| path.contains("/manifests/"));
        for (path, (_, bytes)) in blobs {
            self.0.put_blob("org/app", path.rsplit('/').next().unwrap(), bytes);
        }
        // Images before the indexes that name them.
        for wanted in [OCI_MANIFEST, OCI_INDEX] {
            for (path, (kind, bytes)) in manifests.iter().filter(|(_, (kind, _))| kind == wanted) {
                self.0.put(kind, bytes, path);
            }
        }
    }

    fn puller(&self, store: &Path, more: &str) -> Puller {
        let authority = self.0.path("ca.pem");
        let yaml = format!("allow: ['{}/org']\ncaFiles: ['{}']\n{more}", self.0.host, authority.display());
        Puller::open(store, Config::parse(&yaml).unwrap(), limits()).unwrap()
    }

    fn name(&self, rest: &str) -> ImageName {
        ImageName::parse(&format!("{}/org/app{rest}", self.0.host)).unwrap()
    }
}

#[tokio::test]
async fn image_is_pulled_from_the_registry_of_debian() {
    require!(docker_registry, curl);
    let server = Server::start().await;
    let mut image = Image::new(&[10, 1_000_000, 0]);
    let manifest = Digest::of(&image.manifest);
    let mut entry = descriptor(OCI_MANIFEST, &image.manifest);
    entry["platform"] = json!({"os": "linux", "architecture": machine()});
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}).to_string();
    let index = image.add_manifest("index", OCI_INDEX, index.into_bytes());
    server.push(&image);
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let login = server.0.path("config.json");
    std::fs::write(&login, json!({"auths": {&server.0.host: {"auth": auth}}}).to_string()).unwrap();
    let store = tempfile::tempdir().unwrap();
    let puller = server.puller(store.path(), &format!("credentials: ['{}']", login.display()));
    for (rest, digest) in [
        (":v1", &manifest),
        (":index", &index),
        (&*format!("@{manifest}"), &manifest),
        (&*format!(":v1@{index}"), &index),
    ] {
        let pulled = pull(&puller, &server.name(rest)).await.unwrap();
        assert_eq!((&pulled.digest, &pulled.manifest), (digest, &manifest), "{rest}");
        let unpacked = tempfile::tempdir().unwrap();
        let images = hutch_image::Store::open(unpacked.path()).unwrap();
        let resolved = images.resolve_pulled(store.path(), &server.name(rest).to_string()).unwrap();
        assert_eq!(resolved.layers.len(), 3, "{rest}");
    }
    assert_eq!(blobs(store.path()).len(), 3 + 1 + 2);
    let error = pull(&puller, &server.name(":none")).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn registry_of_debian_refuses_without_the_password_and_the_authority() {
    require!(docker_registry, curl);
    let server = Server::start().await;
    server.push(&Image::new(&[10]));
    let store = tempfile::tempdir().unwrap();
    let puller = server.puller(store.path(), "");
    let error = pull(&puller, &server.name(":v1")).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    let text = json!({"auths": {&server.0.host: {"username": "reader", "password": "wrong"}}}).to_string();
    let wrong = Keychain::from_secrets([("s", text.as_bytes())]).unwrap();
    let error = puller.pull(&server.name(":v1"), &wrong, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("none of the credentials"), "{error}");
    let untrusting = Puller::open(store.path(), Config::pull_from("*").unwrap(), limits()).unwrap();
    let error = pull(&untrusting, &server.name(":v1")).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn mirror_of_debian_answers_instead_of_its_origin_and_the_origin_when_it_is_down() {
    require!(docker_registry, curl);
    let start = || {
        let origin = Registry::start_open();
        (Registry::start_mirror_of(&origin), Server(origin))
    };
    let (mut mirror, origin) = tokio::task::spawn_blocking(start).await.unwrap();
    let (first, second) = (Image::new(&[10, 300_000]), Image::new(&[20, 400_000]));
    origin.push(&first);
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let login = origin.0.path("config.json");
    std::fs::write(&login, json!({"auths": {&mirror.host: {"auth": auth}}}).to_string()).unwrap();
    let config = format!(
        "allow: ['{0}/org']\nmirrors: {{'{0}': ['{1}']}}\ncaFiles: ['{2}', '{3}']\ncredentials: ['{4}']",
        origin.0.host,
        mirror.host,
        origin.0.path("ca.pem").display(),
        mirror.path("ca.pem").display(),
        login.display()
    );
    let config = Config::parse(&config).unwrap();
    let store = tempfile::tempdir().unwrap();
    let puller = Puller::open(store.path(), config, limits()).unwrap();
    let pulled = pull(&puller, &origin.name(":v1")).await.unwrap();
    assert_eq!(pulled.manifest, Digest::of(&first.manifest));
    let kept = mirror.path("content/docker/registry/v2/blobs/sha256");
    for layer in &first.layers {
        // Only what is requested of the mirror is kept there, and that after it has answered.
        let folder = kept.join(&layer.hex()[..2]).join(layer.hex());
        hutch_testkit::wait::until("the mirror has kept the layer", || folder.join("data").is_file());
    }

    origin.push(&second);
    mirror.stop();
    let pulled = pull(&puller, &origin.name(":v1")).await.unwrap();
    assert_eq!(pulled.manifest, Digest::of(&second.manifest));
    assert_eq!(blobs(store.path()).len(), 8);
}
