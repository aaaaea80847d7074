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
            let files = settings.files(&mut notes);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of srt as users write them: the fields that are refused, and some of the policy.
    #[test]
    fn examples_of_settings_are_converted_or_refused_by_name() {
        let agent = include_str!("../../tests/hutch/fixtures/srt/coding-agent.json");
        let reads = include_str!("../../tests/hutch/fixtures/srt/read-requests.json");
        let proxy = include_str!("../../tests/hutch/fixtures/srt/company-proxy.json");
        let stays_open = ["filesystem.denyWrite[0]", "filesystem.denyRead[0]", "credentials.files[1]"];
        for (text, refused, lines, parts) in [
            (
                agent,
                &[][..],
                4,
                &[
                    "**.github.com",
                    "gist.github.com",
                    "2222",
                    "/root/.ssh",
                    "/root/.aws/config",
                    "/srv/shared",
                ][..],
            ),
            (reads, &stays_open, 5, &["tls: Passthrough", "pinned.internal.example", "/root/.netrc"]),
            (proxy, &["network.mitmProxy"], 1, &["pypi.org"]),
        ] {
            let (spec, notes) = convert(PolicyFormat::Srt, text).expect("settings");
            let fields: Vec<_> = notes.refusals.iter().filter_map(|line| line.split(": ").next()).collect();
            assert_eq!(fields, refused, "{notes:?}");
            assert_eq!(notes.changes.len(), lines, "{notes:?}");
            let policy = yaml(PolicyFormat::Srt, &spec).expect("a policy");
            for part in parts {
                assert!(policy.contains(part), "{part}: {policy}");
            }
        }
    }
}
