//! Measures what a credential and a scan add to a request of 16 kB whose requests are read anyway.

use std::path::Path;

use anyhow::Context;

use super::server::Servers;
use super::{Contender, NAME, ROUNDS, measure, median, use_one_processor, write_hosts};
use crate::machine::binary;

/// Requests of a client in each round.
const REQUESTS: usize = 1000;

/// Measures and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    // Programs inherit the processor of the thread that starts them.
    let measured = std::thread::spawn(|| {
        use_one_processor()?;
        table()
    });
    measured.join().map_err(|_| anyhow::anyhow!("a measurement panicked"))?
}

fn table() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("a scratch folder")?;
    write_hosts(folder.path())?;
    std::fs::write(folder.path().join("value"), "value-of-the-bench")?;
    let servers = Servers::start(folder.path())?;
    let file = folder.path().join("value");
    let credential = format!(
        r#", "credentials": [{{"name": "bench", "source": {{"file": "{}"}}, "hosts": ["{NAME}"], "ports": [{}],
        "header": "Authorization", "format": "Bearer {{}}"}}]"#,
        file.display(),
        servers.tls
    );
    let scanned = format!(r#"{credential}, "scanner": {{}}"#);
    let mut rows = vec![Contender {
        name: "direct".to_owned(),
        before: Vec::new(),
        options: vec!["--tls".to_owned()],
        tls: true,
    }];
    let policies = [
        ("requests read", ""),
        ("with a credential", &credential),
        ("with a credential and a scan", &scanned),
    ];
    for (name, fields) in policies {
        rows.push(contender(folder.path(), name, servers.tls, fields)?);
    }
    let mut figures = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for (row, figures) in rows.iter().zip(&mut figures) {
            figures.push(measure(folder.path(), row, "post", servers.tls, REQUESTS)?);
        }
    }
    println!("\n### A request of 16 kB over TLS, kept alive, all programs on one processor\n");
    println!("| | p50 us | added to requests that are read, us |\n|---|---|---|");
    let read = figures.get(1).map(|read| median(read)).unwrap_or_default();
    for (row, figures) in rows.iter().zip(&figures) {
        let p50 = median(figures);
        println!("| {} | {p50:.1} | {:.1} |", row.name, p50 - read);
    }
    Ok(())
}

/// Returns a client in a sandbox whose policy has these fields beside its rule.
fn contender(folder: &Path, name: &str, port: u16, fields: &str) -> anyhow::Result<Contender> {
    let text = format!(
        r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "bench"}},
        "spec": {{"egress": {{"rules": [{{"name": "server", "hosts": ["{NAME}"], "ports": [{port}],
        "private": ["127.0.0.0/8"], "http": [{{"methods": ["POST"], "paths": ["/**"]}}]}}]}}{fields}}}}}"#
    );
    let file = folder.join(format!("{}.json", name.replace(' ', "-")));
    std::fs::write(&file, text)?;
    let mount = format!("{}:/bench:ro", std::env::current_exe()?.display());
    let mut before = vec![binary()?.display().to_string()];
    let policy = file.display().to_string();
    before.extend(["run", "--policy", &policy, "--mount", &mount, "--"].map(str::to_owned));
    Ok(Contender { name: name.to_owned(), before, options: vec!["--tls".to_owned()], tls: true })
}
