//! The cells of workloads: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{age, human_duration};
use super::builtin::{array, created, integer, labels, name, or_none, text};
use crate::selector::LabelSelector;

/// Replicas default to one where a client left them out.
fn desired(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// Names and images of the template's containers.
fn containers(object: &Value, template: &str) -> [Value; 2] {
    let containers = array(object, &format!("{template}/spec/containers"));
    ["name", "image"].map(|field| {
        containers.iter().map(|c| c[field].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",").into()
    })
}

fn selector(object: &Value, pointer: &str) -> Value {
    let Some(selector) = object.pointer(pointer).filter(|s| s.is_object()) else { return "<none>".into() };
    match LabelSelector::from_object(selector) {
        Ok(selector) => or_none(&selector.to_string()).into(),
        Err(_) => "<error>".into(),
    }
}

pub(super) fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template");
    vec![
        name(object),
        format!("{}/{}", integer(object, "/status/readyReplicas"), desired(object)).into(),
        integer(object, "/status/updatedReplicas").into(),
        integer(object, "/status/availableReplicas").into(),
        created(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

pub(super) fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template");
    vec![
        name(object),
        desired(object).into(),
        integer(object, "/status/replicas").into(),
        integer(object, "/status/readyReplicas").into(),
        created(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

pub(super) fn replication_controller(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = replica_set(object, now);
    cells.pop();
    cells.push(labels(object.pointer("/spec/selector")).into());
    cells
}

pub(super) fn scale(object: &Value, now: Timestamp) -> Vec<Value> {
    let (wanted, there) = (integer(object, "/spec/replicas"), integer(object, "/status/replicas"));
    vec![name(object), wanted.into(), there.into(), created(object, now)]
}

pub(super) fn pod_template(object: &Value, _: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/template");
    vec![name(object), names, images, labels(object.pointer("/template/metadata/labels")).into()]
}

pub(super) fn controller_revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let owners = array(object, "/metadata/ownerReferences");
    let controller = owners.iter().find(|owner| owner["controller"] == true);
    let controller = controller.map_or_else(
        || "<none>".to_owned(),
        |owner| {
            let group = text(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
            let kind = text(owner, "/kind").to_lowercase();
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{}", text(owner, "/name"))
        },
    );
    vec![name(object), controller.into(), integer(object, "/revision").into(), created(object, now)]
}

pub(super) fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template");
    let ready = format!("{}/{}", integer(object, "/status/readyReplicas"), desired(object));
    vec![name(object), ready.into(), created(object, now), names, images]
}

pub(super) fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template");
    vec![
        name(object),
        integer(object, "/status/desiredNumberScheduled").into(),
        integer(object, "/status/currentNumberScheduled").into(),
        integer(object, "/status/numberReady").into(),
        integer(object, "/status/updatedNumberScheduled").into(),
        integer(object, "/status/numberAvailable").into(),
        labels(object.pointer("/spec/template/spec/nodeSelector")).into(),
        created(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

pub(super) fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template");
    let succeeded = integer(object, "/status/succeeded");
    let parallelism = integer(object, "/spec/parallelism");
    let completions = match object.pointer("/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let time = |pointer: &str| text(object, pointer).parse::<Timestamp>().ok();
    let took = match (time("/status/startTime"), time("/status/completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human_duration(end.unwrap_or(now).duration_since(start).as_secs()),
    };
    vec![
        name(object),
        job_status(object).into(),
        completions.into(),
        took.into(),
        created(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

fn job_status(job: &Value) -> &'static str {
    let holds = |kind: &str| {
        array(job, "/status/conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if !text(job, "/metadata/deletionTimestamp").is_empty() {
        "Terminating"
    } else {
        let rest = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
        // No controller here starts a Job.
        let started = !text(job, "/status/startTime").is_empty();
        rest.into_iter().find(|kind| holds(kind)).unwrap_or(if started { "Running" } else { "NotRunning" })
    }
}

pub(super) fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/jobTemplate/spec/template");
    let last = object.pointer("/status/lastScheduleTime").filter(|t| !t.is_null());
    let suspend = match object.pointer("/spec/suspend") {
        Some(Value::Bool(true)) => "True",
        Some(Value::Bool(false)) => "False",
        _ => "<unset>",
    };
    vec![
        name(object),
        text(object, "/spec/schedule").into(),
        or_none(text(object, "/spec/timeZone")).into(),
        suspend.into(),
        array(object, "/status/active").len().into(),
        last.map_or_else(|| "<none>".into(), |time| age(Some(time), now)).into(),
        created(object, now),
        names,
        images,
        selector(object, "/spec/jobTemplate/spec/selector"),
    ]
}
