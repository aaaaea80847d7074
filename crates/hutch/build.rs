//! Builds the programs that run outside this one (the warden, sandboxd, and the one that tries attacks) as small static
//! executables, so that `src/programs.rs` can carry them, compressed, inside the binary and a plain `cargo run` needs no
//! second command.
//!
//! Like everything here they are static and not position-independent (`.cargo/config.toml`): each jail runs them, and
//! every relocation would be private memory per jail.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

const PROGRAMS: [(&str, &str); 3] =
    [("hutch-jail", "hutch-warden"), ("hutch-jail", "hutch-attack"), ("hutch-sandboxd", "hutch-sandboxd")];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let target = env::var("TARGET").expect("cargo sets it");
    let workspace = manifest.ancestors().nth(2).expect("crates/hutch lies two folders down");
    for folder in ["crates/jail", "crates/sandboxd", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(folder).display());
    }
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && target.starts_with("x86_64-unknown-linux")
    {
        // What a run and the servers call lies side by side: see scripts/order-code.
        let order = manifest.join("order.ld");
        println!("cargo::rerun-if-changed={}", order.display());
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", order.display());
    }
    let build_dir = target_dir(&out).join("programs");
    build(workspace, &build_dir, &target);
    for (_, program) in PROGRAMS {
        let built = build_dir.join(&target).join("program").join(program);
        let whole = std::fs::read(&built)
            .unwrap_or_else(|error| panic!("{} was not built: {error}", built.display()));
        let file = std::fs::File::create(out.join(program)).expect("OUT_DIR can be written");
        let mut packed = GzEncoder::new(file, Compression::best());
        packed.write_all(&whole).and_then(|()| packed.try_finish()).expect("OUT_DIR can be written");
    }
}

/// One folder for all profiles of the outer build, so that the programs are compiled once.
fn target_dir(out: &Path) -> PathBuf {
    let build = out.ancestors().find(|folder| folder.ends_with("build")).expect("OUT_DIR lies below `build`");
    build.parent().and_then(Path::parent).expect("`build` lies below the profile's folder").to_owned()
}

fn build(workspace: &Path, build_dir: &Path, target: &str) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo.current_dir(workspace).args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "program",
        "--target",
        target,
    ]);
    cargo.arg("--target-dir").arg(build_dir);
    for (package, program) in PROGRAMS {
        cargo.args(["-p", package, "--bin", program]);
    }
    // What the outer cargo set for itself (clippy's wrapper, its flags, its profile) is not meant for this build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = [
            "CARGO_HOME",
            "CARGO_HTTP_",
            "CARGO_NET_",
            "CARGO_REGISTRIES_",
            "CARGO_REGISTRY_",
            "CARGO_SOURCE_",
        ];
        if (name.starts_with("CARGO") && !ours.iter().any(|prefix| name.starts_with(prefix)))
            || name.starts_with("RUSTC_")
            || name == "RUSTFLAGS"
        {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "the programs that hutch carries could not be built");
}
