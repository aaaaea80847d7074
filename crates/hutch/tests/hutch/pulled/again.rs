//! Images that are pulled again at each start.

use super::*;

/// Pushes an image under the tag `again`, with one layer of zstd, and returns the digest of its manifest.
fn push(registry: &Registry, version: &str) -> String {
    let program = std::fs::read(registry.path("hutch-sandboxd")).expect("the program");
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, "hutch-sandboxd", &program[..]).expect("added");
    let archive = archive.into_inner().expect("an archive");
    let packed = zstd::encode_all(&archive[..], 1).expect("packed");
    let layer = registry.push_blob("application/vnd.oci.image.layer.v1.tar+zstd", &packed);
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Cmd": ["/hutch-sandboxd", "--pause"], "Env": [format!("VERSION={version}")]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&archive))]},
    });
    let config =
        registry.push_blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
    registry.push_manifest("again", &manifest);
    format!("sha256:{}", hex(manifest.to_string().as_bytes()))
}

/// Kills the processes of a container that has this text in its environment.
fn kill(marker: &str) {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let read = |name: &str| text(&std::fs::read(entry.path().join(name)).unwrap_or_default());
        if read("cmdline").starts_with("/hutch-sandboxd") && read("environ").contains(marker) {
            let pid =
                entry.file_name().to_string_lossy().parse().ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.expect("a process"), rustix::process::Signal::KILL)
                .expect("killed");
            killed += 1;
        }
    }
    assert!(killed > 0, "no process has {marker}");
}

#[test]
fn image_with_the_policy_always_is_pulled_at_each_start_of_its_container() {
    hutch_testkit::require!(root, user_namespaces, docker_registry, curl, kubectl);
    let (registry, private) = (Registry::start(), tempfile::tempdir().expect("tempdir"));
    // No other user may enter the folder above.
    std::fs::set_permissions(private.path(), PermissionsExt::from_mode(0o700)).expect("chmod");
    let (name, config) = (format!("{}/org/app:again", registry.host), registry.trusting());
    let options = ["--pull-from", &registry.host, "--image-config", &config];
    let up = Up::start_on(&private.path().join("data"), &options);
    up.ok(&format!(
        "create secret docker-registry login --docker-server={} --docker-username={USER} --docker-password={PASSWORD}",
        registry.host
    ));
    let first = push(&registry, "1");
    let marker = private.path().display().to_string();
    let mut pod =
        pod("again", &name, &json!({"imagePullPolicy": "Always", "imagePullSecrets": [{"name": "login"}]}));
    pod["spec"]["containers"][0]["env"] = json!([{"name": "MARKER", "value": marker}]);
    apply(&up, "default", &pod);
    up.ok("wait --for=condition=Ready pod/again --timeout=120s");
    let of = |path: &str| format!("get pod again -o jsonpath={{.status.containerStatuses[0].{path}}}");
    let image = up.ok(&of("imageID"));
    assert!(image.contains(&first), "{image} is not {first}");
    let second = push(&registry, "2");
    assert_ne!(first, second);
    kill(&marker);
    up.eventually(&of("imageID"), |image| image.contains(&second));
    up.eventually(&of("restartCount"), |count| count == "1");
    let words =
        "get events --field-selector involvedObject.name=again,reason=Pulled -o jsonpath={.items[*].message}";
    up.eventually(words, |messages| messages.matches("Successfully pulled image").count() == 2);
}
