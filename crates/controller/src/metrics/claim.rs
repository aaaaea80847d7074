//! How long claims take, and how many get a Sandbox in which way.

use hutch_api::condition::READY;
use hutch_api::{Sandbox, SandboxClaim, annotation, label};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use prometheus::{HistogramVec, IntCounterVec, Registry};

use super::{buckets, options, registered};
use crate::condition;

/// Milliseconds from a claim to a usable Sandbox.
const STARTUP: [f64; 15] = [
    100.0, 250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 2000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0,
    120_000.0, 240_000.0,
];
/// Milliseconds from a Sandbox's creation to its being Ready.
const CREATION: [f64; 14] = [
    50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0, 120_000.0, 240_000.0,
    300_000.0, 600_000.0,
];
/// Value for an unknown template.
const NO_TEMPLATE: &str = "__unknown__";

pub(crate) struct Claims {
    since_webhook: HistogramVec,
    since_controller: HistogramVec,
    since_client: HistogramVec,
    creation: HistogramVec,
    created: IntCounterVec,
}

/// A claim has just got a Sandbox.
pub(crate) struct Created<'a> {
    pub(crate) claim: &'a SandboxClaim,
    pub(crate) sandbox: &'a Sandbox,
    /// Set when it came from the claim's pool.
    pub(crate) warm: bool,
}

impl Claims {
    pub(super) fn new(registry: &Registry) -> Self {
        let startup = |name: &str, help: &str| {
            let options = buckets(name, help, &STARTUP);
            registered(registry, HistogramVec::new(options, &["launch_type", "sandbox_template"]))
        };
        let creation = buckets(
            "agent_sandbox_creation_latency_ms",
            "Milliseconds from the creation of a claim's Sandbox to its being Ready",
            &CREATION,
        );
        let created = options("agent_sandbox_claim_creation_total", "Sandboxes that claims got");
        let by =
            ["namespace", "sandbox_template", "launch_type", "warmpool_name", "pod_condition", "created_by"];
        Claims {
            since_webhook: startup(
                "agent_sandbox_claim_startup_latency_ms",
                "Milliseconds from the moment that a webhook noted on the claim to its being Ready",
            ),
            since_controller: startup(
                "agent_sandbox_claim_controller_startup_latency_ms",
                "Milliseconds from the controller's first sight of a claim to its being Ready",
            ),
            since_client: startup(
                "agent_sandbox_client_claim_startup_latency_ms",
                "Milliseconds from the moment that a client noted on the claim to its being Ready",
            ),
            creation: registered(
                registry,
                HistogramVec::new(creation, &["namespace", "launch_type", "sandbox_template"]),
            ),
            created: registered(registry, IntCounterVec::new(created, &by)),
        }
    }

    /// A claim is Ready for the first time; this process saw it first at `seen`. Times that it does not carry, and times to
    /// come, are left out.
    pub(crate) fn first_ready(
        &self,
        claim: &SandboxClaim,
        sandbox: &Sandbox,
        seen: Timestamp,
        now: Timestamp,
    ) {
        let (launch, template) = (launch_type(sandbox), template(sandbox));
        let by = [launch, template];
        for (key, histogram, fallback) in [
            (annotation::WEBHOOK_FIRST_OBSERVED_AT, &self.since_webhook, None),
            (annotation::CONTROLLER_FIRST_OBSERVED_AT, &self.since_controller, Some(seen)),
            (annotation::CLIENT_FIRST_REQUESTED_AT, &self.since_client, None),
        ] {
            let noted = claim.annotations().get(key).and_then(|time| time.parse::<Timestamp>().ok());
            let since = noted.or(fallback);
            if let Some(took) = since.and_then(|since| milliseconds(now.duration_since(since))) {
                histogram.with_label_values(&by).observe(took);
            }
        }
        let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
        let ready = conditions.and_then(|list| condition::find(list, READY));
        let created = sandbox.metadata.creation_timestamp.as_ref();
        if let (Some(ready), Some(created)) = (ready, created)
            && let Some(took) = milliseconds(ready.last_transition_time.0.duration_since(created.0))
        {
            let namespace = sandbox.namespace().unwrap_or_default();
            self.creation.with_label_values(&[namespace.as_str(), launch, template]).observe(took);
        }
    }

    pub(crate) fn created(&self, created: &Created<'_>) {
        let Created { claim, sandbox, warm } = created;
        let ready =
            condition::is_ready(sandbox.status.as_ref().and_then(|status| status.conditions.as_ref()));
        let namespace = claim.namespace().unwrap_or_default();
        self.created
            .with_label_values(&[
                namespace.as_str(),
                template(sandbox),
                if *warm { label::LAUNCH_WARM } else { label::LAUNCH_COLD },
                claim.spec.warm_pool_ref.name.as_str(),
                if *warm && ready { "ready" } else { "not_ready" },
                creator(claim.labels()),
            ])
            .inc();
    }
}

/// Nothing where it is less than nothing.
fn milliseconds(took: SignedDuration) -> Option<f64> {
    (!took.is_negative()).then(|| took.as_secs_f64() * 1000.0)
}

pub(super) fn launch_type(sandbox: &Sandbox) -> &'static str {
    match sandbox.labels().get(label::LAUNCH_TYPE).map(String::as_str) {
        Some(label::LAUNCH_WARM) => label::LAUNCH_WARM,
        Some(label::LAUNCH_COLD) => label::LAUNCH_COLD,
        _ => "unknown",
    }
}

pub(super) fn creator(labels: &std::collections::BTreeMap<String, String>) -> &str {
    labels.get(label::CREATED_BY).map_or(label::UNKNOWN_CREATOR, |value| label::normalised_creator(value))
}

fn template(sandbox: &Sandbox) -> &str {
    let name = sandbox.annotations().get(annotation::TEMPLATE_REF).map(String::as_str);
    name.filter(|name| !name.is_empty()).unwrap_or(NO_TEMPLATE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::object;
    use crate::metrics::Metrics;

    fn sandbox(more: serde_json::Value) -> std::sync::Arc<Sandbox> {
        let mut all = json!({
            "metadata": {"annotations": {"agents.x-k8s.io/sandbox-template-ref": "t"},
                "labels": {"agents.x-k8s.io/launch-type": "warm"}},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:03Z"}]},
        });
        json_patch::merge(&mut all, &more);
        object("agents.x-k8s.io/v1beta1", "Sandbox", "p-1", all)
    }

    fn claim(annotations: serde_json::Value) -> std::sync::Arc<SandboxClaim> {
        object(
            "extensions.agents.x-k8s.io/v1beta1",
            "SandboxClaim",
            "c",
            json!({"metadata": {"annotations": annotations}, "spec": {"warmPoolRef": {"name": "p"}}}),
        )
    }

    #[test]
    fn past_times_of_a_claim_are_measured_and_future_ones_not() {
        let metrics = Metrics::new();
        let claim = claim(json!({
            "agents.x-k8s.io/client-first-requested-at": "2026-01-01T00:00:09.5Z",
            "agents.x-k8s.io/webhook-first-observed-at": "2026-01-01T00:01:00Z",
            "agents.x-k8s.io/controller-first-observed-at": "2026-01-01T00:00:09.9Z",
        }));
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        metrics.claims().first_ready(&claim, &sandbox(json!({})), now, now);
        let text = metrics.text();
        let has = |line: &str| assert!(text.contains(line), "{line} is not in\n{text}");
        has(
            r#"agent_sandbox_client_claim_startup_latency_ms_sum{launch_type="warm",sandbox_template="t"} 500"#,
        );
        has(
            r#"agent_sandbox_claim_controller_startup_latency_ms_bucket{launch_type="warm",sandbox_template="t",le="100"} 1"#,
        );
        has(
            r#"agent_sandbox_creation_latency_ms_sum{launch_type="warm",namespace="d",sandbox_template="t"} 3000"#,
        );
        assert!(!text.contains("agent_sandbox_claim_startup_latency_ms"), "{text}");
    }

    #[test]
    fn creation_is_counted_by_launch_type() {
        let metrics = Metrics::new();
        let claim = claim(json!({}));
        let cold = sandbox(json!({"metadata": {"annotations": null}}));
        metrics.claims().created(&Created { claim: &claim, sandbox: &sandbox(json!({})), warm: true });
        metrics.claims().created(&Created { claim: &claim, sandbox: &cold, warm: false });
        let text = metrics.text();
        for line in [
            r#"{created_by="unknown",launch_type="warm",namespace="d",pod_condition="ready",sandbox_template="t",warmpool_name="p"} 1"#,
            r#"{created_by="unknown",launch_type="cold",namespace="d",pod_condition="not_ready",sandbox_template="__unknown__",warmpool_name="p"} 1"#,
        ] {
            assert!(
                text.contains(&format!("agent_sandbox_claim_creation_total{line}")),
                "{line} is not in\n{text}"
            );
        }
    }
}
