//! Reports to a Sandbox about its Pod: that it is frozen, and when it was last used.

use hutch_api::syntax::is_path_segment;
use hutch_api::{OperatingMode, Sandbox, annotation};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

/// Outcome of a report.
pub(super) enum Written {
    /// It reported activity. The Sandbox may be suspended all the same.
    Active { suspended: bool },
    /// There was no activity to tell of.
    NoActivity,
    /// It was not written.
    Failed,
}

/// The Sandbox of a Pod, and what was last written there.
pub(super) struct Report {
    namespace: String,
    name: String,
    uid: String,
    frozen: bool,
    active: Option<Timestamp>,
}

impl Report {
    /// Nothing: the Pod belongs to no Sandbox, or the API does not answer now.
    pub(super) async fn of(client: &Client, pod: &Pod) -> Option<Report> {
        let owner = hutch_api::owner::sandbox(pod).filter(|owner| is_path_segment(&owner.name))?;
        let namespace = pod.namespace().unwrap_or_default();
        let api = Api::<PartialObjectMeta<Sandbox>>::namespaced(client.clone(), &namespace);
        let sandbox = api.get_opt(&owner.name).await.ok()??;
        let value = |key: &str| sandbox.annotations().get(key);
        Some(Report {
            namespace,
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            // Of an earlier life of the Pod perhaps, which is then taken back.
            frozen: value(annotation::FROZEN_SINCE).is_some(),
            active: value(annotation::LAST_ACTIVITY).and_then(|value| value.parse().ok()),
        })
    }

    /// Writes what differs. `active` is when the Pod was last used, and how often that is worth a write.
    pub(super) async fn write(
        &mut self,
        client: &Client,
        frozen: bool,
        active: Option<(Timestamp, Duration)>,
    ) -> Written {
        let mut annotations = serde_json::Map::new();
        if frozen != self.frozen {
            let since = frozen.then(|| json!(shown(Timestamp::now())));
            annotations.insert(annotation::FROZEN_SINCE.into(), since.unwrap_or(Value::Null));
        }
        let active = active.filter(|(at, every)| {
            let every = SignedDuration::try_from(*every).unwrap_or(SignedDuration::MAX);
            self.active.is_none_or(|told| at.duration_since(told) >= every)
        });
        if let Some((at, _)) = active {
            annotations.insert(annotation::LAST_ACTIVITY.into(), json!(shown(at)));
        }
        if annotations.is_empty() {
            return Written::NoActivity;
        }
        // The uid makes the write fail for a namesake.
        let patch = json!({"metadata": {"uid": self.uid, "annotations": annotations}});
        let api = Api::<Sandbox>::namespaced(client.clone(), &self.namespace);
        match api.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(sandbox) => {
                self.frozen = frozen;
                let Some((at, _)) = active else { return Written::NoActivity };
                self.active = Some(at);
                let suspended = sandbox.spec.operating_mode == Some(OperatingMode::Suspended);
                Written::Active { suspended }
            }
            // The next reconcile tries again; a Sandbox that is gone takes the Pod with it.
            Err(error) => {
                tracing::debug!(sandbox = self.name, %error, "a report on a Sandbox was not written");
                Written::Failed
            }
        }
    }
}

fn shown(at: Timestamp) -> String {
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owner_name_that_would_be_another_path_gets_no_report() {
        let sandbox = async || {
            axum::Json(
                json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "s"}}),
            )
        };
        let client = Client::new(axum::Router::new().fallback(sandbox), "default");
        let pod = |name: &str| -> Pod {
            let owner = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": "u",
                "controller": true});
            serde_json::from_value(json!({"metadata": {"name": "p", "ownerReferences": [owner]}})).unwrap()
        };
        assert!(Report::of(&client, &pod("s")).await.is_some());
        for name in ["s/status", "../pods/p", "s?fieldManager=x", "a\0b"] {
            assert!(Report::of(&client, &pod(name)).await.is_none(), "{name:?}");
        }
    }
}
