//! The cells of a Pod: which of its containers' states speaks for the whole.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{age, human_duration};
use super::builtin::{array, integer, or_none, text};

/// NAME READY STATUS RESTARTS AGE, and wide: IP NODE NOMINATED NODE, READINESS GATES.
pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let mut restarts = summary.restarts.count.to_string();
    if let (1.., Some(last)) = (summary.restarts.count, summary.restarts.last) {
        restarts = format!("{restarts} ({} ago)", human_duration(now.duration_since(last).as_secs()));
    }
    vec![
        text(pod, "/metadata/name").into(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod.pointer("/metadata/creationTimestamp"), now).into(),
        or_none(text(pod, "/status/podIPs/0/ip")).into(),
        or_none(text(pod, "/spec/nodeName")).into(),
        or_none(text(pod, "/status/nominatedNodeName")).into(),
        readiness_gates(pod).into(),
    ]
}

/// Restart count of the containers, and the time of the last restart.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += integer(status, "/restartCount");
        let finished = text(status, "/lastState/terminated/finishedAt").parse().ok();
        self.last = self.last.max(finished);
    }
}

#[derive(Default)]
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: Restarts,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let mut summary = Summary::default();
        let phase = text(pod, "/status/phase");
        let reason = text(pod, "/status/reason");
        summary.reason = if reason.is_empty() { phase } else { reason }.into();
        if array(pod, "/status/conditions")
            .iter()
            .any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated")
        {
            summary.reason = "SchedulingGated".into();
        }
        let sidecars =
            array(pod, "/spec/initContainers").iter().filter(|c| c["restartPolicy"] == "Always").count();
        summary.total = array(pod, "/spec/containers").len() + sidecars;
        let mut sidecar_restarts = Restarts::default();
        let initializing = summary.add_init_containers(pod, &mut sidecar_restarts);
        if !initializing || condition(pod, "Initialized") {
            summary.restarts = sidecar_restarts;
            summary.add_containers(pod);
        }
        if !text(pod, "/metadata/deletionTimestamp").is_empty() {
            if reason == "NodeLost" {
                summary.reason = "Unknown".into();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.reason = "Terminating".into();
            }
        }
        summary
    }

    /// Goes through the init containers; true if one of them still holds the Pod back.
    fn add_init_containers(&mut self, pod: &Value, sidecar_restarts: &mut Restarts) -> bool {
        let specs = array(pod, "/spec/initContainers");
        for (index, status) in array(pod, "/status/initContainerStatuses").iter().enumerate() {
            self.restarts.add(status);
            let sidecar = specs.iter().any(|c| c["name"] == status["name"] && c["restartPolicy"] == "Always");
            if sidecar {
                sidecar_restarts.add(status);
            }
            let terminated = status.pointer("/state/terminated").filter(|t| t.is_object());
            if terminated.is_some_and(|t| integer(t, "/exitCode") == 0) {
                continue;
            }
            if sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            let waiting = text(status, "/state/waiting/reason");
            self.reason = match terminated {
                Some(terminated) => format!("Init:{}", ended(terminated)),
                None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
                None => format!("Init:{index}/{}", specs.len()),
            };
            return true;
        }
        false
    }

    fn add_containers(&mut self, pod: &Value) {
        let (mut running, mut error) = (false, None);
        for status in array(pod, "/status/containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                self.reason = waiting.into();
            } else if let Some(terminated) = status.pointer("/state/terminated").filter(|t| t.is_object()) {
                self.reason = ended(terminated);
                if integer(terminated, "/exitCode") != 0 {
                    error = Some(self.reason.clone());
                }
            } else if status["ready"] == true
                && status.pointer("/state/running").is_some_and(Value::is_object)
            {
                running = true;
                self.ready += 1;
            }
        }
        // One container may be done while others run on.
        if self.reason == "Completed" {
            self.reason = match error {
                _ if running && condition(pod, "Ready") => "Running".into(),
                Some(error) => error,
                None if running => "NotReady".into(),
                None => return,
            };
        }
    }
}

fn ended(terminated: &Value) -> String {
    let reason = text(terminated, "/reason");
    let signal = integer(terminated, "/signal");
    match (reason, signal) {
        ("", 0) => format!("ExitCode:{}", integer(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

fn condition(pod: &Value, kind: &str) -> bool {
    array(pod, "/status/conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = array(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates
        .iter()
        .filter(|gate| condition(pod, gate["conditionType"].as_str().unwrap_or_default()))
        .count();
    format!("{open}/{}", gates.len())
}
