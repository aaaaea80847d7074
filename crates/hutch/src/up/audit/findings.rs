//! Findings of the scanner as events of the audit log.

use std::time::SystemTime;

use hutch_audit::Event;
use hutch_audit::event::{Decision, Finding, Sandbox, Severity, Verdict};
use hutch_egress::Found;

/// Returns the event of a finding in what is sent to a destination, or comes from it. The text that was found is not in it.
pub(super) fn found(sandbox: &Sandbox<'_>, found: &Found, destination: &str, verdict: Verdict<'_>) -> Event {
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
        severity: severity(found.severity),
        verdict: Verdict { decision, ..verdict },
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
