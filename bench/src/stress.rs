//! Runs the unchanged load tool of the Go project against each stack in turn, and prints its measurements and the resources
//! of every process, the tool included. First come the controllers, each on a fresh control plane with kwok, where no Pod
//! has a process, and the minimal controller; then `hutch up`, where each Pod has a jail. Needs the tool, in the folder
//! HUTCH_PEERS.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_testkit::cluster::Usage;

use crate::contender::{self, CONTROLLER, Contender};
use crate::server::Server;

/// Default of HUTCH_STRESS_PHASES.
const PHASES: &str = "probe,throughput-mif:50,claims-warm,claims-warm-sustained";
/// The tool's own defaults are for a large cluster: 300 claims a second for a minute from a pool of 3000. HUTCH_STRESS_FLAGS
/// is appended and wins.
const SIZE: [&str; 6] = [
    "--throughput-min-seconds=20",
    "--sustained-rate=10",
    "--sustained-seconds=20",
    "--claim-dwell=2s",
    "--per-sandbox-timeout=2m",
    "--timeout=10m",
];
/// Fixed flags of the tool: disabled parts and the connection.
const MANNER: [&str; 4] = [
    "--client-connections=4",
    "--collect-metrics=false",
    "--profile-apiserver=false",
    "--profile-controller=false",
];
/// Flags of a controller.
const ROOM: [&str; 4] = [
    "--sandbox-claim-concurrent-workers=1000",
    "--sandbox-concurrent-workers=1000",
    "--api-connections=4",
    "--separate-watch-connection",
];
/// Programs whose resources are printed.
const PROGRAMS: [&str; 6] =
    [CONTROLLER, "kube-apiserver", "etcd", "kwok", "kube-controller-manager", "kube-scheduler"];
/// Root file system of the jails of `hutch up`: it has the shell and the `sleep` that the tool's Pods need.
const IMAGE: &str = "--image=hutch/host";
/// Maximum time until the last jails are gone after the tool has ended.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// Measures and prints the tables.
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
        let phases = std::env::var("HUTCH_STRESS_PHASES").unwrap_or_else(|_| PHASES.into());
        let churn: Vec<&str> = phases.split(',').filter(|phase| phase.starts_with(CHURN)).collect();
        let churn = churn.join(",");
        let (contenders, bound) = (contender::all()?, contender::bound()?);
        let mut stacks = Stacks::default();
        for turn in 0..turns()? {
            let phases = if turn == 0 { &phases } else { &churn };
            let bound = std::iter::once((&bound, &churn));
            let each = contenders.iter().map(|contender| (contender, phases)).chain(bound);
            let wanted = |name: &str, phases: &str| name.contains(&only) && !phases.is_empty();
            for (contender, phases) in each.filter(|(contender, phases)| wanted(contender.name, phases)) {
                stacks.add(contender.name, drive(contender, phases).await.context(contender.name)?);
            }
            if wanted(UP, phases) {
                stacks.add(UP, drive_up(phases).await.context(UP)?);
            }
        }
        anyhow::ensure!(
            !stacks.0.is_empty(),
            "HUTCH_STRESS_ONLY: no stack has {only:?} in its name, as \"hutch\" has"
        );
        stacks.compare();
        Ok(())
    })
}

/// Number of rounds, so that a slow minute of the machine affects all stacks. After the first round there is only the
/// churn.
fn turns() -> anyhow::Result<u32> {
    let said = std::env::var("HUTCH_STRESS_TURNS");
    said.map_or(Ok(3), |said| said.parse().with_context(|| format!("HUTCH_STRESS_TURNS={said} is no number")))
}

/// Measurements of a stack by the tool, in the phases that ran.
struct Found {
    /// Seconds until all claims that came at once were Ready.
    burst: Option<f64>,
    /// Sandboxes that became Ready each second of the churn.
    churn: Option<f64>,
}

impl Found {
    fn read(said: &str) -> Found {
        let burst = said.lines().find_map(|line| line.trim().strip_prefix("time until ALL claims Ready:"));
        let churn = said.lines().find_map(|line| line.trim().strip_prefix("ready throughput:"));
        let churn = churn.and_then(|rest| rest.trim().strip_prefix("overall=")?.split_once('/'));
        Found {
            burst: burst.and_then(|time| time.trim().strip_suffix('s')?.parse().ok()),
            churn: churn.and_then(|(rate, _)| rate.parse().ok()),
        }
    }
}

/// Measurements of each stack in its rounds.
#[derive(Default)]
struct Stacks(Vec<(&'static str, Vec<Found>)>);

impl Stacks {
    fn add(&mut self, name: &'static str, found: Found) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, turns)) => turns.push(found),
            None => self.0.push((name, vec![found])),
        }
    }

    /// Prints the ratio of each stack to the Go controller; nothing without that one.
    fn compare(&self) {
        for (title, of) in [
            ("all claims that came at once Ready | s", (|found| found.burst) as fn(&Found) -> Option<f64>),
            ("Sandboxes made, Ready and deleted | each s", |found| found.churn),
        ] {
            let reached = self.0.iter().map(|(name, turns)| (*name, turns.iter().filter_map(of).collect()));
            let reached: Vec<(_, Vec<f64>)> = reached.collect();
            let go = reached.iter().find(|(name, _)| *name == contender::GO).and_then(|(_, go)| mean(go));
            let Some(go) = go else { continue };
            println!("\n| {title}, mean | in each round | of the Go controller's |\n|---|---|---|---|");
            for (name, turns) in &reached {
                let Some(mean) = mean(turns) else { continue };
                let each: Vec<_> = turns.iter().map(|turn| format!("{turn:.1}")).collect();
                println!("| {name} | {mean:.2} | {} | {:.2} |", each.join(", "), mean / go);
            }
        }
    }
}

fn mean(turns: &[f64]) -> Option<f64> {
    (!turns.is_empty()).then(|| turns.iter().sum::<f64>() / turns.len() as f64)
}

const UP: &str = "hutch up";
/// Prefix of the names of phases that create and delete Sandboxes as fast as possible.
const CHURN: &str = "throughput";

async fn drive(contender: &Contender, phases: &str) -> anyhow::Result<Found> {
    let cluster = contender.start(&ROOM).await?;
    let usage = || {
        let each = PROGRAMS.iter().map(|name| cluster.program(name).map(|it| it.usage()).unwrap_or_default());
        each.collect::<Vec<Usage>>()
    };
    let before = usage();
    let found = tool(contender.name, phases, cluster.kubeconfig(), cluster.folder(), None).await?;
    for ((name, before), after) in PROGRAMS.iter().zip(before).zip(usage()) {
        row(name, before, after);
    }
    let writes = cluster.audit().writes()?;
    let count = |verb: &str, resource: &str| {
        writes.iter().filter(|write| write.verb == verb && write.resource == resource).count()
    };
    let each = count("patch", "sandboxes/status") as f64 / count("create", "sandboxes").max(1) as f64;
    println!("\nThe status of each Sandbox was written {each:.2} times.");
    Ok(found)
}

async fn drive_up(phases: &str) -> anyhow::Result<Found> {
    let server = Server::start()?;
    let (clean, before) = (server.leftovers(), server.usage());
    let found = tool(UP, phases, &server.kubeconfig(), server.folder(), Some(IMAGE)).await?;
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
    Ok(found)
}

/// Runs the tool, prints its output and resources, and starts the table of the other programs' resources.
async fn tool(
    name: &str,
    phases: &str,
    kubeconfig: &Path,
    folder: &Path,
    image: Option<&str>,
) -> anyhow::Result<Found> {
    let mut tool = Command::new(contender::peer("upstream-stress").context("just looked for")?);
    tool.env("KUBECONFIG", kubeconfig).arg("--output-dir").arg(folder.join("stress"));
    tool.arg("--phases").arg(phases);
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
    Ok(Found::read(&said))
}

fn row(name: &str, before: Usage, after: Usage) {
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
    println!("| {name} | {cpu:.1} | {} | {} |", after.resident_kib / 1024, after.peak_kib / 1024);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_says_is_read() {
        let found = Found::read(
            "  ready throughput:                overall=27.88/s steady=26.71/s (n=575)\n  time until ALL claims Ready:     3.47s\n",
        );
        assert_eq!((found.churn, found.burst), (Some(27.88), Some(3.47)));
        let found = Found::read("nothing");
        assert_eq!((found.churn, found.burst), (None, None));
    }
}
