//! Other formats of policies, converted to egress rules. The conversions are pure.

mod notes;
pub(crate) mod sandbox_config;
pub(crate) mod srt;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use hutch_policy::{EgressRule, PolicyObject};
pub(crate) use notes::Notes;
use serde_json::json;

use crate::cli::{PolicyFormat, PolicyImportArguments};

/// Maximum bytes of a file that describes a sandbox.
const FILE_BYTES: u64 = 64 << 10;

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

/// Returns an error without the lines of the file that it quotes.
pub(crate) fn in_one_line(error: serde_saphyr::Error) -> anyhow::Error {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    anyhow!("{}", line.strip_prefix("error: ").unwrap_or(line))
}

/// Reads a file that describes a sandbox.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= FILE_BYTES, "larger than {FILE_BYTES} bytes");
    Ok(text)
}
