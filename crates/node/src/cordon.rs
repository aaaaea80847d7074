//! The mark by which a person keeps new Pods away from the node: `kubectl cordon`.

use std::sync::Arc;

use futures::StreamExt;
use hutch_api::UNSCHEDULABLE_TAINT as TAINT;
use k8s_openapi::api::core::v1::{Node, PodSpec};
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};

use crate::shared::Shared;

/// Reason of a scheduler for a Pod that the mark keeps away.
pub(crate) const WHY: &str = "1 node(s) were unschedulable";
/// Returns true if a node has the mark.
pub(crate) fn is_marked(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// Returns true if a Pod may start all the same.
pub(crate) fn is_tolerated(spec: &PodSpec) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (key, effect) = (text(&toleration.key), text(&toleration.effect));
        let holds = match text(&toleration.operator).as_str() {
            "Exists" => key.is_empty() || key == TAINT,
            "" | "Equal" => key == TAINT && text(&toleration.value).is_empty(),
            _ => false,
        };
        holds && (effect.is_empty() || effect == "NoSchedule")
    })
}

/// Follows the mark until the node stops.
pub(crate) async fn follow(node: Arc<Shared>) {
    let api: Api<Node> = Api::all(node.client.clone());
    let own = watcher::Config::default().fields(&format!("metadata.name={}", node.config.node_name));
    let mut stream = std::pin::pin!(watcher(api, own).default_backoff());
    loop {
        let event = tokio::select! {
            () = node.shutdown.wait() => return,
            event = stream.next() => event,
        };
        match event {
            Some(Ok(watcher::Event::Apply(own) | watcher::Event::InitApply(own))) => {
                node.capacity.set_cordoned(is_marked(&own));
            }
            // Without the object nothing could take the mark away.
            Some(Ok(watcher::Event::Delete(_))) => node.capacity.set_cordoned(false),
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::debug!(%error, "watching the node is retried"),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn toleration_of_the_taint_lets_a_pod_start() {
        let tolerated = |toleration: Value| {
            is_tolerated(
                &serde_json::from_value(json!({"containers": [], "tolerations": [toleration]})).unwrap(),
            )
        };
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": TAINT}),
        ] {
            assert!(tolerated(toleration.clone()), "{toleration}");
        }
        for toleration in [
            json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}),
            json!({"key": TAINT, "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": TAINT, "value": "x"}),
            json!({"key": ""}),
        ] {
            assert!(!tolerated(toleration.clone()), "{toleration}");
        }
        assert!(!is_tolerated(&PodSpec::default()));
    }
}
