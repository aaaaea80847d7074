//! `hutch demo`: the main features, in a temporary folder, through the API, with the time of each step.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{
    Api, ApiResource, AttachParams, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams,
    PostParams, WatchEvent, WatchParams,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::cli::{DemoArguments, UpArguments};
use crate::{runtime as setup, up};

const NAMESPACE: &str = "default";
/// Size of the demo's pool.
const POOL: u64 = 2;
/// Maximum time of a step, far above the usual time.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Column of the times.
const WIDTH: usize = 58;

/// Runs the demo. Exit status 0 if every step succeeded.
pub(crate) fn main(_: DemoArguments) -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> anyhow::Result<()> {
    setup::check_root("demo")?;
    let folder = tempfile::Builder::new().prefix("hutch-demo-").tempdir().context("a temporary folder")?;
    println!("Everything below happens in {} and through the Kubernetes API.\n", folder.path().display());
    let arguments = UpArguments::in_folder(folder.path());
    let runtime = setup::runtime()?;
    let started = Instant::now();
    let server = runtime.block_on(up::start(&arguments))?;
    say("API server, controllers, node and router are up", started);
    let client = runtime.block_on(server.client())?;
    let outcome = runtime.block_on(async { tokio::time::timeout(2 * WAIT_LIMIT, walk(&client)).await });
    let started = Instant::now();
    runtime.block_on(server.stop());
    outcome.context("the walk-through did not end in time")??;
    folder.close().context("the temporary folder")?;
    say("stopped; the folder is removed", started);
    Ok(())
}

async fn walk(client: &Client) -> anyhow::Result<()> {
    let started = Instant::now();
    create(client, template()).await?;
    create(client, pool()).await?;
    let full = |pool: &Value| pool["status"]["readyReplicas"].as_u64() == Some(POOL);
    until(client, "SandboxWarmPool", "demo", full).await?;
    say(&format!("a warm pool of {POOL} sandboxes is ready"), started);

    let started = Instant::now();
    create(client, claim()).await?;
    let ready = |claim: &Value| condition(claim, "Ready") && claim["status"]["sandbox"]["name"].is_string();
    let claim = until(client, "SandboxClaim", "mine", ready).await?;
    let sandbox = claim["status"]["sandbox"]["name"].as_str().context("the claim's sandbox")?.to_owned();
    say(&format!("claim to Ready: sandbox {sandbox}"), started);

    let started = Instant::now();
    let said = shell(
        client,
        &sandbox,
        "echo hello from uid $(id -u), which is $(awk '{print $2}' /proc/self/uid_map) outside",
    )
    .await?;
    say(&format!("a command inside: {}", said.trim()), started);
    shell(client, &sandbox, "echo kept > /data/file && sync").await?;
    refusals(client, &sandbox).await?;
    sleep_and_wake(client, &sandbox).await?;

    let started = Instant::now();
    api(client, "SandboxClaim")?.delete("mine", &DeleteParams::default()).await?;
    gone(client, &sandbox).await?;
    say("claim deleted: its sandbox, Pod and volume are gone", started);
    Ok(())
}

/// Tries what code in a sandbox must not do.
async fn refusals(client: &Client, sandbox: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    // The proxy takes every connection. What it refuses it answers, where a client speaks HTTP.
    let fetch = "{ exec 3<>/dev/tcp/1.1.1.1/80 && printf 'GET / HTTP/1.0\\r\\nHost: 1.1.1.1\\r\\n\\r\\n' >&3 && \
        head -n 1 <&3; } 2>&1; true";
    let said = shell(client, sandbox, fetch).await?;
    ensure!(!said.contains("HTTP/") || said.contains(" 403 "), "a host of the internet answered: {said}");
    say(&format!("a request to http://1.1.1.1: {}", last_words(&said)), started);
    let started = Instant::now();
    let said =
        shell(client, sandbox, "echo x 2>&1 > /proc/sys/kernel/core_pattern && echo wrote; true").await?;
    ensure!(!said.contains("wrote"), "a file of the host was written");
    say(&format!("a write to this machine's core_pattern: {}", last_words(&said)), started);
    Ok(())
}

async fn sleep_and_wake(client: &Client, sandbox: &str) -> anyhow::Result<()> {
    let sandboxes = api(client, "Sandbox")?;
    for (mode, condition_name, text) in [
        ("Suspended", "Suspended", "suspended: no process, the volume stays"),
        ("Running", "Ready", "resumed under the same name"),
    ] {
        let started = Instant::now();
        let patch = json!({"spec": {"operatingMode": mode}});
        sandboxes.patch(sandbox, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let reached = |object: &Value| {
            condition(object, condition_name) && object["spec"]["operatingMode"].as_str() == Some(mode)
        };
        until(client, "Sandbox", sandbox, reached).await?;
        say(text, started);
    }
    let started = Instant::now();
    let kept = shell(client, sandbox, "cat /data/file").await?;
    ensure!(kept == "kept\n", "the file on the volume reads {kept:?}");
    say("the file written before is there", started);
    Ok(())
}

/// Watches an object until it has the desired state; so the time is that of the API.
async fn until(
    client: &Client,
    kind: &str,
    name: &str,
    holds: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let wait = async {
        loop {
            let mut events = api(client, kind)?.watch(&params, "0").await?.boxed();
            while let Some(event) = events.try_next().await? {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                    && holds(&object.data)
                {
                    return Ok(object.data);
                }
            }
        }
    };
    match tokio::time::timeout(WAIT_LIMIT, wait).await {
        Ok(object) => object,
        Err(_) => bail!("{kind} {name} did not get there in {WAIT_LIMIT:?}"),
    }
}

async fn gone(client: &Client, sandbox: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let started = Instant::now();
    while pods.get_opt(sandbox).await?.is_some() || api(client, "Sandbox")?.get_opt(sandbox).await?.is_some()
    {
        ensure!(started.elapsed() < WAIT_LIMIT, "{sandbox} is still there after {WAIT_LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

fn condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|list| list.iter().any(|c| c["type"] == name && c["status"] == "True"))
}

/// Runs a shell command with exec, as kubectl does; returns its standard output.
async fn shell(client: &Client, pod: &str, script: &str) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let params = AttachParams::default().stdin(false);
    let mut process = pods.exec(pod, ["bash", "-c", script], &params).await.context("exec")?;
    let status = process.take_status().context("the command's status")?;
    let mut printed = String::new();
    process.stdout().context("the command's output")?.read_to_string(&mut printed).await?;
    let status = status.await.context("no status came")?;
    ensure!(status.status.as_deref() == Some("Success"), "`{script}` failed: {:?}", status.message);
    Ok(printed)
}

fn template() -> Value {
    json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": "demo"},
        "spec": {
            "podTemplate": {"spec": {"terminationGracePeriodSeconds": 0, "containers": [{
                "name": "main", "image": "hutch/python-runtime",
                "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}})
}

fn pool() -> Value {
    json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": "demo"},
        "spec": {"replicas": POOL, "sandboxTemplateRef": {"name": "demo"}}})
}

fn claim() -> Value {
    json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "mine"},
        "spec": {"warmPoolRef": {"name": "demo"}}})
}

async fn create(client: &Client, object: Value) -> anyhow::Result<()> {
    let kind = object["kind"].as_str().context("kind")?.to_owned();
    let object: DynamicObject = serde_json::from_value(object)?;
    api(client, &kind)?
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("the {kind}"))?;
    Ok(())
}

fn api(client: &Client, kind: &str) -> anyhow::Result<Api<DynamicObject>> {
    let group = if kind == "Sandbox" { "agents.x-k8s.io" } else { "extensions.agents.x-k8s.io" };
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta1", kind));
    if kind == "Sandbox" {
        resource.plural = "sandboxes".to_owned();
    }
    Ok(Api::namespaced_with(client.clone(), NAMESPACE, &resource))
}

/// Returns the end of the last line: the message of the kernel.
fn last_words(output: &str) -> &str {
    output.trim().lines().last().and_then(|line| line.rsplit(": ").next()).unwrap_or("refused")
}

fn say(step: &str, started: Instant) {
    let millis = started.elapsed().as_secs_f64() * 1000.0;
    println!("  {step:.<WIDTH$} {millis:>8.1} ms");
}
