use sha2::{Digest, Sha256};

use super::*;
use crate::Store;
use crate::shelf::PULLED;
use crate::unpack::hex;

/// A data folder with images.
struct Data(tempfile::TempDir);

impl Data {
    fn new() -> Data {
        Data::at(tempfile::tempdir().unwrap())
    }

    fn at(dir: tempfile::TempDir) -> Data {
        for folder in ["blobs/sha256", "partial"] {
            std::fs::create_dir_all(dir.path().join("pulled").join(folder)).unwrap();
        }
        let data = Data(dir);
        data.write("oci-layout", "{}");
        data.write("lock", "");
        data.write("index.json", &index(&[]));
        data
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("pulled")
    }

    fn images(&self) -> PathBuf {
        self.0.path().join("images")
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder().join(name), text).unwrap();
    }

    /// Stores a blob and returns its descriptor.
    fn blob(&self, media_type: &str, bytes: &[u8]) -> String {
        let hex = hex(&Sha256::digest(bytes));
        std::fs::write(self.folder().join("blobs/sha256").join(&hex), bytes).unwrap();
        format!(r#""mediaType": "{media_type}", "digest": "sha256:{hex}", "size": {}"#, bytes.len())
    }

    /// Stores an image with these files, a layer for each, and returns its descriptor.
    fn image(&self, files: &[&str]) -> String {
        let (mut layers, mut ids) = (Vec::new(), Vec::new());
        for file in files {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            tar.append_data(&mut header, file, &[][..]).unwrap();
            let bytes = tar.into_inner().unwrap();
            ids.push(format!(r#""sha256:{}""#, hex(&Sha256::digest(&bytes))));
            layers.push(format!("{{{}}}", self.blob("application/vnd.oci.image.layer.v1.tar", &bytes)));
        }
        let config = format!(
            r#"{{"architecture": "amd64", "os": "linux", "rootfs": {{"type": "layers", "diff_ids": [{}]}}}}"#,
            ids.join(",")
        );
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.as_bytes());
        let manifest =
            format!(r#"{{"schemaVersion": 2, "config": {{{config}}}, "layers": [{}]}}"#, layers.join(","));
        self.blob("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes())
    }

    fn catalog(&self) -> Catalog {
        Catalog::new(self.images(), vec![self.folder(), self.0.path().join("pulled-for-pods")])
    }

    fn find(&self, name: &str) -> Listed {
        let images = self.catalog().list().0;
        images.into_iter().find(|image| image.names.iter().any(|other| other == name)).unwrap()
    }

    fn blobs(&self) -> usize {
        std::fs::read_dir(self.folder().join("blobs/sha256")).unwrap().count()
    }

    fn layers(&self) -> usize {
        let entries = std::fs::read_dir(self.images()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(LAYER)).count()
    }
}

fn index(images: &[(&str, &str)]) -> String {
    let one = |(name, descriptor): &(&str, &str)| {
        format!(r#"{{{descriptor}, "annotations": {{"org.opencontainers.image.ref.name": "{name}"}}}}"#)
    };
    let images: Vec<String> = images.iter().map(one).collect();
    format!(r#"{{"schemaVersion": 2, "manifests": [{}]}}"#, images.join(","))
}

#[test]
fn image_loses_what_no_other_image_has() {
    let data = Data::new();
    let (one, two) = (data.image(&["shared", "one"]), data.image(&["shared", "two"]));
    data.write("index.json", &index(&[("a:1", &one), ("a:2", &one), ("b:1", &two)]));
    let store = Store::open(&data.images()).unwrap();
    for name in ["a:1", "b:1"] {
        store.resolve_pulled(&data.folder(), name).unwrap();
    }
    let all = data.catalog().list().0;
    assert_eq!(all.iter().map(|image| image.names.len()).collect::<Vec<_>>(), [2, 1]);
    assert!(all.iter().all(|image| image.layers.iter().all(|layer| layer.unpacked.is_some())));
    assert_eq!((data.blobs(), data.layers()), (7, 3));
    assert!(data.catalog().remove(&data.find("a:1"), &["a:1".into()]).unwrap().removed.is_empty());
    assert_eq!((data.find("a:2").names.len(), data.blobs()), (1, 7));
    let freed = data.catalog().remove(&data.find("a:2"), &[]).unwrap();
    assert_eq!((freed.removed.len(), freed.failed.len()), (4, 0), "{freed:?}");
    assert_eq!((data.blobs(), data.layers()), (4, 2));
    store.resolve_pulled(&data.folder(), "b:1").unwrap();
    assert!(store.resolve_pulled(&data.folder(), "a:2").is_err());
}

#[test]
fn image_in_use_stays_and_its_user_is_named() {
    let data = Data::new();
    data.write("index.json", &index(&[("a:1", &data.image(&["one"]))]));
    let store = Store::open(&data.images()).unwrap();
    let used = store.resolve_pulled(&data.folder(), "a:1").unwrap();
    assert_eq!(data.find("a:1").users, [std::process::id()]);
    let error = data.catalog().remove(&data.find("a:1"), &[]).unwrap_err().to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    data.write("index.json", &index(&[]));
    data.catalog().prune().unwrap();
    assert_eq!((data.blobs(), data.layers()), (0, 1), "its layers stay without a name too");
    drop(used);
    // A program that another test starts holds the lock until it has replaced this one.
    hutch_testkit::wait::until("the layer is removed", || {
        data.catalog().prune().unwrap();
        data.layers() == 0
    });
}

#[test]
fn content_of_no_image_is_pruned_unless_a_pull_is_in_progress() {
    let data = Data::new();
    data.write("index.json", &index(&[("a:1", &data.image(&["one"]))]));
    data.image(&["two"]);
    data.write("partial/abc", "begun");
    data.write("pulls", "");
    std::fs::create_dir_all(data.images().join("removed-by-a-killed-process/x")).unwrap();
    let pull = std::fs::File::open(data.folder().join("pulls")).unwrap();
    rustix::fs::flock(&pull, rustix::fs::FlockOperation::LockShared).unwrap();
    let freed = data.catalog().prune().unwrap();
    assert_eq!((freed.pulling, data.blobs()), (vec![data.folder()], 6));
    rustix::fs::flock(&pull, rustix::fs::FlockOperation::Unlock).unwrap();
    data.catalog().prune().unwrap();
    assert_eq!(data.blobs(), 3);
    assert_eq!(std::fs::read_dir(data.folder().join("partial")).unwrap().count(), 0);
    assert!(!data.images().join("removed-by-a-killed-process").exists());
}

/// Regression: unfinished folders stayed for hours, and files of locks forever.
#[test]
fn what_killed_processes_left_is_pruned_at_once() {
    let data = Data::new();
    let image = data.image(&["one"]);
    data.write("index.json", &index(&[("a:1", &image)]));
    let store = Store::open(&data.images()).unwrap();
    let used = store.resolve_pulled(&data.folder(), "a:1").unwrap();
    let names = || {
        let folders = [data.images(), data.images().join("uses"), data.folder()];
        let names = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
        let mut names: Vec<_> = names.map(|entry| entry.path()).collect();
        names.sort();
        names
    };
    data.write("pulls", "");
    let before = names();
    std::fs::create_dir_all(data.images().join("unfinished-left/x")).unwrap();
    let (layer, other) = ("layer-sha256-left", "image-sha256-left");
    for name in [&format!("lock-{layer}"), &format!("uses/{layer}"), &format!("uses/{other}")] {
        std::fs::write(data.images().join(name), "").unwrap();
    }
    data.write("index.json.new", "{");
    data.catalog().prune().unwrap();
    assert_eq!(names(), before);
    drop(used);
    data.catalog().prune().unwrap();
    assert!(data.find("a:1").last_used.is_some());
    assert_eq!(names(), before, "the time of the last use stays");
}

#[test]
fn nothing_is_removed_where_the_names_are_damaged() {
    let data = Data::new();
    data.image(&["one"]);
    data.write("index.json", "{");
    assert_eq!(data.catalog().prune().unwrap().failed.len(), 1);
    assert_eq!(data.blobs(), 3);
}

#[test]
fn name_by_digest_never_means_another_image() {
    let data = Data::new();
    let (own, other) = (data.image(&["one"]), data.image(&["two"]));
    let digest = |descriptor: &str| {
        let start = descriptor.find("sha256:").unwrap();
        descriptor[start..start + 71].to_owned()
    };
    let list = data.blob(
        "application/vnd.oci.image.index.v1+json",
        format!(r#"{{"schemaVersion": 2, "manifests": [{{{own}}}]}}"#).as_bytes(),
    );
    let (by_manifest, by_index) = (format!("a@{}", digest(&own)), format!("a@{}", digest(&list)));
    let store = Store::open(&data.images()).unwrap();
    data.write("index.json", &index(&[(&by_manifest, &own), (&by_index, &own)]));
    for name in [&by_manifest, &by_index] {
        store.resolve_pulled(&data.folder(), name).unwrap();
    }
    data.write("index.json", &index(&[(&by_manifest, &other), (&by_index, &other)]));
    for name in [&by_manifest, &by_index] {
        store.resolve_pulled(&data.folder(), name).unwrap_err();
    }
    let check = |pinned: &str, manifest: &str| Store::check_pinned(&data.folder(), pinned, manifest);
    check(&digest(&own), &digest(&own)).unwrap();
    check(&digest(&list), &digest(&own)).unwrap();
    check(&digest(&list), &digest(&other)).unwrap_err();
    check(&digest(&other), &digest(&own)).unwrap_err();
    let forged = digest(&list).replace("sha256:", "");
    std::fs::write(
        data.folder().join("blobs/sha256").join(forged),
        format!(r#"{{"schemaVersion": 2, "manifests": [{{{other}}}]}}"#),
    )
    .unwrap();
    check(&digest(&list), &digest(&other)).unwrap_err();
}

#[test]
fn damaged_folder_does_not_hide_the_other_one() {
    let data = Data::new();
    data.write("index.json", &index(&[("a:1", &data.image(&["one"]))]));
    data.image(&["two"]);
    let other = data.0.path().join("pulled-for-pods");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("index.json"), "[]").unwrap();
    std::fs::create_dir_all(data.images().join(format!("{LAYER}x"))).unwrap();
    let (images, damaged) = data.catalog().list();
    assert_eq!((images.len(), damaged.len()), (1, 1));
    assert!(data.catalog().config(&images[0]).unwrap().env.is_empty());
    assert_eq!(data.catalog().prune().unwrap().failed.len(), 1);
    assert_eq!((data.blobs(), data.layers()), (3, 1), "the damaged folder could name the layer");
}

#[test]
fn collected_image_keeps_its_name_while_a_pull_is_in_progress() {
    let data = Data::new();
    data.write("index.json", &index(&[("a:1", &data.image(&["one"]))]));
    Store::open(&data.images()).unwrap().resolve_pulled(&data.folder(), "a:1").unwrap();
    data.write("pulls", "");
    let pull = std::fs::File::open(data.folder().join("pulls")).unwrap();
    rustix::fs::flock(&pull, rustix::fs::FlockOperation::LockShared).unwrap();
    let freed = data.catalog().collect(&data.find("a:1")).unwrap();
    assert_eq!((freed.pulling.len(), data.blobs(), data.layers()), (1, 3, 0));
    // Closing is not enough: a process that another test starts has the file too until it executes its program.
    rustix::fs::flock(&pull, rustix::fs::FlockOperation::Unlock).unwrap();
    data.catalog().collect(&data.find("a:1")).unwrap();
    assert_eq!((data.catalog().list().0.len(), data.blobs()), (0, 0));
}

#[test]
fn name_that_a_pull_has_moved_stays() {
    let data = Data::new();
    let (old, new) = (data.image(&["one"]), data.image(&["two"]));
    data.write("index.json", &index(&[("a:1", &old)]));
    let listed = data.find("a:1");
    data.write("index.json", &index(&[("a:1", &new)]));
    data.catalog().remove(&listed, &[]).unwrap();
    assert_ne!(data.find("a:1").digest, listed.digest);
}

#[test]
fn digest_that_does_not_lead_to_the_manifest_is_not_listed() {
    let data = Data::new();
    let one = data.image(&["one"]);
    let named = index(&[("a:1", &one)]);
    let other = format!("sha256:{}", "e".repeat(64));
    data.write(
        "index.json",
        &named.replace(r#""annotations": {"#, &format!(r#""annotations": {{"{PULLED}": "{other}", "#)),
    );
    let found = data.find("a:1");
    assert_eq!(found.pulled, found.digest);
    data.write("blobs/sha256/README", "no blob");
    assert!(data.catalog().prune().unwrap().removed.is_empty());
}

/// Regression: the list of names could not be written without the image on a full disk, so nothing was freed.
#[test]
fn image_is_removed_from_a_full_disk() {
    hutch_testkit::require!(root);
    let disk = hutch_testkit::disk::Disk::new(8 << 20, &["mkfs.ext4", "-q", "-F", "-m", "0"]);
    let data = Data::at(tempfile::tempdir_in(disk.path()).unwrap());
    let image = data.image(&["a"]);
    data.write("index.json", &index(&[("a:1", &image)]));
    Store::open(&data.images()).unwrap().resolve_pulled(&data.folder(), "a:1").unwrap();
    let listed = data.find("a:1");
    let layer = listed.layers[0].unpacked.as_ref().unwrap();
    let mut large = std::fs::File::create(layer.join("large")).unwrap();
    let full =
        std::iter::repeat_with(|| std::io::Write::write_all(&mut large, &[0; 1024])).find_map(Result::err);
    assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    drop(large);
    assert!(std::fs::write(data.folder().join("more"), "x").is_err(), "the disk is full");
    let freed = data.catalog().remove(&listed, &[]).unwrap();
    assert!(freed.bytes > 1 << 20 && freed.failed.is_empty(), "{freed:?}");
    assert_eq!((data.catalog().list().0.len(), data.blobs(), data.layers()), (0, 0, 0));
}
