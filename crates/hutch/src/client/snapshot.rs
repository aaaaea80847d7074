//! `hutch snapshot`, `hutch fork`.

use std::io::{self, Write};
use std::process::ExitCode;

use hutch_api::state::{SandboxFork, SandboxSnapshot, SnapshotVolumes};
use hutch_api::{Sandbox, condition};
use hutch_client::{Error, NewFork, NewSnapshot, Sandboxes, Source, Wait};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::progress::Progress;
use super::{connect, finish, plain, with_hint};
use crate::cli::{
    ForkArguments, Place, SnapshotArguments, SnapshotCommand, SnapshotCreateArguments,
    SnapshotDeleteArguments, SnapshotListArguments, SnapshotRestoreArguments,
};
use crate::quantity;

/// Runs a subcommand of `hutch snapshot`.
pub(crate) fn main(arguments: &SnapshotArguments) -> ExitCode {
    match &arguments.command {
        SnapshotCommand::Create(arguments) => finish("snapshot create", 1, create(arguments)),
        SnapshotCommand::List(arguments) => finish("snapshot list", 1, list(arguments)),
        SnapshotCommand::Delete(arguments) => finish("snapshot delete", 1, delete(arguments)),
        SnapshotCommand::Restore(arguments) => finish("snapshot restore", 1, restore(arguments)),
    }
}

/// Makes forks and prints the state of each.
pub(crate) fn fork(arguments: ForkArguments) -> ExitCode {
    finish("fork", 1, make_forks(arguments))
}

async fn create(arguments: &SnapshotCreateArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let mut progress = Progress::new();
    let mut wait = Wait::new(arguments.outcome.wait, &mut progress);
    let volumes = match (&arguments.volumes, arguments.no_volumes) {
        (None, false) => None,
        (include, none) => Some(SnapshotVolumes { include: include.clone(), none }),
    };
    let (name, content) = (arguments.name.clone(), arguments.content.into());
    let new = NewSnapshot { name, content, volumes, ttl: arguments.ttl };
    let made = sandboxes.snapshot(&arguments.sandbox.name, &new, &mut wait).await;
    let made = made.map_err(with_hint)?;
    let state = if is_ready(conditions(&made)) { "is complete" } else { "is pending" };
    let text = format!("snapshot {} of sandbox {} {state}", made.name_any(), made.spec.source.sandbox);
    print(arguments.outcome.json, &described(&made), &text)
}

async fn list(arguments: &SnapshotListArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let snapshots = sandboxes.snapshots().await.map_err(with_hint)?;
    if arguments.json {
        let all: Vec<Value> = snapshots.iter().map(described).collect();
        return print(true, &all.into(), "");
    }
    let now = Timestamp::now();
    let rows: Vec<_> = snapshots.iter().map(|snapshot| row(snapshot, now)).collect();
    io::stdout().write_all(table(&rows).as_bytes())?;
    Ok(0)
}

/// Columns of the list, as `kubectl get` has them, and the size.
const COLUMNS: [&str; 7] = ["NAME", "SANDBOX", "CONTENT", "READY", "REASON", "SIZE", "AGE"];

fn row(snapshot: &SandboxSnapshot, now: Timestamp) -> [String; COLUMNS.len()] {
    let shown = described(snapshot);
    let cell = |field: &str| shown[field].as_str().map_or("-".to_owned(), plain);
    let ready = if is_ready(conditions(snapshot)) { "True" } else { "False" };
    let size = shown["bytes"].as_u64().map_or("-".to_owned(), quantity::shown);
    let made = snapshot.creation_timestamp().map(|made| now.duration_since(made.0));
    let age = made.map_or("-".to_owned(), |age| short(age.as_secs().max(0)));
    [cell("name"), cell("sandbox"), cell("content"), ready.to_owned(), cell("reason"), size, age]
}

/// Returns lines whose columns are as wide as they need to be.
fn table(rows: &[[String; COLUMNS.len()]]) -> String {
    let rows: Vec<_> = [COLUMNS.map(str::to_owned)].iter().chain(rows).cloned().collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns a time in seconds as kubectl shows the age of an object.
fn short(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 if seconds % MINUTE != 0 => format!("{}m{}s", seconds / MINUTE, seconds % MINUTE),
        120..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 if seconds % HOUR >= MINUTE => {
            format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE)
        }
        10_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 if seconds % DAY >= HOUR => format!("{}d{}h", seconds / DAY, seconds % DAY / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

async fn delete(arguments: &SnapshotDeleteArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    for name in &arguments.names {
        sandboxes.delete_snapshot(name).await.map_err(with_hint)?;
        println!("snapshot {name} is deleted");
    }
    Ok(0)
}

async fn restore(arguments: &SnapshotRestoreArguments) -> anyhow::Result<u8> {
    let sandboxes = connect(&arguments.place).await?;
    let mut progress = Progress::new();
    let mut wait = Wait::new(arguments.outcome.wait, &mut progress);
    let made = sandboxes.restore(&arguments.snapshot, &arguments.sandbox, &mut wait).await;
    let made: Sandbox = made.map_err(with_hint)?;
    let state = if arguments.outcome.wait.is_zero() { "is starting" } else { "is ready" };
    let text = format!("sandbox {} {state}, from snapshot {}", made.name_any(), arguments.snapshot);
    let ready = !arguments.outcome.wait.is_zero();
    let shown = json!({"sandbox": made.name_any(), "uid": made.uid(), "snapshot": arguments.snapshot, "ready": ready});
    print(arguments.outcome.json, &shown, &text)
}

async fn make_forks(arguments: ForkArguments) -> anyhow::Result<u8> {
    let ForkArguments {
        namespace,
        kubeconfig,
        outcome,
        replicas,
        name,
        content,
        snapshot,
        sandbox,
        credentials,
    } = arguments;
    let sandboxes = connect(&Place { namespace, kubeconfig }).await?;
    let source = match (snapshot, sandbox) {
        (Some(snapshot), _) => Source::Snapshot(snapshot),
        (None, Some(sandbox)) => Source::Sandbox(sandbox),
        // The flags do not allow it.
        (None, None) => anyhow::bail!("SANDBOX or --snapshot is needed"),
    };
    let new = NewFork { name, replicas, content: content.into(), credentials: credentials.into() };
    let mut progress = Progress::new();
    let mut wait = Wait::new(outcome.wait, &mut progress);
    let mut made = None;
    let fork = sandboxes.fork(&source, &new, &mut made, &mut wait).await;
    let (fork, failure) = match fork {
        Ok(fork) => (Some(fork), None),
        // Each fork has a result of its own.
        Err(error) => (now(&sandboxes, made.as_deref(), &error).await, Some(error)),
    };
    if let Some(fork) = &fork {
        let text = if outcome.wait.is_zero() {
            format!("fork {} is pending", fork.name_any())
        } else {
            lines(fork).join("\n")
        };
        if outcome.json || !text.is_empty() {
            print(outcome.json, &described_fork(fork), &text)?;
        }
    }
    match failure {
        None => Ok(0),
        Some(error) => Err(with_hint(error)),
    }
}

/// Returns forks that are not all ready.
async fn now(sandboxes: &Sandboxes, name: Option<&str>, error: &Error) -> Option<SandboxFork> {
    match (name, error) {
        (Some(name), Error::Blocked { .. } | Error::TimedOut { .. }) => sandboxes.forked(name).await.ok(),
        _ => None,
    }
}

/// Returns a line for each Sandbox.
fn lines(fork: &SandboxFork) -> Vec<String> {
    let children = fork.status.iter().flat_map(|status| &status.children);
    let line = |child: &hutch_api::state::ForkChild| match (&*child.phase, &child.reason) {
        ("Ready", _) => format!("sandbox {} is ready", child.name),
        ("Failed", Some(reason)) => format!("sandbox {} has failed: {reason}", child.name),
        ("Failed", None) => format!("sandbox {} has failed", child.name),
        _ => format!("sandbox {} is pending", child.name),
    };
    children.map(line).map(|line| plain(&line)).collect()
}

fn print(json: bool, object: &Value, text: &str) -> anyhow::Result<u8> {
    let mut stdout = io::stdout().lock();
    match json {
        true => writeln!(stdout, "{object}")?,
        false => writeln!(stdout, "{text}")?,
    }
    Ok(0)
}

fn conditions(snapshot: &SandboxSnapshot) -> &[Condition] {
    snapshot.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|found| found.type_ == condition::READY)
}

fn is_ready(conditions: &[Condition]) -> bool {
    ready(conditions).is_some_and(|ready| ready.status == condition::TRUE)
}

/// Returns the fields of `--json`.
fn described(snapshot: &SandboxSnapshot) -> Value {
    let ready = ready(conditions(snapshot));
    let status = snapshot.status.clone().unwrap_or_default();
    json!({
        "name": snapshot.name_any(),
        "namespace": snapshot.namespace(),
        "sandbox": snapshot.spec.source.sandbox,
        "content": snapshot.spec.content,
        "ready": is_ready(conditions(snapshot)),
        "reason": ready.map_or(hutch_api::state::reason::PENDING, |ready| &ready.reason),
        "message": ready.map(|ready| &ready.message),
        "volumes": status.volumes,
        "bytes": status.sizes.map(|sizes| sizes.memory.saturating_add(sizes.files)),
        "pausedMillis": status.paused_millis,
    })
}

/// Returns the fields of `--json`.
fn described_fork(fork: &SandboxFork) -> Value {
    let status = fork.status.clone().unwrap_or_default();
    let all = status.conditions.as_deref().unwrap_or_default();
    json!({
        "name": fork.name_any(),
        "namespace": fork.namespace(),
        "snapshot": status.snapshot,
        "ready": is_ready(all),
        "reason": ready(all).map_or(hutch_api::state::reason::PENDING, |ready| &ready.reason),
        "message": ready(all).map(|ready| &ready.message),
        "sandboxes": status.children,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, shown) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (601, "10m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (30_000, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(short(seconds), shown);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let row =
            |name: &str, size: &str| [name, "a", "Full", "True", "Completed", size, "5s"].map(str::to_owned);
        assert_eq!(
            table(&[row("a-long-name", "-"), row("b", "1.00kB")]),
            "NAME          SANDBOX   CONTENT   READY   REASON      SIZE     AGE\n\
             a-long-name   a         Full      True    Completed   -        5s\n\
             b             a         Full      True    Completed   1.00kB   5s\n"
        );
        assert_eq!(table(&[]), "NAME   SANDBOX   CONTENT   READY   REASON   SIZE   AGE\n");
    }
}
