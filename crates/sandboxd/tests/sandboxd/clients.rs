//! Third-party clients: grpcio, and the published client's own code.

use std::process::Command;

use hutch_testkit::{python_package, require};

use crate::served::{Served, serve, serve_with};

fn python(script: &str, packages: &[&str], words: &[String], environment: &[(&str, &str)]) {
    let paths = std::env::join_paths(packages.iter().map(|name| python_package(name))).unwrap();
    let mut command = Command::new("python3");
    command.arg(format!("{}/tests/sandboxd/clients/{script}", env!("CARGO_MANIFEST_DIR"))).args(words);
    command.env("PYTHONPATH", paths).env("PYTHONDONTWRITEBYTECODE", "1").envs(environment.iter().copied());
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.ends_with("ok\n"), "{out}\n{err}");
}

fn talk(served: &Served, environment: &[(&str, &str)]) {
    python("processes.py", &["grpc"], &[served.grpc.to_string()], environment);
}

#[test]
fn grpcio_runs_and_talks_to_processes() {
    require!(grpcio);
    let served = serve();
    talk(&served, &[("PID", &served.pid().to_string())]);
}

#[test]
fn grpcio_needs_the_token_and_commands_do_not_inherit_it() {
    require!(grpcio);
    let token = "a-token-of-good-length";
    let served = serve_with(&[("SANDBOXD_TOKEN", token)]);
    let descriptors = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/descriptors.binpb");
    talk(&served, &[("TOKEN", token), ("DESCRIPTORS", descriptors)]);
}

#[test]
fn the_published_client_for_sandboxd_works_unchanged() {
    require!(sandbox_client);
    let served = serve();
    python("published.py", &["1.0.8", "grpc"], &[served.rest.to_string(), served.grpc.to_string()], &[]);
}

#[test]
fn the_compiled_descriptors_match_the_proto() {
    require!(grpcio);
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let folder = tempfile::tempdir().unwrap();
    let compiled = folder.path().join("descriptors.binpb");
    let status = Command::new("python3")
        .args(["-m", "grpc_tools.protoc", "-I", proto, "--include_imports"])
        .arg(format!("--descriptor_set_out={}", compiled.display()))
        .arg("process/v1/process.proto")
        .env("PYTHONPATH", python_package("grpc"))
        .status()
        .unwrap();
    assert!(status.success());
    let kept = std::fs::read(format!("{proto}/descriptors.binpb")).unwrap();
    assert!(std::fs::read(compiled).unwrap() == kept, "proto/descriptors.binpb is old; compile it anew");
}
