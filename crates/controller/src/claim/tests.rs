mod adoption;
mod annotations;
mod conditions;
mod creation;
mod ends;
mod planning;

use std::sync::Arc;

use hutch_api::{Sandbox, SandboxTemplate, SandboxWarmPool};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::adopt::{Pick, alignment, is_candidate, is_of_pool, patch, pick};
use super::observe::Observed;
use super::refusal::{Refusal, Retry};
use super::status::{State, status};
use super::*;
use crate::context::Times;
use crate::fixture::{object, owned_by, patched};

const CORE: &str = "agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io/v1beta1";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn claim(more: Value) -> Arc<SandboxClaim> {
    let mut base = json!({"spec": {"warmPoolRef": {"name": "p"}}});
    json_patch::merge(&mut base, &more);
    object(EXTENSIONS, "SandboxClaim", "c", base)
}

fn template(more: Value) -> Arc<SandboxTemplate> {
    let mut base =
        json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main"}, {"name": "side"}]}}}});
    json_patch::merge(&mut base, &more);
    object(EXTENSIONS, "SandboxTemplate", "t", base)
}

fn mine() -> Value {
    json!({"metadata": {"ownerReferences": owned_by(EXTENSIONS, "SandboxClaim", "c")}})
}

/// Ready Sandbox of pool `p`.
fn pooled(name: &str, more: Value) -> Arc<Sandbox> {
    let marks = json!({"agents.x-k8s.io/warm-pool-sandbox": name_hash_of_pool(), "agents.x-k8s.io/sandbox-template-ref-hash": "t",
        "agents.x-k8s.io/sandbox-template-hash": "h", "agents.x-k8s.io/sandbox-pod-template-hash": "h", "agents.x-k8s.io/created-by": "controller"});
    let mut base = json!({
        "metadata": {"labels": marks, "annotations": {"agents.x-k8s.io/sandbox-template-ref": "t"},
            "ownerReferences": owned_by(EXTENSIONS, "SandboxWarmPool", "p")},
        "spec": {"podTemplate": {"metadata": {"labels": marks, "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
            "spec": {"containers": [{"name": "main"}]}}},
        "status": {"podIPs": ["10.0.0.1"], "nodeName": "n1", "conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady",
            "message": "Pod is Ready", "lastTransitionTime": "2026-01-01T00:05:00Z", "observedGeneration": 9}]},
    });
    json_patch::merge(&mut base, &more);
    object(CORE, "Sandbox", name, base)
}

fn name_hash_of_pool() -> String {
    hutch_api::name_hash("p")
}

fn observed(claim: Arc<SandboxClaim>) -> Observed {
    let pool =
        object(EXTENSIONS, "SandboxWarmPool", "p", json!({"spec": {"sandboxTemplateRef": {"name": "t"}}}));
    Observed {
        claim,
        pool: Some(pool),
        template_name: Some("t".into()),
        template: Some(template(json!({}))),
        owned: vec![],
        bound: None,
        recorded: None,
        namesake: None,
        pending: None,
        refreshed: false,
        late_env: false,
        snapshots: false,
    }
}

fn bound_to(name: &str) -> Value {
    json!({"status": {"sandbox": {"name": name}}})
}

fn says(claim: &SandboxClaim, state: &State<'_>) -> Value {
    serde_json::to_value(status(claim, state, now())).unwrap()
}
