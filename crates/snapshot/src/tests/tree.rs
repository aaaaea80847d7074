//! Trees of every kind, and hostile ones.

use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, chown, symlink};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::*;

/// Copies a tree into an image and out of it.
fn round_trip(scratch: &Scratch, folder: &Path) -> PathBuf {
    let mut partial = scratch.images.begin(&ID).unwrap();
    partial.copy_tree(&DATA, folder).unwrap();
    let image = partial.finish(json!(null)).unwrap();
    let target = scratch.path("target");
    image.copy_out(&DATA, &target).unwrap();
    target
}

fn copied(scratch: &Scratch, folder: &Path) -> Result<crate::Copied, Error> {
    scratch.images.begin(&ID).unwrap().copy_tree(&DATA, folder)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// An ACL: user::rwx, user:7:r-x, group::r-x, mask::r-x, other::---.
fn acl() -> Vec<u8> {
    let entry = |tag: u16, mode: u16, id: u32| {
        [&tag.to_le_bytes()[..], &mode.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 7, none), entry(2, 5, 7), entry(4, 5, none), entry(16, 5, none), entry(32, 0, none)];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

/// A tree with each kind of entry, which root can make.
fn every_kind(folder: &Path) {
    fs::create_dir_all(folder.join("folder/empty")).unwrap();
    let file = folder.join("file");
    fs::write(&file, b"content").unwrap();
    fs::write(folder.join("empty"), b"").unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"\xff\xfe name")), b"not UTF-8").unwrap();
    symlink("../../../../etc/passwd", folder.join("folder/out")).unwrap();
    symlink(OsStr::from_bytes(b"\xff"), folder.join("odd link")).unwrap();
    symlink("x".repeat(4000), folder.join("long link")).unwrap();
    // The first name in the order of the copy is the later one in another folder.
    fs::hard_link(&file, folder.join("folder/again")).unwrap();
    fs::hard_link(folder.join("odd link"), folder.join("folder/odd again")).unwrap();
    rustix::fs::mkfifoat(CWD, folder.join("fifo"), Mode::from_raw_mode(0o640)).unwrap();
    for name in ["gone", "gone too"] {
        let mode = Mode::from_raw_mode(0);
        rustix::fs::mknodat(CWD, folder.join(name), FileType::CharacterDevice, mode, 0).unwrap();
    }
    fs::hard_link(folder.join("gone"), folder.join("folder/gone")).unwrap();
    let sparse = fs::File::create(folder.join("sparse")).unwrap();
    sparse.set_len(1 << 32).unwrap();
    sparse.write_all_at(b"in the middle", 1 << 31).unwrap();
    for name in ["file", "folder", "sparse", "fifo"] {
        chown(folder.join(name), Some(100_123), Some(200_321)).unwrap();
    }
    std::os::unix::fs::lchown(folder.join("odd link"), Some(5), Some(6)).unwrap();
    set_xattr(&file, "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    set_xattr(&file, "user.note", b"");
    set_xattr(&file, "user.bytes", &[0, 255, 7]);
    set_xattr(&folder.join("folder"), "trusted.overlay.opaque", b"y");
    set_xattr(&folder.join("folder"), "user.overlay.opaque", b"y");
    set_xattr(&folder.join("odd link"), "trusted.overlay.origin", b"link");
    set_xattr(&folder.join("gone too"), "trusted.overlay.origin", b"device");
    set_xattr(folder, "trusted.overlay.impure", b"y");
    let acl = acl();
    set_xattr(&folder.join("folder"), "system.posix_acl_default", &acl);
    set_xattr(&folder.join("empty"), "system.posix_acl_access", &acl);
    for (name, mode) in
        [("file", 0o6755), ("folder", 0o3770), ("folder/empty", 0), (".", 0o2751), ("fifo", 0o622)]
    {
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (number, name) in
        ["file", "odd link", "fifo", "gone", "folder/empty", "folder", "."].iter().enumerate()
    {
        let second = i64::try_from(number).unwrap() * 1_000_000_000 - 1_500_000_000;
        let time = rustix::fs::Timespec { tv_sec: second, tv_nsec: 123_456_789 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, folder.join(name), &times, flags).unwrap();
    }
}

#[test]
fn each_kind_of_entry_is_copied_exactly() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    every_kind(&folder);
    let before = describe(&folder);
    let target = round_trip(&scratch, &folder);
    assert_eq!(describe(&target), before);
    assert_eq!(describe(&folder), before, "the source is as it was");
    let sparse = target.join("sparse").metadata().unwrap();
    assert!(sparse.blocks() * 512 <= 1 << 20, "{} blocks", sparse.blocks());
    let mut middle = [0; 13];
    fs::File::open(target.join("sparse")).unwrap().read_exact_at(&mut middle, 1 << 31).unwrap();
    assert_eq!(&middle, b"in the middle");
}

#[test]
fn files_share_their_blocks_where_the_file_system_can() {
    hutch_testkit::require!(root, btrfs);
    let disk = hutch_testkit::disk::Disk::new(400 << 20, &["mkfs.btrfs", "--quiet"]);
    let folder = disk.path().join("tree");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("large"), vec![3; 16 << 20]).unwrap();
    fs::File::open(&folder).unwrap().sync_all().unwrap();
    let free = || {
        let opened = fs::File::open(disk.path()).unwrap();
        rustix::fs::syncfs(&opened).unwrap();
        let space = rustix::fs::fstatvfs(&opened).unwrap();
        space.f_bfree * space.f_frsize
    };
    let before = free();
    let images = Images::open(&disk.path().join("images")).unwrap();
    let mut partial = images.begin(&ID).unwrap();
    partial.copy_tree(&DATA, &folder).unwrap();
    let image = partial.finish(json!(null)).unwrap();
    let target = disk.path().join("target");
    image.copy_out(&DATA, &target).unwrap();
    assert!(before - free() < 8 << 20, "{} bytes", before - free());
    fs::write(folder.join("large"), b"changed").unwrap();
    assert_eq!(describe(&target).len(), 2);
    assert_eq!(fs::read(target.join("large")).unwrap(), vec![3; 16 << 20]);
}

#[test]
fn a_file_system_that_cannot_keep_everything_is_not_a_changed_image() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    // Its times are in seconds.
    let disk = hutch_testkit::disk::Disk::new(8 << 20, &["mkfs.ext4", "-q", "-I", "128"]);
    let target = disk.path().join("target");
    let error = image.copy_out(&UPPER, &target).unwrap_err();
    assert!(error.to_string().contains("its file system does not keep owners, times"), "{error}");
    assert!(!target.exists());
}

#[test]
fn holes_at_both_ends_and_data_between_them_are_kept() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    let file = fs::File::create(folder.join("file")).unwrap();
    file.set_len(3_000_001).unwrap();
    for at in [4096, 1_000_000, 1_500_001] {
        file.write_all_at(b"data", at).unwrap();
    }
    let expected = fs::read(folder.join("file")).unwrap();
    let target = round_trip(&scratch, &folder);
    assert_eq!(fs::read(target.join("file")).unwrap(), expected);
    assert!(target.join("file").metadata().unwrap().blocks() * 512 < 200_000);
}

#[test]
fn links_of_a_tree_lead_nowhere() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir_all(&folder).unwrap();
    fs::write(scratch.path("secret"), b"secret").unwrap();
    symlink("/", folder.join("root")).unwrap();
    symlink("..", folder.join("up")).unwrap();
    symlink(scratch.path("secret"), folder.join("file")).unwrap();
    symlink("self", folder.join("self")).unwrap();
    let target = round_trip(&scratch, &folder);
    assert_eq!(describe(&target), describe(&folder));
    assert_eq!(names(&target), ["file", "root", "self", "up"]);
    // The folder itself is no link either, neither for reading nor for writing.
    let link = scratch.path("link");
    symlink(&folder, &link).unwrap();
    let two = PathSegment::fixed("two");
    assert!(scratch.images.begin(&two).unwrap().copy_tree(&DATA, &link).is_err());
    let image = scratch.images.find(&ID).unwrap().unwrap();
    symlink(scratch.path("elsewhere"), scratch.path("dangling")).unwrap();
    for name in ["link", "dangling"] {
        let error = image.copy_out(&DATA, &scratch.path(name)).unwrap_err();
        assert!(matches!(error, Error::Target { .. }), "{name}: {error}");
    }
    assert!(!scratch.path("elsewhere").exists());
    assert_eq!(names(&folder).len(), 4);
}

#[test]
fn folder_that_is_not_empty_is_no_target() {
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    let target = scratch.path("target");
    fs::create_dir(&target).unwrap();
    image.copy_out(&DATA, &target).unwrap();
    let error = image.copy_out(&DATA, &target).unwrap_err();
    assert!(matches!(error, Error::Target { .. }), "{error}");
    assert_eq!(describe(&target), describe(&scratch.path("data")), "it stays");
}

#[test]
fn sockets_are_left_out_and_fifos_do_not_block() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
    rustix::fs::mkfifoat(CWD, folder.join("fifo"), Mode::RUSR).unwrap();
    let mut partial = scratch.images.begin(&ID).unwrap();
    let copied = partial.copy_tree(&DATA, &folder).unwrap();
    assert_eq!((copied.entries, copied.sockets), (2, 1));
    let image = partial.finish(json!(null)).unwrap();
    image.copy_out(&DATA, &scratch.path("target")).unwrap();
    assert_eq!(names(&scratch.path("target")), ["fifo"]);
}

#[test]
fn devices_are_refused() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    for (kind, device) in [
        (FileType::CharacterDevice, (1, 3)),
        (FileType::BlockDevice, (7, 0)),
        (FileType::BlockDevice, (0, 0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let number = rustix::fs::makedev(device.0, device.1);
        rustix::fs::mknodat(CWD, folder.path().join("device"), kind, Mode::RUSR, number).unwrap();
        let error = copied(&scratch, folder.path()).unwrap_err();
        let expected = "snapshot image one: volume data: \"device\" cannot be kept: it is a device";
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(scratch.names(), ["key"]);
}

#[test]
fn mounts_in_a_tree_are_refused() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let disk = hutch_testkit::disk::Disk::new(8 << 20, &["mkfs.ext4", "-q"]);
    let error = copied(&scratch, disk.path().parent().unwrap()).unwrap_err();
    assert!(error.to_string().contains("\"disk\" cannot be kept: a file system is mounted"), "{error}");
}

/// Makes folders within each other, however long their path.
fn nest(folder: &Path, depth: usize, name: &str) {
    let mut here = crate::private::open_folder(CWD, folder).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
        here = crate::private::open_folder(&here, name).unwrap();
    }
    rustix::fs::openat(&here, "file", rustix::fs::OFlags::CREATE, Mode::RUSR).unwrap();
    rustix::fs::linkat(&here, "file", &here, "same", rustix::fs::AtFlags::empty()).unwrap();
}

#[test]
fn deep_trees_are_copied_up_to_the_limit_whatever_the_length_of_their_paths() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    let long = "x".repeat(255);
    nest(&folder, 256, &long);
    let mut partial = scratch.images.begin(&ID).unwrap();
    assert_eq!(partial.copy_tree(&DATA, &folder).unwrap().entries, 258);
    let image = partial.finish(json!(null)).unwrap();
    image.copy_out(&DATA, &scratch.path("target")).unwrap();
    scratch.images.remove(&ID).unwrap();
    let deeper = scratch.path("deeper");
    fs::create_dir(&deeper).unwrap();
    nest(&deeper, 257, &long);
    let error = copied(&scratch, &deeper).unwrap_err();
    assert!(error.to_string().contains("more than 256 folders are within each other"), "{error}");
    assert_eq!(scratch.names(), ["key"]);
    for name in ["tree", "deeper", "target"] {
        hutch_image::remove_tree(&scratch.path(name)).unwrap();
    }
}

#[test]
fn a_tree_of_more_entries_than_its_manifest_names_is_refused_early() {
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    let folder = scratch.stored("one/volumes/data");
    for number in 0..100 {
        fs::write(folder.join(format!("more{number}")), b"").unwrap();
    }
    let error = image.copy_out(&DATA, &scratch.path("target")).unwrap_err();
    assert!(error.to_string().contains("too many entries"), "{error}");
    assert!(!scratch.path("target").exists());
}

#[test]
fn a_copy_takes_few_descriptors() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    nest(&folder, 200, "d");
    for number in 0..200 {
        fs::write(folder.join(format!("{number}")), b"x").unwrap();
        fs::hard_link(folder.join(format!("{number}")), folder.join(format!("d/{number}"))).unwrap();
    }
    // In a process of its own, because other tests have descriptors too.
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 20; exec \"$0\" \"$@\""]).arg(program);
    command.args(["--exact", "tests::tree::copy_for_another_test", "--ignored", "--test-threads=1"]);
    command.env("HUTCH_TEST_TREE", &folder).env("HUTCH_TEST_SCRATCH", scratch.folder.path());
    hutch_testkit::disk::run(&mut command);
    assert_eq!(describe(&scratch.path("target")), describe(&folder));
}

#[test]
#[ignore = "run by another test"]
fn copy_for_another_test() {
    let (Some(tree), Some(scratch)) =
        (std::env::var_os("HUTCH_TEST_TREE"), std::env::var_os("HUTCH_TEST_SCRATCH"))
    else {
        return;
    };
    let scratch = Path::new(&scratch);
    let images = Images::open(&scratch.join("few")).unwrap();
    let mut partial = images.begin(&ID).unwrap();
    partial.copy_tree(&DATA, Path::new(&tree)).unwrap();
    partial.finish(json!(null)).unwrap().copy_out(&DATA, &scratch.join("target")).unwrap();
}

/// Copies a tree again and again while `change` changes it; each copy that succeeds is checked.
fn race(folder: &Path, change: impl Fn() + Sync, check: impl Fn(&Path)) {
    let scratch = Scratch::new();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                change();
            }
        });
        // Also when a check fails, so that the thread ends.
        let _end = End(&ended);
        for _ in 0..200 {
            let mut partial = scratch.images.begin(&ID).unwrap();
            match partial.copy_tree(&DATA, folder) {
                Ok(_) => check(&scratch.stored("one.partial/volumes/data")),
                Err(error) => assert!(matches!(error, Error::Refused { .. }), "{error:?}"),
            }
        }
    });
}

/// Sets a flag on drop.
struct End<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn folder_that_becomes_a_link_does_not_lead_out_of_the_tree() {
    let scratch = Scratch::new();
    let (folder, outside) = (scratch.path("tree"), scratch.path("outside"));
    fs::create_dir_all(folder.join("sub/deep")).unwrap();
    fs::write(folder.join("sub/file"), b"own").unwrap();
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("file"), b"secret").unwrap();
    fs::write(outside.join("deep/secret"), b"secret").unwrap();
    let (sub, aside) = (folder.join("sub"), folder.join("zaside"));
    let change = || {
        fs::rename(&sub, &aside).unwrap();
        symlink(&outside, &sub).unwrap();
        fs::remove_file(&sub).unwrap();
        // The folder that is read moves elsewhere, so its parent is another one.
        fs::rename(aside.join("deep"), folder.join("deep")).unwrap();
        fs::rename(folder.join("deep"), aside.join("deep")).unwrap();
        fs::rename(&aside, &sub).unwrap();
    };
    race(&folder, change, |copy| {
        for (path, text) in describe(copy) {
            assert!(!text.contains(&format!("{:?}", b"secret")), "{}: {text}", path.display());
            assert!(!path.ends_with("secret"), "{}", path.display());
        }
    });
}

#[test]
fn file_that_becomes_a_fifo_or_a_link_or_changes_is_refused_or_whole() {
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    let (file, other) = (folder.join("file"), folder.join("other"));
    let (old, new) = (vec![b'a'; 100_000], vec![b'b'; 50_000]);
    fs::write(&file, &old).unwrap();
    let change = || {
        rustix::fs::mkfifoat(CWD, &other, Mode::RUSR).unwrap();
        fs::rename(&other, &file).unwrap();
        symlink("/etc/passwd", &other).unwrap();
        fs::rename(&other, &file).unwrap();
        for bytes in [&old, &new] {
            fs::write(&other, bytes).unwrap();
            fs::rename(&other, &file).unwrap();
        }
        fs::write(&file, &old).unwrap();
    };
    race(&folder, change, |copy| {
        let copied = copy.join("file");
        if copied.symlink_metadata().is_ok_and(|about| about.is_file()) {
            let bytes = fs::read(copied).unwrap();
            // Written in two calls, so that it was empty or incomplete for a moment, unchanged while it was copied.
            assert!(old.starts_with(&bytes) || new.starts_with(&bytes), "{} bytes", bytes.len());
        }
    });
}

#[test]
fn random_trees_are_copied_exactly() {
    use proptest::prelude::*;
    let name = prop::collection::vec(1..=255_u8, 1..20).prop_map(|mut name| {
        name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'|');
        name
    });
    let piece = (0..2_000_000_u64, prop::collection::vec(any::<u8>(), 0..200));
    let entry =
        (name, any::<prop::sample::Index>(), 0..5_u8, prop::collection::vec(piece, 0..4), 0..0o7777_u32);
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(entries in prop::collection::vec(entry, 0..25))| {
        let scratch = tempfile::tempdir().unwrap();
        let (tree, target) = (scratch.path().join("tree"), scratch.path().join("target"));
        fs::create_dir(&tree).unwrap();
        fs::create_dir(&target).unwrap();
        make_entries(&tree, &entries);
        let open = |path: &Path| crate::private::open_folder(CWD, path).unwrap();
        crate::copy::copy(open(&tree), open(&target), 100, None).unwrap();
        prop_assert_eq!(describe(&target), describe(&tree));
        let key = crate::content::ContentKey::new(&[7; 32]).unwrap();
        let digests = [&tree, &target].map(|path| crate::digest::tree(open(path), 100, &key).unwrap());
        prop_assert_eq!(&digests[0], &digests[1]);
    });
}

type RandomEntry = (Vec<u8>, proptest::sample::Index, u8, Vec<(u64, Vec<u8>)>, u32);

/// Makes what is possible of the entries, each in a folder that an earlier one made.
fn make_entries(tree: &Path, entries: &[RandomEntry]) {
    let (mut folders, mut files) = (vec![tree.to_owned()], Vec::new());
    for (name, place, kind, pieces, mode) in entries {
        let path = folders[place.index(folders.len())].join(OsStr::from_bytes(name));
        if path.symlink_metadata().is_ok() || name.as_slice() == b"." || name.as_slice() == b".." {
            continue;
        }
        match kind {
            0 => {
                fs::create_dir(&path).unwrap();
                folders.push(path);
                continue;
            }
            1 => symlink(OsStr::from_bytes(name), &path).unwrap(),
            2 => rustix::fs::mkfifoat(CWD, &path, Mode::RUSR).unwrap(),
            3 if !files.is_empty() => {
                let first: &PathBuf = &files[place.index(files.len())];
                fs::hard_link(first, &path).unwrap();
            }
            _ => {
                let file = fs::File::create(&path).unwrap();
                for (at, bytes) in pieces {
                    file.write_all_at(bytes, *at).unwrap();
                }
                file.set_permissions(fs::Permissions::from_mode(*mode | 0o400)).unwrap();
                files.push(path);
            }
        }
    }
}

#[test]
fn file_that_is_leased_does_not_block_the_copy() {
    hutch_testkit::require!(python);
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), b"leased").unwrap();
    // The lease is broken with a signal, which the process ignores.
    let script = "import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('leased', flush=True)
sys.stdin.read()";
    let mut python = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(folder.join("file"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = python.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let copied = copied(&scratch, &folder);
    drop(python.stdin.take());
    python.wait().unwrap();
    assert_eq!(line, "leased\n");
    let error = copied.unwrap_err().to_string();
    assert!(error.contains("\"file\" cannot be kept: a process has a lease of it"), "{error}");
}

/// An overlay, unmounted on drop.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(scratch: &Scratch, lower: &Path, upper: &Path, number: u8) -> Overlay {
        let (work, at) = (scratch.path(&format!("work{number}")), scratch.path(&format!("overlay{number}")));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&at).unwrap();
        let [lower, upper, work] = [lower, upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut mount = std::process::Command::new("mount");
        hutch_testkit::disk::run(mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&at));
        Overlay(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // A failure shows when the temporary folder cannot be removed.
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn overlay_shows_the_same_on_a_copied_upper_folder() {
    hutch_testkit::require!(root);
    let scratch = Scratch::new();
    let (lower, upper) = (scratch.small_tree("lower"), scratch.path("upper"));
    fs::create_dir_all(lower.join("replaced/old")).unwrap();
    for name in ["gone1", "gone2", "gone3", "linked"] {
        fs::write(lower.join(name), name).unwrap();
    }
    fs::create_dir(&upper).unwrap();
    let overlay = Overlay::mount(&scratch, &lower, &upper, 1);
    let at = &overlay.0;
    for name in ["gone1", "gone2", "gone3", "sub/other"] {
        fs::remove_file(at.join(name)).unwrap();
    }
    fs::remove_dir_all(at.join("replaced")).unwrap();
    fs::create_dir(at.join("replaced")).unwrap();
    fs::write(at.join("replaced/new"), b"new").unwrap();
    fs::hard_link(at.join("linked"), at.join("sub/linked again")).unwrap();
    fs::set_permissions(at.join("file"), fs::Permissions::from_mode(0o4711)).unwrap();
    chown(at.join("sub"), Some(100_000), Some(100_000)).unwrap();
    let expected = describe(at);
    drop(overlay);
    let target = round_trip(&scratch, &upper);
    let again = Overlay::mount(&scratch, &lower, &target, 2);
    assert_eq!(describe(&again.0), expected);
    assert!(!expected.contains_key(Path::new("gone1")) && !expected.contains_key(Path::new("replaced/old")));
}

#[test]
fn copy_inherits_nothing_from_the_folder_around_it() {
    let scratch = Scratch::new();
    let image = scratch.image(&ID);
    let parent = scratch.path("parent");
    fs::create_dir(&parent).unwrap();
    set_xattr(&parent, "system.posix_acl_default", &acl());
    for name in ["absent", "empty"] {
        let target = parent.join(name);
        if name == "empty" {
            fs::create_dir(&target).unwrap();
            assert!(!xattr_names(&target).is_empty(), "inherited");
        }
        image.copy_out(&DATA, &target).unwrap();
        assert_eq!(describe(&target), describe(&scratch.path("data")), "{name}");
    }
}

#[test]
fn digest_depends_on_the_folder_of_an_entry() {
    let digests = ["a/b", "b"].map(|place| {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("a")).unwrap();
        fs::write(tree.path().join(place), b"").unwrap();
        for name in [place, "a", "."] {
            let path = fs::File::open(tree.path().join(name)).unwrap();
            path.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let opened = crate::private::open_folder(CWD, tree.path()).unwrap();
        let key = crate::content::ContentKey::new(&[7; 32]).unwrap();
        crate::digest::tree(opened, 10, &key).unwrap()
    });
    assert_ne!(digests[0].digest, digests[1].digest);
    assert_eq!(digests[0].entries, digests[1].entries);
}
