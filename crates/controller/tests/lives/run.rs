//! Lives, one step after the other, each in a namespace of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hutch_testkit::cluster::Cluster;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;

use super::answer::Answer;
use super::difference::{self, Allowed, Difference};
use super::kind;
use super::normal::{Look, Memory};
use super::observe::{self, Objects, Observatory};
use super::script::{Action, Script, Step, Target};
use super::substitute::Substitute;

/// Nothing has changed for so long: recorded is what a slow machine would also show.
const QUIET_WHEN_RECORDING: Duration = Duration::from_secs(3);
/// Shorter quiet time for a state that equals the recorded one.
const QUIET: Duration = Duration::from_millis(600);
/// Maximum time for an object to reach its recorded state before it is reported as different.
const WAIT_LIMIT: Duration = Duration::from_secs(12);
/// The same once a step has differed: what follows mostly differs as well.
const PATIENCE_AFTER: Duration = Duration::from_secs(3);
/// Longest wait for quiet.
const UNQUIET: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Where lives take place.
pub(crate) struct Stage<'a> {
    cluster: &'a Cluster,
    client: Client,
    observatory: Observatory,
}

impl Stage<'_> {
    pub(crate) async fn new(cluster: &Cluster) -> anyhow::Result<Stage<'_>> {
        let client = cluster.client("life").await?;
        Ok(Stage { cluster, client, observatory: Observatory::open(cluster).await? })
    }

    /// Returns the objects once nothing has changed for so long.
    async fn settled(
        &self,
        script: &Script,
        namespace: &str,
        since: Instant,
        quiet: Duration,
    ) -> anyhow::Result<Objects> {
        loop {
            if let Some(mut objects) = self.observatory.quiet(namespace, since, quiet) {
                if script.both_versions {
                    let older = observe::in_older_version(&self.client, namespace);
                    objects.extend(tokio::time::timeout(UNQUIET, older).await.context("no list in time")??);
                }
                return Ok(objects);
            }
            if since.elapsed() > UNQUIET {
                bail!("not quiet for {quiet:?} within {UNQUIET:?}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn act(&self, namespace: &str, step: &Step) -> anyhow::Result<()> {
        for action in &step.actions {
            perform(&self.client, namespace, action).await.with_context(|| format!("{action:?}"))?;
        }
        tokio::time::sleep(step.settle).await;
        Ok(())
    }
}

pub(crate) async fn record(stage: &Stage<'_>, script: &Script) -> anyhow::Result<Answer> {
    let namespace = stage.cluster.namespace(&stage.client, "life").await?;
    let mut memory = Memory::new(&namespace);
    let mut looks = Vec::new();
    let mut last = Objects::new();
    for (number, step) in script.steps.iter().enumerate() {
        let began = Instant::now();
        stage.act(&namespace, step).await.with_context(|| format!("step {number}"))?;
        last = stage.settled(script, &namespace, began, QUIET_WHEN_RECORDING.max(step.settle)).await?;
        looks.push(memory.look(number, &last));
    }
    Ok(Answer::new(&looks, memory.events(&last)))
}

/// The differences that are not meant, in words, and those allowances that were needed.
pub(crate) async fn compare(
    stage: &Stage<'_>,
    script: &Script,
    recorded: &Answer,
    general: &[Allowed],
) -> anyhow::Result<(Vec<String>, Vec<Allowed>)> {
    let looks = recorded.looks();
    if looks.len() != script.steps.len() {
        bail!(
            "recorded with {} steps, now {}; run cargo xtask record-lives",
            looks.len(),
            script.steps.len()
        );
    }
    let namespace = stage.cluster.namespace(&stage.client, "life").await?;
    let mut memory = Memory::new(&namespace);
    let mut life = Life {
        stage,
        script,
        namespace: &namespace,
        allowed: Vec::new(),
        used: Vec::new(),
        wrong: Vec::new(),
    };
    life.allowed = script.differs.iter().chain(general).collect();
    for (number, (step, wanted)) in script.steps.iter().zip(&looks).enumerate() {
        let began = Instant::now();
        stage.act(&namespace, step).await.with_context(|| format!("step {number}"))?;
        let events = (number + 1 == looks.len()).then_some(&recorded.events);
        life.meet(number, began, &mut memory, wanted, events).await?;
    }
    for allowed in &script.differs {
        if !life.used.contains(&allowed) {
            life.wrong.push(format!("this difference is not there any more: {allowed:?}"));
        }
    }
    Ok((life.wrong, life.used.into_iter().cloned().collect()))
}

struct Life<'a> {
    stage: &'a Stage<'a>,
    script: &'a Script,
    namespace: &'a str,
    allowed: Vec<&'a Allowed>,
    used: Vec<&'a Allowed>,
    wrong: Vec<String>,
}

impl Life<'_> {
    /// Waits until it looks as recorded, and notes what does not.
    async fn meet(
        &mut self,
        step: usize,
        began: Instant,
        memory: &mut Memory,
        wanted: &Look,
        events: Option<&std::collections::BTreeSet<String>>,
    ) -> anyhow::Result<()> {
        let patience = if self.wrong.is_empty() { WAIT_LIMIT } else { PATIENCE_AFTER };
        let mut quiet_first = None;
        loop {
            let objects = self.stage.settled(self.script, self.namespace, began, QUIET).await?;
            let quiet_since = *quiet_first.get_or_insert_with(Instant::now);
            let mut now = memory.clone();
            let mut found = difference::between(wanted, &now.look(step, &objects));
            if let Some(events) = events {
                found.extend(difference::between_events(events, &now.events(&objects)));
            }
            let (meant, wrong): (Vec<Difference>, Vec<Difference>) =
                found.into_iter().partition(|found| self.allowed.iter().any(|allowed| allowed.covers(found)));
            if wrong.is_empty() || quiet_since.elapsed() > patience {
                let used =
                    self.allowed.iter().filter(|allowed| meant.iter().any(|found| allowed.covers(found)));
                self.used.extend(used);
                self.wrong.extend(wrong.iter().map(|difference| format!("step {step}: {difference}")));
                *memory = now;
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn perform(client: &Client, namespace: &str, action: &Action) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match attempt(client, namespace, action).await {
            // On a slow machine the member, or its Pod, may not be there yet.
            Err(_) if is_about_a_member(action) && began.elapsed() < WAIT_LIMIT => {
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

fn is_about_a_member(action: &Action) -> bool {
    let (Action::Patch(target) | Action::Status(target)) = action else { return false };
    target.name.starts_with("${member")
}

async fn attempt(client: &Client, namespace: &str, action: &Action) -> anyhow::Result<()> {
    let words = Substitute { client, namespace };
    let (Action::Create(target)
    | Action::Patch(target)
    | Action::Status(target)
    | Action::Scale(target)
    | Action::Delete(target)) = action
    else {
        if let Action::Wait(time) = action {
            tokio::time::sleep(*time).await;
        }
        return Ok(());
    };
    let Target { kind, name, rest } = target;
    let (name, rest) = (words.text(name).await?, words.value(rest).await?);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind::resource(kind)?);
    match action {
        Action::Create(_) => {
            let mut object = kind::base(kind)?;
            json_patch::merge(&mut object, &rest);
            object["metadata"]["name"] = name.into();
            let object: DynamicObject = serde_json::from_value(object)?;
            api.create(&PostParams::default(), &object).await?;
        }
        Action::Patch(_) => {
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&rest)).await?;
        }
        Action::Status(_) => {
            let status = serde_json::json!({ "status": rest });
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Action::Scale(_) => {
            let scale = serde_json::json!({ "spec": rest });
            api.patch_scale(&name, &PatchParams::default(), &Patch::Merge(&scale)).await?;
        }
        Action::Wait(_) => {}
        Action::Delete(_) => {
            let params = match rest["propagationPolicy"].as_str() {
                None => DeleteParams::default(),
                Some("Background") => DeleteParams::background(),
                Some("Foreground") => DeleteParams::foreground(),
                Some("Orphan") => DeleteParams::orphan(),
                Some(other) => bail!("propagationPolicy: {other:?}"),
            };
            api.delete(&name, &params).await?;
        }
    }
    Ok(())
}
