//! The load tool of the Go project, unchanged, drives each stack in turn and says what it measured; beside it, what every
//! process used, the tool too. First each controller on a fresh control plane with kwok, where no Pod has a process; then
//! `hutch up`, where each has its jail. Needs the tool, and so the folder that HUTCH_PEERS names.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_testkit::cluster::Usage;

use crate::contender::{self, CONTROLLER, Contender};
use crate::server::Server;

/// What is driven, unless HUTCH_STRESS_PHASES says otherwise.
const PHASES: &str = "probe,throughput-mif:50,claims-warm,claims-warm-sustained";
/// The tool's own defaults are for a large cluster: 300 claims a second for a minute from a pool of 3000. HUTCH_STRESS_FLAGS
/// comes after these and wins.
const SIZE: [&str; 6] = [
    "--throughput-min-seconds=20",
    "--sustained-rate=10",
    "--sustained-seconds=20",
    "--claim-dwell=2s",
    "--per-sandbox-timeout=2m",
    "--timeout=10m",
];
/// What the tool is not to do, and how it connects.
const MANNER: [&str; 4] = [
    "--client-connections=4",
    "--collect-metrics=false",
    "--profile-apiserver=false",
    "--profile-controller=false",
];
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
/// What the jails of `hutch up` show as root: it has the shell and the `sleep` that the tool asks for.
const IMAGE: &str = "--image=hutch/host";
/// How long the last jails may take to be gone after the tool has ended.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// Prints the tables.
pub(crate) fn run() -> anyhow::Result<()> {
    hutch_testkit::Need::Kubernetes.missing().map_or(Ok(()), |reason| bail!("{reason}"))?;
    if contender::peer("upstream-stress").is_none() {
        println!("\n### Stress\n\n(not measured: HUTCH_PEERS names no folder with upstream-stress)");
        return Ok(());
    }
    // Which stacks: those whose name holds this text.
    let only = std::env::var("HUTCH_STRESS_ONLY").unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut bursts = Vec::new();
        for contender in contender::all()?.iter().filter(|contender| contender.name.contains(&only)) {
            bursts.push((contender.name, drive(contender).await.context(contender.name)?));
        }
        if UP.contains(&only) {
            bursts.push((UP, drive_up().await.context(UP)?));
        }
        compare(&bursts);
        Ok(())
    })
}

/// Prints how long each stack took for the claims that came at once, beside the Go controller.
fn compare(bursts: &[(&str, Option<f64>)]) {
    let of = |name: &str| bursts.iter().find(|(stack, _)| *stack == name).and_then(|(_, seconds)| *seconds);
    let Some(go) = of(contender::GO) else { return };
    println!("\n| all claims that came at once Ready | s | of the Go controller's |\n|---|---|---|");
    for (name, seconds) in bursts {
        let Some(seconds) = seconds else { continue };
        println!("| {name} | {seconds:.2} | {:.2} |", seconds / go);
    }
}

const UP: &str = "hutch up";

async fn drive(contender: &Contender) -> anyhow::Result<Option<f64>> {
    let cluster = contender.start(&ROOM).await?;
    let usage = || {
        let each = PROGRAMS.iter().map(|name| cluster.program(name).map(|it| it.usage()).unwrap_or_default());
        each.collect::<Vec<Usage>>()
    };
    let before = usage();
    let burst = tool(contender.name, cluster.kubeconfig(), cluster.folder(), None).await?;
    for ((name, before), after) in PROGRAMS.iter().zip(before).zip(usage()) {
        row(name, before, after);
    }
    Ok(burst)
}

async fn drive_up() -> anyhow::Result<Option<f64>> {
    let server = Server::start()?;
    let (clean, before) = (server.leftovers(), server.usage());
    let burst = tool(UP, &server.kubeconfig(), server.folder(), Some(IMAGE)).await?;
    row(UP, before, server.usage());
    let started = Instant::now();
    while server.leftovers() != clean && started.elapsed() < GONE_WITHIN {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left = server.leftovers();
    if left != clean {
        bail!("left on the machine: {left:?}, and {clean:?} before");
    }
    println!("\nOn the machine no process and no folder more than before.");
    Ok(burst)
}

/// Runs the tool, prints what it says and what it used, and begins a table for what the others used. Gives the seconds until
/// all claims that came at once were Ready, when it made such.
async fn tool(
    name: &str,
    kubeconfig: &Path,
    folder: &Path,
    image: Option<&str>,
) -> anyhow::Result<Option<f64>> {
    let mut tool = Command::new(contender::peer("upstream-stress").context("just looked for")?);
    tool.env("KUBECONFIG", kubeconfig).arg("--output-dir").arg(folder.join("stress"));
    tool.arg("--phases").arg(std::env::var("HUTCH_STRESS_PHASES").unwrap_or_else(|_| PHASES.into()));
    tool.args(MANNER).args(SIZE).args(image);
    tool.args(std::env::var("HUTCH_STRESS_FLAGS").unwrap_or_default().split_whitespace());
    let own = || Usage::of(std::process::id());
    let (before, started) = (own(), Instant::now());
    let output = tokio::task::spawn_blocking(move || tool.output()).await?.context("upstream-stress")?;
    let (elapsed, after) = (started.elapsed(), own());
    println!("\n### Stress: {name}\n\n```");
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    println!("```");
    if !output.status.success() {
        bail!("upstream-stress ended with {}:\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    println!(
        "\nIn {:.0} s:\n\n| | CPU s | resident MiB | peak MiB |\n|---|---|---|---|",
        elapsed.as_secs_f64()
    );
    let cpu = after.children_cpu.saturating_sub(before.children_cpu).as_secs_f64();
    println!("| the tool itself | {cpu:.1} | | |");
    let burst = said.lines().find_map(|line| line.trim().strip_prefix("time until ALL claims Ready:"));
    Ok(burst.and_then(|time| time.trim().strip_suffix('s')?.parse().ok()))
}

fn row(name: &str, before: Usage, after: Usage) {
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
    println!("| {name} | {cpu:.1} | {} | {} |", after.resident_kib / 1024, after.peak_kib / 1024);
}
