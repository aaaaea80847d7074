//! Checks of the commands for a Sandbox that are the same on one machine and on a cluster.

use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::text;

/// Checks a `hutch exec -i SANDBOX -- cat`.
pub(crate) fn bytes_pass_both_ways_at_once(mut cat: Command) {
    // More than all buffers together: a client that transfers one direction at a time would block.
    let bytes: Vec<u8> = (0..=255).cycle().take(24 << 20).collect();
    let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch starts");
    let (mut stdin, sent) = (child.stdin.take().expect("stdin"), bytes.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let mut received = Vec::new();
    child.stdout.take().expect("stdout").read_to_end(&mut received).expect("read");
    writer.join().expect("writer").expect("write");
    assert!(received == bytes, "{} bytes came back of {}", received.len(), bytes.len());
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}

/// A command that prints `now`, and ends with status 4 at the end of its input.
pub(crate) const NOW: [&str; 3] = ["sh", "-c", "printf now; read x; exit 4"];

/// Checks a `hutch exec -i` of [`NOW`]: open input does not delay output.
pub(crate) fn output_is_not_delayed(mut now: Command) {
    let mut child = now.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch starts");
    let mut first = [0; 3];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("while it still runs");
    assert_eq!(&first, b"now");
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("wait").code(), Some(4));
}

/// Fills `folder` with entries that a copy can change: an empty folder, a large file, a mode, a link, a long name.
pub(crate) fn tree(folder: &Path) {
    std::fs::create_dir_all(folder.join("deep/empty")).expect("mkdir");
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    std::fs::write(folder.join("deep/bytes"), bytes).expect("written");
    std::fs::write(folder.join("tool"), "#!/bin/sh\necho works\n").expect("written");
    std::fs::set_permissions(folder.join("tool"), std::fs::Permissions::from_mode(0o750)).expect("chmod");
    symlink("../tool", folder.join("deep/link")).expect("symlink");
    std::fs::write(folder.join("n".repeat(200)), "long").expect("written");
}

#[track_caller]
pub(crate) fn same(a: &Path, b: &Path) {
    let diff = Command::new("diff").arg("-r").args([a, b]).output().expect("diff");
    assert!(diff.status.success(), "{}{}", text(&diff.stdout), text(&diff.stderr));
}
