mod conditions;
mod ends;
mod kept;
mod networks;
mod passes;
mod pods;
mod services;
mod volumes;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Action, Part, Plan, Stage, plan};
use super::status::status;
use super::*;
use crate::fixture::{object, owned_by, patched};
use hutch_api::SandboxStatus;
use jiff::Timestamp;

const API: &str = "agents.x-k8s.io/v1beta1";
const DOMAIN: &str = "cluster.local";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn sandbox(more: Value) -> Arc<Sandbox> {
    let mut base = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c"}]}}}});
    json_patch::merge(&mut base, &more);
    object(API, "Sandbox", "s", base)
}

fn mine() -> Value {
    owned_by(API, "Sandbox", "s")
}

fn theirs() -> Value {
    owned_by("apps/v1", "ReplicaSet", "r")
}

/// Builds a Pod of the Sandbox's name and label, as the reconciler creates it.
fn pod(name: &str, more: Value) -> Arc<PodView> {
    let mut base = json!({"metadata": {
        "labels": {"agents.x-k8s.io/sandbox-name-hash": name_hash("s")}, "ownerReferences": mine(),
    }});
    json_patch::merge(&mut base, &more);
    object("v1", "Pod", name, base)
}

fn running() -> Value {
    json!({
        "spec": {"containers": [], "nodeName": "n"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]},
    })
}

fn observed(sandbox: Arc<Sandbox>, pods: &[Arc<PodView>], service: Option<Arc<Service>>) -> Observed {
    let tracked = pods.iter().find(|pod| pod.name_any() == pod_name(sandbox.as_ref())).cloned();
    let hash = Some(name_hash("s"));
    let labelled =
        pods.iter().filter(|p| p.labels().get("agents.x-k8s.io/sandbox-name-hash") == hash.as_ref());
    let volumes = vec![None; sandbox.spec.volumes().len()];
    Observed {
        labelled: labelled.cloned().collect(),
        tracked,
        service,
        volumes,
        sandbox,
        pool_eviction: true,
        snapshot: None,
        newest: None,
        snapshots: true,
        policy: None,
        template_closes: true,
        gateway: None,
    }
}

/// Returns the actions in short, with problems at the end.
fn steps(observed: &Observed) -> Vec<String> {
    let Plan { actions, problems, .. } = plan(observed, now());
    let actions = actions.iter().map(|action| match action {
        Action::CreateVolume(claim) => format!("create volume {}", claim.name_any()),
        Action::PatchVolume(name, _) => format!("adopt volume {name}"),
        Action::CreatePolicy(policy) => format!("create policy {}", policy.name_any()),
        Action::PatchPolicy(name, _) => format!("patch policy {name}"),
        Action::DeletePolicy(name) => format!("delete policy {name}"),
        Action::CreatePod(pod) => format!("create pod {}", pod.name_any()),
        Action::PatchPod(name, _) => format!("patch pod {name}"),
        Action::SyncPod(name, _) => format!("sync pod {name}"),
        Action::DeletePod(name) => format!("delete pod {name}"),
        Action::CreateSnapshot(snapshot) => format!("create snapshot {}", snapshot.name_any()),
        Action::DeleteSnapshot(name) => format!("delete snapshot {name}"),
        Action::DropMemory(name) => format!("drop memory {name}"),
        Action::CreateService(_) => "create service".into(),
        Action::PatchService(_) => "patch service".into(),
        Action::DeleteService => "delete service".into(),
        Action::NotePodName(name) => format!("note {}", name.as_deref().unwrap_or("none")),
        Action::NoteOwnName => "note own name".into(),
        Action::DeleteSandbox => "delete sandbox".into(),
        Action::Sleep(_) => "sleep or wake".into(),
    });
    actions.chain(problems.into_iter().map(|(part, text)| format!("{part:?}: {text}"))).collect()
}

/// Returns `status/reason/message` of a condition.
fn says(observed: &Observed, stage: Stage, problems: &[(Part, String)], kind: &str) -> String {
    let status = status(observed, stage, problems, DOMAIN, now());
    let found = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == kind);
    found.map_or_else(|| "absent".into(), |c| format!("{}/{}/{}", c.status, c.reason, c.message))
}

fn noted() -> Value {
    json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "s"}}})
}

fn suspended() -> Value {
    json!({"spec": {"operatingMode": "Suspended"}, "metadata": {"annotations": {"agents.x-k8s.io/pod-name": "s"}}})
}

fn service(more: Value) -> Arc<Service> {
    let hash = name_hash("s");
    let mut base = json!({
        "metadata": {"labels": {"agents.x-k8s.io/sandbox-name-hash": hash}, "ownerReferences": mine()},
        "spec": {"clusterIP": "None", "selector": {"agents.x-k8s.io/sandbox-name-hash": hash}},
    });
    json_patch::merge(&mut base, &more);
    object("v1", "Service", "s", base)
}
