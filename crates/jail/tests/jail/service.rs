//! The confinement of a service, such as the front of `hutch up`.

use std::collections::BTreeMap;
use std::process::Command;

use crate::harness::PROBE;

/// The ids of the probe.
const SERVICE_ID: u32 = 0x2fff_fff0;

#[test]
fn service_has_its_folder_and_nothing_else() {
    hutch_testkit::require!(root);
    if hutch_jail::landlock::abi().is_none_or(|abi| abi < 4) {
        return hutch_testkit::note_skip("service reads nothing but its folder", "needs Landlock 4");
    }
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(SERVICE_ID), Some(SERVICE_ID)).unwrap();
    let output = Command::new(PROBE).arg("service").arg(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: BTreeMap<String, String> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let (denied, refused) = ("Permission denied", "Operation not permitted");
    let expected = BTreeMap::from(
        [
            ("own file", "done"),
            ("own file again", "done"),
            ("thread", "done"),
            ("socket pair", "done"),
            ("passwd", denied),
            ("shadow", denied),
            ("list", denied),
            ("file elsewhere", denied),
            ("program", refused),
            ("listener", refused),
            ("connection", refused),
            ("root again", refused),
            ("confined twice", "done"),
        ]
        .map(|(what, result)| (what.to_owned(), result.to_owned())),
    );
    assert_eq!(found, expected);
}

#[test]
fn service_as_root_is_refused() {
    let confinement =
        hutch_jail::service::Confinement { uid: 0, gid: 5, writable: &[], readable: &[], connects: false };
    let error = hutch_jail::service::confine(&confinement).unwrap_err().to_string();
    assert!(error.contains("does not run as root"), "{error}");
}
