//! A tree that changes during requests never leads the program outside.

use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hutch_testkit::require;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::curl::curl;
use crate::served::serve;

/// Requests of each kind; the folder changes thousands of times meanwhile.
const ROUNDS: usize = 60;
/// Pause between two changes: a request sees one state, the other, or both.
const PAUSE: Duration = Duration::from_micros(200);

/// Stops the changes, also when a check fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_folder_that_turns_into_a_link_outside_and_back_is_never_followed() {
    require!(curl);
    let served = serve();
    let (inside, link) = (served.app().join("d"), served.app().join("l"));
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("f"), "inside").unwrap();
    std::fs::write(outside.path().join("f"), "secret").unwrap();
    symlink(outside.path(), &link).unwrap();
    // Under any of its names.
    let opened = std::fs::File::open(&inside).unwrap();
    let kept = format!("/proc/self/fd/{}/f", opened.as_raw_fd());
    let over = AtomicBool::new(false);
    let mut seen = [0; 2];
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut changes = 0;
            while !over.load(Ordering::SeqCst) {
                renameat_with(CWD, &inside, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                changes += 1;
                // The other side needs a processor too.
                std::thread::sleep(PAUSE);
            }
            changes
        });
        let end = Over(&over);
        for _ in 0..ROUNDS {
            let read = curl(served.rest, "/v1/files/d/f", &[], b"");
            assert!(!read.text().contains("secret"), "{}", read.text());
            seen[usize::from(read.text() == "inside")] += 1;
            curl(served.rest, "/v1/files/d/new/g", &["-X", "PUT", "--data-binary", "@-"], b"x");
            curl(served.rest, "/v1/files/d/f", &["-X", "DELETE"], b"");
            std::fs::write(&kept, "inside").unwrap();
            let down = served.get("/download/d/f");
            assert!(!down.text().contains("secret"), "{}", down.text());
        }
        drop(end);
        assert!(changes.join().unwrap() > ROUNDS, "it changed between requests");
    });
    let names: Vec<_> =
        std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"], "nothing was made or removed outside");
    assert_eq!(std::fs::read_to_string(outside.path().join("f")).unwrap(), "secret");
    assert!(seen.iter().all(|times| *times > 0), "both states were met: {seen:?}");
}
