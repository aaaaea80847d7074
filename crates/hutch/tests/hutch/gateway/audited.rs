//! The audit log of a gateway: what Sandboxes do is in it, and with `strict` nothing happens without its record.

use serde_json::json;

use super::{GATEWAY, Running, SERVER, data};
use crate::audit_strict::SmallDisk;
use crate::harness::{succeeded, text};

#[tokio::test(flavor = "multi_thread")]
async fn gateway_records_what_sandboxes_do_and_nothing_happens_without_its_record() {
    hutch_testkit::require!(root, kubernetes, kubectl, curl, openssl);
    let mut disk = None;
    let mounted = |cluster: &_| {
        let folder = data(cluster, GATEWAY);
        std::fs::create_dir(&folder).expect("a folder");
        disk = Some(SmallDisk::at(folder));
    };
    let mut running = Running::start_with(mounted, &[GATEWAY]).await;
    let disk = disk.expect("mounted");
    let rule = |name: &str, host: &str| json!({"name": name, "hosts": [host], "ports": [running.server], "private": [SERVER]});
    let (mut reads, mut joins) = (rule("web", "web.example"), rule("joined", "other.example"));
    (reads["plaintext"], reads["http"]) = (true.into(), json!([{"methods": ["GET", "POST"]}]));
    joins["protocol"] = "TCP".into();
    running.apply(&json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy",
        "metadata": {"name": "web"}, "spec": {"appliesTo": {"selector": {"matchLabels": {"app": "agent"}}},
            "egress": {"rules": [reads, joins]}, "scanner": {"outbound": "Block"}}}));
    running.sandbox("one");
    // Made of parts, so that scanners of repositories do not report this file.
    let secret = ["ghp_x7Kq2mW9vLp4Rt8s", "Zc1Yb6Nd3Jf5Hg0QaEuT"].concat();
    let own = "--interface $POD_IP";
    running.until_request(own, "200 000").await;
    assert_eq!(running.request("one", "other.example", &format!("{own} --proxytunnel")), "200 200");
    assert_eq!(running.request("one", "third.example", own), "403 000");
    assert_eq!(running.request("one", "web.example", &format!("{own} -d note={secret}")), "403 000");
    assert_eq!(running.request("one", "web.example", "--interface 127.0.0.1"), "407 000");

    for (kind, parts) in [
        ("http", &["default/one", "allowed", "GET web.example"][..]),
        ("connection", &["default/one", "allowed", "other.example"]),
        ("connection", &["default/one", "other.example", "closed", "bytes received"]),
        ("finding", &["default/one", "denied", "github", "web.example"]),
        ("connection", &["denied", "a client at 127.0.0.1"]),
    ] {
        running.until_recorded(GATEWAY, &["list", "--kind", kind], parts).await;
    }
    running.until_recorded(GATEWAY, &["list", "--denied"], &["default/one", "third.example"]).await;
    let token = running.token("one");
    let exported = text(&running.audit(GATEWAY, &["export"]).stdout);
    assert!(exported.contains("third.example") && !exported.contains(&secret) && !exported.contains(&token));

    disk.fill();
    running.until_request(own, "503 000").await;
    let count = || running.received.lock().expect("no panic").len();
    let before = count();
    for _ in 0..5 {
        assert_eq!(running.request("one", "web.example", own), "503 000");
        assert_ne!(running.request("one", "other.example", &format!("{own} --proxytunnel")), "200 200");
    }
    assert_eq!(count(), before);
    disk.empty();
    running.until_request(own, "200 000").await;

    running.cluster.stop(GATEWAY).expect("stopped");
    let verified = running.audit(GATEWAY, &["verify"]);
    let report = succeeded("verify", &verified);
    assert!(report.contains(", 0 not signed yet; 0 faults"), "{report}");
}
