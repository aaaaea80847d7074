//! `deploy/Containerfile`, built by buildah, and what it holds run.

use std::path::Path;
use std::process::{Command, Output};

const HUTCH: &str = env!("CARGO_BIN_EXE_hutch");
const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/Containerfile");

fn succeeded(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// buildah with all it keeps below a folder.
fn buildah(scratch: &Path, words: &[&str]) -> String {
    let mut command = Command::new("buildah");
    command.args(["--storage-driver", "vfs", "--root"]).arg(scratch.join("store"));
    command.arg("--runroot").arg(scratch.join("state")).args(words).current_dir(scratch);
    String::from_utf8(succeeded(&mut command).stdout).expect("text").trim().to_owned()
}

#[test]
fn the_image_holds_the_program_alone_and_is_no_roots() {
    hutch_testkit::require!(root, user_namespaces, buildah);
    let scratch = tempfile::tempdir().expect("tempdir");
    let scratch = scratch.path();
    let release = scratch.join("target/x86_64-unknown-linux-gnu/release");
    std::fs::create_dir_all(&release).expect("folder");
    std::fs::copy(HUTCH, release.join("hutch")).expect("the program");
    buildah(scratch, &["build", "--isolation", "chroot", "--tag", "hutch", "--file", RECIPE, "."]);
    let user =
        buildah(scratch, &["inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}}", "hutch"]);
    assert_eq!(user, "65532:65532");
    let container = buildah(scratch, &["from", "hutch"]);
    let root = buildah(scratch, &["mount", &container]);
    let files: Vec<_> =
        std::fs::read_dir(&root).expect("root").map(|file| file.expect("file").file_name()).collect();
    assert_eq!(files, ["hutch"]);
    let output = succeeded(Command::new(HUTCH).args(["run", "--rootfs", &root, "--", "/hutch", "--version"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), concat!("hutch ", env!("CARGO_PKG_VERSION"), "\n"));
    buildah(scratch, &["umount", &container]);
}
