//! Actions of the levels of a sandbox for findings.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::sync::Arc;

use hutch_policy::{Door, HostName, Level, Mode, ScanAction, ScanRules, ScannerRules};
use hutch_scan::{Finding, Fingerprint, Kind, Severity};

use crate::report::{Findings, Recorder};

/// Scanner of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acting {
    /// Name of the policy.
    pub policy: String,
    /// Its effect.
    pub mode: Mode,
    /// Its rules and actions.
    pub rules: ScannerRules,
}

impl Acting {
    /// Returns the scanner of a level.
    pub fn of(level: &Level, rules: &ScannerRules) -> Acting {
        Acting { policy: level.name.clone(), mode: level.mode, rules: rules.clone() }
    }
}

/// Returns the set to which rules of a kind belong; `None` for those that always count.
pub fn set_of(kind: Kind) -> Option<ScanRules> {
    match kind {
        Kind::Secret => Some(ScanRules::Secrets),
        Kind::Pii => Some(ScanRules::Pii),
        Kind::Financial => Some(ScanRules::Financial),
        Kind::Injection => Some(ScanRules::Injection),
        Kind::Shell => Some(ScanRules::Shell),
        Kind::Waf => Some(ScanRules::Waf),
        _ => None,
    }
}

/// Returns the strictest action for a finding in traffic to a host, or in output, and the policy that has it; `None` if no
/// policy has one. Hints have no effect.
pub fn strictest<'a>(
    all: &'a [Acting],
    finding: &Finding,
    host: Option<&HostName>,
    action: impl Fn(&ScannerRules) -> Option<ScanAction>,
) -> Option<(ScanAction, &'a str)> {
    if finding.severity == Severity::Low {
        return None;
    }
    let (set, value) = (set_of(finding.kind), finding.fingerprint.0);
    let having = all.iter().filter(|one| set.is_none_or(|set| one.rules.has(set)));
    let having = having.filter(|one| !one.rules.allows(&finding.rule, value, host));
    let acting = having.filter_map(|one| {
        let action = action(&one.rules)?;
        Some((if one.mode == Mode::Observe { ScanAction::Log } else { action }, one.policy.as_str()))
    });
    // Of equally strict policies the first by name.
    acting.max_by(|(a, first), (b, second)| a.cmp(b).then_with(|| second.cmp(first)))
}

/// Scanners of the levels of a sandbox that have an action for output at one door.
#[derive(Debug, Clone)]
pub struct Screen {
    door: Door,
    acting: Arc<[Acting]>,
    recorder: Recorder,
    ignored: Arc<HashSet<Fingerprint>>,
}

impl Screen {
    /// Returns what levels say about a door; `None` if nothing is scanned there.
    pub fn of<L: Borrow<Level>>(levels: &[L], door: Door) -> Option<Screen> {
        let with = levels.iter().map(Borrow::borrow).filter_map(|level: &Level| {
            let rules = level.scanner.as_ref()?;
            rules.at(door).map(|_| Acting::of(level, rules))
        });
        let acting: Arc<[Acting]> = with.collect();
        let (recorder, ignored) = (Recorder::default(), Arc::default());
        (!acting.is_empty()).then(|| Screen { door, acting, recorder, ignored })
    }

    /// Ignores these values: placeholders of credentials, which are worth nothing.
    pub fn ignoring(self, ignored: Arc<HashSet<Fingerprint>>) -> Screen {
        Screen { ignored, ..self }
    }

    /// Has findings recorded in an audit log.
    pub fn recorded(self, log: Arc<dyn Findings>) -> Screen {
        Screen { recorder: Recorder(Some(log)), ..self }
    }

    /// Returns the audit log.
    pub(crate) fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Returns the door.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Returns true if something may be replaced or refused.
    pub fn is_strict(&self) -> bool {
        let strict = |one: &Acting| one.rules.at(self.door) > Some(ScanAction::Log);
        self.acting.iter().any(|one| one.mode == Mode::Enforce && strict(one))
    }

    /// Returns the action for a finding, and the policy that has it. Only secrets and data count in output.
    pub(crate) fn action(&self, finding: &Finding) -> Option<(ScanAction, &str)> {
        let counts = matches!(
            finding.kind,
            Kind::Secret | Kind::Credential | Kind::Pii | Kind::Financial | Kind::TooComplex
        ) && !self.ignored.contains(&finding.fingerprint);
        let found = counts.then(|| strictest(&self.acting, finding, None, |rules| rules.at(self.door)));
        found.flatten()
    }
}

impl PartialEq for Screen {
    fn eq(&self, other: &Screen) -> bool {
        self.door == other.door && self.acting == other.acting
    }
}

#[cfg(test)]
mod tests {
    use hutch_policy::Authority;
    use hutch_scan::At;

    use super::*;

    fn level(name: &str, scanner: &str) -> Level {
        let scanner = serde_json::from_str(scanner).ok();
        assert!(scanner.is_some(), "{name}");
        Level { scanner, ..Level::new(Authority::Namespace, name, None) }
    }

    fn finding(kind: Kind, severity: Severity) -> Finding {
        let (rule, fingerprint) = ("a".to_owned(), Fingerprint([1; 8]));
        let (at, name, steps) = (At::Output, String::new(), Vec::new());
        Finding { rule, kind, severity, at, name, range: None, steps, fingerprint }
    }

    #[test]
    fn strictest_policy_counts_and_all_must_allow() {
        let secret = finding(Kind::Secret, Severity::High);
        let action = |levels: &[Level]| {
            let screen = Screen::of(levels, Door::Logs)?;
            screen.action(&secret).map(|(action, policy)| (action, policy.to_owned()))
        };
        let (log, redact) = (level("a", r#"{"logs": "Log"}"#), level("b", r#"{"logs": "Redact"}"#));
        let allows = level("c", r#"{"logs": "Block", "allow": [{"rule": "a"}]}"#);
        let found = |action, policy: &str| Some((action, policy.to_owned()));
        assert_eq!(action(&[level("d", "{}")]), None, "the field opens the door");
        assert_eq!(action(&[log.clone(), redact.clone()]), found(ScanAction::Redact, "b"));
        assert_eq!(action(&[redact.clone(), log.clone()]), found(ScanAction::Redact, "b"));
        assert_eq!(action(std::slice::from_ref(&allows)), None);
        assert_eq!(
            action(&[allows, redact.clone()]),
            found(ScanAction::Redact, "b"),
            "one does not allow it"
        );
        let observes = Level { mode: Mode::Observe, ..redact };
        assert_eq!(action(std::slice::from_ref(&observes)), found(ScanAction::Log, "b"));
        assert!(Screen::of(&[observes], Door::Logs).is_some_and(|screen| !screen.is_strict()));
    }

    #[test]
    fn only_secrets_and_data_count() {
        let screen =
            Screen::of(&[level("a", r#"{"exec": "Block", "rules": ["builtin/secrets"]}"#)], Door::Exec);
        let screen = screen.expect("it has the field");
        assert_eq!(screen.action(&finding(Kind::Secret, Severity::Low)), None, "a hint");
        assert_eq!(screen.action(&finding(Kind::Pii, Severity::High)), None, "another set");
        assert_eq!(screen.action(&finding(Kind::Waf, Severity::High)), None);
        assert_eq!(screen.action(&finding(Kind::Secret, Severity::Medium)), Some((ScanAction::Block, "a")));
    }
}
