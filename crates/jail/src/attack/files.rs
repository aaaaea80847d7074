//! Files and folders as an attacker opens them.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FileType, FlockOperation, flock, fstat};

use super::calls;

/// The beginning of a file.
pub(super) fn read(path: &str) -> String {
    let mut bytes = [0; 4096];
    match fs::File::open(path).and_then(|mut file| file.read(&mut bytes)) {
        Ok(0) => "empty".to_owned(),
        Ok(length) => String::from_utf8_lossy(&bytes[..length]).trim().to_owned(),
        Err(error) => calls::failed(&error),
    }
}

/// Opens a file to write to it, or makes it; writes nothing.
pub(super) fn write(path: &str) -> String {
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    match file.and_then(|mut file| file.write(b"")) {
        Ok(_) => "ok".to_owned(),
        Err(error) => calls::failed(&error),
    }
}

/// Lists a folder, sorted, or `empty`.
pub(super) fn list(path: &str) -> String {
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            if names.is_empty() { "empty".to_owned() } else { names.join(" ") }
        }
        Err(error) => calls::failed(&error),
    }
}

/// Opens a file that is there to write to it; writes nothing.
pub(super) fn open_to_write(path: &str) -> String {
    opened(fs::OpenOptions::new().append(true).open(path))
}

/// Makes a file without a name in a folder, or one that is removed at once: nothing of it stays.
pub(super) fn make(folder: &str) -> String {
    let nameless = opened(fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder));
    if nameless != "EOPNOTSUPP" {
        return nameless;
    }
    let path = format!("{folder}/hutch-attack-{}", std::process::id());
    let made = opened(fs::OpenOptions::new().write(true).create_new(true).open(&path));
    if made == "ok" {
        // Another process cannot have taken it: the name is this process's own.
        let _ = fs::remove_file(path);
    }
    made
}

fn opened(file: std::io::Result<fs::File>) -> String {
    file.map_or_else(|error| calls::failed(&error), |_| "ok".to_owned())
}

/// Takes the lock of a file, if it is free.
pub(super) fn lock(path: &str) -> String {
    let taken = fs::File::open(path)
        .and_then(|file| flock(file, FlockOperation::NonBlockingLockExclusive).map_err(Into::into));
    taken.map_or_else(|error| calls::failed(&error), |()| "ok".to_owned())
}

/// Descriptors that name a folder: each of them is a way out by `..`.
pub(super) fn held_folders() -> String {
    let held: Vec<String> =
        (0..1024).filter(|&number| is_folder(number)).map(|number| number.to_string()).collect();
    if held.is_empty() { "none".to_owned() } else { held.join(" ") }
}

fn is_folder(number: i32) -> bool {
    // SAFETY: inspected while nothing else runs in this process; a number that is not open gives an error.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    fstat(descriptor.as_fd()).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Programs that other processes run, of those that can be opened to be written, or would be, were they not running:
/// how runc was overwritten (CVE-2019-5736).
pub(super) fn programs_of_others() -> String {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // What this process was forked from runs the same program.
        if pid == own || pid == rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32)
        {
            continue;
        }
        match open_to_write(&format!("/proc/{pid}/exe")).as_str() {
            "EACCES" | "EPERM" | "EROFS" | "ENOENT" | "ESRCH" => {}
            other => found.push(format!("{pid}: {other}")),
        }
    }
    if found.is_empty() { "none".to_owned() } else { found.join(", ") }
}

/// Looks for a process by its first argument.
pub(super) fn process_named(name: &str) -> String {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let found = lines.any(|line| line.split(|byte| *byte == 0).next() == Some(name.as_bytes()));
    if found { "there" } else { "none" }.to_owned()
}
