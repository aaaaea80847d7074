//! Scripts in, differences out.

mod answer;
mod compact;
mod difference;
mod kind;
mod normal;
mod observe;
mod run;
mod script;
mod substitute;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use futures::{StreamExt, stream};
use hutch_controller::Config;
use hutch_serve::Shutdown;
use hutch_testkit::cluster::{Cluster, Options};

use answer::Answer;
use difference::Allowed;
use run::Stage;
use script::Script;

/// Lives at a time: the API server and kwok have the machine to share with them.
const AT_A_TIME: usize = 12;

/// The same from another crate that runs lives.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../controller/tests/lives")
}

/// Runs every life under this controller and says how each that went otherwise differs from its recorded answer.
pub(crate) async fn compare() -> anyhow::Result<Vec<String>> {
    let (scripts, whole) = wanted()?;
    let program = std::env::var_os("HUTCH_LIVES_CONTROLLER").map(Command::new);
    compare_under(program, scripts, whole).await
}

/// The same for the lives of these names, under a program that takes the Go controller's flags.
#[allow(dead_code, reason = "the test of the program runs some, this crate's runs all")]
pub(crate) async fn compare_some(program: Command, names: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut scripts = script::read_all(&folder().join("scripts"))?;
    scripts.retain(|script| names.contains(&script.name.as_str()));
    if scripts.len() != names.len() {
        bail!("{} of {} lives are there: {names:?}", scripts.len(), names.len());
    }
    compare_under(Some(program), scripts, false).await
}

async fn compare_under(
    program: Option<Command>,
    scripts: Vec<Script>,
    whole: bool,
) -> anyhow::Result<Vec<String>> {
    let mut answers = BTreeMap::new();
    for file in scripts.iter().map(|script| &script.file).collect::<std::collections::BTreeSet<_>>() {
        answers.extend(answer::read(&answers_of(file))?);
    }
    let general = difference::general(&folder())?;
    let mut failures = difference::without_reason(&scripts, &general)?;

    let mut cluster = Cluster::start(Options::default()).await?;
    let shutdown = Shutdown::new();
    let controllers = match program {
        Some(program) => {
            start(&mut cluster, program)?;
            None
        }
        None => {
            let client = cluster.client("hutch-controller").await?;
            Some(tokio::spawn(hutch_controller::run(client, Config::default(), shutdown.clone())))
        }
    };
    let stage = Stage::new(&cluster).await?;
    let (stage_ref, answers_ref, general_ref) = (&stage, &answers, &general);
    let outcomes = stream::iter(scripts).map(|script| async move {
        let name = script.name.clone();
        let Some(recorded) = answers_ref.get(&name) else {
            return (Some(format!("{name}: no recorded answer; run cargo xtask record-lives")), Vec::new());
        };
        match run::compare(stage_ref, &script, recorded, general_ref).await {
            Ok((differences, used)) if differences.is_empty() => (None, used),
            Ok((differences, used)) => (Some(format!("{name}:\n  {}", differences.join("\n  "))), used),
            Err(error) => (Some(format!("{name}: {error:#}")), Vec::new()),
        }
    });
    let mut used: Vec<Allowed> = Vec::new();
    let outcomes: Vec<_> = outcomes.buffer_unordered(AT_A_TIME).collect().await;
    for (failure, allowed) in outcomes {
        failures.extend(failure);
        used.extend(allowed);
    }
    shutdown.trigger();
    if let Some(controllers) = controllers {
        controllers.await.context("the controllers")??;
    }
    if whole {
        failures.extend(difference::unused(&general, &used));
    }
    failures.sort();
    Ok(failures)
}

/// Runs every life under the Go controller and writes down how it went.
pub(crate) async fn record(controller: &Path) -> anyhow::Result<()> {
    let (scripts, _) = wanted()?;
    let mut cluster = Cluster::start(Options::default()).await?;
    start(&mut cluster, Command::new(controller))?;
    let stage = Stage::new(&cluster).await?;
    let stage_ref = &stage;
    let recorded: Vec<_> = stream::iter(scripts)
        .map(|script| async move {
            let outcome = run::record(stage_ref, &script).await;
            outcome.map(|answer| (script.file.clone(), script.name.clone(), answer)).context(script.name)
        })
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    let mut files: BTreeMap<String, BTreeMap<String, Answer>> = BTreeMap::new();
    let mut errors = Vec::new();
    for outcome in recorded {
        match outcome {
            Ok((file, name, answer)) => drop(files.entry(file).or_default().insert(name, answer)),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    for (file, answers) in files {
        answer::update(&answers_of(&file), answers)?;
    }
    if !errors.is_empty() {
        bail!("{} lives could not be recorded:\n{}", errors.len(), errors.join("\n"));
    }
    Ok(())
}

/// Starts a controller that takes the Go controller's flags.
fn start(cluster: &mut Cluster, mut command: Command) -> anyhow::Result<()> {
    command.args([
        "--leader-elect=false",
        "--extensions",
        "--enable-webhook=false",
        "--manage-webhook-certs=false",
    ]);
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    cluster.spawn("controller", command)?;
    Ok(())
}

/// The scripts, and whether these are all.
fn wanted() -> anyhow::Result<(Vec<Script>, bool)> {
    let mut scripts = script::read_all(&folder().join("scripts"))?;
    let Ok(text) = std::env::var("HUTCH_LIVES") else { return Ok((scripts, true)) };
    scripts.retain(|script| script.name.contains(&text));
    if scripts.is_empty() {
        bail!("HUTCH_LIVES={text}: no life has that in its name");
    }
    Ok((scripts, false))
}

fn answers_of(file: &str) -> PathBuf {
    folder().join("answers").join(file).with_extension("json")
}
