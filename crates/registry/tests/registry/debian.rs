//! The registry of Debian, over TLS and with passwords.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use hutch_registry::{Config, Digest, Error, ImageName, Keychain, Puller};
use hutch_testkit::require;
use serde_json::json;

use crate::fixture::{Image, OCI_INDEX, OCI_MANIFEST, blobs, descriptor, limits, machine, pull};

/// `reader:reader-password` in the form of htpasswd.
const PASSWORDS: &str = "reader:$2b$04$M2Gf4DSUYZMhXdI6i3rZZ.COWrirClS44GZjDuy77zhXPhoPeg/zm\n";
const LOGIN: &str = "reader:reader-password";

/// A running registry.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
    host: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors cannot be reported from `drop`; it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    async fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (key, mut authority) = (rcgen::KeyPair::generate().unwrap(), rcgen::CertificateParams::default());
        // Its name must not be that of the certificate below, which would then count as self-signed.
        authority.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        file("ca.pem", &authority.self_signed(&key).unwrap().pem());
        let issuer = rcgen::Issuer::new(authority, key);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = file("server.pem", &certificate.signed_by(&key, &issuer).unwrap().pem());
        let key = file("server.key", &key.serialize_pem());
        let passwords = file("htpasswd", PASSWORDS);
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("content")}},
            "http": {"addr": format!("127.0.0.1:{port}"), "tls": {"certificate": certificate, "key": key}},
            "auth": {"htpasswd": {"realm": "test", "path": passwords}},
        });
        let config = file("config.yml", &config.to_string());
        let program = hutch_testkit::tool("docker-registry").unwrap();
        let mut child = Command::new(program);
        child.args(["serve", &config]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server { child: child.spawn().unwrap(), folder, host: format!("localhost:{port}") };
        let tries = 600;
        for _ in 0..tries {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return server;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("docker-registry does not listen");
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--user", LOGIN, "--cacert"]).arg(self.authority());
        let url =
            if path.starts_with("https:") { path.to_owned() } else { format!("https://{}{path}", self.host) };
        let output = curl.args(arguments).arg(url).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Uploads an image with the API of the registry.
    fn push(&self, image: &Image) {
        let body = self.folder.path().join("body");
        let data = format!("@{}", body.display());
        let (manifests, blobs): (Vec<_>, Vec<_>) =
            image.files.iter().partition(|(path, _)| path.contains("/manifests/"));
        for (path, (_, bytes)) in blobs {
            std::fs::write(&body, bytes).unwrap();
            let digest = path.rsplit('/').next().unwrap();
            let head = self.curl(&["--dump-header", "-", "--request", "POST"], "/v2/org/app/blobs/uploads/");
            let location = head.lines().filter_map(|line| line.split_once(": "));
            let (_, location) = { location }.find(|(name, _)| name.eq_ignore_ascii_case("location")).unwrap();
            let location = location.trim();
            let kind = "Content-Type: application/octet-stream";
            let put = ["--request", "PUT", "--header", kind, "--data-binary", &data];
            self.curl(&put, &format!("{location}&digest={digest}"));
        }
        // Images before the indexes that name them.
        for wanted in [OCI_MANIFEST, OCI_INDEX] {
            for (path, (kind, bytes)) in manifests.iter().filter(|(_, (kind, _))| kind == wanted) {
                std::fs::write(&body, bytes).unwrap();
                let kind = format!("Content-Type: {kind}");
                self.curl(&["--request", "PUT", "--header", &kind, "--data-binary", &data], path);
            }
        }
    }

    fn puller(&self, store: &Path, more: &str) -> Puller {
        let yaml =
            format!("allow: ['{}/org']\ncaFiles: ['{}']\n{more}", self.host, self.authority().display());
        Puller::open(store, Config::parse(&yaml).unwrap(), limits()).unwrap()
    }

    fn name(&self, rest: &str) -> ImageName {
        ImageName::parse(&format!("{}/org/app{rest}", self.host)).unwrap()
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
    let auth = base64::engine::general_purpose::STANDARD.encode(LOGIN);
    let login = server.folder.path().join("config.json");
    std::fs::write(&login, json!({"auths": {&server.host: {"auth": auth}}}).to_string()).unwrap();
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
    let text = json!({"auths": {&server.host: {"username": "reader", "password": "wrong"}}}).to_string();
    let wrong = Keychain::from_secrets([("s", text.as_bytes())]).unwrap();
    let error = puller.pull(&server.name(":v1"), &wrong, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("none of the credentials"), "{error}");
    let untrusting = Puller::open(store.path(), Config::pull_from("*").unwrap(), limits()).unwrap();
    let error = pull(&untrusting, &server.name(":v1")).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
