use std::os::unix::fs::symlink;

use super::*;

/// Nests folders below `top`, deeper than any path can be long.
fn nest(top: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(CWD, top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, "nested", Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, "nested", flags, Mode::empty()).unwrap();
    }
    rustix::fs::symlinkat("/", &here, "link").unwrap();
}

#[test]
fn nested_folders_on_a_small_stack_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    std::fs::create_dir(&top).unwrap();
    nest(&top, 12_000);
    let path = top.clone();
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    thread.spawn(move || remove_tree(&path)).unwrap().join().unwrap().unwrap();
    assert!(!top.exists());
}

#[test]
fn wide_and_forked_folders_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    for folder in 0..20 {
        let inner = top.join(format!("a/{folder}/b/{folder}/c"));
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::create_dir(inner.join("empty")).unwrap();
        for file in 0..5_000 {
            std::fs::File::create(inner.join(file.to_string())).unwrap();
        }
    }
    remove_tree(&top).unwrap();
    assert!(!top.exists());
    remove_tree(&top).expect("what is not there is removed");
    remove_tree(&dir.path().join("no/such")).expect("nor its parent");
}

#[test]
fn links_are_removed_and_not_followed() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("kept"), "kept").unwrap();
    let top = dir.path().join("top");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    for link in ["link", "a/link", "a/b/link"] {
        symlink(outside.path(), top.join(link)).unwrap();
    }
    let link = dir.path().join("itself");
    symlink(outside.path(), &link).unwrap();
    remove_tree(&top).unwrap();
    remove_tree(&link).unwrap();
    assert!(!top.exists() && std::fs::symlink_metadata(&link).is_err());
    assert_eq!(std::fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
}

#[test]
fn taken_names_do_not_stop_a_removal() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    for number in 0..50 {
        let name = top.join(format!("{MOVED}{number}"));
        match number % 2 {
            0 => std::fs::create_dir_all(name.join("x/y")).unwrap(),
            _ => std::fs::write(name, "").unwrap(),
        }
    }
    std::fs::create_dir_all(top.join("a/b/c")).unwrap();
    remove_tree(&top).unwrap();
    assert!(!top.exists());
}

#[test]
fn folders_renamed_meanwhile_lead_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
    std::fs::create_dir_all(outside.join("kept/deep")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // A folder and a link to the outside change places. Each call may fail, as its target is being removed.
                let _ = std::fs::create_dir_all(top.join("swap/kept/deep"));
                let _ = std::fs::rename(top.join("swap"), top.join("other"));
                let _ = symlink(&outside, top.join("swap"));
                let _ = std::fs::remove_file(top.join("swap"));
            }
        });
        for _ in 0..200 {
            std::fs::create_dir_all(top.join("a/b")).unwrap();
            // One that is filled again at once may report that it is not empty.
            let _ = remove_tree(&top);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    remove_tree(&top).unwrap();
    assert!(outside.join("kept/deep").is_dir());
}

#[test]
fn mounts_are_reported_and_everything_else_is_removed() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let (top, other) = (dir.path().join("top"), dir.path().join("other"));
    std::fs::create_dir_all(top.join("a/mounted")).unwrap();
    std::fs::create_dir_all(top.join("b/c")).unwrap();
    std::fs::create_dir_all(other.join("kept")).unwrap();
    rustix::mount::mount_bind(&other, top.join("a/mounted")).unwrap();
    let error = remove_tree(&top).unwrap_err();
    rustix::mount::unmount(top.join("a/mounted"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(error.raw_os_error(), Some(Errno::BUSY.raw_os_error()), "{error}");
    assert!(other.join("kept").is_dir() && !top.join("b").exists());
    remove_tree(&top).unwrap();
}
