//! `hutch cp`.

use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use super::{refused, shared};
use crate::client_commands::checks::{same, tree};

#[test]
fn folder_is_unchanged_after_a_copy_in_and_out_of_a_cluster() {
    hutch_testkit::require!(root, kubernetes, kubectl);
    let shared = shared();
    shared.sandbox("files", Value::Null);
    let here = tempfile::tempdir().expect("a folder");
    let source = here.path().join("tree");
    tree(&source);
    let path = |name: &str| here.path().join(name).display().to_string();
    // Paths there begin at the container's working directory.
    shared.ok(&["cp", &path("tree"), "files:app"]);
    shared.ok(&["cp", &path("tree"), "files:app/other"]);
    assert_eq!(shared.ok(&["exec", "files", "--", "app/tree/deep/link"]), "works\n");
    shared.ok(&["exec", "files", "--", "diff", "-r", "app/tree", "app/other"]);
    shared.ok(&["cp", "files:app/tree", &path("back")]);
    same(&source, &here.path().join("back"));
    assert_eq!(std::fs::metadata(here.path().join("back/tool")).expect("stat").mode() & 0o777, 0o750);
    std::fs::write(path("file"), "new").expect("written");
    shared.ok(&["cp", &path("file"), "sandbox/files:app/tree/tool"]);
    shared.ok(&["cp", "files:app/tree/tool", &path("again")]);
    assert_eq!(std::fs::read(path("again")).expect("read"), b"new");
    refused(&shared.run(&["cp", "files:app/missing", &path("back")]), 1, &["files", "missing"]);
    refused(&shared.run(&["cp", &path("file"), "files:missing/x"]), 1, &["files", "missing"]);
}
