//! Measures calls of the stock Python client (Direct) on `hutch up`, beyond the time of the client itself.
//!
//! The client itself is measured against a server that responds at once, from memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use crate::claims;
use crate::server::Server;
use crate::stats::{Samples, millis};

const SCRIPT: &str = include_str!("sdk.py");
/// Size of the warm pool; the script uses two Sandboxes at a time.
const POOL: usize = 2;
const CONTENT: usize = 4096;
const CALLS: [&str; 3] = ["run `true`", "write 4 KiB", "read 4 KiB"];

type Times = BTreeMap<String, BTreeMap<String, Vec<u64>>>;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::start_with(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"])?;
    let router = server.printed("router").context("hutch up printed no address of its router")?;
    let nothing = runtime.block_on(async {
        let client = server.client().await?;
        claims::make_pool(&client, POOL).await?;
        nothing().await
    })?;
    let package = package()?;
    let output = Command::new("python3")
        .args(["-c", SCRIPT, &router, &nothing])
        .env("PYTHONPATH", &package)
        .env("KUBECONFIG", server.kubeconfig())
        .output()
        .context("python3")?;
    if !output.status.success() {
        bail!("the client failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let times: Times = serde_json::from_slice(&output.stdout).context("what the client printed")?;
    println!("\n### The Python client 1.0.8, Direct, on `hutch up`\n");
    println!("| | p50 ms | p99 ms | client alone, p50 ms | difference | n |\n|---|---|---|---|---|---|");
    for call in CALLS {
        let of = |what: &str| -> anyhow::Result<Samples> {
            let times = times.get(what).and_then(|calls| calls.get(call));
            let times = times.with_context(|| format!("no times of {call}"))?;
            Ok(times.iter().copied().map(Duration::from_nanos).collect())
        };
        let (whole, alone) = (of("sandbox")?, of("nothing")?);
        let (p50, own) = (whole.p50(), alone.p50());
        println!(
            "| {call} | {} | {} | {} | {} | {} |",
            millis(p50),
            millis(whole.p99()),
            millis(own),
            millis(p50.saturating_sub(own)),
            whole.len()
        );
    }
    Ok(())
}

/// Returns the folder of the installed package below `.tools` of the repository.
fn package() -> anyhow::Result<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.tools/python/1.0.8"));
    if !folder.is_dir() {
        bail!("{} is not there: run scripts/install-test-tools", folder.display());
    }
    Ok(folder)
}

/// Starts a server that responds to the client's requests without doing anything; returns its address.
async fn nothing() -> anyhow::Result<String> {
    // Whatever is sent is read, or the connection could not be used again.
    let ran = |_: axum::body::Bytes| async { Json(json!({"stdout": "", "stderr": "", "exit_code": 0})) };
    let taken = |_: axum::body::Bytes| async { Json(json!({"message": "taken"})) };
    let app = Router::new()
        .route("/execute", post(ran))
        .route("/upload", post(taken))
        .route("/download/{*path}", get(|| async { [b'x'; CONTENT].to_vec() }));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", socket.local_addr()?);
    tokio::spawn(async move { axum::serve(socket, app).await });
    Ok(address)
}
