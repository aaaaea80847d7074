//! The templates of `deploy/sandboxd`: what the init container does, done, and whether the container finds it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::manifests::{folder, of_kind, read, text};
use crate::harness::{HUTCH, Up};

const UID: &str = "6a1f-7";

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().expect("text")).collect()
}

/// Where a path inside a container is on this machine, where each volume is a folder.
fn here(container: &Value, volumes: &Path, path: &str) -> PathBuf {
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let found = mounts.iter().find_map(|mount| {
        let rest = path.strip_prefix(text(mount, "/mountPath"))?;
        Some(volumes.join(text(mount, "/name")).join(rest.trim_start_matches('/')))
    });
    found.unwrap_or_else(|| panic!("{path} is in no volume of {}", container["name"]))
}

/// The words of the init container with the places of this machine, run; its image's program is `/hutch`.
fn initialised(container: &Value, volumes: &Path) {
    let words = strings(&container["command"]);
    let recipe = std::fs::read_to_string(folder().join("Containerfile")).expect("deploy/Containerfile");
    assert!(recipe.contains(&format!(" {}\n", words[0])), "{} is not in the image", words[0]);
    let local = words[1..].iter().map(|word| match word.split_once('/') {
        Some((flag, path)) => format!("{flag}{}", here(container, volumes, &format!("/{path}")).display()),
        None => word.replace("$(POD_UID)", UID),
    });
    let output = Command::new(HUTCH).args(local).output().expect("hutch");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn init_containers_install_the_programs_of_the_containers() {
    for (file, demands) in [("template.yaml", false), ("template-with-token.yaml", true)] {
        let objects = read(&folder().join("sandboxd").join(file));
        let [template] = of_kind(&objects, "SandboxTemplate")[..] else { panic!("{file}: one template") };
        let [pool] = of_kind(&objects, "SandboxWarmPool")[..] else { panic!("{file}: one pool") };
        assert_eq!(pool["spec"]["sandboxTemplateRef"]["name"], template["metadata"]["name"]);
        let pod = &template["spec"]["podTemplate"];
        let (init, main) = (&pod["spec"]["initContainers"][0], &pod["spec"]["containers"][0]);
        assert_eq!(text(init, "/image"), concat!("localhost/hutch:", env!("CARGO_PKG_VERSION")), "{file}");
        let volumes = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(volumes.path().join("key")).expect("a folder");
        std::fs::write(volumes.path().join("key/key"), "0123456789abcdef0123456789abcdef\n").expect("a key");
        // A second time is what a kubelet does after a crash.
        initialised(init, volumes.path());
        initialised(init, volumes.path());

        let program = here(main, volumes.path(), strings(&main["command"])[0]);
        let output = Command::new(&program).arg("--version").output().expect("sandboxd");
        assert!(output.status.success() && output.stdout.starts_with(b"hutch-sandboxd "), "{output:?}");
        assert_eq!(
            strings(&main["command"])[1..],
            ["--"],
            "{file}: the arguments are the container's own command"
        );
        let token = main["env"].as_array().into_iter().flatten().find(|v| v["name"] == "SANDBOXD_TOKEN_FILE");
        assert_eq!(token.is_some(), demands, "{file}");
        if let Some(token) = token {
            let printed =
                std::fs::read_to_string(here(main, volumes.path(), text(token, "/value"))).expect("a token");
            let key = hutch_router::PodKey::new(b"0123456789abcdef0123456789abcdef").expect("a key");
            assert_eq!(printed, key.token(UID));
        }
        let mounts = main["volumeMounts"].as_array().expect("mounts");
        assert!(mounts.iter().all(|mount| mount["name"] != "key"), "the key is not for the code");
        for container in [init, main] {
            assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false, "{file}");
            assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL", "{file}");
        }
        let ports: Vec<_> =
            main["ports"].as_array().expect("ports").iter().map(|p| p["containerPort"].clone()).collect();
        assert_eq!(ports, [8888, 8080, 9090], "{file}");
        assert_eq!(
            main["readinessProbe"]["httpGet"],
            serde_json::json!({"path": "/v1/health", "port": 8080})
        );
        assert_eq!(pod["metadata"]["annotations"]["hutch.dev/activity-port"], "8080", "{file}");
    }
}

#[test]
fn template_for_one_machine_runs_commands_under_hutch_up() {
    hutch_testkit::require!(root, kubectl, curl);
    let up = Up::start(&[]);
    let file = folder().join("sandboxd/one-machine.yaml");
    up.ok_args(&["apply", "-f", &file.display().to_string()]);
    let claim = serde_json::json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": "mine"}, "spec": {"warmPoolRef": {"name": "sandboxd-one-machine"}}});
    crate::policies::applied(&up, &claim);
    up.ok("wait --for=condition=Ready sandboxclaim/mine --timeout=180s");
    let sandbox = up.ok("get sandboxclaim mine -o jsonpath={.status.sandbox.name}");
    let body = r#"{"command":"sh -c 'id -u; pwd'"}"#;
    let url = "http://localhost:8888/execute";
    let json = "Content-Type: application/json";
    let answer =
        up.ok_args(&["exec", &sandbox, "-c", "main", "--", "curl", "-s", "-H", json, "-d", body, url]);
    assert!(answer.contains(r#""stdout":"65532\n/workspace\n""#), "{answer}");
}

#[test]
fn invalid_token_is_refused() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (key, weak) = (folder.path().join("key"), folder.path().join("weak"));
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").expect("written");
    std::fs::write(&weak, "short").expect("written");
    let key = format!("--key-file={}", key.display());
    for (words, named) in [
        (vec!["--pod-uid=u".to_owned()], "--key-file"),
        (vec![key.clone()], "--pod-uid"),
        (vec![key.clone(), "--pod-uid=$(POD_UID)".into()], "--pod-uid"),
        (vec![key, "--pod-uid=".into()], "--pod-uid"),
        (vec![format!("--key-file={}", weak.display()), "--pod-uid=u".into()], "32 bytes"),
        (vec!["--key-file=/no/such".into(), "--pod-uid=u".into()], "/no/such"),
    ] {
        let into = folder.path().join("into");
        let output = Command::new(HUTCH)
            .args(["sandboxd", "install"])
            .arg(&into)
            .args(&words)
            .output()
            .expect("hutch");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains(named), "{words:?}: {printed}");
        assert!(!printed.contains("short") && !into.exists(), "{words:?}: {printed}");
    }
}
