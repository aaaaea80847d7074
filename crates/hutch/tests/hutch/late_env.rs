//! Claims with environment variables on `hutch up`: they take a Sandbox that runs already, and everything that starts
//! in it from then on has the variables.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{self, Up, running, succeeded};

/// Found in nothing that the machine shows to others.
const SECRET: &str = "271828.1828=x";
const SHOW: &str = "echo $A $DERIVED $SECRET";

#[test]
fn claim_with_env_adopts_a_pooled_sandbox() {
    hutch_testkit::require!(root, kubectl);
    let mut up = started();
    pool(&up, "open", "Overrides", None, &[main_container()]);
    let before = lives(&up);
    claim(&up, "mine", "open", json!([{"name": "A", "value": "claim"}, {"name": "SECRET", "value": SECRET}]));
    let sandbox = bound(&up, "mine");
    has_the_variables(&up, &sandbox);
    let after = lives(&up);
    let life = after.iter().find(|life| life.starts_with(&format!("{sandbox} "))).expect("it runs");
    assert!(before.contains(life), "{life} is not in {before:?}");
    let spec = "jsonpath={.spec.podTemplate.spec.containers[0].env[*].value}";
    assert_eq!(up.ok_args(&["get", "sandbox", &sandbox, "-o", spec]), format!("claim $(A)/derived {SECRET}"));
    let file = up.ok_args(&["exec", &sandbox, "--", "stat", "-c", "%a %u %g", "/.hutch/env/variables"]);
    assert_eq!(file, "400 0 0\n");
    assert!(!running(SECRET), "no process has the secret in its arguments");
    let log = std::fs::read_to_string(up.folder().join("log")).expect("the log");
    assert!(!log.contains(SECRET), "{log}");

    claim(&up, "plain", "open", json!([]));
    let plain = bound(&up, "plain");
    assert_ne!(plain, "plain", "from the pool");
    assert_eq!(shown(&up, &plain, SHOW), "template template/derived\n");
    assert_eq!(executed(&up, &plain, SHOW), "template template/derived\n");

    up.stop();
    up.restart();
    up.ok(&format!("wait --for=condition=Ready pod/{sandbox} --timeout=60s"));
    has_the_variables(&up, &sandbox);
    for mode in ["Suspended", "Running"] {
        let patch = format!("{{\"spec\":{{\"operatingMode\":\"{mode}\"}}}}");
        up.ok_args(&["patch", "sandbox", &sandbox, "--type=merge", "-p", &patch]);
        let condition = if mode == "Running" { "Ready" } else { mode };
        up.ok(&format!("wait --for=condition={condition} sandbox/{sandbox} --timeout=60s"));
    }
    up.ok("wait --for=condition=Ready sandboxclaim/mine --timeout=60s");
    has_the_variables(&up, &sandbox);
    python_package(&up);
}

#[test]
fn policies_and_fixed_variables_behave_as_in_a_cold_start() {
    hutch_testkit::require!(root, kubectl);
    let up = started();
    let side =
        json!({"name": "side", "image": "hutch/python-runtime", "command": ["/.hutch/sandboxd", "--pause"]});
    pool(&up, "closed", "Disallowed", None, &[main_container()]);
    pool(&up, "careful", "Allowed", None, &[main_container(), side]);
    let sleeper = json!({"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]});
    pool(&up, "sleeper", "Allowed", None, &[sleeper]);

    let one = |name: &str| json!([{"name": name, "value": SECRET}]);
    claim(&up, "closed", "closed", one("SECRET"));
    says(
        &up,
        "closed",
        "EnvVarsInjectionRejected environment variable injection rejected: environment variable injection is not allowed by \
         the template policy",
    );
    // Regression: a claim that a template had refused did not look at the template again.
    let patch = r#"{"spec":{"envVarsInjectionPolicy":"Allowed"}}"#;
    up.ok_args(&["patch", "sandboxtemplate", "closed", "--type=merge", "-p", patch]);
    bound(&up, "closed");
    let patch = r#"{"spec":{"envVarsInjectionPolicy":"Disallowed"}}"#;
    up.ok_args(&["patch", "sandboxtemplate", "closed", "--type=merge", "-p", patch]);
    claim(&up, "existing", "careful", one("A"));
    says(
        &up,
        "existing",
        "ReconcilerError Error seen: environment variable override is not allowed by the template policy for variable \"A\"",
    );

    claim(&up, "named", "careful", json!([{"name": "SECRET", "value": SECRET, "containerName": "side"}]));
    let named = bound(&up, "named");
    assert_ne!(named, "named", "from the pool");
    let of =
        |container: &str| up.ok_args(&["exec", &named, "-c", container, "--", "sh", "-c", "echo $SECRET"]);
    assert_eq!((of("side"), of("main")), (format!("{SECRET}\n"), "\n".to_owned()));

    // A runtime reads these at its start, and a program of the user may have read others.
    claim(&up, "settings", "careful", one("SANDBOX_NOTE"));
    claim(&up, "started", "sleeper", one("SECRET"));
    for (name, variable) in [("settings", "SANDBOX_NOTE"), ("started", "SECRET")] {
        assert_eq!(bound(&up, name), name, "cold, with the name of the claim");
        assert_eq!(shown(&up, name, &format!("echo ${variable}")), format!("{SECRET}\n"));
    }
    let smuggled = json!({"annotations": {"hutch.dev/env": json!(one("SECRET")).to_string()}});
    apply(
        &up,
        "SandboxClaim",
        "smuggled",
        json!({"warmPoolRef": {"name": "closed"}, "additionalPodMetadata": smuggled}),
    );
    up.eventually("get sandboxclaim smuggled -o jsonpath={.status.conditions[0].reason}", |reason| {
        reason == "InvalidMetadata"
    });
}

#[test]
fn gvisor_takes_variables_while_it_runs() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = started();
    pool(&up, "open", "Overrides", Some("gvisor"), &[main_container()]);
    claim(&up, "mine", "open", json!([{"name": "A", "value": "claim"}, {"name": "SECRET", "value": SECRET}]));
    let sandbox = bound(&up, "mine");
    assert_ne!(sandbox, "mine", "from the pool");
    has_the_variables(&up, &sandbox);
    assert!(!running(SECRET), "no process has the secret in its arguments");
}

fn started() -> Up {
    Up::start(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"])
}

fn main_container() -> Value {
    json!({
        "name": "main", "image": "hutch/python-runtime",
        "env": [{"name": "A", "value": "template"}, {"name": "DERIVED", "value": "$(A)/derived"}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
    })
}

fn apply(up: &Up, kind: &str, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    let file = up.folder().join("object.json");
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
}

/// A template and a pool of two of it, full.
fn pool(up: &Up, name: &str, policy: &str, class: Option<&str>, containers: &[Value]) {
    let pod =
        json!({"terminationGracePeriodSeconds": 0, "runtimeClassName": class, "containers": containers});
    let spec = json!({"envVarsInjectionPolicy": policy, "podTemplate": {"spec": pod}});
    apply(up, "SandboxTemplate", name, spec);
    apply(up, "SandboxWarmPool", name, json!({"replicas": 2, "sandboxTemplateRef": {"name": name}}));
    up.eventually(&format!("get sandboxwarmpool {name} -o jsonpath={{.status.readyReplicas}}"), |n| n == "2");
}

fn claim(up: &Up, name: &str, pool: &str, env: Value) {
    apply(up, "SandboxClaim", name, json!({"warmPoolRef": {"name": pool}, "env": env}));
}

/// The Sandbox of a claim, once that is Ready.
fn bound(up: &Up, claim: &str) -> String {
    up.ok(&format!("wait --for=condition=Ready sandboxclaim/{claim} --timeout=60s"));
    up.ok(&format!("get sandboxclaim {claim} -o jsonpath={{.status.sandbox.name}}"))
}

fn says(up: &Up, claim: &str, wanted: &str) {
    let path = "jsonpath={.status.conditions[0].reason} {.status.conditions[0].message}";
    let words = ["get", "sandboxclaim", claim, "-o", path];
    let printed = || harness::text(&up.kubectl_args(&words).stdout);
    let started = std::time::Instant::now();
    while printed() != wanted {
        assert!(started.elapsed() < harness::WAIT_LIMIT, "{} is not {wanted}", printed());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Each Pod's name, uid, and how often and when its container was started.
fn lives(up: &Up) -> Vec<String> {
    let each = "{.metadata.name} {.metadata.uid} {.status.containerStatuses[0].restartCount} \
                {.status.containerStatuses[0].state.running.startedAt}{\"\\n\"}";
    let path = format!("jsonpath={{range .items[*]}}{each}{{end}}");
    up.ok_args(&["get", "pods", "-o", &path]).lines().map(str::to_owned).collect()
}

/// By both ways into the sandbox.
fn has_the_variables(up: &Up, sandbox: &str) {
    let wanted = format!("claim claim/derived {SECRET}\n");
    assert_eq!(shown(up, sandbox, SHOW), wanted, "exec");
    assert_eq!(executed(up, sandbox, SHOW), wanted, "the runtime");
}

fn shown(up: &Up, sandbox: &str, script: &str) -> String {
    up.ok_args(&["exec", sandbox, "-c", "main", "--", "sh", "-c", script])
}

/// Returns the output of the runtime's `/execute`, through the router.
fn executed(up: &Up, sandbox: &str, script: &str) -> String {
    let address = up.router();
    let body = json!({"command": format!("sh -c '{script}'")}).to_string();
    let mut stream = std::net::TcpStream::connect(address).expect("the router");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let head = format!(
        "POST /execute HTTP/1.1\r\nHost: x\r\nX-Sandbox-ID: {sandbox}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let json = answer.split("\r\n\r\n").nth(1).unwrap_or_else(|| panic!("no body in {answer}"));
    let start = json.find('{').unwrap_or_else(|| panic!("no JSON in {answer}"));
    let told: Value =
        serde_json::Deserializer::from_str(&json[start..]).into_iter().next().expect("one").expect("JSON");
    told["stdout"].as_str().unwrap_or_else(|| panic!("no stdout in {answer}")).to_owned()
}

/// The published client package, which has an argument for it.
fn python_package(up: &Up) {
    let folder = format!("{}/../../.tools/python/1.0.8", env!("CARGO_MANIFEST_DIR"));
    if !Path::new(&folder).is_dir() {
        assert!(!hutch_testkit::strict(), "{folder} is missing");
        hutch_testkit::note_skip("python_package", "needs the Python package 1.0.8 in .tools/python");
        return;
    }
    let script = "from k8s_agent_sandbox import SandboxClient\n\
                  sandbox = SandboxClient().create_sandbox('open', env={'A': 'python'})\n\
                  print(sandbox.sandbox_id.startswith('open-'), sandbox.commands.run('printenv A').stdout)\n\
                  sandbox.terminate()";
    let output = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", folder)
        .env("KUBECONFIG", up.kubeconfig())
        .output()
        .expect("python3");
    let printed = succeeded("the package", &output);
    assert!(printed.contains("True python"), "{printed}");
}
