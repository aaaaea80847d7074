//! `hutch controller`: the controllers of the four kinds on a cluster, with the flags of `agent-sandbox-controller`.
//!
//! Several replicas can run. One holds the Lease and works, the others wait. A leader whose Lease has expired sends no more
//! writes, and exits.

mod connect;
mod domains;
mod flags;
pub(crate) mod gateway;
mod listen;
mod requests;
mod throttle;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use hutch_controller::{Config, Metrics};
use hutch_election::{Elector, Settings, Timing};
use hutch_serve::Shutdown;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus::{IntCounter, IntGaugeVec, Opts};
use tokio::task::JoinSet;

use self::connect::Transport;
use self::flags::{Asked, Flags};
use crate::signals;
use crate::telemetry::Exporter;

/// Name of the service in traces.
const SERVICE: &str = "agent-sandbox-controller";
/// Name of the Lease that all replicas contend for, those of the Go controller too.
const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";
/// Maximum time for running work after a signal to stop.
const GRACE: Duration = Duration::from_secs(30);
/// Maximum time for the event about a new leader.
const EVENT_LIMIT: Duration = Duration::from_secs(5);

/// Runs the controller until SIGTERM or SIGINT.
pub(crate) fn main(words: &[String]) -> ExitCode {
    let (flags, warnings) = match flags::parse(words) {
        Ok(Asked::Help(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Version) => {
            println!("hutch controller {} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Run(flags, warnings)) => (flags, warnings),
        Err(line) => {
            eprintln!("hutch controller: {line}");
            return ExitCode::FAILURE;
        }
    };
    crate::runtime::log("warn,hutch=info,hutch_controller=info,hutch_election=info,hutch_webhook=info");
    for line in warnings {
        eprintln!("hutch controller: warning: {line}");
    }
    let outcome = crate::runtime::runtime().and_then(|runtime| {
        let outcome = runtime.block_on(run(&flags));
        // A hanging request does not keep the process.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hutch controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: &Flags) -> anyhow::Result<()> {
    let stop = signals::to_stop()?;
    let metrics = Metrics::new();
    build_info(&metrics)?;
    let mut config = settings(flags, Path::new(domains::FILE), &metrics)?;
    let webhook = webhook(flags);
    webhook.check()?;
    let transport = Transport::new(connect::config(&flags.kubeconfig).await?, flags, metrics.registry())?;
    config.gateway = gateway::of(flags, || transport.client(None)).await?;
    let elector = flags.leader_elect.then(|| candidate(&transport, flags)).transpose()?;

    let over = Shutdown::new();
    let mut servers = JoinSet::new();
    serve(&mut servers, flags, &metrics, &over).await?;
    convert(&mut servers, transport.client(None)?, webhook, &stop, &over).await?;
    crate::lean::stay();
    let exporter = flags.tracing.then(|| Exporter::start(SERVICE)).transpose()?;
    config.tracer = exporter.as_ref().map(Exporter::tracer);

    let outcome = match elector {
        Some(elector) => lead(&transport, elector, config, &stop).await,
        None => work(transport.client(None)?, config, &stop).await,
    };
    if let Some(exporter) = exporter {
        exporter.end().await;
    }
    over.trigger();
    while servers.join_next().await.is_some() {}
    outcome
}

/// Waits for the Lease, and works while this process holds it.
async fn lead(
    transport: &Transport,
    mut elector: Elector,
    config: Config,
    stop: &Shutdown,
) -> anyhow::Result<()> {
    let master = Opts::new("leader_election_master_status", "1 where this process holds the lease, else 0");
    let master = IntGaugeVec::new(master, &["name"])?;
    config.metrics.registry().register(Box::new(master.clone()))?;
    let master = master.with_label_values(&[LEASE]);
    tracing::info!(lease = LEASE, "waiting for the lease");
    tokio::select! {
        () = elector.acquire() => {}
        () = stop.wait() => {
            elector.release().await;
            return Ok(());
        }
    }
    master.set(1);
    tracing::info!(lease = LEASE, "this process leads");
    tokio::spawn(tell(
        transport.client(Some(elector.term()))?,
        elector.lease(),
        elector.identity().to_owned(),
    ));
    let worked = work(transport.client(Some(elector.term()))?, config, stop);
    let outcome = tokio::select! {
        lost = elector.hold() => Err(anyhow::anyhow!("no longer the leader: {lost}")),
        worked = worked => worked,
    };
    master.set(0);
    elector.release().await;
    outcome
}

/// Runs the controllers until a signal to stop, and waits for running work.
async fn work(client: kube::Client, config: Config, stop: &Shutdown) -> anyhow::Result<()> {
    let late = async {
        stop.wait().await;
        tracing::info!("received signal to stop");
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = hutch_controller::run(client, config, stop.clone()) => Ok(()),
        () = late => bail!("not all that was begun ended within {GRACE:?}"),
    }
}

fn candidate(transport: &Transport, flags: &Flags) -> anyhow::Result<Elector> {
    let settings = Settings {
        namespace: connect::lease_namespace(&flags.leader_election_namespace)?,
        name: LEASE.to_owned(),
        identity: format!(
            "{}_{}",
            rustix::system::uname().nodename().to_string_lossy(),
            uuid::Uuid::new_v4()
        ),
        timing: Timing::default(),
    };
    Elector::new(transport.client(None)?, settings).context("the leader election")
}

/// Writes the event with which `kubectl get events` shows the leader.
async fn tell(client: kube::Client, lease: k8s_openapi::api::core::v1::ObjectReference, identity: String) {
    let event = Event {
        type_: EventType::Normal,
        reason: "LeaderElection".into(),
        note: Some(format!("{identity} became leader")),
        action: "LeaderElection".into(),
        secondary: None,
    };
    let reporter = Reporter { controller: "agent-sandbox-controller".into(), instance: Some(identity) };
    let recorder = Recorder::new(client, reporter);
    if let Ok(Err(error)) = tokio::time::timeout(EVENT_LIMIT, recorder.publish(&event, &lease)).await {
        tracing::debug!(%error, "the event about the lease could not be written");
    }
}

/// Binds the ports, before anything else: a start that fails here has changed nothing.
async fn serve(
    servers: &mut JoinSet<()>,
    flags: &Flags,
    metrics: &Metrics,
    over: &Shutdown,
) -> anyhow::Result<()> {
    let on_metrics = listen::bind("metrics-bind-address", &flags.metrics_bind_address).await?;
    let on_probes = listen::bind("health-probe-bind-address", &flags.health_probe_bind_address).await?;
    let served =
        [("metrics", on_metrics, listen::metrics(metrics.clone())), ("probes", on_probes, listen::probes())];
    for (name, listener, app) in served {
        if let Some(listener) = listener {
            tracing::info!(address = %listener.address(), "{name} served");
            servers.spawn(listener.serve(app, over.clone()));
        }
    }
    Ok(())
}

/// Starts the conversion webhook, which every replica runs.
async fn convert(
    servers: &mut JoinSet<()>,
    client: kube::Client,
    settings: hutch_webhook::Settings,
    stop: &Shutdown,
    over: &Shutdown,
) -> anyhow::Result<()> {
    if !settings.enabled {
        tracing::info!("no conversion webhook: definitions that name one must find it elsewhere");
        return Ok(());
    }
    let started = tokio::select! {
        started = hutch_webhook::start(client, settings) => started.context("the conversion webhook")?,
        () = stop.wait() => return Ok(()),
    };
    let over = over.clone();
    servers.spawn(async move {
        if let Err(error) = started.run(over).await {
            tracing::error!(%error, "the conversion webhook ended");
        }
    });
    Ok(())
}

fn webhook(flags: &Flags) -> hutch_webhook::Settings {
    hutch_webhook::Settings {
        port: u16::try_from(flags.webhook_port).unwrap_or_default(),
        cluster_domain: flags.cluster_domain.clone(),
        ..flags.webhook.clone()
    }
}

fn settings(flags: &Flags, domains: &Path, metrics: &Metrics) -> anyhow::Result<Config> {
    let count = |value: i64| usize::try_from(value).unwrap_or(1);
    let mut config = Config {
        extensions: flags.extensions,
        cluster_domain: flags.cluster_domain.clone(),
        sandbox_workers: count(flags.sandbox_workers),
        claim_workers: count(flags.claim_workers),
        pool_workers: count(flags.pool_workers),
        template_workers: count(flags.template_workers),
        pool_batch: count(flags.pool_batch),
        replenish_delay: flags.replenish_delay,
        refill_rate: flags.refill_rate,
        readiness_grace: flags.readiness_grace,
        unschedulable_recheck: flags.unschedulable_recheck,
        pool_eviction: flags.pool_eviction,
        write_behind: flags.write_behind,
        watch_labelled_only: flags.cache_label_selectors,
        claim_events: !flags.disable_claim_events,
        claim_times: !flags.disable_claim_annotations,
        metrics: metrics.clone(),
        ..Config::default()
    };
    if flags.extensions
        && let Some(domains) = domains::read(domains)?
    {
        config.label_domains = domains;
    }
    Ok(config)
}

/// Registers the build information, and two counters of dashboards, which stay zero because a panic ends the process.
fn build_info(metrics: &Metrics) -> anyhow::Result<()> {
    for name in
        ["controller_runtime_conversion_webhook_panics_total", "controller_runtime_webhook_panics_total"]
    {
        let never = IntCounter::new(name, "Panics in a webhook: one ends the process")?;
        metrics.registry().register(Box::new(never))?;
    }
    let by = ["git_version", "git_commit", "build_date", "go_version", "compiler", "platform"];
    let info = IntGaugeVec::new(
        Opts::new("agent_sandbox_build_info", "What the program was built from; always 1"),
        &by,
    )?;
    metrics.registry().register(Box::new(info.clone()))?;
    // Named as container platforms are.
    let platform = format!("{}/{}", std::env::consts::OS, hutch_api::architecture());
    let version = concat!("hutch-", env!("CARGO_PKG_VERSION"));
    info.with_label_values(&[version, "unknown", "unknown", "none", "rustc", &platform]).set(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn flags_become_settings() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("allowed-label-domains");
        std::fs::write(&file, "a.example").unwrap();
        let with = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let Ok(Asked::Run(flags, _)) = flags::parse(&words) else { panic!("{words:?}") };
            settings(&flags, &file, &Metrics::new()).unwrap()
        };
        let (ours, defaults) = (with(&["--extensions"]), Config::default());
        let domains = ours.label_domains.clone();
        let same = Config { label_domains: defaults.label_domains.clone(), ..ours };
        assert_eq!(format!("{same:?}"), format!("{defaults:?}"), "the defaults are one set");
        assert_eq!(domains, ["a.example"]);
        let (given, ours) = (hutch_webhook::Settings::default(), webhook(&Flags::default()));
        assert_eq!(format!("{ours:?}"), format!("{given:?}"), "those of the webhook too");
        let core = with(&["--disable-claim-events", "--sandbox-concurrent-workers=7"]);
        assert!(!core.extensions && !core.claim_events && core.claim_times);
        assert_eq!((core.sandbox_workers, core.label_domains), (7, defaults.label_domains));
    }
}
