//! Disks that are full.

use hutch_testkit::disk::Disk;

use super::*;

/// Fills a disk to its last byte; the file can be removed.
fn fill(disk: &Disk) -> PathBuf {
    let path = disk.path().join("filler");
    let file = fs::File::create(&path).unwrap();
    let (mut at, mut size) = (0, 1 << 20);
    while size > 0 {
        match rustix::io::pwrite(&file, &vec![1; size], at) {
            Ok(written) if written > 0 => at += written as u64,
            _ => size /= 2,
        }
    }
    // Blocks that are only reserved become visible as full.
    let _ = file.sync_all();
    path
}

/// Removes the file. The file system frees its blocks only when that is written.
fn free(disk: &Disk, filler: &Path) {
    fs::remove_file(filler).unwrap();
    rustix::fs::syncfs(fs::File::open(disk.path()).unwrap()).unwrap();
}

fn disk() -> Disk {
    Disk::new(48 << 20, &["mkfs.ext4", "-q", "-m", "0"])
}

/// A file that the disk can hold once, and not twice.
fn large_tree(disk: &Disk) -> PathBuf {
    let tree = disk.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), vec![1; 24 << 20]).unwrap();
    tree
}

fn assert_no_room<T>(result: Result<T, Error>, disk: &Disk) {
    let error = result.err().expect("full");
    assert!(matches!(error, Error::NoRoom { .. }) && error.is_no_room(), "{error:?}");
    assert!(error.to_string().contains("snapshot image one: "), "{error}");
    assert_eq!(names(&disk.path().join("images")), ["key"]);
}

#[test]
fn full_disk_at_each_step_is_reported_and_nothing_stays() {
    hutch_testkit::require!(root);
    let disk = disk();
    let images = Images::open(&disk.path().join("images")).unwrap();
    let tree = large_tree(&disk);
    // While a tree is copied.
    let mut partial = images.begin(&ID).unwrap();
    let copied = partial.copy_tree(&UPPER, &tree);
    drop(partial);
    assert_no_room(copied, &disk);
    fs::remove_file(tree.join("large")).unwrap();
    // For the first entry.
    let mut partial = images.begin(&ID).unwrap();
    let filler = fill(&disk);
    let copied = partial.copy_tree(&UPPER, &tree);
    drop(partial);
    assert_no_room(copied, &disk);
    // Before it begins.
    assert_no_room(images.begin(&ID), &disk);
    free(&disk, &filler);
    // For the manifest.
    let mut partial = images.begin(&ID).unwrap();
    partial.copy_tree(&UPPER, &tree).unwrap();
    let filler = fill(&disk);
    assert_no_room(partial.finish(json!("x".repeat(100_000))), &disk);
    free(&disk, &filler);
    images.begin(&ID).unwrap().finish(facts()).unwrap();
}

#[test]
fn image_can_be_removed_from_a_full_disk() {
    hutch_testkit::require!(root);
    let disk = disk();
    let images = Images::open(&disk.path().join("images")).unwrap();
    let tree = disk.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c/d")).unwrap();
    fs::write(tree.join("a/b/c/file"), vec![1; 1 << 20]).unwrap();
    let mut partial = images.begin(&ID).unwrap();
    partial.copy_tree(&UPPER, &tree).unwrap();
    partial.finish(facts()).unwrap();
    fill(&disk);
    images.remove(&ID).unwrap();
    assert_eq!(names(&disk.path().join("images")), ["key"]);
}

#[test]
fn copy_to_a_full_disk_is_reported_and_nothing_stays() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    let disk = disk();
    fill(&disk);
    let target = disk.path().join("target");
    let error = image.copy_out(&UPPER, &target).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert!(!target.exists());
}

#[test]
fn copy_that_does_not_fit_writes_nothing() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let tree = scratch.path("large");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![1; 60 << 20]).unwrap();
    let mut partial = scratch.images.begin(&ID).unwrap();
    partial.copy_tree(&UPPER, &tree).unwrap();
    let image = partial.finish(facts()).unwrap();
    let disk = disk();
    let target = disk.path().join("target");
    fs::create_dir(&target).unwrap();
    let folder = fs::File::open(&target).unwrap();
    let changed = || folder.metadata().unwrap().modified().unwrap();
    let before = changed();
    let error = image.copy_out(&UPPER, &target).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert_eq!(changed(), before, "a file was made");
}
