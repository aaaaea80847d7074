//! Settings of any bytes: what is taken makes a policy.

use hutch_policy::PolicyObject;
use serde_json::json;

use super::super::Notes;
use super::Settings;

/// Parses settings and converts them. If nothing is refused, the rules make a valid policy.
pub(crate) fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut notes = Notes::default();
    let Ok(settings) = Settings::parse(text, &mut notes) else { return };
    let rules = settings.egress(&mut notes);
    let files = settings.files(&mut notes);
    settings.note_rest(&mut notes);
    let credentials = settings.offered(|_| true, &mut notes);
    assert!(notes.changes.iter().chain(&notes.refusals).all(|line| !line.contains('\n')), "{notes:?}");
    if notes.refused().is_err() {
        return;
    }
    // What is invalid in them is an error of the policy.
    let _ = super::credentials::checked(&rules, credentials);
    let object = serde_json::from_value::<PolicyObject>(json!({
        "apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "srt"},
        "spec": {"egress": {"rules": rules}, "files": files},
    }));
    match object.map(|object| object.check_new()) {
        Ok(Ok(())) => {}
        other => panic!("{text:?}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_settings", super::settings);
    }
}
