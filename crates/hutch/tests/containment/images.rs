//! Image names of Pods that are folders of the host.

use std::fs;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::harness::{Up, WAIT_LIMIT};
use crate::names::{pod, submitted};

const SECRET: &str = "a secret of the host\n";

/// A layout whose manifest is a link to a file of the host. The digest by which it is named is another one.
fn linked_layout(folder: &Path, secret: &Path) {
    let digest = "0".repeat(64);
    fs::create_dir_all(folder.join("blobs/sha256")).expect("folder");
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": format!("sha256:{digest}"), "size": 1}]});
    fs::write(folder.join("index.json"), index.to_string()).expect("write");
    std::os::unix::fs::symlink(secret, folder.join("blobs/sha256").join(digest)).expect("link");
}

/// The warnings about a Pod with this image.
#[track_caller]
fn warnings(up: &Up, name: &str, image: &str) -> String {
    let container = json!({"name": "c", "image": image, "command": ["/bin/app"]});
    assert!(submitted(up, &pod(name, json!({"containers": [container]}))));
    let query = format!(
        "get events --field-selector=involvedObject.name={name},type=Warning -o jsonpath={{.items[*].message}}"
    );
    up.eventually(&query, |events| !events.is_empty())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn image_in_any_folder_is_refused_and_reveals_nothing() {
    hutch_testkit::require!(root, kubectl);
    let outside = tempfile::tempdir().expect("tempdir");
    let secret = outside.path().join("secret");
    fs::write(&secret, SECRET).expect("write");
    let images = outside.path().join("images");
    linked_layout(&images.join("linked"), &secret);
    linked_layout(&outside.path().join("elsewhere"), &secret);
    std::os::unix::fs::symlink(outside.path().join("elsewhere"), images.join("link")).expect("link");
    let place = |path: &str| format!("oci:{}/{path}", outside.path().display());

    let closed = Up::start(&[]);
    for (name, image) in
        [("closed", place("elsewhere")), ("path", place("elsewhere").replacen("oci:", "", 1))]
    {
        let printed = warnings(&closed, name, &image);
        assert!(printed.contains("--image-dir") && !printed.contains(&hex(SECRET.as_bytes())), "{printed}");
    }
    drop(closed);
    let up = Up::start(&["--image-dir", images.to_str().expect("a path")]);
    for (name, image, reason) in [
        ("elsewhere", place("elsewhere"), "--image-dir"),
        ("upwards", place("images/../elsewhere"), "--image-dir"),
        ("relative", "oci:../elsewhere".to_owned(), "--image-dir"),
        ("link", place("images/link"), "link"),
        ("linked", place("images/linked"), "link"),
    ] {
        let printed = warnings(&up, name, &image);
        assert!(printed.contains(reason) && !printed.contains(&hex(SECRET.as_bytes())), "{name}: {printed}");
    }
}

#[test]
fn pipes_in_image_folders_block_no_thread() {
    hutch_testkit::require!(root, kubectl);
    let images = tempfile::tempdir().expect("tempdir");
    let layout = images.path().join("piped");
    linked_layout(&layout, Path::new("/nowhere"));
    fs::remove_file(layout.join("index.json")).expect("remove");
    let made = std::process::Command::new("mkfifo").arg(layout.join("index.json")).status();
    assert!(made.expect("start").success());
    let mut run = std::process::Command::new(crate::harness::binary());
    run.args(["run", "--image", &format!("oci:{}", layout.display()), "--", "/bin/app"]);
    let mut child = run.stderr(std::process::Stdio::null()).spawn().expect("start");
    let started = std::time::Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if started.elapsed() > WAIT_LIMIT {
            child.kill().expect("kill");
            panic!("hutch run waits for a pipe");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let up = Up::start(&["--image-dir", images.path().to_str().expect("a path")]);
    let printed = warnings(&up, "piped", &format!("oci:{}", layout.display()));
    assert!(printed.contains("not a regular file"), "{printed}");
}
