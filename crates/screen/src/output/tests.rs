use std::time::Duration;

use hutch_policy::{Authority, Door, Level};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::reader::Reader;

/// Made up, in the form of a token of GitHub.
fn token() -> String {
    format!("ghp_{}", "k3J9xQ2mZ7vB4nT8wL1cR6yD5fH0sG2aP9eU")
}

fn output(door: Door, action: &str) -> Output {
    let scanner = serde_json::from_value(serde_json::json!({door.name(): action})).ok();
    let level = Level { scanner, ..Level::new(Authority::Namespace, "p", None) };
    let screen = Screen::of(&[level], door).expect("the door is scanned");
    Output::new(screen, Origin { pod: "n/a".into(), part: "main".into() })
}

fn all(output: &mut Output, pieces: &[&[u8]]) -> Result<String, Found> {
    let mut passed = Vec::new();
    for piece in pieces {
        output.take(piece);
        while output.is_full() {
            passed.extend(output.pass(Until::Window)?);
        }
    }
    passed.extend(output.finish()?);
    Ok(String::from_utf8_lossy(&passed).into_owned())
}

#[test]
fn secret_is_replaced_in_a_log() {
    let token = token();
    let text = format!("begin\ntoken is {token} here\nend\n");
    let redacted = all(&mut output(Door::Logs, "Redact"), &[text.as_bytes()]).unwrap();
    assert_eq!(redacted, "begin\ntoken is [redacted: github-pat] here\nend\n");
    let blocked = all(&mut output(Door::Logs, "Block"), &[text.as_bytes()]).unwrap();
    assert_eq!(blocked, "begin\n[redacted: github-pat]\nend\n", "the whole line");
    assert_eq!(all(&mut output(Door::Logs, "Log"), &[text.as_bytes()]).unwrap(), text);
}

/// Audit log of a test: action and number of further findings.
#[derive(Default)]
struct Recorded(std::sync::Mutex<Vec<(ScanAction, Option<u32>)>>);

impl crate::Findings for Recorded {
    fn record(&self, sighting: &crate::Sighting<'_>) {
        let mut all = self.0.lock().unwrap();
        assert_eq!((&*sighting.origin.pod, &*sighting.found.policy), ("n/a", "p"));
        assert!(!format!("{sighting:?}").contains(&token()), "the text is not in it");
        if sighting.found.rule == "github-pat" || sighting.found.rule == "too-complex" {
            all.push((sighting.action, sighting.further));
        }
    }
}

/// Returns what is recorded of an output in pieces, also if it is dropped before its end.
fn recorded(door: Door, action: &str, pieces: &[&[u8]], ends: bool) -> Vec<(ScanAction, Option<u32>)> {
    let log = std::sync::Arc::new(Recorded::default());
    let scanner = serde_json::from_value(serde_json::json!({door.name(): action})).ok();
    let level = Level { scanner, ..Level::new(Authority::Namespace, "p", None) };
    let screen = Screen::of(&[level], door).expect("the door is scanned").recorded(log.clone());
    let mut output = Output::new(screen, Origin { pod: "n/a".into(), part: "main".into() });
    let refused = pieces.iter().any(|piece| {
        output.take(piece);
        output.pass(Until::Line).is_err()
    });
    if ends && !refused {
        let _ = output.finish();
    }
    drop(output);
    std::mem::take(&mut *log.0.lock().unwrap())
}

#[test]
fn repeats_of_a_rule_are_counted() {
    let line = format!("token {}\n", token());
    let other = line.replace("k3J9", "k3J8");
    let (line, other) = (line.as_bytes(), other.as_bytes());
    let one = |action| vec![(action, None)];
    for (door, name, action) in [
        (Door::Logs, "Log", ScanAction::Log),
        (Door::Exec, "Redact", ScanAction::Redact),
        (Door::Downloads, "Block", ScanAction::Block),
        (Door::Logs, "Block", ScanAction::Block),
    ] {
        assert_eq!(recorded(door, name, &[line], true), one(action), "{name}");
    }
    assert_eq!(recorded(Door::Exec, "Block", &[line, line], true), one(ScanAction::Block), "it has ended");
    let further = |count| (ScanAction::Redact, Some(count));
    for ends in [true, false] {
        let found = recorded(Door::Logs, "Redact", &[line, b"x\n", other, line], ends);
        assert_eq!(found, [(ScanAction::Redact, None), further(2)], "{ends}");
        let many = recorded(Door::Exec, "Redact", &vec![line; 150], ends);
        assert_eq!(many, [(ScanAction::Redact, None), further(10), further(100), further(39)], "{ends}");
    }
    assert_eq!(recorded(Door::Exec, "Log", &[b"nothing\n"], true), []);
}

#[test]
fn secret_ends_the_output_of_a_command() {
    let text = format!("begin\n{}\n", token());
    let refused = all(&mut output(Door::Exec, "Block"), &[text.as_bytes()]).unwrap_err();
    assert_eq!((refused.rule.as_str(), &*refused.policy), ("github-pat", "p"));
    assert!(!format!("{refused} {refused:?}").contains(&token()), "the finding has no text");
    let redacted = all(&mut output(Door::Exec, "Redact"), &[text.as_bytes()]).unwrap();
    assert_eq!(redacted, "begin\n[redacted: github-pat]\n");
}

#[test]
fn unfinished_line_of_a_log_is_held() {
    let (token, mut log) = (token(), output(Door::Logs, "Redact"));
    let (first, second) = token.split_at(20);
    log.take(format!("a\ntoken {first}").as_bytes());
    assert_eq!(log.pass(Until::Line).unwrap(), b"a\n");
    log.take(format!("{second}\nb").as_bytes());
    assert_eq!(log.pass(Until::Line).unwrap(), b"token [redacted: github-pat]\n");
    assert_eq!(log.finish().unwrap(), b"b");
}

#[test]
fn encoded_secret_is_replaced() {
    let hex: String = format!("token {}", token()).bytes().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("dump {hex} end\n");
    let redacted = all(&mut output(Door::Logs, "Redact"), &[text.as_bytes()]).unwrap();
    assert!(redacted.contains("[redacted: github-pat]") && redacted.ends_with(" end\n"), "{redacted}");
    assert!(!redacted.contains(&hex[12..]), "{redacted}");
}

#[test]
fn output_that_cannot_be_scanned_is_recorded_replaced_or_refused() {
    // More layers of percent-encoding than are decoded.
    let line = format!("%{}41 end\n", "25".repeat(12));
    let pieces = ["before\n", &line, "then\n", &line];
    for (door, action, expected) in [
        (Door::Logs, "Log", vec![(ScanAction::Log, None)]),
        (Door::Logs, "Block", vec![(ScanAction::Block, None)]),
        (Door::Exec, "Block", vec![(ScanAction::Block, None)]),
        (Door::Downloads, "Redact", vec![(ScanAction::Block, None)]),
    ] {
        let found = recorded(door, action, &[pieces[0].as_bytes(), line.as_bytes()], true);
        assert_eq!(found, expected, "{action}");
    }
    let refused = all(&mut output(Door::Exec, "Block"), &[line.as_bytes()]).unwrap_err();
    assert_eq!(refused.rule, "too-complex");
    // A log does not end: its lines are replaced, also further ones.
    let mut log = output(Door::Logs, "Redact");
    let mut passed = Vec::new();
    for piece in pieces {
        log.take(piece.as_bytes());
        passed.extend(log.pass(Until::Line).unwrap());
    }
    let passed = String::from_utf8(passed).unwrap();
    assert!(passed.starts_with("before\n[redacted: too-complex]\n") && !passed.contains(&line), "{passed}");
}

#[test]
fn compressed_download_ends_before_its_last_bytes() {
    // gzip of a line with the token, made by the test's own writer of stored blocks.
    let text = format!("token {}\n", token());
    let zipped = stored_gzip(text.as_bytes());
    let refused = all(&mut output(Door::Downloads, "Redact"), &[&zipped]).unwrap_err();
    assert_eq!((refused.rule.as_str(), refused.view.as_str()), ("github-pat", "gzip"));
    assert!(all(&mut output(Door::Downloads, "Log"), &[&zipped]).is_ok());
    assert!(all(&mut output(Door::Downloads, "Block"), &[&stored_gzip(b"nothing")]).is_ok());
}

/// Returns gzip with stored blocks. Its bytes are not those of the text: each is in a block of its own.
fn stored_gzip(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    for (index, byte) in text.iter().enumerate() {
        bytes.extend([u8::from(index + 1 == text.len()), 1, 0, 0xfe, 0xff, *byte]);
    }
    let mut crc = !0_u32;
    for byte in text {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    bytes.extend((!crc).to_le_bytes());
    bytes.extend(u32::try_from(text.len()).unwrap_or_default().to_le_bytes());
    bytes
}

#[test]
fn reports_are_bounded() {
    let mut log = output(Door::Logs, "Redact");
    for index in 0..REPORTED + 10 {
        log.is_new((index.to_string(), Fingerprint([0; 8])));
    }
    assert_eq!(log.reported.len(), REPORTED);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Wherever the pieces end, the secret is replaced and the rest is as it was.
    #[test]
    fn pieces_do_not_matter(before in 0_usize..20_000, after in 0_usize..10_000, sizes in prop::collection::vec(1_usize..9000, 1..12)) {
        let (filler, token) = ("a line of a log\n".repeat(2000), token());
        let text = format!("{}\n{token}\n{}", &filler[..before], &filler[..after]);
        let (mut pieces, mut rest) = (Vec::new(), text.as_bytes());
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at(rest.len().min(*size));
            pieces.push(piece);
            rest = left;
        }
        for door in [Door::Logs, Door::Exec, Door::Downloads] {
            let passed = all(&mut output(door, "Redact"), &pieces).unwrap();
            prop_assert_eq!(passed, text.replace(&token, "[redacted: github-pat]"));
        }
    }

    /// Any bytes pass, and those without a finding unchanged.
    #[test]
    fn any_bytes_are_handled(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 0..6)) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let mut log = output(Door::Logs, "Log");
        let mut passed = Vec::new();
        for piece in &pieces {
            log.take(piece);
            passed.extend(log.pass(Until::Line).unwrap());
            while log.is_full() {
                passed.extend(log.pass(Until::Window).unwrap());
            }
        }
        passed.extend(log.finish().unwrap());
        prop_assert_eq!(passed, pieces.concat());
    }
}

#[tokio::test(start_paused = true)]
async fn terminal_waits_a_moment_only() {
    let (refused, _ends) = mpsc::channel(1);
    let (mut process, stream) = tokio::io::duplex(1 << 16);
    let hold = Duration::from_millis(25);
    let mut reader = Reader::new(stream, output(Door::Exec, "Redact"), hold, refused);
    let mut buffer = [0; 100];
    process.write_all(b"$ ").await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(reader.read(&mut buffer).await.unwrap(), 2);
    assert!(began.elapsed() >= hold && began.elapsed() < 2 * hold, "{:?}", began.elapsed());
    let token = token();
    let (first, second) = token.split_at(10);
    process.write_all(first.as_bytes()).await.unwrap();
    let rest = tokio::spawn(async move {
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        text
    });
    tokio::time::sleep(hold / 5).await;
    process.write_all(second.as_bytes()).await.unwrap();
    drop(process);
    assert_eq!(rest.await.unwrap(), "[redacted: github-pat]");
}

#[tokio::test]
async fn blocked_stream_ends_and_says_why() {
    let (refused, mut ends) = mpsc::channel(1);
    let text = format!("a\n{}\n{}", token(), "b".repeat(100));
    let mut reader =
        Reader::new(text.as_bytes(), output(Door::Exec, "Block"), Duration::from_secs(1), refused);
    let mut passed = String::new();
    reader.read_to_string(&mut passed).await.unwrap();
    assert!(!passed.contains("ghp_"), "{passed}");
    assert_eq!(ends.recv().await.map(|found| found.rule).as_deref(), Some("github-pat"));
}
