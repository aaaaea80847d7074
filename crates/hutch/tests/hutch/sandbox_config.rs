//! `hutch run --config`: a `sandbox_config` as it is written elsewhere.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{HUTCH, refused, succeeded, text};

/// The example of the format.
fn example(workspace: &Path, data: &Path) -> Value {
    json!({
        "isolation": "native",
        "network": {"mode": "restricted", "egress_allowlist": ["api.example:443", "192.0.2.1:80"], "ingress": "deny_all"},
        "filesystem": {
            "workspace": workspace, "mode": "read_only", "host_mounts": [format!("{}:/data", data.display())],
        },
        "resources": {"cpu_limit": "2", "memory_limit": "1Gi", "timeout_seconds": 300},
        "credentials": {"mode": "just_in_time", "secret_scanning": true},
    })
}

fn run(folder: &Path, config: &str, flags: &[&str], script: &str) -> Output {
    let file = folder.join("sandbox_config.json");
    std::fs::write(&file, config).expect("written");
    let mut hutch = Command::new(HUTCH);
    hutch.arg("run").arg("--config").arg(file).args(flags).args(["--", "sh", "-c", script]);
    hutch.stdin(Stdio::null()).output().expect("hutch")
}

#[test]
fn sandbox_is_as_the_file_says() {
    hutch_testkit::require!(root, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let [workspace, data] = ["workspace", "data"].map(|name| folder.path().join(name));
    for path in [&workspace, &data] {
        std::fs::create_dir(path).expect("made");
    }
    let mut handlers = vec!["native"];
    match hutch_testkit::Need::Runsc.missing() {
        None => handlers.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("sandbox_config with gVisor", reason),
    }
    for handler in handlers {
        let mut config = example(&workspace, &data);
        config["isolation"] = handler.into();
        let script = "touch /workspace/x || echo fixed; echo written > /data/y; getent ahostsv4 api.example | head -1; \
            getent ahostsv4 other.example || echo none; \
            python3 -c \"import socket; socket.create_connection(('api.example', 80)).recv(1)\" 2>&1 | tail -1";
        let output = run(folder.path(), &config.to_string(), &[], script);
        let printed = succeeded(handler, &output);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!((lines[0], lines[2]), ("fixed", "none"), "{handler}: {printed}");
        assert!(
            lines[1].starts_with("198.18.1.0") && lines[3].contains("Connection"),
            "{handler}: {printed}"
        );
        assert_eq!(std::fs::read_to_string(data.join("y")).expect("written"), "written\n");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("\"network.egress_allowlist\" allows it"), "{handler}: {stderr}");
    }
    let yaml = "resources: {timeout_seconds: 1, cpu_limit: 500m, memory_limit: 64Mi}";
    let output = run(folder.path(), yaml, &["--json"], "sleep 60");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["reason"], "timedOut");
}

#[test]
fn field_that_cannot_be_enforced_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("tempdir");
    for (config, named) in [
        (json!({"credentials": {"mode": "always"}}), "unknown variant `always`"),
        (json!({"isolation": "kata"}), "isolation: only `native` and `gvisor`"),
        (json!({"isolation": "docker"}), "docker"),
        (
            json!({"network": {"mode": "none", "egress_allowlist": ["a.example:443"]}}),
            "network.egress_allowlist: only",
        ),
        (
            json!({"network": {"egress_allowlist": ["ok.example", "*.example:443"]}}),
            "network.egress_allowlist[1]: only exact",
        ),
        (json!({"network": {"ingress": "allow"}}), "allow"),
        (json!({"network": {"dns": []}}), "dns"),
        (json!({"filesystem": {"mode": "read_only"}}), "filesystem.mode"),
        (json!({"filesystem": {"host_mounts": ["a:b"]}}), "filesystem.host_mounts[0]"),
        (json!({"resources": {"cpu_limit": "many"}}), "resources.cpu_limit"),
        (json!({"resources": {"memory_limit": "1Ki"}}), "resources.memory_limit"),
        (json!({"resources": {"timeout_seconds": 0}}), "resources.timeout_seconds"),
        (json!([]), "sandbox_config.json"),
    ] {
        refused(&run(folder.path(), &config.to_string(), &[], "true"), 125, &["--config", named]);
    }
    let both = ["--memory", "1Gi"];
    refused(&run(folder.path(), "{}", &both, "true"), 125, &["--config", "--memory"]);
}

#[test]
fn variable_with_a_secret_is_refused_with_credentials_just_in_time() {
    hutch_testkit::require!(root, user_namespaces);
    let folder = tempfile::tempdir().expect("tempdir");
    let config = json!({"credentials": {"mode": "just_in_time", "secret_scanning": true}}).to_string();
    let secret = "GITHUB_TOKEN=ghp_x7Kq2mW9vLp4Rt8sZc1Yb6Nd3Jf5Hg0QaEuT";
    let output = run(folder.path(), &config, &["--env", secret], "true");
    refused(&output, 125, &["credentials.mode: --env GITHUB_TOKEN has a secret"]);
    assert!(!text(&output.stderr).contains("x7Kq2mW9"), "{}", text(&output.stderr));
    let output = run(folder.path(), &config, &["--env", "MODE=debug"], "echo $MODE");
    assert_eq!(text(&output.stdout), "debug\n", "{}", text(&output.stderr));
}
