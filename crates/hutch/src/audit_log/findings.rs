//! Findings of the scanner as events of the audit log.

use std::time::SystemTime;

use hutch_audit::Event;
use hutch_audit::event::{Decision, Finding, Rule, Sandbox, Severity, Verdict};
use hutch_egress::{Alarm, Found};
use hutch_policy::ScanAction;
use hutch_screen::Sighting;

/// Returns the event of a finding in what is sent to a destination, or comes from it. The text that was found is not in it.
pub(crate) fn found(sandbox: &Sandbox<'_>, found: &Found, destination: &str, verdict: Verdict<'_>) -> Event {
    let place = format!("{found}, {destination}");
    let decision = match verdict.decision {
        Decision::Denied | Decision::Modified => verdict.decision,
        _ => Decision::Alerted,
    };
    let finding = Finding {
        sandbox: *sandbox,
        rule: &found.rule,
        title: &found.rule,
        place: &place,
        digest: digest(&found.fingerprint),
        door: None,
        count: None,
        severity: severity(found.severity),
        verdict: Verdict { decision, ..verdict },
    };
    Event::finding(SystemTime::now(), &finding)
}

/// Returns the event of an attempt to carry data out that was refused.
pub(crate) fn alarm(sandbox: &Sandbox<'_>, alarm: Alarm, destination: &str, verdict: Verdict<'_>) -> Event {
    let (rule, title) = match alarm {
        Alarm::MisplacedCredential => ("misplaced-credential", "Credential sent where its value may not go"),
        Alarm::TooManyNames => ("too-many-names", "Too many different names resolved"),
    };
    let finding = Finding {
        sandbox: *sandbox,
        rule,
        title,
        place: destination,
        digest: None,
        door: None,
        count: None,
        severity: Severity::High,
        verdict,
    };
    Event::finding(SystemTime::now(), &finding)
}

/// Returns the event of a finding in output, or of further ones of the same rule.
pub(crate) fn sighted(sandbox: &Sandbox<'_>, sighting: &Sighting<'_>) -> Event {
    let (found, door, part) = (sighting.found, sighting.door.name(), &*sighting.origin.part);
    let place = match part {
        "" => format!("{found}, {door}"),
        part => format!("{found}, {door} of {part}"),
    };
    let decision = match sighting.action {
        ScanAction::Log => Decision::Alerted,
        ScanAction::Redact => Decision::Modified,
        ScanAction::Block => Decision::Denied,
    };
    let level = Some(&*found.policy).filter(|policy| !policy.is_empty());
    let finding = Finding {
        sandbox: *sandbox,
        rule: &found.rule,
        title: &found.rule,
        place: &place,
        // Further ones may be other texts.
        digest: digest(&found.fingerprint).filter(|_| sighting.further.is_none()),
        door: Some(door),
        count: sighting.further,
        severity: severity(found.severity),
        verdict: Verdict { rule: Rule { level, rule: None }, ..Verdict::of(decision) },
    };
    Event::finding(SystemTime::now(), &finding)
}

fn severity(severity: hutch_scan::Severity) -> Severity {
    match severity {
        hutch_scan::Severity::Low => Severity::Low,
        hutch_scan::Severity::Medium => Severity::Medium,
        hutch_scan::Severity::High => Severity::High,
        hutch_scan::Severity::Critical => Severity::Critical,
    }
}

/// Returns the first bytes of the SHA-256 of the text that was found.
fn digest(fingerprint: &str) -> Option<[u8; 8]> {
    let digits = fingerprint.get(..16)?;
    Some(u64::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_is_a_finding_of_high_severity_that_names_its_place() {
        let sandbox = Sandbox { namespace: "team", name: "a", uid: Some("u") };
        for (of, rule) in
            [(Alarm::TooManyNames, "too-many-names"), (Alarm::MisplacedCredential, "misplaced-credential")]
        {
            let verdict = Verdict { reason: Some("too many"), ..Verdict::of(Decision::Denied) };
            let record = alarm(&sandbox, of, "x.data.example", verdict).record();
            let event: serde_json::Value = serde_json::from_slice(record.as_bytes()).expect("JSON");
            let text = event.to_string();
            // A detection finding of OCSF.
            assert_eq!((&event["class_uid"], &event["severity_id"]), (&2004.into(), &4.into()), "{text}");
            assert!(
                text.contains(rule) && text.contains("x.data.example") && text.contains("team"),
                "{text}"
            );
        }
    }
}
