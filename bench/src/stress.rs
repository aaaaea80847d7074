//! The load tool of the Go project drives each controller in turn, on a fresh control plane each time, and says what it
//! measured; beside it, what every process used. Needs the tool, and so the folder that HUTCH_PEERS names.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use hutch_testkit::cluster::{Cluster, Usage};

use crate::contender::{self, CONTROLLER, Contender};

/// What is driven, unless HUTCH_STRESS_PHASES says otherwise.
const PHASES: &str = "probe,throughput-mif:50,claims-warm,claims-warm-sustained";
/// What a controller is given to work with.
const ROOM: [&str; 4] = [
    "--sandbox-claim-concurrent-workers=1000",
    "--sandbox-concurrent-workers=1000",
    "--api-connections=4",
    "--separate-watch-connection",
];
/// The programs whose share is told.
const PROGRAMS: [&str; 6] =
    [CONTROLLER, "kube-apiserver", "etcd", "kwok", "kube-controller-manager", "kube-scheduler"];

/// Prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    hutch_testkit::Need::Kubernetes.missing().map_or(Ok(()), |reason| bail!("{reason}"))?;
    if contender::peer("upstream-stress").is_none() {
        println!("\n### Stress\n\n(not measured: HUTCH_PEERS names no folder with upstream-stress)");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        for contender in contender::all()? {
            drive(&contender).await.context(contender.name)?;
        }
        Ok(())
    })
}

async fn drive(contender: &Contender) -> anyhow::Result<()> {
    let cluster = contender.start(&ROOM).await?;
    let before: Vec<Usage> = usage(&cluster);
    let started = Instant::now();
    let mut tool = Command::new(contender::peer("upstream-stress").context("just looked for")?);
    tool.env("KUBECONFIG", cluster.kubeconfig()).arg("--output-dir").arg(cluster.folder().join("stress"));
    tool.arg("--phases").arg(std::env::var("HUTCH_STRESS_PHASES").unwrap_or_else(|_| PHASES.into()));
    tool.args(["--client-connections=4", "--collect-metrics=false"]);
    tool.args(["--profile-apiserver=false", "--profile-controller=false"]);
    tool.args(std::env::var("HUTCH_STRESS_FLAGS").unwrap_or_default().split_whitespace());
    let output = tokio::task::spawn_blocking(move || tool.output()).await?.context("upstream-stress")?;
    let elapsed = started.elapsed();
    println!("\n### Stress: {}\n\n```", contender.name);
    print!("{}", String::from_utf8_lossy(&output.stdout));
    println!("```");
    if !output.status.success() {
        bail!("upstream-stress ended with {}:\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    println!(
        "\nIn {:.0} s:\n\n| | CPU s | resident MiB | peak MiB |\n|---|---|---|---|",
        elapsed.as_secs_f64()
    );
    for ((name, before), after) in PROGRAMS.iter().zip(before).zip(usage(&cluster)) {
        let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
        println!("| {name} | {cpu:.1} | {} | {} |", after.resident_kib / 1024, after.peak_kib / 1024);
    }
    Ok(())
}

fn usage(cluster: &Cluster) -> Vec<Usage> {
    PROGRAMS
        .iter()
        .map(|name| cluster.program(name).map(|program| program.usage()).unwrap_or_default())
        .collect()
}
