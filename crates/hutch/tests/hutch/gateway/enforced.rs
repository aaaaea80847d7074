//! A network plugin that enforces NetworkPolicy: the probe finds that out by packets that are dropped, and a Sandbox reaches
//! nothing past the gateway.
//!
//! The plugin closes the egress of Pods, which are processes, by the user of each Pod. The test runs in a network namespace of
//! its own, with which its filters end.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::{NAMESPACE, Running, SERVER, policy};
use crate::harness::text;

/// Set within the network namespace.
const INSIDE: &str = "HUTCH_TEST_NETWORK";
const NAME: &str = "gateway::enforced::plugin_that_drops_packets_is_reported_as_enforcing";
/// User of the Sandbox's Pod.
const USER: u32 = 61_001;
/// Pause between two looks at the NetworkPolicies.
const PAUSE: Duration = Duration::from_millis(200);

/// A plugin, until it is dropped.
struct Plugin(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Drop for Plugin {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        // It changes nothing after this.
        let _ = self.1.take().map(JoinHandle::join);
    }
}

impl Plugin {
    fn start(kubeconfig: &std::path::Path) -> Plugin {
        let ended = Arc::new(AtomicBool::new(false));
        let (kubeconfig, until) = (kubeconfig.to_owned(), ended.clone());
        let thread = std::thread::spawn(move || {
            let list = |kind: &str| -> Vec<Value> {
                let mut command = Command::new("kubectl");
                command.args(["get", kind, "-A", "-o", "json", "--kubeconfig"]).arg(&kubeconfig);
                let output = command.output().expect("kubectl starts");
                let mut list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
                list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
            };
            while !until.load(Ordering::Relaxed) {
                apply(&rules(&list("networkpolicies"), &list("pods")));
                std::thread::sleep(PAUSE);
            }
        });
        Plugin(ended, Some(thread))
    }
}

/// The filters for the egress of all Pods that a policy selects.
fn rules(policies: &[Value], pods: &[Value]) -> String {
    let mut rules = String::from("*filter\n:OUTPUT ACCEPT\n");
    for pod in pods {
        let Some(user) = pod["spec"]["securityContext"]["runAsUser"].as_u64() else { continue };
        let selecting: Vec<&Value> = policies
            .iter()
            .filter(|policy| {
                let labels = policy["spec"]["podSelector"]["matchLabels"].as_object();
                let egress = policy["spec"]["policyTypes"]
                    .as_array()
                    .is_some_and(|types| types.contains(&json!("Egress")));
                policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
                    && egress
                    && labels
                        .into_iter()
                        .flatten()
                        .all(|(name, value)| pod["metadata"]["labels"][name] == *value)
            })
            .collect();
        if selecting.is_empty() {
            continue;
        }
        let of_user = format!("-A OUTPUT -m owner --uid-owner {user}");
        for rule in
            selecting.iter().flat_map(|policy| policy["spec"]["egress"].as_array().into_iter().flatten())
        {
            // The gateway is no Pod here, so its label stands for its address.
            let block = rule["to"][0]["ipBlock"]["cidr"].as_str().unwrap_or("127.0.0.1/32");
            let port = &rule["ports"][0]["port"];
            rules += &format!("{of_user} -p tcp -d {block} --dport {port} -j ACCEPT\n");
        }
        rules += &format!("{of_user} -j DROP\n");
    }
    rules + "COMMIT\n"
}

fn apply(rules: &str) {
    let mut restore =
        Command::new("iptables-restore").stdin(Stdio::piped()).spawn().expect("iptables starts");
    restore.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("written");
    assert!(restore.wait().expect("it ends").success(), "{rules}");
}

#[test]
fn plugin_that_drops_packets_is_reported_as_enforcing() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl, iptables);
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        return runtime.block_on(inside());
    }
    let mut test = Command::new("unshare");
    test.args(["--net", "sh", "-euc", "ip link set lo up && exec \"$@\"", "sh"]);
    test.arg(std::env::current_exe().expect("this program")).args(["--exact", NAME]).env(INSIDE, "1");
    let output = test.stdin(Stdio::null()).output().expect("unshare starts");
    let printed = text(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}{}", text(&output.stderr));
}

async fn inside() {
    let mut plugin = None;
    let running = Running::start_after(|cluster| plugin = Some(Plugin::start(cluster.kubeconfig()))).await;
    running.sandbox_with("one", &json!({"runAsUser": USER}));
    running.apply(&policy(running.server));

    let path = "jsonpath={.status.conditions[?(@.type==\"PolicyEnforced\")]['status', 'reason']}";
    let condition = async || running.kubectl(&["get", "sandbox", "one", "-o", path]) == "True Enforced";
    running.cluster.until("the plugin is known to enforce", condition).await.unwrap();
    assert_eq!(
        running.kubectl(&["get", "networkpolicy", "-n", NAMESPACE, "-o", "name"]),
        "",
        "the probe's is gone"
    );

    let request = |options: &str| {
        let script = format!(
            "curl -sS -o /dev/null -w %{{http_code}} --interface $POD_IP {options} http://web.example:{}/",
            running.server
        );
        let output = running.exec("one", &script);
        (text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(request("--max-time 20").0, "200", "through the gateway");
    let past = format!("--noproxy '*' --resolve web.example:{}:{SERVER}", running.server);
    let (status, error) = request(&format!("{past} --max-time 3"));
    assert!(status == "000" && error.contains("timed out"), "{status} {error}");

    // The plugin has closed that, and nothing else.
    drop(plugin);
    apply("*filter\n:OUTPUT ACCEPT\nCOMMIT\n");
    assert_eq!(request(&format!("{past} --max-time 20")).0, "200");
}
