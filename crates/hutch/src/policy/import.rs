//! Other formats of policies, converted to the spec of a policy. The conversions are pure.

mod file;
mod notes;
pub(crate) mod sandbox_config;
pub(crate) mod srt;

use std::io::Write;

use anyhow::{Context, ensure};
pub(crate) use file::{in_one_line, object, read_file};
use hutch_policy::PolicyObject;
pub(crate) use notes::Notes;
use serde_json::{Value, json};

use crate::cli::{PolicyFormat, PolicyImportArguments};

/// Prints a file of another format as a policy.
pub(super) fn main(arguments: &PolicyImportArguments) -> anyhow::Result<()> {
    let file = &arguments.file;
    let converted = read_file(file).and_then(|text| convert(arguments.from, &text));
    let (spec, mut notes) = converted.with_context(|| file.display().to_string())?;
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
    let policy = yaml(arguments.from, &spec)?;
    std::io::stdout().write_all(policy.as_bytes()).context("standard output")
}

/// Returns the spec of the policy.
fn convert(format: PolicyFormat, text: &str) -> anyhow::Result<(Value, Notes)> {
    let mut notes = Notes::default();
    let spec = match format {
        PolicyFormat::Srt => {
            let settings = srt::Settings::parse(text, &mut notes)?;
            settings.note_rest(&mut notes);
            let files = settings.filesystem.rules(&mut notes);
            json!({"egress": {"rules": settings.egress(&mut notes)}, "files": files})
        }
        PolicyFormat::SandboxConfig => {
            let config = sandbox_config::Config::parse(text)?;
            config.note_rest(&mut notes);
            let mut spec = json!({"egress": {"rules": config.egress()?}});
            if config.scans() {
                spec["scanner"] = json!({"rules": ["builtin/secrets"]});
            }
            spec
        }
    };
    Ok((spec, notes))
}

/// Returns the policy with this spec.
fn yaml(format: PolicyFormat, spec: &Value) -> anyhow::Result<String> {
    let name = match format {
        PolicyFormat::Srt => "srt",
        PolicyFormat::SandboxConfig => "sandbox-config",
    };
    let object: PolicyObject = serde_json::from_value(json!({
        "apiVersion": "policy.hutch.dev/v1alpha1",
        "kind": "SandboxPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }))?;
    object.check_new()?;
    Ok(serde_saphyr::to_string(&object)?)
}
