//! The published walk-through, with unmodified clients, in its order: kubectl, then both Python packages. Once with
//! real gVisor and once with the class mapped to the native jail by the user's word.

use std::process::{Command, Stdio};
use std::time::Duration;

use hutch_testkit::wait::until;

use crate::harness::{Up, fixture, running, succeeded, text};

#[test]
fn walkthrough_with_gvisor() {
    hutch_testkit::require!(root, kubectl, runsc);
    walk(&Up::start(&[]));
}

#[test]
fn walkthrough_with_gvisor_mapped_to_the_native_jail() {
    hutch_testkit::require!(root, kubectl);
    walk(&Up::start(&["--runtime-class", "gvisor=hutch"]));
}

fn walk(up: &Up) {
    shows_itself_without_manifests(up);
    takes_the_published_release(up);
    takes_template_and_pool(up);
    takes_the_router_deployment(up);
    answers_kubectl(up);
    python_0_1_1(up);
    python_1_0_8(up);
    suspends_and_resumes_with_its_volume(up);
    shuts_down_by_time(up);
}

fn step(name: &str) {
    println!("--- {name}");
}

fn shows_itself_without_manifests(up: &Up) {
    step("before any manifest");
    up.eventually("get pods -n agent-sandbox-system", |table| {
        table.lines().any(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            words.starts_with(&["agent-sandbox-controller-0", "1/1", "Running"])
        })
    });
    up.ok("get service sandbox-router-svc -n agent-sandbox-system");
    // Later releases have a Deployment instead of the StatefulSet.
    up.ok("rollout status deployment/agent-sandbox-controller -n agent-sandbox-system --timeout=60s");
}

fn takes_the_published_release(up: &Up) {
    step("the published release's manifests");
    for file in ["manifest.yaml", "extensions.yaml"] {
        let applied = up.ok(&format!("apply -f {}", fixture(&format!("release-v0.1.0/{file}"))));
        assert!(applied.contains("customresourcedefinition"), "{applied}");
    }
    let versions = up.ok("get crd sandboxes.agents.x-k8s.io -o jsonpath={.spec.versions[*].name}");
    assert_eq!(
        versions.split_whitespace().collect::<Vec<_>>().len(),
        2,
        "built-in versions stay: {versions}"
    );
    up.eventually("get pods -n agent-sandbox-system agent-sandbox-controller-0 --no-headers", |line| {
        line.split_whitespace().collect::<Vec<_>>().starts_with(&[
            "agent-sandbox-controller-0",
            "1/1",
            "Running",
        ])
    });
}

fn takes_template_and_pool(up: &Up) {
    step("template and pool, v1alpha1 as written, twice");
    let file = fixture("pool.yaml");
    let first = up.ok(&format!("apply -f {file}"));
    assert_eq!(
        first,
        "sandboxtemplate.extensions.agents.x-k8s.io/python-runtime-template created\n\
         sandboxwarmpool.extensions.agents.x-k8s.io/python-sandbox-warmpool created\n"
    );
    let second = up.ok(&format!("apply -f {file}"));
    // As with Kubernetes: the definition fills in `protocol: TCP`, so kubectl sends the list of containers again, and says
    // so although nothing changes.
    assert_eq!(
        second,
        "sandboxtemplate.extensions.agents.x-k8s.io/python-runtime-template configured\n\
         sandboxwarmpool.extensions.agents.x-k8s.io/python-sandbox-warmpool unchanged\n"
    );
    let ready = "get sandboxwarmpool python-sandbox-warmpool -o jsonpath={.status.readyReplicas}";
    up.eventually(ready, |ready| ready == "2");
}

fn takes_the_router_deployment(up: &Up) {
    step("the router's Service and Deployment");
    up.ok(&format!("apply -f {}", fixture("router.yaml")));
    up.ok("rollout status deployment/sandbox-router-deployment --timeout=60s");
    up.eventually("get pods -l app=sandbox-router --no-headers", |table| table.matches("1/1").count() == 2);
}

/// Reading, watching, waiting, and the four kinds of stream, on a claimed Sandbox.
fn answers_kubectl(up: &Up) {
    step("kubectl's verbs");
    let claim = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxClaim\nmetadata: {name: mine}\n\
                 spec: {warmPoolRef: {name: python-sandbox-warmpool}}\n";
    let file = up.folder().join("claim.yaml");
    std::fs::write(&file, claim).expect("write");
    up.ok(&format!("create -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandboxclaim/mine --timeout=60s");
    let sandbox = up.ok("get sandboxclaim mine -o jsonpath={.status.sandbox.name}");
    assert!(sandbox.starts_with("python-sandbox-warmpool-"), "{sandbox}");
    up.ok(&format!("wait --for=condition=Ready sandbox/{sandbox} --timeout=60s"));
    let listed = up.ok("get sandboxes,sandboxclaims,sandboxtemplates,sandboxwarmpools");
    for name in [sandbox.as_str(), "mine", "python-runtime-template", "python-sandbox-warmpool"] {
        assert!(listed.contains(name), "{name} is not in\n{listed}");
    }
    let described = up.ok(&format!("describe sandbox {sandbox}"));
    assert!(described.contains("DependenciesReady"), "{described}");
    up.ok(&format!("describe pod {sandbox}"));
    watches(up, &sandbox);
    streams(up, &sandbox);
    up.ok("delete sandboxclaim mine --timeout=60s");
    up.eventually(&format!("get pods {sandbox} --ignore-not-found --no-headers"), str::is_empty);
}

fn watches(up: &Up, sandbox: &str) {
    let words = ["get", "sandbox", sandbox, "-w", "--request-timeout=3s", "--no-headers"];
    let watched = up.kubectl_args(&words);
    assert!(text(&watched.stdout).contains(sandbox), "{watched:?}");
}

fn streams(up: &Up, pod: &str) {
    let logs = up.kubectl(&format!("logs {pod}"));
    assert!(logs.status.success(), "{logs:?}");
    let printed = up.ok_args(&["exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 0"]);
    assert_eq!(printed, "out\n");
    let failed = up.kubectl_args(&["exec", pod, "--", "sh", "-c", "exit 9"]);
    assert_eq!(failed.status.code(), Some(9), "{failed:?}");
    terminal(up, pod);
    let local = up.folder().join("local.txt");
    std::fs::write(&local, "carried").expect("write");
    up.ok(&format!("cp {} {pod}:/tmp/carried.txt", local.display()));
    let back = up.folder().join("back.txt");
    up.ok(&format!("cp {pod}:/tmp/carried.txt {}", back.display()));
    assert_eq!(std::fs::read_to_string(back).expect("back"), "carried");
    forwards(up, pod);
}

/// `exec -it` on a terminal that Python's pty module plays.
fn terminal(up: &Up, pod: &str) {
    let script = "import os, pty, sys\n\
                  pid, fd = pty.fork()\n\
                  if pid == 0: os.execvp('kubectl', sys.argv[1:])\n\
                  seen = b''\n\
                  while True:\n\
                  \x20   try: data = os.read(fd, 4096)\n\
                  \x20   except OSError: break\n\
                  \x20   if not data: break\n\
                  \x20   seen += data\n\
                  print(seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let output = Command::new("python3")
        .args([
            "-c",
            script,
            "kubectl",
            "exec",
            "-it",
            pod,
            "--",
            "sh",
            "-c",
            "test -t 0 && test -t 1 && echo a-terminal; exit 4",
        ])
        .env("KUBECONFIG", up.kubeconfig())
        .output()
        .expect("python3");
    let printed = text(&output.stdout);
    assert!(
        printed.contains("a-terminal") && printed.trim_end().ends_with('4'),
        "{printed}{}",
        text(&output.stderr)
    );
}

fn forwards(up: &Up, pod: &str) {
    for websockets in ["true", "false"] {
        let mut forward = up
            .kubectl_command(&["port-forward", &format!("pod/{pod}"), ":8888"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(forward.stdout.take().expect("stdout"));
        std::io::BufRead::read_line(&mut stdout, &mut line).expect("a line");
        let port = line.split("127.0.0.1:").nth(1).and_then(|l| l.split(' ').next()).map(str::to_owned);
        let answer = port.map(|port| get(&format!("127.0.0.1:{port}")));
        forward.kill().expect("kill");
        forward.wait().expect("wait");
        let answer = answer.unwrap_or_else(|| panic!("kubectl printed {line:?}"));
        assert!(answer.contains("Sandbox Runtime is active."), "websockets={websockets}: {answer}");
    }
}

/// A GET without an HTTP library.
fn get(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

fn python(up: &Up, release: &str, script: &str) {
    let folder = format!("{}/../../.tools/python/{release}", env!("CARGO_MANIFEST_DIR"));
    if !std::path::Path::new(&folder).is_dir() {
        assert!(!hutch_testkit::strict(), "{folder} is missing");
        hutch_testkit::note_skip(script, &format!("needs the Python package {release} in .tools/python"));
        return;
    }
    let output = Command::new("python3")
        .arg(format!("{}/../../tests/walkthrough/{script}", env!("CARGO_MANIFEST_DIR")))
        .env("PYTHONPATH", folder)
        .env("KUBECONFIG", up.kubeconfig())
        .output()
        .expect("python3");
    let printed = succeeded(script, &output);
    assert!(printed.contains("Hello from the sandboxed environment!"), "{printed}");
}

fn python_0_1_1(up: &Up) {
    step("k8s-agent-sandbox 0.1.1.post2");
    python(up, "0.1.1.post2", "sdk_0_1_1.py");
}

fn python_1_0_8(up: &Up) {
    step("k8s-agent-sandbox 1.0.8");
    python(up, "1.0.8", "sdk_1_0_8.py");
}

fn suspends_and_resumes_with_its_volume(up: &Up) {
    step("a volume lives through suspend and resume");
    up.ok(&format!("apply -f {}", fixture("notes.yaml")));
    up.ok("wait --for=condition=Ready sandbox/notes --timeout=60s");
    up.ok_args(&["exec", "notes", "--", "sh", "-c", "echo kept > /data/file"]);
    let mode = |mode: &str| {
        let patch = format!("{{\"spec\":{{\"operatingMode\":\"{mode}\"}}}}");
        up.ok_args(&["patch", "sandbox", "notes", "--type=merge", "-p", &patch]);
    };
    mode("Suspended");
    up.eventually("get pod notes --ignore-not-found --no-headers", str::is_empty);
    up.ok("wait --for=condition=Suspended sandbox/notes --timeout=60s");
    assert_eq!(up.ok("get pvc data-notes -o jsonpath={.status.phase}"), "Bound");
    mode("Running");
    up.ok("wait --for=condition=Ready sandbox/notes --timeout=60s");
    assert_eq!(up.ok_args(&["exec", "notes", "--", "cat", "/data/file"]), "kept\n");
}

fn shuts_down_by_time(up: &Up) {
    step("shutdownTime, kept and deleted by policy");
    for policy in ["Delete", "Retain"] {
        let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3);
        let time = time.strftime("%Y-%m-%dT%H:%M:%SZ");
        let patch = format!("{{\"spec\":{{\"shutdownTime\":\"{time}\",\"shutdownPolicy\":\"{policy}\"}}}}");
        let name = format!("ends-{}", policy.to_lowercase());
        let manifest = std::fs::read_to_string(fixture("notes.yaml"))
            .expect("read")
            .replace("name: notes", &format!("name: {name}"));
        let file = up.folder().join("ends.yaml");
        std::fs::write(&file, manifest).expect("write");
        up.ok(&format!("apply -f {}", file.display()));
        up.ok_args(&["patch", "sandbox", &name, "--type=merge", "-p", &patch]);
        if policy == "Delete" {
            up.eventually(&format!("get sandbox {name} --ignore-not-found --no-headers"), str::is_empty);
        } else {
            let reason = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}";
            up.eventually(&format!("get sandbox {name} -o {reason}"), |reason| reason == "SandboxExpired");
        }
        up.eventually(&format!("get pod {name} --ignore-not-found --no-headers"), str::is_empty);
    }
}

#[test]
fn missing_gvisor_is_reported_and_never_replaced() {
    hutch_testkit::require!(root, kubectl);
    let folder = tempfile::tempdir().expect("tempdir");
    // A path without runsc, for hutch alone.
    for program in ["sh", "env"] {
        let at = hutch_testkit::on_path(program).expect("on path");
        std::os::unix::fs::symlink(at, folder.path().join(program)).expect("link");
    }
    let up = Up::start_with_path(&[], folder.path());
    up.ok(&format!("apply -f {}", fixture("pool.yaml")));
    let events =
        up.eventually("get events -o jsonpath={.items[*].message}", |events| events.contains("runsc"));
    assert!(events.contains("--runtime-class gvisor=hutch"), "{events}");
    let phases = up.ok("get pods -o jsonpath={.items[*].status.phase}");
    assert!(phases.split_whitespace().all(|phase| phase == "Pending"), "{phases}");
}

#[test]
fn kill_9_loses_no_acknowledged_write() {
    hutch_testkit::require!(root, kubectl);
    let mut up = Up::start(&["--runtime-class", "gvisor=hutch"]);
    let marker = "161803.3988";
    let notes = std::fs::read_to_string(fixture("notes.yaml"))
        .expect("read")
        .replace("infinity", &format!("'{marker}'"));
    let file = up.folder().join("notes.yaml");
    std::fs::write(&file, notes).expect("write");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok(&format!("apply -f {}", fixture("pool.yaml")));
    up.ok("wait --for=condition=Ready sandbox/notes --timeout=60s");
    up.ok_args(&["exec", "notes", "--", "sh", "-c", "echo kept > /data/file; sync"]);
    let first_life = up.ok("get pod notes -o jsonpath={.metadata.uid}");

    // Claims are being made while the end comes; what was acknowledged is written down.
    let acknowledged = claims_until_killed(&mut up);
    until("the old life's processes are gone", || !running(marker));
    up.restart();

    let there = up.ok("get sandboxclaims -o jsonpath={.items[*].metadata.name}");
    let there: Vec<&str> = there.split_whitespace().collect();
    for name in &acknowledged {
        assert!(there.contains(&name.as_str()), "{name} was acknowledged and is not in {there:?}");
    }
    up.ok("wait --for=condition=Ready sandbox/notes --timeout=90s");
    up.eventually("get pods notes -o jsonpath={.status.phase}", |phase| phase == "Running");
    until("its Pod runs again", || running(marker));
    assert_eq!(up.ok_args(&["exec", "notes", "--", "cat", "/data/file"]), "kept\n");
    assert_eq!(up.ok("get pod notes -o jsonpath={.metadata.uid}"), first_life, "restarted, not replaced");
    up.ok("wait --for=condition=Ready sandboxclaim --all --timeout=120s");
    let bound = up.ok("get sandboxclaims -o jsonpath={.items[*].status.sandbox.name}");
    let mut bound: Vec<&str> = bound.split_whitespace().collect();
    let claims = bound.len();
    bound.sort_unstable();
    bound.dedup();
    assert_eq!(bound.len(), claims, "two claims share a Sandbox");
}

fn claims_until_killed(up: &mut Up) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let kubeconfig = up.kubeconfig();
    let made = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (made, stop, kubeconfig) = (made.clone(), stop.clone(), kubeconfig.clone());
            std::thread::spawn(move || {
                for n in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("claim-{thread}-{n}");
                    if claim(&kubeconfig, &name) {
                        made.lock().expect("not poisoned").push(name);
                    }
                }
            })
        })
        .collect();
    until("claims are made", || made.lock().expect("not poisoned").len() >= 6);
    up.kill();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("thread");
    }
    acknowledged.append(&mut made.lock().expect("not poisoned"));
    acknowledged
}

/// Returns true if the API server reported the claim as created.
fn claim(kubeconfig: &std::path::Path, name: &str) -> bool {
    use std::io::Write;
    let mut kubectl = Command::new("kubectl")
        .args(["create", "-f", "-", "--validate=false"])
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl");
    let object = serde_json::json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"warmPoolRef": {"name": "python-sandbox-warmpool"}}
    });
    let mut stdin = kubectl.stdin.take().expect("stdin");
    let _ = stdin.write_all(object.to_string().as_bytes());
    drop(stdin);
    kubectl.wait().is_ok_and(|status| status.success())
}
