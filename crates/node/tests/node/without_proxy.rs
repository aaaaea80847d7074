//! A kernel that cannot capture connections: Pods reach nothing, and their policies still close files.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_jail::NetworkPlan;
use hutch_node::{Bundle, Egress, EgressNews, Holder, Offer};
use hutch_policy::{Facts, HostName, Level, Peer};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::machine::Machine;

/// A proxy whose plan no kernel takes.
struct Refused;

impl Egress for Refused {
    fn plan(&self, _: IpAddr) -> NetworkPlan {
        NetworkPlan::closed(vec![Ipv4Addr::LOCALHOST.into(); 1000])
    }

    fn serve(&self, _: &str, _: &str, _: Vec<OwnedFd>) {}

    fn trust(&self, _: &str, _: &str) -> BoxFuture<'_, Result<Bundle, String>> {
        async { Err("not used".to_owned()) }.boxed()
    }

    fn forget(&self, _: &str) {}

    fn forget_others(&self, _: &HashSet<String>) {}

    fn set_facts(&self, _: &str, _: Facts) {}

    fn set_levels(&self, _: &str, _: Vec<Arc<Level>>) {}

    fn set_peers(&self, _: &str, _: &str, _: Vec<Peer>) {}

    fn placeholders(&self, _: &str, _: &[Offer]) -> BoxFuture<'_, Result<Vec<String>, String>> {
        async { Err("there is no proxy".to_owned()) }.boxed()
    }

    fn set_credentials(&self, _: Holder, _: Vec<Offer>) {}

    fn names(&self, _: &str) -> BoxFuture<'_, Vec<HostName>> {
        std::future::ready(Vec::new()).boxed()
    }

    fn set_names(&self, _: &str, _: Vec<HostName>) {}

    fn end(&self, _: &str) {}

    fn news(&self) -> BoxFuture<'_, EgressNews> {
        std::future::pending().boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_closed_where_connections_cannot_be_captured() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start_with(dir.path(), |config| config.egress = Some(Arc::new(Refused))).await;
    let kind = GroupVersionKind::gvk("policy.hutch.dev", "v1alpha1", "ClusterSandboxPolicy");
    let policies: Api<DynamicObject> = Api::all_with(machine.client.clone(), &ApiResource::from_gvk(&kind));
    let policy = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "ClusterSandboxPolicy",
        "metadata": {"name": "files"},
        "spec": {"appliesTo": {}, "files": [{"path": "/usr/share", "access": "None"}]}});
    // Created right before the Pod, whose start must not be faster.
    policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
    machine.run("closed", "exec sleep 1000", json!({})).await;
    let pod = machine.ready("closed").await;
    let (_, text) = machine.exec(&pod, &["sh", "-c", "ls -A /usr/share; ls -d /usr/bin"]).await;
    assert_eq!(text, "/usr/bin\n");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).unwrap();
    let found =
        conditions.iter().find(|condition| condition.type_ == "policy.hutch.dev/PolicyEnforced").unwrap();
    assert_eq!((found.status.as_str(), found.reason.as_deref()), ("False", Some("PolicyNotEnforceable")));
    assert!(found.message.as_ref().is_some_and(|text| text.contains("cannot capture")), "{found:?}");
    machine.delete("closed").await;
    machine.stop().await;
}
