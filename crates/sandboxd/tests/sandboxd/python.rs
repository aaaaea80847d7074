//! Compares the splitting of command lines with `shlex` of the installed python3.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

const PROGRAM: &str = "
import json, shlex, sys
def split(line):
    try:
        return shlex.split(line)
    except ValueError as error:
        return str(error)
json.dump([split(line) for line in json.load(sys.stdin)], sys.stdout)
";

#[test]
fn splits_as_python_does() {
    hutch_testkit::require!(python);
    let mut lines: Vec<String> =
        ["", "a b", "'a'\"b\" c", r#"a "b\c\"" \d"#, "#x", "a\\", "\"", "\u{b}x\u{2003}y", "''''", "x'' ''y"]
            .map(str::to_owned)
            .to_vec();
    let mut runner = TestRunner::deterministic();
    let strategy = r#"[ab '"\\\n\t\r$#|;é€\u{0}\u{b}\u{a0}]{0,14}"#;
    lines.extend((0..3000).map(|_| strategy.new_tree(&mut runner).unwrap().current()));
    let mut python = Command::new("python3");
    let mut python =
        python.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(&serde_json::to_vec(&lines).unwrap()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let expected: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(expected.len(), lines.len());
    for (line, expected) in lines.iter().zip(expected) {
        let own = hutch_sandboxd::shlex::split(line)
            .map_or_else(|error| error.to_string().into(), serde_json::Value::from);
        assert_eq!(own, expected, "{line:?}");
    }
}
