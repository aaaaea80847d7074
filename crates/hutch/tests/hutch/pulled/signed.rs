//! Images that need a signature.

use base64::Engine as _;
use rcgen::SigningKey;
use serde_json::json;

use super::{Home, MANIFEST, PASSWORD, Registry, USER, apply, event, failed, hex, pod, waits};
use crate::harness::{HUTCH, Up, succeeded};

impl Registry {
    /// Signs the image as cosign does, under a tag.
    fn sign(&self, key: &rcgen::KeyPair) {
        let accept = format!("Accept: {MANIFEST}");
        let manifest = self.curl(&["--header", &accept], "/v2/org/app/manifests/v1");
        let digest = hex(manifest.as_bytes());
        let payload = json!({"critical": {
            "identity": {"docker-reference": format!("{}/org/app", self.host)},
            "image": {"docker-manifest-digest": format!("sha256:{digest}")},
            "type": "cosign container image signature",
        }, "optional": null});
        let payload = payload.to_string();
        let signature = key.sign(payload.as_bytes()).expect("signed");
        let mut layer =
            self.push_blob("application/vnd.dev.cosign.simplesigning.v1+json", payload.as_bytes());
        let signature = base64::engine::general_purpose::STANDARD.encode(signature);
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let config = self.push_blob("application/vnd.oci.image.config.v1+json", b"{}");
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
        self.push_manifest(&format!("sha256-{digest}.sig"), &manifest);
    }

    /// A file `images.yaml` that requires a signature of the key.
    fn requiring(&self, key: &rcgen::KeyPair) -> String {
        let file = self.path("signer.pub");
        std::fs::write(&file, key.public_key_pem()).expect("written");
        let rules = json!([{"prefix": format!("{}/org", self.host), "keys": [file]}]);
        let path = self.path("signed.yaml");
        let text = format!("caFiles: ['{}']\nsignatures: {rules}\n", self.path("ca.pem").display());
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}

#[test]
fn image_that_needs_a_signature_is_pulled_only_with_one() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let (key, other) =
        (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
    let (name, config) = (registry.name(), registry.requiring(&key));
    let pull = || home.hutch(&["image", "pull", &name, "--image-config", &config]);
    failed(&pull(), "has no valid signature: the registry has none");
    registry.sign(&other);
    failed(&pull(), "has no valid signature: the only one is of no key for this image");
    let listed = succeeded("list", &home.hutch(&["image", "list", "--json"]));
    assert_eq!(listed.trim(), "[]", "nothing is stored");
    registry.sign(&key);
    succeeded("pull", &pull());
}

#[test]
fn pod_waits_until_its_image_is_signed() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let key = rcgen::KeyPair::generate().expect("a key");
    let (name, trusting, config) = (registry.name(), registry.trusting(), registry.requiring(&key));
    let data = home.0.path().join("data");
    // The administrator pulls it without a check of signatures.
    let mut pull = std::process::Command::new(HUTCH);
    pull.args(["image", "pull", &name, "--image-config", &trusting, "--data-dir"]).arg(&data);
    succeeded("pull", &pull.env("HOME", home.0.path()).output().expect("hutch"));

    let prefix = format!("{}/org", registry.host);
    let up = Up::start_on(&data, &["--pull-from", &prefix, "--image-config", &config]);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={} --docker-username={USER} --docker-password={PASSWORD}",
        registry.host
    ));
    let secret = json!([{"name": "login"}]);
    apply(&up, "default", &pod("pod", &name, &json!({"imagePullSecrets": secret})));
    waits(&up, "default", "pod", "SignatureValidationFailed");
    let messages = event(&up, "default", "pod", "Failed");
    assert!(messages.contains("has no valid signature: the registry has none"), "{messages}");
    apply(
        &up,
        "default",
        &pod("never", &name, &json!({"imagePullSecrets": secret, "imagePullPolicy": "Never"})),
    );
    waits(&up, "default", "never", "ErrImageNeverPull");
    waits(&up, "default", "pod", "ImagePullBackOff");
    registry.sign(&key);
    up.ok("wait --for=condition=Ready pod/pod --timeout=120s");
    // What was checked once is known.
    apply(&up, "default", &pod("again", &name, &json!({"imagePullSecrets": secret})));
    up.ok("wait --for=condition=Ready pod/again --timeout=120s");
    assert!(event(&up, "default", "again", "Pulled").contains("already present"));
}
