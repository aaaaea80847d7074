//! Scripts in, differences out.

mod answer;
mod compact;
mod controller;
mod difference;
mod kind;
mod normal;
mod observe;
mod run;
mod script;
mod substitute;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use futures::{StreamExt, stream};

use answer::Answer;
pub(crate) use controller::Controller;
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
#[allow(dead_code, reason = "the test of the program brings it along")]
pub(crate) async fn compare() -> anyhow::Result<Vec<String>> {
    let program = std::env::var_os("HUTCH_LIVES_CONTROLLER");
    compare_under(match program {
        Some(program) => Controller::Program(Box::new(move || Command::new(&program))),
        None => Controller::Here,
    })
    .await
}

/// Leaves out what a scheduler writes that meets a Pod which was replaced meanwhile: it is no work of a controller.
fn without_scheduler(mut differences: Vec<String>) -> Vec<String> {
    if differences.iter().any(|difference| difference.contains("SchedulerError")) {
        differences.retain(|difference| !difference.contains("/status/conditions/PodScheduled/"));
    }
    differences
}

/// The same under that controller.
pub(crate) async fn compare_under(controller: Controller) -> anyhow::Result<Vec<String>> {
    let (mut scripts, all) = wanted()?;
    let mut answers = BTreeMap::new();
    for file in scripts.iter().map(|script| &script.file).collect::<BTreeSet<_>>() {
        answers.extend(answer::read(&answers_of(file))?);
    }
    let general = difference::general(&folder())?;
    let mut failures = difference::without_reason(&scripts, &general)?;
    let wanted = scripts.len();
    scripts.retain(|script| controller.takes(script));
    let all = all && scripts.len() == wanted;

    let (answers_ref, general_ref) = (&answers, &general);
    let outcomes = each(&controller, scripts, async |stage, script| {
        let name = script.name.clone();
        let Some(recorded) = answers_ref.get(&name) else {
            return (Some(format!("{name}: no recorded answer; run cargo xtask record-lives")), Vec::new());
        };
        let compared = run::compare(stage, &script, recorded, general_ref).await;
        match compared.map(|(differences, used)| (without_scheduler(differences), used)) {
            Ok((differences, used)) if differences.is_empty() => (None, used),
            Ok((differences, used)) => (Some(format!("{name}:\n  {}", differences.join("\n  "))), used),
            Err(error) => (Some(format!("{name}: {error:#}")), Vec::new()),
        }
    });
    let mut used: Vec<Allowed> = Vec::new();
    for (failure, allowed) in outcomes.await? {
        failures.extend(failure);
        used.extend(allowed);
    }
    if all {
        failures.extend(difference::unused(&general, &used));
    }
    failures.sort();
    Ok(failures)
}

/// Has every life lived, on one control plane. The impatient come first: what they leave behind is then left alone.
async fn each<T>(
    controller: &Controller,
    scripts: Vec<Script>,
    live: impl AsyncFn(&Stage<'_>, Script) -> T,
) -> anyhow::Result<Vec<T>> {
    let mut place = controller.cluster().await?;
    let (impatient, patient): (Vec<_>, Vec<_>) = scripts.into_iter().partition(|script| script.impatient);
    let mut outcomes = Vec::new();
    for (group, impatient) in [(impatient, true), (patient, false)] {
        if group.is_empty() {
            continue;
        }
        let running = controller.start(&mut place, impatient).await?;
        let stage = Stage::new(&place.cluster).await?;
        let (stage_ref, live_ref) = (&stage, &live);
        let lives = stream::iter(group).map(|script| live_ref(stage_ref, script));
        outcomes.extend(lives.buffer_unordered(AT_A_TIME).collect::<Vec<_>>().await);
        drop(stage);
        running.stop(&mut place).await?;
    }
    Ok(outcomes)
}

/// Runs every life under the Go controller and writes down how it went.
#[allow(dead_code, reason = "the test of the program brings it along")]
pub(crate) async fn record(program: PathBuf) -> anyhow::Result<()> {
    let (scripts, _) = wanted()?;
    let controller = Controller::Program(Box::new(move || Command::new(&program)));
    if let Some(script) = scripts.iter().find(|script| !controller.takes(script)) {
        bail!("{}: this machine has no address at which the API server would reach a webhook", script.name);
    }
    let recorded = each(&controller, scripts, async |stage, script| {
        let outcome = run::record(stage, &script).await;
        outcome.map(|answer| (script.file.clone(), script.name.clone(), answer)).context(script.name)
    });
    let mut files: BTreeMap<String, BTreeMap<String, Answer>> = BTreeMap::new();
    let mut errors = Vec::new();
    for outcome in recorded.await? {
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

/// The scripts, and whether these are all.
fn wanted() -> anyhow::Result<(Vec<Script>, bool)> {
    let mut scripts = script::read_all(&folder().join("scripts"))?;
    let Ok(text) = std::env::var("HUTCH_LIVES") else { return Ok((scripts, true)) };
    let is_meant = |script: &Script| {
        text.split(',')
            .any(|text| script.name.contains(text) || script.file.trim_end_matches(".yaml") == text)
    };
    scripts.retain(is_meant);
    if scripts.is_empty() {
        bail!("HUTCH_LIVES={text}: no life has that in its name, and no file has that name");
    }
    Ok((scripts, false))
}

fn answers_of(file: &str) -> PathBuf {
    folder().join("answers").join(file).with_extension("json")
}
