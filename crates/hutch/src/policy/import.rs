//! Other formats of policies, converted to egress rules. The conversions are pure.

mod file;
mod notes;
pub(crate) mod sandbox_config;
pub(crate) mod srt;

use std::io::Write;

use anyhow::{Context, ensure};
pub(crate) use file::{in_one_line, object, read_file};
use hutch_policy::{EgressRule, PolicyObject};
pub(crate) use notes::Notes;
use serde_json::json;

use crate::cli::{PolicyFormat, PolicyImportArguments};

/// Prints a file of another format as a policy.
pub(super) fn main(arguments: &PolicyImportArguments) -> anyhow::Result<()> {
    let file = &arguments.file;
    let converted = read_file(file).and_then(|text| convert(arguments.from, &text));
    let (rules, mut notes) = converted.with_context(|| file.display().to_string())?;
    if arguments.lossy {
        notes.changes.append(&mut notes.refusals);
    }
    let named = |line: &String| eprintln!("hutch: {}: {line}", file.display());
    notes.refusals.iter().chain(&notes.changes).for_each(named);
    ensure!(
        notes.refusals.is_empty(),
        "{}: not everything in it can be enforced; --lossy prints the policy without it",
        file.display()
    );
    let policy = yaml(arguments.from, rules)?;
    std::io::stdout().write_all(policy.as_bytes()).context("standard output")
}

fn convert(format: PolicyFormat, text: &str) -> anyhow::Result<(Vec<EgressRule>, Notes)> {
    let mut notes = Notes::default();
    let rules = match format {
        PolicyFormat::Srt => {
            let settings = srt::Settings::parse(text, &mut notes)?;
            settings.note_rest(&mut notes);
            settings.egress(&mut notes)
        }
        PolicyFormat::SandboxConfig => {
            let config = sandbox_config::Config::parse(text)?;
            config.note_rest(&mut notes);
            config.egress()?
        }
    };
    Ok((rules, notes))
}

/// Returns the policy with these rules.
fn yaml(format: PolicyFormat, rules: Vec<EgressRule>) -> anyhow::Result<String> {
    let name = match format {
        PolicyFormat::Srt => "srt",
        PolicyFormat::SandboxConfig => "sandbox-config",
    };
    let object: PolicyObject = serde_json::from_value(json!({
        "apiVersion": "policy.hutch.dev/v1alpha1",
        "kind": "SandboxPolicy",
        "metadata": {"name": name},
        "spec": {"egress": {"rules": rules}},
    }))?;
    object.check_new()?;
    Ok(serde_saphyr::to_string(&object)?)
}
