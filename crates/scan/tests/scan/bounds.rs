//! Findings that stand behind very many others.

use hutch_scan::{At, Direction, Location, Scanner, State};

/// Made of parts, so that scanners of repositories do not report this file.
fn token() -> String {
    ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat()
}

fn rules(direction: Direction, text: &str) -> Vec<String> {
    let findings =
        Scanner::builtin().scan_whole(&mut State::new(direction), &Location::new(At::Body), text.as_bytes());
    findings.into_iter().map(|finding| finding.rule).collect()
}

/// Regression: after 1024 hints, such as addresses of mail, no finding was reported.
#[test]
fn hints_do_not_hide_what_follows_them() {
    let hints: String = (0..2000).map(|number| format!("someone{number}@gmail.com ")).collect();
    let found = rules(Direction::Outbound, &format!("{hints}\n{}", token()));
    assert!(found.contains(&"github-pat".to_owned()), "{:?}", &found[found.len().saturating_sub(3)..]);
}

#[test]
fn too_many_findings_are_a_finding() {
    let many = format!("{} ", token()).repeat(1100);
    for direction in [Direction::Outbound, Direction::Inbound] {
        let found = rules(direction, &many);
        assert_eq!(found.iter().filter(|rule| *rule == "too-complex").count(), 1, "{direction:?}");
    }
    let few = format!("{} ", token()).repeat(10);
    assert!(!rules(Direction::Inbound, &few).contains(&"too-complex".to_owned()));
}
