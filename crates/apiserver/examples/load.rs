//! Cost of requests in this process: `cargo run -p hutch-apiserver --example load [DIR]`. With a folder the store
//! is on its disk.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use hutch_apiserver::{ApiServer, Config, Identity};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;

const OBJECTS: u32 = 1000;

fn sandbox(name: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "hutch/host"}]}}},
    }))
    .expect("it is an object")
}

fn tell(what: &str, each: Duration) {
    println!("{what:32} {each:?}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = std::env::args().nth(1).map(Into::into);
    for round in ["open", "open again"] {
        let start = Instant::now();
        let server = ApiServer::open(Config { data: data.clone(), ..Config::default() }).await?;
        tell(round, start.elapsed());
        server.close().await;
        if data.is_none() {
            break;
        }
        // The writer closes the file just after it has answered.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let server = ApiServer::open(Config { data, ..Config::default() }).await?;
    let client = server.client(Identity::admin(), "default");
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("agents.x-k8s.io", "v1beta1", "Sandbox"));
    let kind = ApiResource { plural: "sandboxes".into(), ..kind };
    let api: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    let start = Instant::now();
    api.create(&PostParams::default(), &sandbox("first")).await?;
    tell("first create", start.elapsed());

    let start = Instant::now();
    for n in 0..OBJECTS {
        api.create(&PostParams::default(), &sandbox(&format!("one-{n}"))).await?;
    }
    tell("create, one at a time", start.elapsed() / OBJECTS);

    let start = Instant::now();
    let creates = (0..OBJECTS).map(|n| {
        let api = api.clone();
        tokio::spawn(async move { api.create(&PostParams::default(), &sandbox(&format!("many-{n}"))).await })
    });
    for create in creates.collect::<Vec<_>>() {
        create.await??;
    }
    tell("create, all at once", start.elapsed() / OBJECTS);

    let start = Instant::now();
    for n in 0..OBJECTS {
        api.get(&format!("one-{n}")).await?;
    }
    tell("get", start.elapsed() / OBJECTS);

    let start = Instant::now();
    let list = api.list(&ListParams::default()).await?;
    tell(&format!("list of {}", list.items.len()), start.elapsed());

    let start = Instant::now();
    for n in 0..OBJECTS {
        let status = json!({"status": {"service": format!("s{n}")}});
        api.patch_status(&format!("one-{n}"), &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    tell("status patch", start.elapsed() / OBJECTS);

    let revision = list.metadata.resource_version.unwrap_or_default();
    let mut events = api.watch(&WatchParams::default(), &revision).await?.boxed();
    for _ in 0..OBJECTS {
        events.try_next().await?;
    }
    let start = Instant::now();
    let status = json!({"status": {"service": "last"}});
    let write = api.patch_status("one-0", &PatchParams::default(), &Patch::Merge(status)).await?;
    let written = start.elapsed();
    loop {
        if let Some(WatchEvent::Modified(object)) = events.try_next().await?
            && object.metadata.resource_version == write.metadata.resource_version
        {
            break;
        }
    }
    tell("write", written);
    tell("write to watch", start.elapsed());
    Ok(())
}
