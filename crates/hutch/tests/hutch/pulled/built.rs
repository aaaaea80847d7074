//! Images that buildah builds and pushes.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{HUTCH, Home, PASSWORD, Registry, USER, failed, layers};
use crate::harness::succeeded;

impl Registry {
    /// Pushes an image of buildah, with these flags, under a name.
    fn push_built(&self, name: &str, push: &[&str]) {
        let buildah = |words: &[&str]| {
            let mut command = Command::new("buildah");
            command.args(["--storage-driver", "vfs", "--root"]).arg(self.path("built"));
            command.arg("--runroot").arg(self.path("building")).args(words);
            succeeded(words[0], &command.output().expect("buildah")).trim().to_owned()
        };
        // buildah trusts the authorities of a folder.
        std::fs::create_dir_all(self.path("trusted")).expect("made");
        std::fs::copy(self.path("ca.pem"), self.path("trusted/ca.crt")).expect("copied");
        let program = self.path("hutch-sandboxd").display().to_string();
        let container = buildah(&["from", "scratch"]);
        buildah(&["copy", &container, &program, "/bin/sandboxd"]);
        // The content differs, because buildah keeps packed layers for the next image.
        std::fs::write(self.path(name), format!("{name} {}", self.host)).expect("written");
        let file = self.path(name).display().to_string();
        buildah(&["copy", "--chown", "5:6", &container, &file, "/srv/of/five"]);
        buildah(&[
            "config",
            "--user",
            "5:6",
            "--workingdir",
            "/srv/of",
            "--env",
            "A=b",
            "--label",
            "l=m",
            "--port",
            "80",
            "--entrypoint",
            r#"["/bin/sandboxd"]"#,
            "--cmd",
            "--pause",
            "--stop-signal",
            "SIGINT",
            &container,
        ]);
        let local = format!("localhost/{name}");
        buildah(&[
            "commit",
            "--quiet",
            "--format",
            if push.contains(&"v2s2") { "docker" } else { "oci" },
            &container,
            &local,
        ]);
        let (creds, place) = (format!("{USER}:{PASSWORD}"), format!("docker://{}/built/{name}", self.host));
        let trusted = self.path("trusted").display().to_string();
        buildah(
            &[&["push", "--quiet", "--creds", &creds, "--cert-dir", &trusted][..], push, &[&local, &place]]
                .concat(),
        );
    }
}

#[test]
fn image_of_buildah_is_pulled_in_each_format() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, buildah);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let config = registry.trusting();
    for (name, push, layer) in [
        ("oci", &["--format", "oci"][..], "application/vnd.oci.image.layer.v1.tar+gzip"),
        ("docker", &["--format", "v2s2"], "application/vnd.docker.image.rootfs.diff.tar.gzip"),
    ] {
        registry.push_built(name, push);
        let image = format!("{}/built/{name}", registry.host);
        succeeded("pull", &home.hutch(&["image", "pull", &image, "--image-config", &config]));
        let inspected = succeeded("inspect", &home.hutch(&["image", "inspect", &image]));
        let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
        let config = &inspected[0]["config"];
        assert_eq!(
            (&config["user"], &config["workingDir"], &config["entrypoint"], &config["cmd"]),
            (&json!("5:6"), &json!("/srv/of"), &json!(["/bin/sandboxd"]), &json!(["--pause"])),
            "{name}: {inspected}"
        );
        let digest = inspected[0]["digest"].as_str().expect("a digest").replace(':', "/");
        let manifest = std::fs::read(home.lib().join("pulled/blobs").join(digest)).expect("the manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        assert_eq!(manifest["layers"][0]["mediaType"], layer, "{manifest}");
        let ran =
            succeeded("run", &home.hutch(&["run", "--image", &image, "--", "/bin/sandboxd", "--version"]));
        assert_eq!(ran, format!("hutch-sandboxd {}\n", env!("CARGO_PKG_VERSION")), "{name}");
    }
}

#[test]
fn exported_image_is_read_by_buildah_and_by_an_import() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, buildah);
    let (registry, home) = (Registry::start(), Home::new());
    home.log_in(&registry.host, PASSWORD);
    let (name, config) = (registry.name(), registry.trusting());
    succeeded("pull", &home.hutch(&["image", "pull", &name, "--image-config", &config]));
    let file = home.lib().join("app.tar").display().to_string();
    assert_eq!(succeeded("export", &home.hutch(&["image", "export", &name, &file])), format!("{name}\n"));
    for transport in ["oci-archive", "docker-archive"] {
        let mut buildah = Command::new("buildah");
        buildah.args(["--storage-driver", "vfs", "--root"]).arg(registry.path(transport));
        buildah.arg("--runroot").arg(registry.path("building"));
        buildah.args(["pull", "--quiet", &format!("{transport}:{file}")]);
        succeeded(transport, &buildah.output().expect("buildah"));
    }
    let streamed = home.hutch(&["image", "export", &name, "-"]);
    assert_eq!(streamed.stdout, std::fs::read(&file).expect("the archive"));
    succeeded("import", &home.hutch(&["image", "import", &file, "again:v1"]));
    let version = ["run", "--image", "hutch.local/again:v1", "--", "/hutch-sandboxd", "--version"];
    let ran = succeeded("run", &home.hutch(&version));
    assert_eq!(ran, format!("hutch-sandboxd {}\n", env!("CARGO_PKG_VERSION")));

    // A damaged blob is found, and the file of before stays.
    let blobs = std::fs::read_dir(home.lib().join("pulled/blobs/sha256")).expect("blobs");
    let largest =
        blobs.map(|blob| blob.expect("a blob").path()).max_by_key(|blob| blob.metadata().expect("it").len());
    let largest = largest.expect("a blob");
    let mut bytes = std::fs::read(&largest).expect("read");
    bytes[100] ^= 1;
    std::fs::write(&largest, bytes).expect("written");
    failed(&home.hutch(&["image", "export", &name, &file]), "does not have the digest");
    assert_eq!(streamed.stdout, std::fs::read(&file).expect("the archive"));
}

/// Builds an image with two layers, and pushes it to these places, each with its flags.
fn push_to(folder: &Path, format: &str, places: &[(&str, &[&str])]) {
    let buildah = |words: &[&str]| {
        let mut command = Command::new("buildah");
        command.args(["--storage-driver", "vfs", "--root"]).arg(folder.join("built"));
        command.arg("--runroot").arg(folder.join("building")).args(words);
        succeeded(words[0], &command.output().expect("buildah")).trim().to_owned()
    };
    let install = Command::new(HUTCH).args(["sandboxd", "install"]).arg(folder).output();
    succeeded("install", &install.expect("hutch"));
    let program = folder.join("hutch-sandboxd").display().to_string();
    let first = buildah(&["from", "scratch"]);
    buildah(&["copy", &first, &program, "/bin/sandboxd"]);
    buildah(&["commit", "--quiet", "--format", format, &first, "localhost/first"]);
    let second = buildah(&["from", "localhost/first"]);
    std::fs::write(folder.join("text"), "text").expect("written");
    buildah(&["copy", "--chown", "5:6", &second, &folder.join("text").display().to_string(), "/srv/text"]);
    buildah(&["config", "--user", "5:6", "--entrypoint", r#"["/bin/sandboxd"]"#, &second]);
    buildah(&["commit", "--quiet", "--format", format, &second, "localhost/org/app:v3"]);
    for (place, flags) in places {
        let place = format!("{place}:localhost/org/app:v3");
        buildah(&[&["push", "--quiet"][..], flags, &["localhost/org/app:v3", &place]].concat());
    }
}

#[test]
fn archives_that_buildah_pushes_are_imported_in_each_format_and_packing() {
    hutch_testkit::require!(root, user_namespaces, buildah);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let of = |transport: &str, name: &str| format!("{transport}:{}", at(name));
    let zstd = ["--compression-format", "zstd"];
    let places = [
        (of("oci-archive", "oci.tar"), &[][..]),
        (of("oci-archive", "zstd.tar"), &zstd[..]),
        (of("docker-archive", "docker.tar"), &[]),
    ];
    let places: Vec<_> = places.iter().map(|(place, flags)| (place.as_str(), *flags)).collect();
    push_to(folder.path(), "oci", &places);
    for (name, layer) in [
        ("oci.tar", "application/vnd.oci.image.layer.v1.tar+gzip"),
        ("zstd.tar", "application/vnd.oci.image.layer.v1.tar+zstd"),
        ("docker.tar", "application/vnd.oci.image.layer.v1.tar"),
    ] {
        let printed = succeeded("import", &home.hutch(&["image", "import", &at(name), "--json"]));
        let printed: Value = serde_json::from_str(&printed).expect("JSON");
        assert_eq!(printed["name"], "hutch.local/org/app:v3", "{name}");
        let digest = printed["manifest"].as_str().expect("a digest").replace(':', "/");
        let manifest = std::fs::read(home.lib().join("pulled/blobs").join(digest)).expect("the manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let kinds: Vec<_> = (0..2).map(|number| &manifest["layers"][number]["mediaType"]).collect();
        assert_eq!(kinds, [layer, layer], "{name}: {manifest}");
        let run = ["run", "--image", "hutch.local/org/app:v3", "--", "/bin/sandboxd", "--version"];
        let ran = succeeded("run", &home.hutch(&run));
        assert_eq!(ran, format!("hutch-sandboxd {}\n", env!("CARGO_PKG_VERSION")), "{name}");
        succeeded("remove", &home.hutch(&["image", "remove", "hutch.local/org/app:v3"]));
        assert!(layers(&home.lib().join("images")).is_empty(), "{name}");
    }
}
