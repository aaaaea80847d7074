//! Cost of access control for a warm claim: a user with many bindings beside a member of `system:masters`, for whom no
//! binding is evaluated.
//!
//! Each has its own server, and the servers take turns, so that other load on the machine affects both. The binding that
//! allows the claim is the user's last one.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::claims::{NAMESPACE, make_pool, one, wait_for_pool};
use crate::machine::binary;
use crate::server::Server;
use crate::stats::{Samples, millis};

const BINDINGS: [usize; 2] = [50, 1000];
const ROUNDS: usize = 1000;
const POOL: usize = 4;
/// Writes of roles and bindings at a time.
const WRITES: usize = 16;
const USER: &str = "bench";

/// Prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    println!("\n### Warm claim of a user with roles, POST to Ready seen by the client\n");
    println!(
        "| Bindings of the user | p50 ms | p50 ms of `system:masters` | ratio | n |\n|---|---|---|---|---|"
    );
    for bindings in BINDINGS {
        let [bound, master] = [Server::start()?, Server::start()?];
        let [admin, other] = [bound.client().await?, master.client().await?];
        let user = user(&bound).await?;
        bind(&admin, bindings).await?;
        make_pool(&admin, POOL).await?;
        make_pool(&other, POOL).await?;
        let (mut with, mut without) = (Samples::default(), Samples::default());
        for round in 0..ROUNDS {
            let name = format!("claim-{round}");
            for first in [round % 2 == 0, round % 2 != 0] {
                let (admin, client, samples) =
                    if first { (&admin, &user, &mut with) } else { (&other, &other, &mut without) };
                wait_for_pool(admin, POOL).await?;
                samples.add(one(client, &name, false).await?.0);
            }
        }
        let ratio = with.p50().as_secs_f64() / without.p50().max(Duration::from_nanos(1)).as_secs_f64();
        let [with_ms, without_ms] = [&with, &without].map(|samples| millis(samples.p50()));
        println!("| {bindings} | {with_ms} | {without_ms} | {ratio:.3} | {} |", with.len());
    }
    Ok(())
}

/// A client of a user with a client certificate.
async fn user(server: &Server) -> anyhow::Result<kube::Client> {
    let file = server.folder().join("user.kubeconfig");
    let mut create = Command::new(binary()?);
    create.args(["user", "create", USER, "--output"]).arg(&file);
    create.arg("--kubeconfig").arg(server.kubeconfig());
    ensure!(create.status().context("hutch user create")?.success(), "hutch user create failed");
    let read = Kubeconfig::read_from(&file)?;
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.read_timeout = None;
    Ok(kube::Client::try_from(config)?)
}

/// Binds the user to that many roles. The last one allows claims.
async fn bind(admin: &kube::Client, bindings: usize) -> anyhow::Result<()> {
    let objects = (0..bindings).flat_map(|number| {
        let name = format!("role-{number:05}");
        let (group, resource) = if number + 1 == bindings {
            ("extensions.agents.x-k8s.io", "sandboxclaims")
        } else {
            ("example.com", "things")
        };
        let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": ["create", "delete", "get", "list", "watch"]}]);
        let role = json!({"kind": "Role", "rules": rules});
        let binding = json!({"kind": "RoleBinding", "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]});
        [role, binding].map(|object| (name.clone(), object))
    });
    futures::stream::iter(objects)
        .map(|(name, object)| create(admin, name, object))
        .buffer_unordered(WRITES)
        .try_collect()
        .await
}

async fn create(admin: &kube::Client, name: String, mut object: Value) -> anyhow::Result<()> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    object["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    object["metadata"] = json!({"name": name, "namespace": NAMESPACE});
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", &kind));
    let api: Api<DynamicObject> = Api::namespaced_with(admin.clone(), NAMESPACE, &resource);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}
