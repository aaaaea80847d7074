//! OCI layout folders, honest ones and hostile ones.

#![allow(clippy::disallowed_methods, reason = "constant names in temporary folders")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hutch_image::{Error, Store};
use serde_json::json;
use sha2::{Digest, Sha256};

/// An image under construction.
struct Image {
    dir: tempfile::TempDir,
    layers: Vec<serde_json::Value>,
    diff_ids: Vec<String>,
}

/// Entry of a layer.
enum Entry<'a> {
    Dir(&'a str),
    File(&'a str, &'a str, u32),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Device(&'a str),
}

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1000);
        header.set_mode(0o755);
        header.set_size(0);
        let (path, data) = match entry {
            Entry::Dir(path) => {
                header.set_entry_type(tar::EntryType::Directory);
                (path, "")
            }
            Entry::File(path, data, mode) => {
                header.set_mode(*mode);
                header.set_size(data.len() as u64);
                (path, *data)
            }
            Entry::Link(path, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_link_name_literal(target).unwrap();
                (path, "")
            }
            Entry::Hard(path, target) => {
                header.set_entry_type(tar::EntryType::Link);
                header.set_link_name_literal(target).unwrap();
                (path, "")
            }
            Entry::Device(path) => {
                header.set_entry_type(tar::EntryType::Char);
                header.set_device_major(1).unwrap();
                header.set_device_minor(3).unwrap();
                (path, "")
            }
        };
        // Written by hand: the crate itself refuses paths that lead upwards.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, data.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl Image {
    fn new() -> Image {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        Image { dir, layers: Vec::new(), diff_ids: Vec::new() }
    }

    fn blob(&self, bytes: &[u8]) -> String {
        let digest = sha(bytes);
        fs::write(self.dir.path().join("blobs/sha256").join(&digest), bytes).unwrap();
        digest
    }

    fn layer(self, packing: &str, entries: &[Entry<'_>]) -> Image {
        self.packed(packing, archive(entries))
    }

    fn packed(mut self, packing: &str, plain: Vec<u8>) -> Image {
        let packed = match packing {
            "+gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(&plain).unwrap();
                encoder.finish().unwrap()
            }
            "+zstd" => zstd::encode_all(&*plain, 1).unwrap(),
            _ => plain.clone(),
        };
        let digest = self.blob(&packed);
        self.layers.push(json!({
            "mediaType": format!("application/vnd.oci.image.layer.v1.tar{packing}"),
            "digest": format!("sha256:{digest}"), "size": packed.len(),
        }));
        self.diff_ids.push(format!("sha256:{}", sha(&plain)));
        self
    }

    fn write(&self) {
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": arch, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
            "config": {"Entrypoint": ["/bin/app"], "Cmd": ["-v"], "Env": ["A=1", "B=x=y"], "User": "app",
                       "WorkingDir": "/srv"},
        })
        .to_string();
        let config_digest = self.blob(config.as_bytes());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": format!("sha256:{config_digest}"), "size": config.len()},
            "layers": self.layers,
        })
        .to_string();
        let manifest_digest = self.blob(manifest.as_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{manifest_digest}"), "size": manifest.len(),
            "annotations": {"org.opencontainers.image.ref.name": "v1"},
        }]});
        fs::write(self.dir.path().join("index.json"), index.to_string()).unwrap();
        fs::write(self.dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    fn name(&self) -> String {
        format!("oci:{}", self.dir.path().display())
    }
}

/// Names in a folder, except that of the files of holds.
fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "uses");
    names.sort();
    names
}

#[test]
fn layers_of_every_packing_are_unpacked_for_an_overlay() {
    let image = Image::new()
        .layer("", &[Entry::Dir("etc/"), Entry::File("etc/passwd", "app:x:7:8::/srv:/bin/sh\n", 0o644)])
        .layer(
            "+gzip",
            &[Entry::File("./bin/app", "#!/bin/sh\n", 0o4755), Entry::Hard("bin/twin", "bin/app")],
        )
        .layer(
            "+zstd",
            &[
                Entry::File("etc/.wh.motd", "", 0o644),
                Entry::File("opt/.wh..wh..opq", "", 0o644),
                Entry::Link("bin/link", "../etc/passwd"),
                Entry::Device("dev/null"),
            ],
        );
    image.write();
    let images = tempfile::tempdir().unwrap();
    let store = Store::open(images.path()).unwrap();
    let found = store.resolve(&image.name()).unwrap();
    let [top, middle, bottom] = &found.layers[..] else { panic!("{:?}", found.layers) };
    assert!(bottom.join("etc/passwd").is_file());
    let app = fs::metadata(middle.join("bin/app")).unwrap();
    assert_eq!(app.mode() & 0o7777, 0o755, "set-id bits are not kept");
    assert_eq!(app.ino(), fs::metadata(middle.join("bin/twin")).unwrap().ino());
    let gone = fs::symlink_metadata(top.join("etc/motd")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(fs::read_link(top.join("bin/link")).unwrap(), Path::new("../etc/passwd"));
    assert!(fs::symlink_metadata(top.join("dev/null")).is_err(), "device nodes are left out");
    let mut mark = [0u8; 4];
    assert_eq!(rustix::fs::getxattr(top.join("opt"), "user.overlay.opaque", &mut mark), Ok(1));
    assert_eq!(found.config.entrypoint, ["/bin/app"]);
    assert_eq!(found.config.env[1], ("B".to_owned(), "x=y".to_owned()));
    assert_eq!(found.config.working_dir, Some(PathBuf::from("/srv")));
    let account = found.account(&found.config.user).unwrap();
    assert_eq!((account.uid, account.gid), (7, 8));

    let tagged = store.resolve(&format!("{}:v1", image.name())).unwrap();
    assert_eq!(tagged, found, "the second time gives the same");
    assert!(names_in(images.path()).iter().all(|name| name.starts_with("layer-sha256-")));
    let missing = store.resolve(&format!("{}:v2", image.name())).unwrap_err().to_string();
    assert!(missing.contains("v2"), "{missing}");
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let out = outside.path().to_str().unwrap();
    let absolute = format!("{out}/absolute");
    let cases: Vec<(&str, Vec<Entry<'_>>)> = vec![
        ("leads upwards", vec![Entry::File("../escaped", "x", 0o644)]),
        ("leads upwards", vec![Entry::File("a/../../escaped", "x", 0o644)]),
        ("absolute", vec![Entry::File(&absolute, "x", 0o644)]),
        ("a link is on its path", vec![Entry::Link("door", out), Entry::File("door/inside", "x", 0o644)]),
        ("leads upwards", vec![Entry::Hard("mine", "../../../../etc/passwd")]),
        ("absolute", vec![Entry::Hard("mine", "/etc/passwd")]),
        ("a link is on its path", vec![Entry::Link("door", "/etc"), Entry::Hard("mine", "door/passwd")]),
        ("whiteout of nothing", vec![Entry::File(".wh...", "", 0o644)]),
    ];
    for (reason, entries) in cases {
        let image = Image::new().layer("", &entries);
        image.write();
        let images = tempfile::tempdir().unwrap();
        let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err();
        assert!(matches!(error, Error::HostileEntry { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error} should say: {reason}");
        assert!(names_in(images.path()).is_empty(), "{:?}", names_in(images.path()));
    }
    assert!(names_in(outside.path()).is_empty(), "nothing was written outside");
}

/// A layer of one entry behind headers of this kind and size.
fn behind_headers(kind: tar::EntryType, bytes: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_path("header").unwrap();
    header.set_size(bytes as u64);
    header.set_cksum();
    // A record of the PAX format; other kinds take any text.
    let mut record = format!("{bytes} comment=").into_bytes();
    record.resize(bytes - 1, b'n');
    record.push(b'\n');
    builder.append(&header, &record[..]).unwrap();
    let mut stream = builder.into_inner().unwrap();
    stream.truncate(stream.len() - 1024);
    stream.extend(archive(&[Entry::File("file", "content", 0o644)]));
    stream
}

#[test]
fn headers_of_a_layer_have_a_bound() {
    use tar::EntryType::{GNULongLink, GNULongName, XHeader};
    for kind in [GNULongName, GNULongLink, XHeader] {
        for (bytes, good) in [(1 << 12, kind != GNULongName), (1 << 21, false), (64 << 20, false)] {
            let image = Image::new().packed("", behind_headers(kind, bytes));
            image.write();
            let images = tempfile::tempdir().unwrap();
            let found = Store::open(images.path()).unwrap().resolve(&image.name());
            assert_eq!(found.is_ok(), good, "{kind:?} of {bytes}: {:?}", found.err());
            if let Err(error) = found
                && bytes > 1 << 20
            {
                assert!(format!("{error:?}").contains("headers of more than 1048576 bytes"), "{error:?}");
            }
        }
    }
}

#[test]
fn a_link_that_is_written_over_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    let link = victim.to_str().unwrap();
    let image = Image::new().layer("", &[Entry::Link("file", link), Entry::File("file", "new", 0o644)]);
    image.write();
    let images = tempfile::tempdir().unwrap();
    let found = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap();
    assert_eq!(fs::read_to_string(found.layers[0].join("file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(victim).unwrap(), "kept");
}

#[test]
fn changed_content_is_refused() {
    let image = Image::new().layer("+gzip", &[Entry::File("a", "honest", 0o644)]);
    image.write();
    let layer = image.layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let other = Image::new().layer("+gzip", &[Entry::File("a", "forged", 0o644)]);
    let forged = other.layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    fs::copy(
        other.dir.path().join("blobs/sha256").join(forged),
        image.dir.path().join("blobs/sha256").join(layer),
    )
    .unwrap();
    let images = tempfile::tempdir().unwrap();
    let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert!(names_in(images.path()).is_empty());
}

#[test]
fn invalid_layout_is_reported() {
    let empty = tempfile::tempdir().unwrap();
    let images = tempfile::tempdir().unwrap();
    let store = Store::open(images.path()).unwrap();
    let text = store.resolve(&format!("oci:{}", empty.path().display())).unwrap_err().to_string();
    assert!(text.contains("oci-layout"), "{text}");
    let text = store.resolve("python:3.12").unwrap_err().to_string();
    assert!(text.contains("hutch image pull"), "{text}");
}

#[test]
fn built_in_images_need_nothing() {
    let images = tempfile::tempdir().unwrap();
    let store = Store::open(images.path()).unwrap();
    let host = store.resolve("hutch/host").unwrap();
    assert!(host.layers[0].join("etc/passwd").is_file());
    assert!(host.mounts.iter().any(|mount| mount.target == Path::new("/usr")));
    assert!(host.mounts.iter().all(|mount| !mount.source.starts_with("/root")));
    let published = "registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0";
    let runtime = store.resolve(published).unwrap();
    assert_eq!(runtime.substituted, Some("hutch/python-runtime"));
    assert_eq!(runtime.config.entrypoint, [hutch_image::SANDBOXD_PATH]);
    assert!(runtime.wants_sandboxd);
    assert!(store.without_substitutes().resolve(published).is_err());

    // The bound is 0.2 ms in a release build; a debug build on a busy machine gets room, a rewrite would take longer.
    let store = Store::open(images.path()).unwrap();
    let best = (0..50).map(|_| {
        let start = std::time::Instant::now();
        store.resolve("hutch/host").unwrap();
        start.elapsed()
    });
    let best = best.min().unwrap();
    println!("resolve of hutch/host: {best:?}");
    assert!(best.as_micros() < 500, "{best:?}");
}

#[test]
fn linked_or_special_files_of_a_layout_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    let digest =
        |image: &Image| image.layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let names = ["oci-layout", "index.json", "blobs", "blobs/sha256", "LAYER"];
    for (name, special) in names.iter().flat_map(|name| [(name, "link"), (name, "pipe"), (name, "folder")]) {
        let image = Image::new().layer("", &[Entry::File("a", "x", 0o644)]);
        image.write();
        let path = match *name {
            "LAYER" => image.dir.path().join("blobs/sha256").join(digest(&image)),
            name => image.dir.path().join(name),
        };
        // A link leads to the very content, so that only the link can be what is wrong.
        let moved = outside.path().join(format!("{}-{special}", name.replace('/', "-")));
        fs::rename(&path, &moved).unwrap();
        match special {
            "link" => std::os::unix::fs::symlink(&moved, &path).unwrap(),
            "pipe" => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o644.into(), 0).unwrap();
            }
            _ => fs::create_dir(&path).unwrap(),
        }
        let images = tempfile::tempdir().unwrap();
        let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err();
        assert!(matches!(error, Error::Layout { .. }), "{name} {special}: {error}");
    }
}

#[test]
fn names_from_pods_reach_only_the_image_folder() {
    let image = Image::new().layer("", &[Entry::File("a", "x", 0o644)]);
    image.write();
    let (top, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let inner = top.path().join("deep/layout");
    fs::create_dir(top.path().join("deep")).unwrap();
    let copied = std::process::Command::new("cp").arg("-r").arg(image.dir.path()).arg(&inner).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::symlink(image.dir.path(), top.path().join("link")).unwrap();
    let store = Store::open(images.path()).unwrap();
    let closed = store.clone().with_layouts_below(None);
    let below = store.with_layouts_below(Some(top.path().into()));
    for name in [format!("oci:{}", inner.display()), inner.display().to_string(), "oci:deep/layout:v1".into()]
    {
        assert!(below.resolve(&name).is_ok(), "{name}");
    }
    let elsewhere = image.name();
    for name in [&elsewhere, &elsewhere.replacen("oci:", "", 1), "oci:deep/../../x", "./../x", "oci:/"] {
        let error = below.resolve(name).unwrap_err();
        assert!(matches!(error, Error::OutsideImageFolder { .. }), "{name}: {error}");
        assert!(matches!(closed.resolve(name).unwrap_err(), Error::NoImageFolder(_)), "{name}");
    }
    let error = below.resolve("oci:link").unwrap_err().to_string();
    assert!(error.contains("not followed"), "{error}");
}

#[test]
fn mismatch_names_no_digest_of_the_content() {
    let image = Image::new().layer("", &[Entry::File("a", "x", 0o644)]);
    image.write();
    let layer = image.layers[0]["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let content = b"secret";
    fs::write(image.dir.path().join("blobs/sha256").join(layer), content).unwrap();
    let images = tempfile::tempdir().unwrap();
    let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err().to_string();
    assert!(!error.contains(&sha(content)), "{error}");
}

/// Adds zeros after the end mark of an archive: they are read for the digest, and take no disk.
fn inflated(megabytes: usize) -> Vec<u8> {
    let mut archive = archive(&[Entry::File("file", "text", 0o644)]);
    archive.resize(megabytes << 20, 0);
    archive
}

#[test]
fn layer_that_unpacks_to_much_more_than_its_size_is_refused_by_the_bound() {
    for packing in ["+gzip", "+zstd"] {
        let image = Image::new().packed(packing, inflated(257));
        image.write();
        let images = tempfile::tempdir().unwrap();
        let store = Store::open(images.path()).unwrap();
        let error = store.resolve(&image.name()).unwrap_err().to_string();
        assert!(error.contains("more than 200 times its size, and more than 256 MiB"), "{packing}: {error}");
        assert_eq!(names_in(images.path()), Vec::<String>::new());
    }
}

#[test]
fn sparse_file_in_a_layer_is_refused() {
    for name in ["hole", ".wh.hole"] {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(tar::EntryType::GNUSparse);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(600 << 20);
        gnu.sparse[0].set_offset(600 << 20);
        gnu.sparse[0].set_length(0);
        header.set_cksum();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&header, std::io::empty()).unwrap();
        let image = Image::new().packed("+gzip", builder.into_inner().unwrap());
        image.write();
        let images = tempfile::tempdir().unwrap();
        let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err().to_string();
        assert_eq!(error, format!("layer entry {name:?} refused: it is a sparse file"));
        assert_eq!(names_in(images.path()), Vec::<String>::new());
    }
}

/// An archive of one entry with extended attributes.
fn archive_with_attributes(folder: bool, attributes: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let names: Vec<String> = attributes.iter().map(|(name, _)| format!("SCHILY.xattr.{name}")).collect();
    let headers = names.iter().zip(attributes).map(|(name, (_, value))| (name.as_str(), *value));
    builder.append_pax_extensions(headers).unwrap();
    let mut header = tar::Header::new_ustar();
    if folder {
        header.set_entry_type(tar::EntryType::Directory);
    }
    header.set_size(0);
    header.set_mode(0o500);
    header.set_uid(0);
    header.set_gid(0);
    builder.append_data(&mut header, "entry", &[][..]).unwrap();
    builder.into_inner().unwrap()
}

/// Unpacks an entry with extended attributes. Returns the folder of the store, the entry, and the attributes that it has.
fn unpacked_with(folder: bool, attributes: &[(&str, &[u8])]) -> (tempfile::TempDir, PathBuf, Vec<String>) {
    let image = Image::new().packed("", archive_with_attributes(folder, attributes));
    image.write();
    let images = tempfile::tempdir().unwrap();
    let store = Store::open(images.path()).unwrap();
    let entry = store.resolve(&image.name()).unwrap().layers[0].join("entry");
    let mut names = [0; 4096];
    let length = rustix::fs::listxattr(&entry, &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..length]);
    let names = names.split_terminator('\0').map(str::to_owned).collect();
    (images, entry, names)
}

#[test]
fn attributes_of_users_are_kept_and_those_with_a_meaning_for_the_kernel_are_not() {
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let attributes: [(&str, &[u8]); 7] = [
        ("user.kept", b"a=b\0"),
        ("user.overlay.redirect", b"/etc"),
        ("user.overlay.opaque", b"y"),
        ("trusted.overlay.opaque", b"y"),
        ("security.capability", &capability),
        ("system.posix_acl_access", &[2, 0, 0, 0]),
        ("user.", b"no name"),
    ];
    for folder in [false, true] {
        let (_images, entry, names) = unpacked_with(folder, &attributes);
        assert_eq!(names, ["user.kept"], "folder: {folder}");
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&entry, "user.kept", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"a=b\0");
    }
}

#[test]
fn attribute_without_room_in_the_file_system_is_left_out() {
    let long = format!("user.{}", "n".repeat(300));
    // The kernel has room for 64 KiB and 255 bytes; ext4 for less than 4 KiB.
    let large = [b'v'; 70_000];
    let attributes: [(&str, &[u8]); 4] =
        [("user.small", b"v"), ("user.page", &large[..5000]), ("user.large", &large), (&long, b"v")];
    for folder in [false, true] {
        let (_images, _, names) = unpacked_with(folder, &attributes);
        let kept: Vec<_> = names.iter().filter(|name| *name != "user.page").collect();
        assert_eq!(kept, ["user.small"], "folder: {folder}");
    }
}

#[test]
fn attribute_with_a_line_break_in_its_value_is_refused() {
    let image =
        Image::new().packed("", archive_with_attributes(false, &[("user.kept", b"a\n17 path=other")]));
    image.write();
    let images = tempfile::tempdir().unwrap();
    let error = Store::open(images.path()).unwrap().resolve(&image.name()).unwrap_err().to_string();
    assert!(error.contains("malformed pax extension"), "{error}");
    assert_eq!(names_in(images.path()), Vec::<String>::new());
}
