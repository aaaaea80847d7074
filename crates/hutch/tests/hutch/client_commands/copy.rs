//! Copies of files and folders.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::checks::{same, tree};
use super::{ok, refused, run, started};
use crate::harness::fixture;

#[test]
fn folder_is_unchanged_after_a_copy_in_and_out() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    let here = up.folder().join("here");
    let source = here.join("tree");
    tree(&source);
    let source_text = source.to_str().expect("text");
    // Into an existing folder, then under a new name.
    ok(&up, &["cp", source_text, "notes:/data"]);
    ok(&up, &["cp", source_text, "notes:/data/other"]);
    assert_eq!(ok(&up, &["exec", "notes", "--", "/data/tree/deep/link"]), "works\n");
    ok(&up, &["exec", "notes", "--", "diff", "-r", "/data/tree", "/data/other"]);
    let back = here.join("back");
    ok(&up, &["cp", "notes:/data/tree", back.to_str().expect("text")]);
    same(&source, &back);
    std::fs::create_dir(here.join("into")).expect("mkdir");
    ok(&up, &["cp", "sandbox/notes:/data/tree/", here.join("into").to_str().expect("text")]);
    same(&source, &here.join("into/tree"));
    assert_eq!(std::fs::metadata(back.join("tool")).expect("stat").mode() & 0o777, 0o750);

    let file = here.join("file");
    ok(&up, &["cp", "notes:/data/tree/tool", file.to_str().expect("text")]);
    assert_eq!(std::fs::read(&file).expect("read"), std::fs::read(source.join("tool")).expect("read"));
    std::fs::write(&file, "new").expect("written");
    ok(&up, &["cp", file.to_str().expect("text"), "notes:/data/tree/tool"]);
    assert_eq!(ok(&up, &["exec", "notes", "--", "cat", "/data/tree/tool"]), "new");
}

#[test]
fn copy_from_a_hostile_sandbox_stays_in_the_destination() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    let here = up.folder().join("here");
    std::fs::create_dir_all(here.join("into")).expect("mkdir");
    let into = here.join("into");
    let into = into.to_str().expect("text");
    // Its own `tar` is found first.
    let notes = std::fs::read_to_string(fixture("notes.yaml")).expect("read");
    assert!(notes.contains("command: [sleep, infinity]"));
    let evil = notes.replace("name: notes", "name: evil").replace(
        "command: [sleep, infinity]",
        "command: [sleep, infinity]\n        env: [{name: PATH, value: '/data:/usr/bin:/bin'}]",
    );
    let file = here.join("evil.yaml");
    std::fs::write(&file, evil).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    let hostile = |script: &str| {
        let script = hostile_tar(script);
        ok(
            &up,
            &[
                "exec",
                "evil",
                "--",
                "/bin/sh",
                "-c",
                "printf %s \"$1\" > /data/tar && chmod +x /data/tar",
                "sh",
                &script,
            ],
        );
        run(&up, &["cp", "evil:/data/x", into])
    };
    refused(&hostile("add('x/a'); add('../escaped')"), 1, &["evil", "../escaped", "leads upwards"]);
    refused(&hostile("add('/tmp/hutch-escaped')"), 1, &["/tmp/hutch-escaped"]);
    refused(&hostile("add('y/a')"), 1, &["not requested"]);
    refused(&hostile("add('x/way', tarfile.SYMTYPE, '../..'); add('x/fine')"), 1, &["left out: x/way"]);
    refused(&hostile("add('x/l', tarfile.SYMTYPE, 'd'); add('x/d/f'); add('x/l/g')"), 1, &["x/l/g"]);
    assert_eq!(std::fs::read(here.join("into/x/fine")).expect("read"), b"evil");
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("e").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&here.join("into")), ["x"]);
    assert!(!here.join("escaped").exists() && !Path::new("/tmp/hutch-escaped").exists());
    assert!(std::fs::symlink_metadata(here.join("into/x/way")).is_err());
}

fn hostile_tar(script: &str) -> String {
    format!(
        "#!/usr/bin/python3\nimport io, sys, tarfile\nout = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n\
         def add(name, kind=tarfile.REGTYPE, link='', data=b'evil'):\n    entry = tarfile.TarInfo(name); entry.type = kind; \
         entry.linkname = link\n    entry.size = len(data) if kind == tarfile.REGTYPE else 0\n    \
         out.addfile(entry, io.BytesIO(data))\n{script}\nout.close()\n"
    )
}

#[test]
fn failed_copy_names_the_path() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    let folder = up.folder().to_str().expect("text").to_owned();
    refused(&run(&up, &["cp", "a", "b"]), 1, &["SANDBOX:PATH"]);
    refused(&run(&up, &["cp", "notes:/a", "notes:/b"]), 1, &["only one"]);
    refused(&run(&up, &["cp", &format!("{folder}/missing"), "notes:/data"]), 1, &["missing"]);
    refused(&run(&up, &["cp", "notes:/etc/hostname", &format!("{folder}/missing/x")]), 1, &["missing"]);
    refused(
        &run(&up, &["cp", "notes:/etc/hostname", &format!("{folder}/missing/")]),
        1,
        &["missing", "make it first"],
    );
    refused(&run(&up, &["cp", "Notes:/a", "."]), 2, &["SRC"]);
    ok(&up, &["exec", "notes", "--", "true"]);
    refused(&run(&up, &["cp", "notes:/data/missing", &folder]), 1, &["notes", "missing"]);
    refused(
        &run(&up, &["cp", &up.kubeconfig().display().to_string(), "notes:/missing/x"]),
        1,
        &["notes", "/missing"],
    );
    refused(
        &run(&up, &["cp", &up.kubeconfig().display().to_string(), "notes:/usr/x"]),
        1,
        &["notes", "Read-only file system"],
    );
}
