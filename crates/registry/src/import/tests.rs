use super::*;
use crate::Pulled;

/// A configuration for this machine, with so many layers.
fn config() -> Vec<u8> {
    let machine = Platform::of_this_machine();
    json!({"os": "linux", "architecture": machine.architecture, "rootfs": {"type": "layers", "diff_ids": []}})
        .to_string()
        .into_bytes()
}

fn archive(files: &[(&str, &[u8])]) -> tar::Builder<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        // Also paths that the library refuses.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    archive
}

fn saved(layer: &str) -> Vec<u8> {
    let image = json!({"Config": "c.json", "RepoTags": ["ghcr.io/org/app:v1"], "Layers": [layer]});
    json!([image]).to_string().into_bytes()
}

/// Imports the archive into a new store. Returns what was imported, or the error, and the store.
fn imported(archive: &[u8], name: Option<&str>) -> (Result<(String, Pulled), String>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("archive");
    std::fs::write(&file, archive).unwrap();
    let result = import_file(&dir, &file, name);
    (result, dir)
}

fn import_file(dir: &tempfile::TempDir, file: &Path, name: Option<&str>) -> Result<(String, Pulled), String> {
    let name = name.map(|name| ImageName::parse_imported(name).unwrap());
    let result = import(&dir.path().join("store"), file, name.as_ref(), &|_, _| ());
    let kept = result.and_then(|fetched| Ok((fetched.name().to_string(), fetched.keep()?)));
    kept.map_err(|error| error.to_string())
}

fn error(archive: &[u8]) -> String {
    let (result, dir) = imported(archive, Some("app"));
    let layout = Layout::open(&dir.path().join("store")).unwrap();
    assert!(layout.find(&ImageName::parse_imported("app").unwrap()).unwrap().is_none());
    assert_eq!(std::fs::read_dir(layout.partials()).unwrap().count(), 0);
    result.unwrap_err()
}

/// Files of an OCI layout with one image.
fn layout_files(name: Option<&str>) -> Vec<(String, Vec<u8>)> {
    let (config, layer) = (config(), b"a layer".to_vec());
    let blob = |bytes: &[u8]| (format!("blobs/sha256/{}", Digest::of(bytes).hex()), bytes.to_vec());
    let described = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", &config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = described("application/vnd.oci.image.manifest.v1+json", &manifest);
    if let Some(name) = name {
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    }
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes();
    let text = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes);
    vec![
        blob(&config),
        blob(&layer),
        blob(&manifest),
        text("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        text("index.json", index),
    ]
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let files: Vec<_> = files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    archive(&files).into_inner().unwrap()
}

#[test]
fn archive_of_docker_save_has_the_name_of_its_image() {
    let files = [("c.json", &*config()), ("1/layer.tar", b"layer"), ("manifest.json", &saved("1/layer.tar"))];
    let archive = archive(&files).into_inner().unwrap();
    let (result, dir) = imported(&archive, None);
    let (name, pulled) = result.unwrap();
    assert_eq!(name, "hutch.local/org/app:v1");
    let layout = Layout::open(&dir.path().join("store")).unwrap();
    let found = layout.find(&ImageName::parse(&name).unwrap()).unwrap().unwrap();
    assert_eq!(found.manifest.digest, pulled.manifest);
    let layer = Blob { digest: Digest::of(b"layer"), size: 5 };
    assert!(layout.has(&layer));
    assert_eq!(imported(&archive, Some("b:v2")).0.unwrap().0, "hutch.local/b:v2");
}

#[test]
fn layout_is_imported_from_a_folder_and_from_archives() {
    use std::io::Write as _;
    let files = layout_files(Some("docker.io/library/app:v1"));
    let tar = tar_of(&files);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("layout");
    for (path, bytes) in &files {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let of_folder = import_file(&dir, &folder, None).unwrap();
    assert_eq!(of_folder.0, "hutch.local/app:v1");
    for archive in [tar, gzip] {
        assert_eq!(imported(&archive, None).0.unwrap(), of_folder);
    }
    let blob = folder.join(&files[1].0);
    std::fs::rename(&blob, dir.path().join("layer")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("layer"), &blob).unwrap();
    assert!(import_file(&dir, &folder, None).is_err());
}

#[test]
fn layout_without_a_name_needs_one() {
    for name in [None, Some("latest")] {
        let tar = tar_of(&layout_files(name));
        assert!(imported(&tar, None).0.unwrap_err().contains("hutch image import FILE NAME"));
        assert_eq!(imported(&tar, Some("app")).0.unwrap().0, "hutch.local/app:latest");
    }
}

#[test]
fn layout_with_a_wrong_or_missing_blob_is_refused() {
    for number in 0..3 {
        let mut files = layout_files(None);
        files[number].1[0] ^= 1;
        let message = error(&tar_of(&files));
        assert!(message.contains("another digest or size"), "{message}");
        files.remove(number);
        let message = error(&tar_of(&files));
        assert!(message.contains("is missing"), "{message}");
    }
}

#[test]
fn hostile_archives_are_refused() {
    let (config, manifest) = (config(), saved("layer.tar"));
    let with = |path: &str| {
        let files = [("c.json", &*config), (path, b"layer"), ("manifest.json", &*manifest)];
        archive(&files).into_inner().unwrap()
    };
    for (path, why) in [
        ("../layer.tar", "leads upwards"),
        ("/etc/layer.tar", "is absolute"),
        ("c.json", "two entries have one path"),
        ("other.tar", "\"layer.tar\" is missing, or is a link"),
    ] {
        let message = error(&with(path));
        assert!(message.contains(why), "{path}: {message}");
    }
    let mut linked = archive(&[("c.json", &config), ("manifest.json", &manifest)]);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    linked.append_link(&mut header, "layer.tar", "/etc/passwd").unwrap();
    assert!(error(&linked.into_inner().unwrap()).contains("is a link"));
    let two = json!([{"Config": "a", "Layers": []}, {"Config": "b", "Layers": []}]).to_string();
    assert!(error(&archive(&[("manifest.json", two.as_bytes())]).into_inner().unwrap()).contains("2 images"));
    let whole = with("layer.tar");
    for damaged in [&whole[..700], b"", b"no archive", &[0; 1024], &ZSTD] {
        error(damaged);
    }
}

#[test]
fn image_of_another_machine_is_refused() {
    let config = br#"{"os":"linux","architecture":"riscv64"}"#;
    let files = [("c.json", &config[..]), ("1", b"layer"), ("manifest.json", &saved("1"))];
    let message = error(&archive(&files).into_inner().unwrap());
    assert!(message.contains("riscv64"), "{message}");
}

#[test]
fn imported_names_are_not_those_of_a_registry() {
    let name = ImageName::parse_imported("hutch.local/app:v1").unwrap();
    assert!(name.is_imported() && ImageName::parse_imported("app:v1").unwrap() == name);
    let config = crate::Config::default().with_pull_from("*").unwrap();
    assert!(config.check(&name).unwrap_err().to_string().contains("hutch image import"));
    let digest = format!("app@{}", Digest::of(b""));
    for wrong in ["", "hutch.local/", "APP", "localhost:5000/app", &digest] {
        assert!(ImageName::parse_imported(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn name_of_another_image_of_an_index_is_not_taken() {
    let mut files = layout_files(None);
    let index = files.iter_mut().find(|(path, _)| path == "index.json").unwrap();
    let mut document: Value = serde_json::from_slice(&index.1).unwrap();
    let other = json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": Digest::of(b"other").to_string(), "size": 5,
        "platform": {"os": "linux", "architecture": "riscv64"},
        "annotations": {"io.containerd.image.name": "docker.io/library/other:v1"},
    });
    let machine = Platform::of_this_machine();
    document["manifests"][0]["platform"] = json!({"os": "linux", "architecture": machine.architecture});
    document["manifests"].as_array_mut().unwrap().push(other);
    index.1 = document.to_string().into_bytes();
    let message = imported(&tar_of(&files), None).0.unwrap_err();
    assert!(message.contains("it has no name"), "{message}");
    assert_eq!(imported(&tar_of(&files), Some("app")).0.unwrap().0, "hutch.local/app:latest");
}

#[test]
fn layers_are_counted_before_they_are_read() {
    let many = json!([{"Config": "c.json", "Layers": vec!["missing"; MAX_LAYERS + 1]}]).to_string();
    let files = [("c.json", &*config()), ("manifest.json", many.as_bytes())];
    let message = error(&archive(&files).into_inner().unwrap());
    assert!(message.contains("127 layers"), "{message}");
}

#[test]
fn files_of_an_import_are_not_swept_before_they_are_locked() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                Layout::open(dir.path()).unwrap();
            }
        });
        let names = (0..500).map(|_| New::start(&layout).map(|new| new.file.path().exists()));
        let kept: Vec<_> = names.collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(kept.iter().all(|kept| kept.as_ref().is_ok_and(|kept| *kept)));
    });
}

#[test]
fn image_keeps_all_names_of_its_archive() {
    let with = |tags: &[String]| {
        let list = json!([{"Config": "c.json", "RepoTags": tags, "Layers": ["l"]}]).to_string().into_bytes();
        archive(&[("c.json", &*config()), ("l", b"layer"), ("manifest.json", &list)]).into_inner().unwrap()
    };
    let tags = ["ghcr.io/org/app:v1", "ghcr.io/org/app:latest", "docker.io/org/app:v1"].map(str::to_owned);
    let (result, dir) = imported(&with(&tags), None);
    let (name, image) = result.unwrap();
    assert_eq!(name, "hutch.local/org/app:v1");
    let layout = Layout::open(&dir.path().join("store")).unwrap();
    for name in ["org/app:v1", "org/app:latest"] {
        let found = layout.find(&ImageName::parse_imported(name).unwrap()).unwrap().unwrap();
        assert_eq!(found.pulled, image.digest, "{name}");
    }
    let many: Vec<String> = (0..=MAX_NAMES).map(|number| format!("app:v{number}")).collect();
    assert!(imported(&with(&many), None).0.unwrap_err().contains("the list of its names"));
    assert_eq!(imported(&with(&many), Some("one:v1")).0.unwrap().0, "hutch.local/one:v1");

    let mut files = layout_files(Some("ghcr.io/org/app:v1"));
    let index = &mut files.last_mut().unwrap().1;
    let mut document: Value = serde_json::from_slice(index).unwrap();
    let mut second = document["manifests"][0].clone();
    second["annotations"]["org.opencontainers.image.ref.name"] = "ghcr.io/org/app:v2".into();
    document["manifests"].as_array_mut().unwrap().push(second);
    *index = document.to_string().into_bytes();
    let (result, dir) = imported(&tar_of(&files), None);
    assert_eq!(result.unwrap().0, "hutch.local/org/app:v1");
    let layout = Layout::open(&dir.path().join("store")).unwrap();
    assert!(layout.find(&ImageName::parse_imported("org/app:v2").unwrap()).unwrap().is_some());
}

/// Regression: such a name took `latest` from another image.
#[test]
fn digest_among_the_names_of_an_image_is_no_name() {
    let digest = Digest::of(b"").to_string();
    let names = |own: &[String]| {
        let names = imported_names(own).unwrap();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let pinned = format!("ghcr.io/org/app@{digest}");
    assert_eq!(names(&["ghcr.io/org/app:v1".into(), pinned.clone(), digest]), ["hutch.local/org/app:v1"]);
    assert_eq!(names(&[pinned]), ["hutch.local/org/app:latest"], "it has no other");
}

#[test]
fn progress_of_an_import_ends_with_all_bytes() {
    let files = layout_files(Some("docker.io/library/app:v1"));
    let dir = tempfile::tempdir().unwrap();
    let (folder, archive) = (dir.path().join("layout"), dir.path().join("archive"));
    std::fs::write(&archive, tar_of(&files)).unwrap();
    for (path, bytes) in &files {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    for from in [folder, archive] {
        let seen = std::cell::RefCell::new(Vec::new());
        import(&dir.path().join("store"), &from, None, &|done, size| seen.borrow_mut().push((done, size)))
            .unwrap();
        let seen = seen.into_inner();
        assert!(seen.is_sorted() && seen.iter().all(|(done, size)| done <= size), "{seen:?}");
        assert!(seen.last().is_some_and(|(done, size)| done == size), "{from:?}: {seen:?}");
    }
}

#[test]
fn archive_that_unpacks_to_much_more_than_its_size_is_refused_by_the_bound() {
    use std::io::Write as _;
    let mut header = tar::Header::new_gnu();
    // Its content is read, and not stored.
    header.set_entry_type(tar::EntryType::Char);
    header.set_size(257 << 20);
    header.set_cksum();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(header.as_bytes()).unwrap();
    std::io::copy(&mut std::io::repeat(0).take(257 << 20), &mut gzip).unwrap();
    let message = error(&gzip.finish().unwrap());
    assert!(message.contains("more than 200 times its size, and more than 256 MiB"), "{message}");
}
