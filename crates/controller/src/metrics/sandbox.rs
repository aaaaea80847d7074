//! Number of Sandboxes, counted when the metrics are read.

use std::collections::HashMap;

use hutch_api::condition::{READY, TRUE, reason};
use hutch_api::{Sandbox, annotation, label};
use kube::ResourceExt;
use prometheus::{IntGaugeVec, Registry};

use super::claim::creator;
use super::{options, registered};
use crate::{condition, owner};

/// Value for an unknown template.
const NO_TEMPLATE: &str = "unknown";

pub(crate) struct Sandboxes(IntGaugeVec);

impl Sandboxes {
    pub(super) fn new(registry: &Registry) -> Self {
        let by = [
            "namespace",
            "ready_condition",
            "expired",
            "launch_type",
            "sandbox_template",
            "owned_by",
            "created_by",
        ];
        let options = options("agent_sandboxes", "Sandboxes that there are");
        Sandboxes(registered(registry, IntGaugeVec::new(options, &by)))
    }

    /// These are all.
    pub(crate) fn count<'a>(&self, sandboxes: impl Iterator<Item = &'a Sandbox>) {
        let mut counts: HashMap<[String; 7], i64> = HashMap::new();
        for sandbox in sandboxes {
            *counts.entry(labels(sandbox)).or_default() += 1;
        }
        self.0.reset();
        for (labels, count) in counts {
            self.0.with_label_values(&labels).set(count);
        }
    }
}

fn labels(sandbox: &Sandbox) -> [String; 7] {
    let conditions = sandbox.status.as_ref().and_then(|status| status.conditions.as_deref());
    let ready = conditions.and_then(|list| condition::find(list, READY));
    let owned_by = ["SandboxClaim", "SandboxWarmPool"]
        .into_iter()
        .find(|kind| owner::extension(sandbox, kind).is_some());
    // A Sandbox without a claim or pool started cold.
    let launch = match sandbox.labels().get(label::LAUNCH_TYPE).map(String::as_str) {
        Some(label::LAUNCH_WARM) => label::LAUNCH_WARM,
        None | Some(label::LAUNCH_COLD) => label::LAUNCH_COLD,
        Some(_) => "unknown",
    };
    let template = sandbox.annotations().get(annotation::TEMPLATE_REF).map(String::as_str);
    [
        sandbox.namespace().unwrap_or_default(),
        ready.is_some_and(|ready| ready.status == TRUE).to_string(),
        ready.is_some_and(|ready| ready.reason == reason::SANDBOX_EXPIRED).to_string(),
        launch.to_owned(),
        template.filter(|name| !name.is_empty()).unwrap_or(NO_TEMPLATE).to_owned(),
        owned_by.unwrap_or("None").to_owned(),
        creator(sandbox.labels()).to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixture::{object, owned_by};
    use crate::metrics::Metrics;

    #[test]
    fn sandboxes_are_counted_once_and_gone_ones_not_at_all() {
        let spec = json!({"podTemplate": {"spec": {"containers": []}}});
        let plain = object("agents.x-k8s.io/v1beta1", "Sandbox", "a", json!({"spec": spec}));
        let pooled = object(
            "agents.x-k8s.io/v1beta1",
            "Sandbox",
            "p-1",
            json!({"spec": spec, "metadata": {
                "labels": {"agents.x-k8s.io/launch-type": "warm", "agents.x-k8s.io/created-by": "controller"},
                "annotations": {"agents.x-k8s.io/sandbox-template-ref": "t"},
                "ownerReferences": owned_by("extensions.agents.x-k8s.io/v1beta1", "SandboxWarmPool", "p"),
            }, "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:03Z"}]}}),
        );
        let metrics = Metrics::new();
        metrics.sandboxes().count([&*plain, &*pooled, &*pooled].into_iter());
        let text = metrics.text();
        for line in [
            r#"{created_by="unknown",expired="false",launch_type="cold",namespace="d",owned_by="None",ready_condition="false",sandbox_template="unknown"} 1"#,
            r#"{created_by="controller",expired="false",launch_type="warm",namespace="d",owned_by="SandboxWarmPool",ready_condition="true",sandbox_template="t"} 2"#,
        ] {
            assert!(text.contains(&format!("agent_sandboxes{line}")), "{line} is not in\n{text}");
        }
        metrics.sandboxes().count([&*plain].into_iter());
        assert!(!metrics.text().contains("SandboxWarmPool"));
    }
}
