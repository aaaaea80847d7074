//! `hutch run --config`: a `sandbox_config` as it is written elsewhere.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::egress::Caller;
use crate::harness::{HUTCH, fixture, refused, succeeded, text};
use crate::mounts::Home;
use crate::run::cgroups;

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
    command(folder, config, flags, script).stdin(Stdio::null()).output().expect("hutch")
}

fn command(folder: &Path, config: &str, flags: &[&str], script: &str) -> Command {
    let file = folder.join("sandbox_config.json");
    std::fs::write(&file, config).expect("written");
    let mut hutch = Command::new(HUTCH);
    hutch.arg("run").arg("--config").arg(file).args(flags).args(["--", "sh", "-c", script]);
    hutch
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

/// It ended with the status of a panic: its message could not be written into the pipe of the scanner.
#[test]
fn example_that_cannot_start_says_why() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let example = std::fs::read_to_string(fixture("sandbox_config.json")).expect("the example");
    let example = example.replace("/tmp/agent", &home.path("work").display().to_string());
    for (caller, expected) in [(Caller::Root, "runsc"), (Caller::Ordinary, "")] {
        std::fs::write(home.path("config.json"), &example).expect("written");
        let mut hutch = home.command(caller, Path::new("/"), &["--config", "@/config.json"], "true");
        let output = hutch.env("PATH", "/usr/bin:/bin").output().expect("hutch");
        refused(&output, 125, &[expected]);
    }
}

#[test]
fn sandbox_of_an_ordinary_user_is_as_the_file_says() {
    hutch_testkit::require!(root, user_namespaces, python);
    let home = Home::new();
    let mut config = example(&home.path("work"), &home.path("data"));
    config["resources"] = json!({"timeout_seconds": 30});
    let script = "touch /workspace/x || echo fixed; echo written > /data/y; id -u; getent ahostsv4 api.example | head -1; \
        getent ahostsv4 other.example || echo none";
    std::fs::write(home.path("config.json"), config.to_string()).expect("written");
    let output = home.run_at(Caller::Ordinary, Path::new("/"), &["--config", "@/config.json"], script);
    let printed = succeeded("hutch run", &output);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!((lines[0], lines[3]), ("fixed", "none"), "{printed}");
    assert!(lines[2].starts_with("198.18.1.0"), "{printed}");
    assert_eq!(home.read("data/y"), "written\n");
    config["resources"] = json!({"timeout_seconds": 1});
    std::fs::write(home.path("config.json"), config.to_string()).expect("written");
    let output = home.run_at(Caller::Ordinary, Path::new("/"), &["--config", "@/config.json"], "sleep 60");
    assert_eq!(output.status.code(), Some(124), "{output:?}");
}

/// CPU time that the groups of a command have in each period of 100 ms, in microseconds.
fn quotas(hutch: u32) -> Vec<String> {
    let read = |group: String| {
        let read = |name: &str| std::fs::read_to_string(Path::new(&group).join(name)).ok();
        let text = read("cpu.max").or_else(|| read("cpu.cfs_quota_us"))?;
        text.split_whitespace().next().map(str::to_owned)
    };
    cgroups(&format!("run-{hutch}-")).into_iter().filter_map(read).collect()
}

#[test]
fn limits_of_memory_and_cpu_time_apply() {
    hutch_testkit::require!(root, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let script = "exec python3 -c 'print(len(bytearray(300 << 20)))'";
    for (limit, reason, status) in [("48Mi", "outOfMemory", 137), ("1Gi", "exited", 0)] {
        let config = json!({"resources": {"memory_limit": limit}}).to_string();
        let output = run(folder.path(), &config, &["--json"], script);
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(result["reason"], reason, "{limit}: {result}");
        assert_eq!(result["status"]["code"], status, "{limit}: {result}");
    }
    for (limit, quota) in [(json!("500m"), "50000"), (json!("2"), "200000"), (json!(0.25), "25000")] {
        let config = json!({"resources": {"cpu_limit": limit}}).to_string();
        let mut hutch = command(folder.path(), &config, &[], "echo ready; read line");
        let mut child = hutch.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("output").read_exact(&mut ready).expect("ready");
        let found = quotas(child.id());
        drop(child.stdin.take());
        child.wait().expect("wait");
        assert!(!found.is_empty() && found.iter().all(|found| found == quota), "{config}: {found:?}");
    }
}

#[test]
fn dict_that_python_prints_is_read() {
    hutch_testkit::require!(root, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let program = "print({'isolation': 'native', 'network': {'mode': 'restricted', 'egress_allowlist': ['api.example:443'],
        'ingress': 'deny_all'}, 'filesystem': {'mode': 'read_write', 'host_mounts': []},
        'resources': {'memory_limit': '1Gi', 'timeout_seconds': 300},
        'credentials': {'mode': 'just_in_time', 'secret_scanning': True}})";
    let python = Command::new("python3").args(["-c", program]).output().expect("python3");
    let config = succeeded("python3", &python);
    assert!(config.contains("'secret_scanning': True"), "{config}");
    let output = run(folder.path(), &config, &[], "pwd; getent ahostsv4 api.example | head -1");
    let printed = succeeded("the dict", &output);
    assert!(printed.starts_with("/workspace\n198.18."), "{printed}");
    let output = run(folder.path(), &config, &["--json"], &format!("echo {}", token()));
    refused(&output, 125, &["the scanner finds `github-pat`"]);
    // YAML reads it as a text.
    let output = run(folder.path(), "{'filesystem': {'workspace': None}}", &[], "true");
    refused(
        &output,
        125,
        &["filesystem.workspace: `None` is a text here: leave out a field without a value"],
    );
}

#[test]
fn field_that_cannot_be_enforced_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("tempdir");
    for (config, named) in [
        (json!({"credentials": {"mode": "always"}}), "unknown variant `always`"),
        (json!({"isolation": "kata"}), "isolation: only `native` and `gvisor`"),
        (json!({"isolation": "firecracker"}), "isolation: only `native` and `gvisor`"),
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
        (json!({"resources": {"timeout_seconds": -1}}), "resources.timeout_seconds: invalid value"),
        (json!({"resources": {"cpu_limit": [1]}}), "resources.cpu_limit: expected a number or a text"),
        (
            json!({"network": {"egress_allowlist": "pypi.org"}}),
            "network.egress_allowlist: invalid type: string",
        ),
        (json!({"network": {"mode": "closed"}}), "network.mode: unknown variant `closed`"),
        (json!({"network": "open"}), "network: invalid type: string"),
        (json!([]), "sandbox_config.json"),
    ] {
        refused(&run(folder.path(), &config.to_string(), &[], "true"), 125, &["--config", named]);
    }
    let both = ["--memory", "1Gi"];
    refused(&run(folder.path(), "{}", &both, "true"), 125, &["--config", "--memory"]);
    // No field says that a host may have a private address.
    let config = json!({"network": {"egress_allowlist": ["10.1.2.3"]}}).to_string();
    let warned = text(&run(folder.path(), &config, &[], "true").stderr).to_string();
    assert!(warned.contains("10.1.2.3 opens nothing") && warned.contains("--allow-private"), "{warned}");
    let output = run(folder.path(), &config, &["--allow-private", "10.0.0.0/8"], "true");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
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

/// Made of parts, so that scanners of repositories do not report this file.
fn token() -> String {
    ["gh", "p_", "x7Kq2mW9vLp4Rt8sZc1Yb6Nd3Jf5Hg0QaEuT"].concat()
}

#[test]
fn secret_in_the_output_ends_it() {
    hutch_testkit::require!(root, user_namespaces);
    let folder = tempfile::tempdir().expect("tempdir");
    let config = json!({"credentials": {"mode": "just_in_time", "secret_scanning": true}}).to_string();
    let token_of = token();
    let halves = token_of.split_at(20);
    let mut handlers = vec!["native"];
    match hutch_testkit::Need::Runsc.missing() {
        None => handlers.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("output with gVisor", reason),
    }
    for handler in handlers {
        let mut config: Value = serde_json::from_str(&config).expect("JSON");
        config["isolation"] = handler.into();
        let config = config.to_string();
        // In two pieces, then more that does not come.
        for (stream, name) in [("1", "standard output"), ("2", "standard error")] {
            let script = format!(
                "echo before; (printf {}; sleep 0.02; echo {}) >&{stream}; sleep 60; echo after",
                halves.0, halves.1
            );
            let output = run(folder.path(), &config, &[], &script);
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.code(), Some(125), "{handler}: {stdout}{stderr}");
            assert!(stderr.contains(name) && stderr.contains("the scanner finds `github-pat`"), "{stderr}");
            assert!(!format!("{stdout}{stderr}").contains(&token()) && !stdout.contains("after"), "{stdout}");
        }
        let script = format!("echo {}", token());
        let output = run(folder.path(), &config, &["--json"], &script);
        refused(&output, 125, &["standard output of the command: the scanner finds"]);
        assert!(!text(&output.stdout).contains(&token()));
        // Other output is whole, to its end, and in order.
        let script = "seq 100000; echo error >&2; exit 3";
        let output = run(folder.path(), &config, &[], script);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(3), "error\n"), "{handler}");
        let numbers: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
        assert!(text(&output.stdout) == numbers, "{handler}: {} bytes", output.stdout.len());
    }
}

/// Status of a request to a host on port 80, or the name of the error.
const FETCH: &str = "import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except urllib.error.HTTPError as error: print(error.code)
except OSError as error: print(type(error).__name__)
";

#[test]
fn secret_in_a_request_is_refused() {
    hutch_testkit::require!(root, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let listed = |host: &str| json!({"egress_allowlist": [host]});
    for (network, host) in [
        (listed("api.invalid:80"), "api.invalid"),
        (listed("api.invalid:8080"), "api.invalid:8080"),
        (json!({"mode": "open"}), "api.invalid"),
        (json!({"mode": "open"}), "api.invalid:8080"),
    ] {
        secret_is_refused(folder.path(), &network, host);
    }
}

fn secret_is_refused(folder: &Path, network: &Value, host: &str) {
    let status = |scanning: bool, query: &str| {
        let config = json!({"network": network, "credentials": {"secret_scanning": scanning}});
        let script = format!("python3 -c '{FETCH}' 'http://{host}/?q={query}'");
        let output = run(folder, &config.to_string(), &[], &script);
        let stderr = text(&output.stderr);
        assert!(!stderr.contains(query) || query == "plain", "{stderr}");
        (text(&output.stdout).trim().to_owned(), stderr.contains("the scanner finds `github-pat`"))
    };
    assert_eq!(status(true, &token()), ("403".to_owned(), true), "{network} {host}");
    // The host does not exist outside.
    assert_eq!(status(true, "plain"), ("502".to_owned(), false), "{network} {host}");
    assert!(!status(false, &token()).1, "{network} {host}");
}

#[test]
fn published_example_runs_in_each_mode_of_the_network() {
    hutch_testkit::require!(root, python, runsc);
    let folder = tempfile::tempdir().expect("tempdir");
    // It is not there at first.
    let workspace = folder.path().join("agent");
    let published = std::fs::read_to_string(fixture("sandbox_config.json")).expect("the example");
    let example = published.replace("/tmp/agent", &workspace.display().to_string());
    assert_ne!(example, published);
    let mut config: Value = serde_json::from_str(&example).expect("JSON");
    let script = "echo written > file; for name in github.com other.example; do \
        getent ahostsv4 $name | head -1 | grep -q . && echo $name; done; true";
    for (mode, expected) in
        [("restricted", "github.com\n"), ("open", "github.com\nother.example\n"), ("none", "")]
    {
        config["network"]["mode"] = mode.into();
        if mode != "restricted" {
            config["network"]["egress_allowlist"] = json!([]);
        }
        let output = run(folder.path(), &config.to_string(), &[], script);
        assert_eq!(succeeded(mode, &output), expected, "{mode}");
        let file = workspace.join("file");
        assert_eq!(std::fs::read_to_string(&file).expect("written"), "written\n");
        std::fs::remove_file(file).expect("removed");
    }
    let mode = std::fs::metadata(&workspace).expect("the workspace").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn policy_beside_the_file_opens_nothing_more_in_each_mode_of_the_network() {
    hutch_testkit::require!(root, python);
    let folder = tempfile::tempdir().expect("tempdir");
    let policy = json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "two"},
        "spec": {"egress": {"rules": [{"name": "two", "hosts": ["b.example", "c.example"]}]}},
    });
    let file = folder.path().join("policy.json");
    std::fs::write(&file, policy.to_string()).expect("written");
    let script =
        "for name in a b c d; do getent ahostsv4 $name.example | grep -q . && echo $name; done; true";
    let mut handlers = vec!["native"];
    match hutch_testkit::Need::Runsc.missing() {
        None => handlers.push("gvisor"),
        Some(reason) => hutch_testkit::note_skip("sandbox_config and a policy in gVisor", reason),
    }
    for handler in handlers {
        let listed = json!(["a.example", "b.example"]);
        for (mode, list, alone, with_policy) in [
            ("restricted", &listed, "a\nb\n", "b\n"),
            ("open", &json!([]), "a\nb\nc\nd\n", "b\nc\n"),
            ("none", &json!([]), "", ""),
        ] {
            let network = json!({"mode": mode, "egress_allowlist": list});
            let config = json!({"isolation": handler, "network": network}).to_string();
            let names = |flags: &[&str]| {
                let output = run(folder.path(), &config, flags, script);
                assert!(output.status.success(), "{handler} {mode}: {}", text(&output.stderr));
                text(&output.stdout)
            };
            assert_eq!(names(&[]), alone, "{handler} {mode}");
            assert_eq!(names(&["--policy", &file.display().to_string()]), with_policy, "{handler} {mode}");
        }
    }
}

#[test]
fn workspace_that_cannot_be_made_is_refused_by_its_field() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("file"), "").expect("written");
    // As code of an earlier run can make it.
    std::fs::create_dir(folder.path().join("elsewhere")).expect("made");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), folder.path().join("link")).expect("a link");
    for (workspace, mode, named) in [
        ("absent/agent", "read_write", "filesystem.workspace"),
        ("file/agent", "read_write", "filesystem.workspace"),
        ("link/agent", "read_write", "a symbolic link is on its path"),
        ("file", "read_write", "not a folder"),
        ("absent", "read_only", "No such file"),
    ] {
        let config = json!({"filesystem": {"workspace": folder.path().join(workspace), "mode": mode}});
        refused(&run(folder.path(), &config.to_string(), &[], "true"), 125, &[workspace, named]);
    }
    assert_eq!(std::fs::read_dir(folder.path().join("elsewhere")).expect("a folder").count(), 0);
    // Nothing is made for a command that is refused before.
    let config = json!({"filesystem": {"workspace": folder.path().join("new")}});
    refused(&run(folder.path(), &config.to_string(), &["--policy", "/absent"], "true"), 125, &["/absent"]);
    assert!(!folder.path().join("new").exists());
}
