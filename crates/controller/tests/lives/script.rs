//! Script of a life.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::difference::Allowed;

/// One life.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// The file that it is in.
    pub(crate) file: String,
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Differences from the recorded answer that are meant.
    pub(crate) differs: Vec<Allowed>,
    /// Set for a readiness grace of seconds.
    pub(crate) impatient: bool,
    /// Set to compare the four kinds in the older version too, which needs a conversion webhook.
    pub(crate) both_versions: bool,
}

/// Action, after which the state is compared once it is quiet.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) actions: Vec<Action>,
    /// The look is not taken earlier.
    pub(crate) settle: Duration,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// POST of the kind's base with this merged into it.
    Create(Target),
    /// JSON merge patch.
    Patch(Target),
    /// JSON merge patch of the status.
    Status(Target),
    /// JSON merge patch of the subresource `scale`.
    Scale(Target),
    /// DELETE, by option with a `propagationPolicy`.
    Delete(Target),
    /// Nothing, for so long.
    Wait(Duration),
}

/// An object, by kind and name, and the rest of its map. Strings may hold what [`super::substitute`] knows.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) rest: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    life: String,
    steps: Vec<Map<String, Value>>,
    #[serde(default)]
    differs: Vec<Allowed>,
    #[serde(default)]
    impatient: bool,
    #[serde(default)]
    both_versions: bool,
}

/// All scripts of a folder, by file and in their order.
pub(crate) fn read_all(folder: &Path) -> anyhow::Result<Vec<Script>> {
    let mut scripts: Vec<Script> = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file.path()).with_context(|| name.clone())?;
        let lives: Vec<Written> = serde_saphyr::from_str(&text).with_context(|| name.clone())?;
        for life in lives {
            ensure!(
                !scripts.iter().any(|s| s.name == life.life),
                "{name}: two lives are called {:?}",
                life.life
            );
            let steps = life.steps.iter().map(step).collect::<Result<_, _>>();
            let steps = steps.with_context(|| format!("{name}: {}", life.life))?;
            scripts.push(Script {
                file: name.clone(),
                name: life.life,
                steps,
                differs: life.differs,
                impatient: life.impatient,
                both_versions: life.both_versions,
            });
        }
    }
    Ok(scripts)
}

fn step(written: &Map<String, Value>) -> anyhow::Result<Step> {
    let mut step = Step { actions: Vec::new(), settle: Duration::ZERO };
    for (word, value) in written {
        match word.as_str() {
            "settle" => step.settle = seconds(value).context("settle")?,
            "wait" => step.actions.push(Action::Wait(seconds(value).context("wait")?)),
            "all" => {
                for inner in value.as_array().context("all: a list of steps")? {
                    step.actions
                        .extend(self::step(inner.as_object().context("all: a list of steps")?)?.actions);
                }
            }
            _ => {
                let target = target(value).with_context(|| word.clone())?;
                step.actions.push(match word.as_str() {
                    "create" => Action::Create(target),
                    "patch" => Action::Patch(target),
                    "status" => Action::Status(target),
                    "scale" => Action::Scale(target),
                    "delete" => Action::Delete(target),
                    _ => bail!(
                        "{word:?} is not one of create, patch, status, scale, delete, all, wait, settle"
                    ),
                });
            }
        }
    }
    Ok(step)
}

fn seconds(value: &Value) -> anyhow::Result<Duration> {
    Ok(Duration::try_from_secs_f64(value.as_f64().context("a number of seconds")?)?)
}

/// `{Kind: name, ...rest}`: the one key with a capital letter is the kind.
fn target(value: &Value) -> anyhow::Result<Target> {
    let map = value.as_object().context("a map with a kind as a key")?;
    let (kind, name) = map
        .iter()
        .find(|(key, _)| key.starts_with(|c: char| c.is_ascii_uppercase()))
        .context("no key is a kind")?;
    let name = name.as_str().with_context(|| format!("{kind}: a name"))?.to_owned();
    let rest: Map<String, Value> =
        map.iter().filter(|(key, _)| *key != kind).map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(Target { kind: kind.clone(), name, rest: rest.into() })
}
