//! A disk of its own for a test, which can be filled.

use std::path::PathBuf;
use std::process::Command;

/// A file with a file system, mounted at an empty folder. It is unmounted on drop.
pub struct Disk {
    folder: Option<tempfile::TempDir>,
}

impl Disk {
    /// Makes a disk of so many bytes. `mkfs` is the program that makes the file system, with its arguments before the file. It
    /// needs root.
    ///
    /// # Panics
    /// When a program fails.
    pub fn new(bytes: u64, mkfs: &[&str]) -> Disk {
        let folder = tempfile::tempdir().expect("tempdir");
        let (image, mount) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("image");
        std::fs::create_dir(&mount).expect("folder");
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
        let disk = Disk { folder: Some(folder) };
        run(Command::new("mount").args(["-o", "loop"]).args([&image, &mount]));
        disk
    }

    /// Folder at which it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.as_ref().expect("mounted").path().join("disk")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.path();
        let unmounted = Command::new("umount").arg("--recursive").arg(&path).status();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if !unmounted.is_ok_and(|status| status.success()) || mounts.contains(&*path.to_string_lossy()) {
            // What is still mounted must not be removed.
            let _ = self.folder.take().map(tempfile::TempDir::keep);
        }
    }
}

/// Runs a program.
///
/// # Panics
/// When it fails.
pub fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
