//! Measures a request to a sandbox whose memory was written to swap, compared with one that is frozen or awake.
//!
//! A server in Python holds 200 MB of random bytes. One connection to the router of `hutch up` is kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_testkit::Need;
use hutch_testkit::swap::Swap;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::claims::NAMESPACE;
use crate::server::Server;
use crate::stats::{Samples, millis};

const ROUNDS: usize = 20;
const NAME: &str = "pager";
const SWAP_BYTES: u64 = 1 << 30;
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Poll interval of the Sandbox; no measurement includes it.
const PAUSE: Duration = Duration::from_millis(20);
/// `/` answers at once, and `/all` after every page was read.
const SERVER: &str = r#"
import http.server, os
data = os.urandom(200 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # One write for head and body: two would wait for a delayed acknowledgement.
    def do_GET(self):
        body = b"%d" % (sum(data[::4096]) if self.path == "/all" else 0)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8888), Handler).serve_forever()
"#;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    if let Some(reason) = Need::Swap.missing() {
        bail!("{reason}");
    }
    let _swap = Swap::new(SWAP_BYTES);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Server::start_with(&["--router-listen", "127.0.0.1:0", "--router-allow-unauthenticated"])?;
    let router = server.printed("router").context("hutch up printed no address of its router")?;
    let address = router.strip_prefix("http://").context("an address")?.to_owned();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("agents.x-k8s.io", "v1beta1", "Sandbox"));
    let sandboxes: Api<DynamicObject> =
        Api::namespaced_with(runtime.block_on(server.client())?, NAMESPACE, &kind);
    let sandbox = serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": NAME, "annotations": {"hutch.dev/idle-after": "1s", "hutch.dev/page-out-after": "2s"}},
        "spec": {"podTemplate": {"spec": {"containers": [{
            "name": "c", "image": "hutch/host", "command": ["python3", "-c", SERVER],
            "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1},
        }]}}},
    }))?;
    runtime.block_on(sandboxes.create(&PostParams::default(), &sandbox))?;
    runtime.block_on(until(&sandboxes, "Ready", None))?;
    let mut connection = BufReader::new(TcpStream::connect(&address)?);
    let mut request = |path: &str, samples: &mut Samples| ask(&mut connection, path, samples);
    let (mut awake, mut all_awake, mut frozen, mut paged_out, mut all) = Default::default();
    for _ in 0..ROUNDS {
        request("/all", &mut Samples::default())?;
        request("/", &mut awake)?;
        request("/all", &mut all_awake)?;
        runtime.block_on(until(&sandboxes, "Frozen", Some("Idle")))?;
        request("/", &mut frozen)?;
        runtime.block_on(until(&sandboxes, "Frozen", Some("PagedOut")))?;
        request("/", &mut paged_out)?;
        request("/all", &mut all)?;
    }
    println!("\n### A request to a sandbox whose memory is in swap, 200 MB\n");
    println!("| | p50 ms | p99 ms | n |\n|---|---|---|---|");
    for (name, samples) in [
        ("awake", &awake),
        ("frozen", &frozen),
        ("paged out", &paged_out),
        ("awake, all pages are read", &all_awake),
        ("after the first request to one that was paged out, all pages are read", &all),
    ] {
        println!("| {name} | {} | {} | {} |", millis(samples.p50()), millis(samples.p99()), samples.len());
    }
    Ok(())
}

/// Sends a request and reads the answer to its end.
fn ask(connection: &mut BufReader<TcpStream>, path: &str, samples: &mut Samples) -> anyhow::Result<()> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: bench\r\nx-sandbox-id: {NAME}\r\nx-sandbox-namespace: {NAMESPACE}\r\nx-sandbox-port: 8888\r\n\r\n"
    );
    let started = Instant::now();
    connection.get_mut().write_all(request.as_bytes())?;
    let (mut line, mut head, mut length) = (String::new(), String::new(), 0);
    while line != "\r\n" {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            bail!("closed after {head:?}");
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        head.push_str(&line);
    }
    connection.read_exact(&mut vec![0; length])?;
    samples.add(started.elapsed());
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{head}");
    }
    Ok(())
}

/// Waits for a condition, with this reason.
async fn until(sandboxes: &Api<DynamicObject>, kind: &str, reason: Option<&str>) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let sandbox = sandboxes.get(NAME).await?;
        let conditions = sandbox.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_met = |one: &serde_json::Value| {
            one["type"] == kind
                && one["status"] == "True"
                && reason.is_none_or(|reason| one["reason"] == reason)
        };
        if conditions.iter().any(is_met) {
            return Ok(());
        }
        if started.elapsed() > WAIT_LIMIT {
            bail!("not {kind} {reason:?} after {WAIT_LIMIT:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
