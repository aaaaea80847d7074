//! `deploy/Containerfile`, carried out by hand: a folder with what it copies is a root in which the program runs.

use std::path::Path;
use std::process::Command;

const HUTCH: &str = env!("CARGO_BIN_EXE_hutch");

/// The arguments of every instruction of that name.
fn instructions(text: &str, name: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_image_is_the_program_and_nothing_else() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Containerfile");
    let text = std::fs::read_to_string(file).expect("the recipe");
    assert_eq!(instructions(&text, "FROM"), ["scratch"]);
    let user = instructions(&text, "USER").remove(0);
    assert!(
        user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)),
        "{user} must be numbers and not root"
    );
    let copies = instructions(&text, "COPY");
    let [copy] = copies.as_slice() else { panic!("{copies:?}") };
    assert!(copy.ends_with("/release/hutch /hutch"), "{copy}");
    assert_eq!(instructions(&text, "ENTRYPOINT"), ["[\"/hutch\"]"]);
    hutch_testkit::require!(user_namespaces);
    let root = tempfile::tempdir().expect("tempdir");
    std::fs::copy(HUTCH, root.path().join("hutch")).expect("the program");
    let output = Command::new(HUTCH)
        .args(["run", "--rootfs"])
        .arg(root.path())
        .args(["--", "/hutch", "--version"])
        .output()
        .expect("hutch run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, concat!("hutch ", env!("CARGO_PKG_VERSION"), "\n"), "{complaint}");
}
