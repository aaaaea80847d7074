//! A router program and its resources.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::api::{Api, SANDBOX};
use crate::contender;
use crate::machine::binary;

/// Maximum time until a router listens.
const WAIT_LIMIT: Duration = Duration::from_secs(20);
const KEY: &str = "a-key-of-32-bytes-for-a-benchmark";

/// A running router; killed when dropped.
pub(crate) struct Routed {
    child: Child,
    pub(crate) port: u16,
    /// Headers of every request.
    pub(crate) headers: String,
    _folder: tempfile::TempDir,
}

/// Returns the Go router, if the folder `HUTCH_PEERS` has it.
pub(crate) fn peer() -> Option<PathBuf> {
    contender::peer("upstream-router")
}

fn headers(sandbox: u16) -> String {
    format!("x-sandbox-id: {SANDBOX}\r\nx-sandbox-port: {sandbox}\r\n")
}

impl Routed {
    /// Starts the Go router; it reads the address from the request.
    pub(crate) fn peer(program: &Path, sandbox: u16) -> anyhow::Result<Routed> {
        let port = free_port()?;
        let folder = tempfile::tempdir()?;
        let child = Command::new(program)
            .arg(format!("--http-bind-address=127.0.0.1:{port}"))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", free_port()?))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{}", free_port()?))
            .arg("--allow-loopback-pod-ip")
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log"))?)
            .spawn()
            .context("upstream-router")?;
        let headers = format!("{}x-sandbox-pod-ip: 127.0.0.1\r\n", headers(sandbox));
        let routed = Routed { child, port, headers, _folder: folder };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if started.elapsed() > WAIT_LIMIT {
                bail!("upstream-router does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(routed)
    }

    /// Starts `hutch router`; it reads the address from the API.
    pub(crate) fn hutch(program: &Path, api: &Api, sandbox: u16, scoped: bool) -> anyhow::Result<Routed> {
        let folder = tempfile::tempdir()?;
        let key = folder.path().join("key");
        std::fs::write(&key, KEY)?;
        let mut command = Command::new(program);
        command.args([
            "router",
            "--http-bind-address=127.0.0.1:0",
            "--metrics-bind-address=",
            "--health-probe-bind-address=",
            "--allow-loopback-pod-ip",
        ]);
        command.arg(format!("--kubeconfig={}", api.kubeconfig.display()));
        let mut headers = headers(sandbox);
        if scoped {
            command.arg("--authz-mode=scoped-token");
            command.arg(format!("--authz-scoped-token-secret-file={}", key.display()));
            headers.push_str(&format!("authorization: Bearer {}\r\n", token(&key)?));
        } else {
            command.arg("--authz-mode=allow-all");
        }
        let log = std::fs::File::create(folder.path().join("log"))?;
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().context("hutch router")?;
        let output = child.stdout.take().context("its output")?;
        let mut port = None;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == "ready" {
                break;
            }
            port = line.strip_prefix("http ").and_then(|rest| rest.rsplit(':').next()?.parse().ok()).or(port);
        }
        let Some(port) = port else {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            bail!("hutch router ended before it was ready:\n{log}");
        };
        Ok(Routed { child, port, headers, _folder: folder })
    }

    /// Returns its CPU time, user and system.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        // Fields 14 and 15 of the line, of which two stand before the parenthesis.
        let ticks = ticks(11) + ticks(12);
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// Returns its resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn token(key: &Path) -> anyhow::Result<String> {
    let output =
        Command::new(binary()?).args(["token", "create", SANDBOX, "--key-file"]).arg(key).output()?;
    if !output.status.success() {
        bail!("hutch token create: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
