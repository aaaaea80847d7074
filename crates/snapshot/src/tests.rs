//! Tests of whole images.

mod crash;
mod disk;
mod tamper;
mod tree;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hutch_image::PathSegment;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Error, Image, Images, Sizes, TreeName};

pub(super) const ID: PathSegment = PathSegment::fixed("one");
pub(super) const MAIN: PathSegment = PathSegment::fixed("main");
pub(super) const UPPER: TreeName = TreeName::Upper(MAIN);
pub(super) const DATA: TreeName = TreeName::Volume(PathSegment::fixed("data"));

/// Images in a temporary folder, with room for other folders.
pub(super) struct Scratch {
    pub(super) folder: TempDir,
    pub(super) images: Images,
}

impl Scratch {
    pub(super) fn new() -> Scratch {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("images")).unwrap();
        Scratch { folder, images }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file or folder of the store.
    pub(super) fn stored(&self, name: &str) -> PathBuf {
        self.path("images").join(name)
    }

    pub(super) fn reopen(&self) -> Images {
        Images::open(&self.path("images")).unwrap()
    }

    /// A folder with files of memory, as `runsc` writes them.
    pub(super) fn memory(&self) -> PathBuf {
        let folder = self.path("written");
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        fs::write(folder.join("checkpoint.img"), b"state of the kernel").unwrap();
        fs::write(folder.join("pages.img"), [b"page".repeat(3000), vec![0; 9000]].concat()).unwrap();
        fs::write(folder.join("pages_meta.img"), b"").unwrap();
        folder
    }

    /// A folder with some files.
    pub(super) fn small_tree(&self, name: &str) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("file"), b"bytes of the file").unwrap();
        fs::write(folder.join("sub/other"), b"others").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("sub/link")).unwrap();
        fs::hard_link(folder.join("file"), folder.join("sub/same")).unwrap();
        folder
    }

    /// An image with each kind of part.
    pub(super) fn image(&self, id: &PathSegment) -> Image {
        let mut partial = self.images.begin(id).unwrap();
        partial.take_memory(&MAIN, &self.memory()).unwrap();
        partial.copy_tree(&UPPER, &self.small_tree("upper")).unwrap();
        partial.copy_tree(&DATA, &self.small_tree("data")).unwrap();
        partial.finish(facts()).unwrap()
    }

    /// Names in the store.
    pub(super) fn names(&self) -> Vec<String> {
        names(&self.path("images"))
    }
}

pub(super) fn facts() -> Value {
    json!({"runtime": {"name": "gvisor", "version": "release-20260907.0"}, "generation": 3, "share": 0.25})
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Everything that a copy keeps, read in another way than the crate reads it.
pub(super) fn describe(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut links: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let path = if relative.as_os_str().is_empty() { top.to_owned() } else { top.join(&relative) };
        let about = path.symlink_metadata().unwrap();
        let mut text = format!(
            "{:o} {}:{} {}.{} rdev {}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec(),
            about.rdev()
        );
        for name in xattr_names(&path) {
            let mut value = [0; 4096];
            let length = rustix::fs::lgetxattr(&path, &name, &mut value).unwrap();
            text += &format!(" {name:?}={:?}", &value[..length]);
        }
        let kind = about.file_type();
        if kind.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                left.push(relative.join(entry.unwrap().file_name()));
            }
            left.sort_by(|a, b| b.cmp(a));
        } else {
            if about.nlink() > 1 && about.rdev() == 0 && !is_whiteout(&about) {
                let first = links.entry((about.dev(), about.ino())).or_insert(relative.clone());
                text += &format!(" same as {}", first.display());
            }
            if kind.is_symlink() {
                text += &format!(" to {:?}", fs::read_link(&path).unwrap());
            } else if kind.is_file() {
                text += &format!(" {} bytes", about.size());
                if about.size() < 1 << 20 {
                    text += &format!(" {:?}", fs::read(&path).unwrap());
                }
            }
        }
        found.insert(relative, text);
    }
    found
}

fn is_whiteout(about: &fs::Metadata) -> bool {
    about.mode() & 0o170_000 == 0o020_000
}

fn xattr_names(path: &Path) -> Vec<CString> {
    let mut buffer = [0; 4096];
    let length = rustix::fs::llistxattr(path, &mut buffer).unwrap();
    let mut names: Vec<_> =
        buffer[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort();
    names.into_iter().map(|name| CString::new(name).unwrap()).collect()
}

#[test]
fn an_image_comes_back_as_it_was_made() {
    let scratch = Scratch::new();
    let made = scratch.image(&ID);
    assert_eq!(scratch.images.list().unwrap(), [ID]);
    assert!(!scratch.path("written").exists(), "moved");
    let expected = Sizes { memory: 19 + 12_288, files: 2 * (17 + 6) };
    for image in [made, scratch.reopen().find(&ID).unwrap().unwrap()] {
        assert_eq!(image.facts(), &facts());
        assert_eq!(image.sizes(), expected);
        assert_eq!(image.containers().collect::<Vec<_>>(), [&MAIN]);
        assert_eq!(image.trees().collect::<Vec<_>>(), [&UPPER, &DATA]);
        let memory = image.memory(&MAIN).unwrap();
        assert_eq!(names(&memory), ["checkpoint.img", "pages.img", "pages_meta.img"]);
        assert_eq!(fs::read(memory.join("checkpoint.img")).unwrap(), b"state of the kernel");
        for (source, name) in [("upper", &UPPER), ("data", &DATA)] {
            let target = scratch.path("target");
            let copied = image.copy_out(name, &target).unwrap();
            assert_eq!((copied.entries, copied.sockets), (5, 0));
            assert_eq!(describe(&target), describe(&scratch.path(source)));
            fs::remove_dir_all(&target).unwrap();
        }
    }
    let others = PathSegment::fixed("others");
    let image = scratch.images.find(&ID).unwrap().unwrap();
    assert!(matches!(image.memory(&others), Err(Error::Absent { .. })));
    let absent = TreeName::Volume(others);
    assert!(matches!(image.copy_out(&absent, &scratch.path("x")), Err(Error::Absent { .. })));
    assert!(!scratch.path("x").exists());
}

#[test]
fn an_id_has_one_image_and_after_its_removal_none() {
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    assert!(matches!(scratch.images.begin(&ID), Err(Error::Exists { .. })));
    let two = PathSegment::fixed("two");
    let begun = scratch.images.begin(&two).unwrap();
    let error = scratch.images.begin(&two).unwrap_err().to_string();
    assert_eq!(error, "snapshot image two: unfinished image exists already");
    assert!(scratch.images.find(&two).unwrap().is_none());
    assert_eq!(scratch.images.list().unwrap(), [ID]);
    drop(begun);
    assert_eq!(scratch.names(), ["key", "one"]);
    scratch.images.remove(&ID).unwrap();
    scratch.images.remove(&ID).unwrap();
    assert!(scratch.images.find(&ID).unwrap().is_none());
    assert_eq!(scratch.names(), ["key"]);
    assert!(image.memory(&MAIN).is_err());
}

#[test]
fn another_image_of_the_id_that_was_finished_first_is_kept() {
    let scratch = Scratch::new();
    let partial = scratch.images.begin(&ID).unwrap();
    fs::create_dir(scratch.stored("one")).unwrap();
    fs::write(scratch.stored("one/manifest.json"), b"first").unwrap();
    assert!(matches!(partial.finish(facts()), Err(Error::Exists { .. })));
    assert_eq!(fs::read(scratch.stored("one/manifest.json")).unwrap(), b"first");
    assert_eq!(scratch.names(), ["key", "one"]);
}

#[test]
fn store_of_another_user_or_with_wide_modes_is_refused() {
    let scratch = Scratch::new();
    scratch.image(&ID);
    let folder = scratch.path("images");
    for (path, narrow) in [(folder.clone(), 0o700), (folder.join("key"), 0o600)] {
        for wide in [0o010, 0o040, 0o001, 0o077] {
            fs::set_permissions(&path, fs::Permissions::from_mode(narrow | wide)).unwrap();
            let error = Images::open(&folder).unwrap_err().to_string();
            assert!(error.contains("other users may have no rights"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(narrow)).unwrap();
    }
    Images::open(&folder).unwrap();
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    assert!(matches!(Images::open(&link), Err(Error::Folder { .. })));
    hutch_testkit::require!(root);
    for name in [".", "key"] {
        std::os::unix::fs::chown(folder.join(name), Some(12), None).unwrap();
        let error = Images::open(&folder).unwrap_err().to_string();
        assert!(error.contains("it belongs to user 12"), "{error}");
        std::os::unix::fs::chown(folder.join(name), Some(0), None).unwrap();
    }
}

#[test]
fn key_is_made_once_and_a_short_one_is_refused() {
    let scratch = Scratch::new();
    let key = fs::read(scratch.stored("key")).unwrap();
    assert_eq!(key.len(), 32);
    scratch.reopen();
    assert_eq!(fs::read(scratch.stored("key")).unwrap(), key);
    assert_eq!(scratch.stored("key").metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(scratch.path("images").metadata().unwrap().mode() & 0o7777, 0o700);
    for bytes in [b"".as_slice(), b"short", &[1; 33], &[1; 4000]] {
        fs::write(scratch.stored("key"), bytes).unwrap();
        assert!(Images::open(&scratch.path("images")).is_err(), "{} bytes", bytes.len());
    }
    fs::remove_file(scratch.stored("key")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", scratch.stored("key")).unwrap();
    assert!(matches!(Images::open(&scratch.path("images")), Err(Error::Folder { .. })));
}

#[test]
fn memory_with_anything_but_files_is_refused() {
    type Make = fn(&Path);
    let makes: [(&str, Make); 5] = [
        ("link", |path| std::os::unix::fs::symlink("/etc/passwd", path.join("odd")).unwrap()),
        ("folder", |path| fs::create_dir(path.join("odd")).unwrap()),
        ("fifo", |path| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, path.join("odd"), mode).unwrap();
        }),
        ("second name", |path| {
            fs::hard_link(path.join("pages.img"), path.with_file_name("outside")).unwrap();
        }),
        ("name", |path| {
            fs::write(path.join(std::ffi::OsStr::from_bytes(b"\xff")), b"").unwrap();
        }),
    ];
    for (name, make) in makes {
        let scratch = Scratch::new();
        let mut partial = scratch.images.begin(&ID).unwrap();
        let written = scratch.memory();
        make(&written);
        let error = partial.take_memory(&MAIN, &written).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{name}: {error}");
        assert!(partial.finish(facts()).is_err(), "{name}");
        assert_eq!(scratch.names(), ["key"]);
    }
}

#[test]
fn memory_that_is_a_link_is_refused() {
    let scratch = Scratch::new();
    let mut partial = scratch.images.begin(&ID).unwrap();
    let link = scratch.path("link");
    std::os::unix::fs::symlink(scratch.memory(), &link).unwrap();
    assert!(partial.take_memory(&MAIN, &link).is_err());
    drop(partial);
    assert_eq!(names(&scratch.path("written")).len(), 3);
}

#[test]
fn parts_are_taken_once() {
    let scratch = Scratch::new();
    let mut partial = scratch.images.begin(&ID).unwrap();
    partial.take_memory(&MAIN, &scratch.memory()).unwrap();
    assert!(matches!(partial.take_memory(&MAIN, &scratch.memory()), Err(Error::Exists { .. })));
    let tree = scratch.small_tree("tree");
    partial.copy_tree(&UPPER, &tree).unwrap();
    assert!(matches!(partial.copy_tree(&UPPER, &tree), Err(Error::Exists { .. })));
    partial.finish(facts()).unwrap();
}

#[test]
fn facts_that_cannot_be_read_back_are_refused() {
    let scratch = Scratch::new();
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    for facts in [deep, json!("x".repeat(4 << 20))] {
        let error = scratch.images.begin(&ID).unwrap().finish(facts).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert_eq!(scratch.names(), ["key"]);
    }
}

#[test]
fn images_beyond_the_bound_are_refused_and_the_store_still_opens() {
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        let partial = scratch.images.begin(&PathSegment::new(name).unwrap()).unwrap();
        partial.finish(facts()).unwrap();
    }
    let refused = scratch.images.begin_below(2, &ID).unwrap_err();
    assert!(refused.to_string().contains("has 2 images already"), "{refused}");
    assert!(scratch.images.begin_below(3, &ID).is_ok());
    assert_eq!(scratch.reopen().list().unwrap().len(), 2);
}
