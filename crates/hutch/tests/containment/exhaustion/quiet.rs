//! Pods that share the machine with a noisy one, and must continue to work.

use serde_json::{Value, json};

use super::inside::PRELUDE;
use crate::harness::Up;
use crate::names::pod;
use crate::ordinary::apply;

/// One use of everything that the attackers take.
const WORK: &str = include_str!("attackers/work.py");

/// Two Pods, each with a liveness probe that may not fail once.
pub(super) struct Quiet<'a> {
    up: &'a Up,
    lives: Vec<String>,
}

impl Quiet<'_> {
    pub(super) fn start(up: &Up) -> Quiet<'_> {
        let probe = |action: Value| {
            let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30});
            probe.as_object_mut().expect("an object").extend(action.as_object().expect("an object").clone());
            probe
        };
        let exec = json!({"name": "c", "image": "hutch/host", "command": ["sleep", "1000000"],
            "livenessProbe": probe(json!({"exec": {"command": ["true"]}}))});
        let http = json!({"name": "c", "image": "hutch/host",
            "command": ["python3", "-m", "http.server", "8000"],
            "startupProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60},
            "livenessProbe": probe(json!({"httpGet": {"port": 8000}}))});
        apply(up, &pod("quiet-exec", json!({"containers": [exec]})));
        apply(up, &pod("quiet-http", json!({"containers": [http]})));
        up.ok("wait --for=condition=Ready pod/quiet-exec pod/quiet-http --timeout=90s");
        let mut quiet = Quiet { up, lives: Vec::new() };
        quiet.lives = quiet.lives();
        quiet
    }

    /// Uid and restarts of each.
    fn lives(&self) -> Vec<String> {
        let path = "{.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount}";
        let of = |name: &str| self.up.ok_args(&["get", "pod", name, "-o", &format!("jsonpath={path}")]);
        ["quiet-exec", "quiet-http"].map(of).to_vec()
    }

    /// The API answers, commands start, and nothing restarted.
    #[track_caller]
    pub(super) fn continues(&self) {
        for _ in 0..2 {
            assert_eq!(self.up.ok("exec quiet-exec -- echo through"), "through\n");
            self.up.ok("create configmap quiet --from-literal=key=value");
            assert!(self.up.ok("get configmaps -o name").contains("configmap/quiet"));
            self.up.ok("delete configmap quiet");
        }
        assert_eq!(self.lives(), self.lives);
    }

    /// A sandbox gets its part of everything that attackers take.
    #[track_caller]
    pub(super) fn works(&self) {
        let script = format!("{PRELUDE}\n{WORK}");
        assert_eq!(self.up.ok_args(&["exec", "quiet-exec", "--", "python3", "-c", &script]), "worked\n");
    }
}
