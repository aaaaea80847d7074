//! Measures what the proxy of a sandbox adds to connections: joined, and with requests that are read; beside a bare
//! relay, and squid and mitmproxy, if they are installed.
//!
//! The server and the clients are this program. A client runs in a sandbox or, for the other proxies and without any, on
//! the machine. Every round measures each contender once.

mod bare;
mod client;
pub(crate) mod connections;
mod decide;
mod peers;
pub(crate) mod scanned;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::machine::binary;
use peers::Peer;
use server::Servers;

pub(crate) use client::{ARGUMENT, run as client};

/// Rounds, and requests of a client in each.
const ROUNDS: usize = 5;
const REQUESTS: usize = 2000;
/// Connections of a client in each round.
const CONNECTIONS: usize = 300;
/// Mebibytes that a client sends in each round.
const BULK: usize = 512;
/// Name of the server. Its address is loopback.
const NAME: &str = "bench.example";
const ADDRESS: &str = "127.77.9.1";
/// Name of the row for connections that are not read.
const JOINED: &str = "hutch, joined";

/// Way to the server.
struct Contender {
    name: String,
    /// Command before that of the client.
    before: Vec<String>,
    /// Options of the client.
    options: Vec<String>,
    tls: bool,
}

/// Measurements of a contender: microseconds, or mebibytes per second.
#[derive(Default)]
struct Figures {
    kept: Vec<f64>,
    new: Vec<f64>,
    bulk: Vec<f64>,
}

/// Measures and prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    for (place, all) in [("one processor", false), ("all processors", true)] {
        // Threads and programs inherit the processors of the thread that starts them.
        let measured = std::thread::spawn(move || {
            if !all {
                use_one_processor()?;
            }
            tables(place)
        });
        measured.join().map_err(|_| anyhow::anyhow!("a measurement panicked"))??;
    }
    decide::run();
    Ok(())
}

/// Keeps this thread on the first processor. There, a wake-up costs no interrupt: what remains is the work of the proxy.
fn use_one_processor() -> anyhow::Result<()> {
    let mut one = rustix::thread::CpuSet::new();
    one.set(0);
    rustix::thread::sched_setaffinity(None, &one).context("one processor")
}

fn tables(place: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a scratch folder")?;
    write_hosts(folder.path())?;
    let servers = Servers::start(folder.path())?;
    let peers = Peer::start_all(folder.path());
    let contenders = contenders(folder.path(), &servers, &peers)?;
    let mut figures: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for _ in 0..ROUNDS {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            let port = if contender.tls { servers.tls } else { servers.plain };
            let measure = |mode: &str, count: usize| measure(folder.path(), contender, mode, port, count);
            figures.kept.push(measure("kept", REQUESTS)?);
            figures.new.push(measure("new", CONNECTIONS)?);
            figures.bulk.push(measure("bulk", BULK)?);
        }
    }
    for tls in [false, true] {
        let tls_or_not = if tls { "over" } else { "without" };
        println!("\n### Through the proxy, HTTP {tls_or_not} TLS, all programs on {place}\n");
        println!(
            "| | kept alive, p50 us | added | new connection, p50 us | added | bulk, MiB/s | of direct |"
        );
        println!("|---|---|---|---|---|---|---|");
        let rows: Vec<_> = contenders.iter().zip(&figures).filter(|(row, _)| row.tls == tls).collect();
        let Some((_, direct)) = rows.first() else { continue };
        for (contender, figures) in &rows {
            let (kept, new, bulk) = (median(&figures.kept), median(&figures.new), median(&figures.bulk));
            println!(
                "| {} | {kept:.1} | {:.1} | {new:.0} | {:.0} | {bulk:.0} | {:.2} |",
                contender.name,
                kept - median(&direct.kept),
                new - median(&direct.new),
                bulk / median(&direct.bulk),
            );
        }
    }
    Ok(())
}

/// Writes the file that [`among`] puts over `/etc/hosts`.
fn write_hosts(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("hosts"), format!("127.0.0.1 localhost\n{ADDRESS} {NAME}\n")).context("hosts")
}

/// Returns a command for which the name of the server leads to it; the program and its arguments are added.
pub(crate) fn among(folder: &Path) -> Command {
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.join("hosts"));
    command.env("SSL_CERT_FILE", folder.join("ca.pem"));
    command
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Runs a client, and returns the figure that it prints.
fn measure(folder: &Path, contender: &Contender, mode: &str, port: u16, count: usize) -> anyhow::Result<f64> {
    let this = std::env::current_exe().context("this program")?;
    let mut command = among(folder);
    command.args(&contender.before);
    match contender.before.is_empty() {
        true => command.arg(&this),
        false => command.arg("/bench"),
    };
    command
        .arg(ARGUMENT)
        .args([mode, &format!("{NAME}:{port}"), &count.to_string()])
        .args(&contender.options);
    let output = command.output().context("unshare")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(figure) if output.status.success() => Ok(figure),
        _ => bail!("{}, {mode}: {text}{}", contender.name, String::from_utf8_lossy(&output.stderr)),
    }
}

fn contenders(folder: &Path, servers: &Servers, peers: &[Peer]) -> anyhow::Result<Vec<Contender>> {
    let mut list = Vec::new();
    for tls in [false, true] {
        let port = if tls { servers.tls } else { servers.plain };
        let tls_option = if tls { vec!["--tls".to_owned()] } else { Vec::new() };
        let direct =
            Contender { name: "direct".into(), before: Vec::new(), options: tls_option.clone(), tls };
        list.push(direct);
        let joined = if tls { "" } else { r#", "protocol": "TCP""# };
        let plain = if tls { "" } else { r#", "plaintext": true"# };
        let read = format!(r#"{plain}, "http": [{{"methods": ["GET", "POST"], "paths": ["/**"]}}]"#);
        for (name, rule) in [(JOINED, joined), ("hutch, requests read", &read)] {
            let file = policy(folder, &format!("{tls}-{}", list.len()), port, rule)?;
            let (hutch, this) = (binary()?, std::env::current_exe()?);
            let (policy, mount) = (file.display().to_string(), format!("{}:/bench:ro", this.display()));
            let trust = format!("{}:/ca.pem:ro", folder.join("ca.pem").display());
            let words = ["run", "--policy", &policy, "--mount", &mount, "--mount", &trust, "--"];
            let mut before = vec![hutch.display().to_string()];
            before.extend(words.map(str::to_owned));
            let mut options = tls_option.clone();
            if tls && name == JOINED {
                // Where requests are read, the client trusts the bundle of its sandbox.
                options.extend(["--ca".to_owned(), "/ca.pem".to_owned()]);
            }
            list.push(Contender { name: name.into(), before, options, tls });
        }
        for peer in peers.iter().filter(|peer| tls || !peer.needs_tls) {
            let mut options = tls_option.clone();
            options.extend(["--via".to_owned(), peer.address.clone()]);
            if let Some(authority) = &peer.authority {
                options.extend(["--ca".to_owned(), authority.display().to_string()]);
            }
            list.push(Contender { name: peer.name.into(), before: Vec::new(), options, tls });
        }
    }
    Ok(list)
}

/// Writes a policy with one rule for the server.
fn policy(folder: &Path, name: &str, port: u16, rule: &str) -> anyhow::Result<PathBuf> {
    let text = format!(
        r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "bench"}},
        "spec": {{"egress": {{"rules": [{{"name": "server", "hosts": ["{NAME}"], "ports": [{port}],
        "private": ["127.0.0.0/8"]{rule}}}]}}}}}}"#
    );
    let file = folder.join(format!("policy-{name}.json"));
    std::fs::write(&file, text)?;
    Ok(file)
}
