//! A pool gets exactly its replicas, also when responses to creates are lost.

use futures::StreamExt;
use hutch_api::{Sandbox, SandboxWarmPool};
use kube::Api;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cluster::{Cluster, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn pool_never_exceeds_its_replicas() {
    let cluster = Cluster::start().await;
    cluster.template("t", json!({})).await;
    let made = Arc::new(AtomicUsize::new(0));
    let (count, api): (_, Api<Sandbox>) = (made.clone(), cluster.api());
    let watch = tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
        let mut names = std::collections::BTreeSet::new();
        while let Some(Ok(event)) = events.next().await {
            if let Event::Apply(sandbox) | Event::InitApply(sandbox) = event {
                names.insert(sandbox.metadata.name);
                count.store(names.len(), Ordering::SeqCst);
            }
        }
    });
    cluster.lose_answers(6);
    cluster.pool("p", "t", 10).await;
    eventually("the pool is full", || async {
        let pool: SandboxWarmPool = cluster.get("p").await?;
        (pool.status?.ready_replicas? == 10).then_some(())
    })
    .await;
    cluster.quiet(std::time::Duration::from_millis(300)).await;
    assert_eq!(cluster.list::<Sandbox>().await.len(), 10);
    assert_eq!(made.load(Ordering::SeqCst), 10, "none was made to be deleted again");
    watch.abort();
    cluster.stop().await;
}
