//! Our own cases, almost half of them benign: `cases.toml`.

use std::collections::HashSet;
use std::sync::Arc;

use hutch_scan::{
    At, Calls, Compression, Credentials, Direction, Finding, Fingerprint, Hosts, Location, Pins, Scanner,
    Sequences, Session, Severity, State,
};
use serde::Deserialize;

use crate::encode;
use crate::expand::{OWN, expand, value};

const CASES: &str = include_str!("cases.toml");

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    n: String,
    e: String,
    at: Option<At>,
    d: Option<Direction>,
    h: Option<String>,
    t: Option<String>,
    #[serde(default)]
    ts: Vec<String>,
    m: Option<String>,
    chunk: Option<usize>,
    #[serde(default)]
    b: bool,
    z: Option<String>,
}

#[test]
fn cases_give_the_expected_findings() {
    let file: File = toml::from_str(CASES).unwrap();
    let scanner = Scanner::builtin();
    let mut wrong = Vec::new();
    for case in &file.case {
        let findings = run(&scanner, case);
        let alarms: Vec<_> = findings.iter().filter(|finding| finding.severity > Severity::Low).collect();
        let kinds: Vec<_> = alarms.iter().map(|finding| kind(finding)).collect();
        let right = match case.e.as_str() {
            "none" => alarms.is_empty(),
            expected => kinds.iter().any(|kind| kind == expected),
        };
        if !right {
            let found: Vec<_> =
                findings.iter().map(|f| format!("{} ({:?}, {})", f.rule, f.severity, f.view())).collect();
            wrong.push(format!("{}: expected {}, found {found:?}", case.n, case.e));
        }
    }
    let benign = file.case.iter().filter(|case| case.e == "none").count();
    println!("{} cases, {benign} benign", file.case.len());
    assert!(file.case.len() >= 150);
    assert!(benign >= 75 && benign * 100 >= file.case.len() * 45, "{benign} of {}", file.case.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), file.case.len(), wrong.join("\n"));
}

/// Returns the texts of all cases of a moderate length.
pub(crate) fn texts() -> Vec<Vec<u8>> {
    let file: File = toml::from_str(CASES).unwrap();
    let texts = file.case.iter().flat_map(|case| case.t.iter().chain(&case.ts));
    texts.map(|text| expand(text)).filter(|text| text.len() <= 4 << 10).collect()
}

fn kind(finding: &Finding) -> String {
    serde_json::to_value(finding.kind).unwrap().as_str().unwrap().to_owned()
}

fn state(direction: Direction, bound: bool) -> State {
    let credentials = Credentials::new([("own", OWN.as_bytes())]).unwrap();
    let placeholder = HashSet::from([Fingerprint::of(value("placeholder").as_bytes())]);
    State::new(direction).with_credentials(Arc::new(credentials)).ignoring(Arc::new(placeholder)).bound(bound)
}

fn run(scanner: &Scanner, case: &Case) -> Vec<Finding> {
    let texts: Vec<Vec<u8>> = case.t.iter().chain(&case.ts).map(|text| expand(text)).collect();
    let direction = case.d.unwrap_or(Direction::Outbound);
    let mut location = Location::named(case.at.unwrap_or(At::Body), case.h.clone().unwrap_or_default());
    let mut state = state(direction, case.b);
    match case.m.as_deref() {
        Some("mcp") => mcp(scanner, &texts),
        Some("hosts") => hosts(scanner, &mut state, &texts),
        Some("calls") => calls(&texts),
        Some("chunks") => {
            let size = case.chunk.unwrap_or(1);
            let mut findings: Vec<_> =
                texts[0].chunks(size).flat_map(|chunk| scanner.feed(&mut state, &location, chunk)).collect();
            findings.extend(scanner.finish(&mut state));
            findings
        }
        Some(other) => panic!("{}: unknown mode {other}", case.n),
        None => {
            let body = |text: &[u8]| match case.z.as_deref() {
                None => text.to_vec(),
                Some("broken") => b"this is not compressed".to_vec(),
                Some(name) => encode::compress(Compression::named(name).unwrap(), text),
            };
            location.compression =
                case.z.as_deref().map(|name| Compression::named(name).unwrap_or(Compression::Gzip));
            texts.iter().flat_map(|text| scanner.scan_whole(&mut state, &location, &body(text))).collect()
        }
    }
}

fn mcp(scanner: &Scanner, texts: &[Vec<u8>]) -> Vec<Finding> {
    let mut session =
        Session::new(state(Direction::Outbound, false), state(Direction::Inbound, false), Pins::default());
    let scan = |text: &Vec<u8>| {
        let direction = if text.starts_with(b"> ") { Direction::Outbound } else { Direction::Inbound };
        session.scan(scanner, direction, &text[2..])
    };
    texts.iter().flat_map(scan).collect()
}

fn hosts(scanner: &Scanner, state: &mut State, texts: &[Vec<u8>]) -> Vec<Finding> {
    let mut hosts = Hosts::default();
    let names = texts
        .iter()
        .flat_map(|text| String::from_utf8_lossy(text).lines().map(str::to_owned).collect::<Vec<_>>());
    names.flat_map(|name| hosts.observe(scanner, state, &name, 0)).collect()
}

fn calls(texts: &[Vec<u8>]) -> Vec<Finding> {
    let mut calls = Calls::default();
    let observe = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text);
        let (tool, arguments) = text.split_once(' ').unwrap();
        calls.observe(Sequences::builtin(), tool, arguments)
    };
    texts.iter().flat_map(observe).collect()
}
