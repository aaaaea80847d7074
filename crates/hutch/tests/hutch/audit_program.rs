//! The program in the documentation that checks an audit log.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::audited::audit;
use crate::harness::{Up, succeeded, text};

/// Returns the program of the documentation, written to a file.
fn program(folder: &Path) -> PathBuf {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/audit.md");
    let page = std::fs::read_to_string(page).unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let path = folder.join("verify.py");
    std::fs::write(&path, program).unwrap();
    path
}

/// Writes a log that begins with record 4, of a class, which says that three were deleted.
const WITHOUT_BEGINNING: &str = r#"
import hashlib, json, sys
event = json.dumps({"class_uid": int(sys.argv[2]), "unmapped": {"removed_last": 3}}).encode()
prev = "00" * 32
own = hashlib.sha256(bytes.fromhex(prev) + event).hexdigest()
line = b'{"seq":4,"prev":"%s","hash":"%s","event":%s}\n' % (prev.encode(), own.encode(), event)
open(sys.argv[1] + "/1.jsonl", "wb").write(line)
"#;

/// Regression: it believed a record that only the log writes, whatever its class was.
#[test]
fn program_of_the_documentation_believes_only_the_log_about_deleted_records() {
    hutch_testkit::require!(python);
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    for (class, missing) in [("0", false), ("6003", true)] {
        let log = tempfile::tempdir().unwrap();
        let made =
            Command::new("python3").args(["-c", WITHOUT_BEGINNING]).arg(log.path()).arg(class).output();
        succeeded("python3", &made.unwrap());
        let found = Command::new("python3").arg(&program).arg(log.path()).output().unwrap();
        assert_eq!(text(&found.stderr).contains("the beginning is missing"), missing, "{class}: {found:?}");
    }
}

#[test]
fn program_of_the_documentation_finds_what_hutch_finds() {
    hutch_testkit::require!(root, kubectl, python, openssl);
    let mut up = Up::start(&[]);
    (0..5).for_each(|number| drop(up.ok(&format!("create configmap map-{number}"))));
    up.stop();
    let (log, folder) = (up.data().join("audit"), tempfile::tempdir().unwrap());
    let program = program(folder.path());
    let check = |what: &str| {
        let theirs = Command::new("python3").arg(&program).arg(&log).output().unwrap();
        let ours = audit(&up, &["verify"]);
        assert_eq!(theirs.status.success(), ours.status.success(), "{what}: {}", text(&ours.stdout));
        theirs.status.success()
    };
    assert!(check("as it is"));
    let segment = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).min().unwrap();
    let original = std::fs::read(&segment).unwrap();
    let lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
    let mut flipped = original.clone();
    let place = original.len() / 2;
    flipped[place] ^= 1;
    let removed = [&lines[..3], &lines[4..]].concat().concat();
    let cut = lines[..lines.len() - 2].concat();
    let beheaded = lines[1..].concat();
    for (what, bytes) in
        [("flipped bit", flipped), ("removed line", removed), ("cut end", cut), ("cut start", beheaded)]
    {
        std::fs::write(&segment, bytes).unwrap();
        assert!(!check(what), "{what} is not found");
    }
    std::fs::write(&segment, original).unwrap();
    assert!(check("as it was"));
}
