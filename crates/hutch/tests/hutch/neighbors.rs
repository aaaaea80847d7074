//! Sandboxes that reach each other by the names of Services, where a policy opens that.

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::audited;
use crate::harness::{Up, refused, text};
use crate::policies::{CURL_TIMED_OUT, applied, policy};
use crate::policy_commands::explained;

/// Serves `hello from NAME` on two ports.
const SERVER: &str = "import http.server,os,threading
class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    body=b'hello from '+os.environ['NAME'].encode()
    self.send_response(200); self.send_header('Content-Length',str(len(body))); self.end_headers(); self.wfile.write(body)
  def log_message(self,*a): pass
ports=[http.server.ThreadingHTTPServer(('0.0.0.0',p),Handler) for p in (8000,8001)]
[threading.Thread(target=p.serve_forever).start() for p in ports]";

/// A Sandbox with a server.
fn sandbox(name: &str, class: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name, "labels": labels},
        "spec": {"service": true, "podTemplate": {"metadata": {"labels": {"name": name}}, "spec": {
            "runtimeClassName": class, "terminationGracePeriodSeconds": 0, "containers": [{
                "name": "main", "image": "hutch/host", "command": ["python3", "-u", "-c", SERVER],
                "env": [{"name": "NAME", "value": name}],
                "readinessProbe": {"tcpSocket": {"port": 8001}, "periodSeconds": 1},
            }]},
        }},
    })
}

/// Returns the answer to a request from inside a Sandbox; empty if the request fails.
fn get(up: &Up, sandbox: &str, host: &str) -> String {
    let url = format!("http://{host}/");
    let output = up.kubectl_args(&["exec", sandbox, "--", "curl", "-s", "-f", "-m", "60", &url]);
    assert_ne!(output.status.code(), Some(CURL_TIMED_OUT), "{sandbox}: {url}");
    text(&output.stdout)
}

fn classes() -> Vec<&'static str> {
    match hutch_testkit::Need::Runsc.missing() {
        None => vec!["hutch", "gvisor"],
        Some(reason) => {
            hutch_testkit::note_skip("Sandboxes that reach each other in gVisor", reason);
            vec!["hutch"]
        }
    }
}

/// Starts `app`, `other` and `db`, with a policy that opens port 8000 of `db` to `app`.
fn start(class: &str) -> Up {
    start_with(class, &json!({}))
}

/// Starts them, `db` with these annotations.
fn start_with(class: &str, annotations: &Value) -> Up {
    let up = Up::start(&[]);
    for name in ["app", "other", "db"] {
        let mut object = sandbox(name, class, &json!({"role": name}));
        if name == "db" {
            object["metadata"]["annotations"] = annotations.clone();
        }
        applied(&up, &object);
    }
    let rules = json!([{"name": "db", "sandboxes": [{"selector": {"matchLabels": {"role": "db"}}}], "ports": [8000]}]);
    applied(&up, &policy("SandboxPolicy", "app", &json!({"sandboxes": ["app"]}), &rules));
    for name in ["app", "other", "db"] {
        up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=180s"));
    }
    up
}

#[test]
fn sandbox_reaches_the_one_that_its_policy_names_and_no_other_way_is_open() {
    hutch_testkit::require!(root, kubectl);
    for class in classes() {
        let up = start(class);
        until("the policy counts", || get(&up, "app", "db:8000") == "hello from db");
        for host in ["db.default", "db.default.svc", "db.default.svc.cluster.local"] {
            assert_eq!(get(&up, "app", &format!("{host}:8000")), "hello from db", "{class}: {host}");
        }
        let address = |name: &str| up.ok(&format!("get pod {name} -o jsonpath={{.status.podIP}}"));
        let (of_db, of_app) = (address("db"), address("app"));
        for (from, to) in [
            ("app", "db:8001".to_owned()),
            ("app", "other:8000".to_owned()),
            ("app", "db.elsewhere:8000".to_owned()),
            ("app", format!("{of_db}:8000")),
            ("other", "db:8000".to_owned()),
            ("other", format!("{of_db}:8000")),
            ("db", "app:8000".to_owned()),
            ("db", format!("{of_app}:8000")),
        ] {
            assert_eq!(get(&up, from, &to), "", "{class}: {from} {to}");
        }
        up.eventually("get events", |events| {
            events.contains("EgressRefused")
                && events.contains("db:8001")
                && events.contains("no rule of policy \"app\"")
        });
        audited::eventually(&up, &["list", "--kind", "connection"], "default/app&allowed&db:8000");
        audited::eventually(
            &up,
            &["list", "--kind", "connection"],
            "default/app&db:8000 closed&bytes received",
        );
        audited::eventually(&up, &["list", "--kind", "connection", "--denied"], "default/app&db:8001");
    }
}

#[test]
fn connection_between_sandboxes_ends_with_its_policy_and_wakes_nothing_that_is_suspended() {
    hutch_testkit::require!(root, kubectl);
    let up = start("hutch");
    until("the policy counts", || get(&up, "app", "db:8000") == "hello from db");
    let script = "import socket; s=socket.create_connection(('db',8000)); print('open',flush=True); print(repr(s.recv(1)))";
    let mut connected = up.kubectl_command(&["exec", "app", "--", "python3", "-u", "-c", script]);
    let connected = connected.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut connected = connected.spawn().expect("kubectl");
    let mut line = [0; 5];
    std::io::Read::read_exact(connected.stdout.as_mut().expect("piped"), &mut line).expect("open");
    up.ok("delete sandboxpolicy app");
    let ended = connected.wait_with_output().expect("kubectl");
    assert!(text(&ended.stderr).contains("reset by peer"), "{ended:?}");
    until("nothing is open", || get(&up, "app", "db:8000").is_empty());

    let rules = json!([{"name": "db", "sandboxes": [{"name": "db"}], "ports": [8000]}]);
    applied(&up, &policy("SandboxPolicy", "app", &json!({"sandboxes": ["app"]}), &rules));
    until("the policy counts", || get(&up, "app", "db:8000") == "hello from db");
    up.ok("patch sandbox db --type merge -p {\"spec\":{\"operatingMode\":\"Suspended\"}}");
    up.ok("wait --for=condition=Suspended sandbox/db --timeout=60s");
    until("it is gone", || get(&up, "app", "db:8000").is_empty());
    up.eventually("get events", |events| events.contains("hutch resume db"));
    up.ok("patch sandbox db --type merge -p {\"spec\":{\"operatingMode\":\"Running\"}}");
    until("it is back", || get(&up, "app", "db:8000") == "hello from db");
}

/// Opens two connections to a Service, which lead to different Pods, and says which end.
const TWO: &str = "import select, socket
both = [socket.create_connection(('both', 80)) for _ in range(2)]
print('open', flush=True)
ended = select.select(both, [], [], 60)[0]
try: ended[0].recv(1)
except ConnectionResetError: print('reset', flush=True)
print(len(ended), len(select.select([s for s in both if s not in ended], [], [], 3)[0]))";

/// Regression: a connection stayed open as long as its Service led to some Sandbox that was open.
#[test]
fn connection_ends_with_the_right_to_its_own_sandbox_though_its_service_leads_to_another() {
    hutch_testkit::require!(root, kubectl);
    let up = start("hutch");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "both"},
        "spec": {"selector": {"tier": "data"}, "ports": [{"port": 80, "targetPort": 8000}]}});
    applied(&up, &service);
    up.ok("label pod db other tier=data");
    let rules = |roles: &[&str]| {
        let selector = json!({"matchExpressions": [{"key": "role", "operator": "In", "values": roles}]});
        json!([{"name": "data", "sandboxes": [{"selector": selector}], "ports": [8000]}])
    };
    let app = json!({"sandboxes": ["app"]});
    applied(&up, &policy("SandboxPolicy", "app", &app, &rules(&["db", "other"])));
    // Each connection leads to the next Pod.
    until("the Service leads to both", || {
        let mut found = [get(&up, "app", "both"), get(&up, "app", "both")];
        found.sort();
        found == ["hello from db", "hello from other"]
    });
    let mut connected = up.kubectl_command(&["exec", "app", "--", "python3", "-u", "-c", TWO]);
    let connected = connected.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut connected = connected.spawn().expect("kubectl");
    let mut line = [0; 5];
    std::io::Read::read_exact(connected.stdout.as_mut().expect("piped"), &mut line).expect("open");
    applied(&up, &policy("SandboxPolicy", "app", &app, &rules(&["db"])));
    let ended = connected.wait_with_output().expect("kubectl");
    assert_eq!(text(&ended.stdout), "reset\n1 0\n", "{ended:?}");
}

#[test]
fn service_leads_to_its_target_port_and_another_namespace_needs_an_administrator() {
    hutch_testkit::require!(root, kubectl);
    let up = start("hutch");
    let service = |name: &str, target: u16| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"name": "db"}, "ports": [{"port": 80, "targetPort": target}]}})
    };
    applied(&up, &service("open", 8000));
    applied(&up, &service("closed", 8001));
    until("the Service counts", || get(&up, "app", "open") == "hello from db");
    assert_eq!(get(&up, "app", "closed"), "");
    assert_eq!(get(&up, "app", "open:8000"), "", "no port of the Service");
    let allow = "Allow: port 8000 of sandbox default/db, with any protocol\n";
    for (status, destination, verdict) in [
        (0, "db:8000", allow),
        (0, "http://db.default.svc:8000/", allow),
        (0, "open:80", allow),
        (1, "db:8001", "Deny: no rule of policy \"app\" allows it\n"),
        (1, "closed:80", "Deny: no rule of policy \"app\" allows it\n"),
        (1, "open:8000", "Deny: Service \"open\" has no port 8000\n"),
        (1, "db.elsewhere:8000", "Deny: no rule of policy \"app\" allows it\n"),
    ] {
        let table = explained(&up, status, &["app", destination]);
        assert!(table.ends_with(verdict), "{destination}: {table}");
    }
    let table = explained(&up, 0, &["app", "db:8000"]);
    assert!(table.contains("Namespace  app     Enforce  db    Allow\n"), "{table}");
    let mut hutch = std::process::Command::new(crate::harness::binary());
    hutch.args(["allow", "other", "db:8000"]).env("KUBECONFIG", up.kubeconfig());
    refused(&hutch.output().expect("hutch"), 1, &["\"db\" is a Service", "`sandboxes`"]);
    let none = explained(&up, 1, &["other", "db:8000"]);
    assert!(none.ends_with("Deny: no policy opens the network\n"), "{none}");

    up.ok("create namespace far");
    let mut far = sandbox("db", "hutch", &json!({"role": "db"}));
    far["metadata"]["namespace"] = "far".into();
    far["spec"]["podTemplate"]["spec"]["containers"][0]["env"][0]["value"] = "far".into();
    applied(&up, &far);
    up.ok("wait -n far --for=condition=Ready sandbox/db --timeout=180s");
    assert_eq!(get(&up, "app", "db.far:8000"), "");
    let target =
        json!({"name": "db", "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "far"}}});
    let rules = json!([{"name": "far", "sandboxes": [target], "ports": [8000]}]);
    applied(
        &up,
        &policy(
            "ClusterSandboxPolicy",
            "far",
            &json!({"selector": {"matchLabels": {"role": "other"}}}),
            &rules,
        ),
    );
    until("the policy counts", || get(&up, "other", "db.far:8000") == "hello from far");
    assert_eq!(get(&up, "other", "db:8000"), "");
    explained(&up, 1, &["other", "db:8000"]);
    let table = explained(&up, 0, &["other", "db.far:8000"]);
    assert!(table.ends_with("Allow: port 8000 of sandbox far/db, with any protocol\n"), "{table}");
    // An account that may not read Services learns what was left out.
    up.ok("create serviceaccount reader");
    up.ok("create clusterrole policies --verb=get,list --resource=sandboxes.agents.x-k8s.io,namespaces,sandboxpolicies.policy.hutch.dev,clustersandboxpolicies.policy.hutch.dev");
    up.ok("create clusterrolebinding policies --clusterrole=policies --serviceaccount=default:reader");
    let token = up.ok("create token reader");
    let config = std::fs::read_to_string(up.kubeconfig()).expect("a kubeconfig");
    let mut config: Value = serde_saphyr::from_str(&config).expect("YAML");
    config["users"][0]["user"] = json!({"token": token.trim()});
    let file = up.folder().join("reader");
    std::fs::write(&file, config.to_string()).expect("written");
    let mut hutch = std::process::Command::new(crate::harness::binary());
    hutch.args(["policy", "explain", "app", "db:8000", "--kubeconfig"]).arg(file).env_clear();
    let output = hutch.output().expect("hutch");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("rules with `sandboxes` were not evaluated: Service db: "), "{stderr}");
}

#[test]
fn connection_wakes_a_frozen_sandbox_and_keeps_it_awake() {
    hutch_testkit::require!(root, kubectl);
    let up = start_with("hutch", &json!({"hutch.dev/idle-after": "1s"}));
    until("the policy counts", || get(&up, "app", "db:8000") == "hello from db");
    let frozen = "get sandbox db -o jsonpath={.status.conditions[?(@.type==\"Frozen\")].status}";
    up.eventually(frozen, |status| status.trim() == "True");
    assert_eq!(get(&up, "app", "db:8000"), "hello from db");
    let script = "import socket,time; s=socket.create_connection(('db',8000)); print('open',flush=True); time.sleep(4)\ns.send(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(12))";
    let mut connected = up.kubectl_command(&["exec", "app", "--", "python3", "-u", "-c", script]);
    let mut connected = connected.stdout(std::process::Stdio::piped()).spawn().expect("kubectl");
    let mut line = [0; 5];
    std::io::Read::read_exact(connected.stdout.as_mut().expect("piped"), &mut line).expect("open");
    up.eventually(frozen, |status| status.trim().is_empty());
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_secs(3) {
        assert_eq!(up.ok(frozen).trim(), "", "it was frozen during a connection");
    }
    let ended = connected.wait_with_output().expect("kubectl");
    assert!(text(&ended.stdout).contains("200"), "{ended:?}");
    up.eventually(frozen, |status| status.trim() == "True");
}
