//! Files that the process of the proxy reads.

use serde_json::json;

use super::origin::{Origin, SERVER};
use super::{Proxy, Site, rule};
use crate::harness::{HUTCH, succeeded, text};

/// It may read the file by which names are resolved that was there at its start. Another one in its place, which everyone may
/// read, is closed by Landlock alone.
#[test]
fn proxy_reads_no_file_that_it_was_not_given_at_its_start() {
    hutch_testkit::require!(root, curl);
    if hutch_jail::landlock::abi().is_none_or(|abi| abi < 2) {
        return hutch_testkit::note_skip("files of the proxy", "needs Landlock 2");
    }
    let site = Site::new();
    let origin = Origin::plain();
    let hosts = format!("127.0.0.1 localhost\n{SERVER} web.example late.example\n");
    for (name, text) in [
        ("first", hosts.replace(" late.example", "")),
        ("second", hosts),
        ("resolver", "nameserver 127.0.0.1\n".into()),
    ] {
        std::fs::write(site.path(name), text).expect("written");
    }
    let rule = |name: &str, host: &str| rule(name, host, origin.port, &json!({"plaintext": true}));
    let rules = json!({"rules": [rule("web", "web.example"), rule("late", "late.example")]});
    let policy = site.policy("clients", &rules);
    // Without a file of its own for names, it would query the name server of the machine.
    let script = "mount --bind resolver /etc/resolv.conf && mount --bind first /etc/hosts && exec \"$@\"";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "bash", "-c", script, "bash", HUTCH, "egress", "--policy", &policy]);
    unshare.args(["--listen", "127.0.0.1:0"]).current_dir(site.path("")).env_remove("SSL_CERT_FILE");
    let proxy = Proxy::start(unshare);
    let answer = |host: &str| text(&proxy.curl(&[&format!("http://{host}:{}/", origin.port)]).stdout);
    assert_eq!(answer("web.example"), "ok");
    let parent = proxy.child.id().to_string();
    let children =
        std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("children");
    let status = std::fs::read_to_string(format!("/proc/{}/status", children.trim())).expect("status");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).expect("ids");
    let uid = uid.split('\t').next().expect("an id").to_owned();
    let script = "umount /etc/hosts && mount --bind \"$1\" /etc/hosts && \
        setpriv --reuid=$2 --regid=$2 --clear-groups getent hosts late.example";
    let mut inside = std::process::Command::new("nsenter");
    inside.args(["-t", &parent, "--mount", "sh", "-euc", script, "sh"]).arg(site.path("second")).arg(&uid);
    let resolved = succeeded("another process of its user", &inside.output().expect("nsenter"));
    assert!(resolved.starts_with(SERVER), "{resolved}");
    let refused = answer("late.example");
    assert!(refused.contains("does not resolve"), "{refused}");
    assert_eq!(origin.take().len(), 1);
}
