//! A `sandbox_config` of any bytes: what is taken makes a policy.

use hutch_policy::PolicyObject;
use serde_json::json;

use super::super::Notes;
use super::Config;

/// Parses a `sandbox_config` and converts it. The rules make a valid policy, and every text for the user is one line.
pub(crate) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => return assert!(!format!("{error:#}").contains('\n'), "{text:?}: {error:#}"),
    };
    let mut notes = Notes::default();
    config.note_rest(&mut notes);
    assert!(notes.refusals.is_empty() && notes.changes.iter().all(|line| !line.contains('\n')), "{notes:?}");
    for amount in [&config.resources.cpu_limit, &config.resources.memory_limit].into_iter().flatten() {
        let _ = amount.text();
    }
    let rules = match config.egress() {
        Ok(rules) => rules,
        Err(error) => return assert!(!format!("{error:#}").contains('\n'), "{text:?}: {error:#}"),
    };
    let object = serde_json::from_value::<PolicyObject>(json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "sandbox-config"},
        "spec": {"egress": {"rules": rules}},
    }));
    let Ok(object) = object else { panic!("{text:?}: {object:?}") };
    if let Err(error) = object.check_new() {
        // A host that is there twice, or one more than a policy may have.
        let field = error.field.as_str();
        assert!(field.ends_with(".name") || field == "spec.egress.rules", "{text:?}: {error}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_config", super::config);
    }
}
