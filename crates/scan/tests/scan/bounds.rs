//! Bounds of a scan: what exceeds them is a finding of its own, and hides nothing.

use hutch_scan::{At, Compression, Direction, Location, Scanner, State};

use crate::encode;

/// Made of parts, so that scanners of repositories do not report this file.
fn token() -> String {
    ["gh", "p_", "q8Zk3mXw7Lp2Vt9Rb5Nc6Ha1Jd4Gs0Fy7Ue2"].concat()
}

fn rules(direction: Direction, text: &str) -> Vec<String> {
    rules_at(direction, &Location::new(At::Body), text.as_bytes())
}

fn rules_at(direction: Direction, location: &Location, bytes: &[u8]) -> Vec<String> {
    let findings = Scanner::builtin().scan_whole(&mut State::new(direction), location, bytes);
    findings.into_iter().map(|finding| finding.rule).collect()
}

/// Returns true if a text that leaves is too complex.
fn is_too_complex(text: &str) -> bool {
    rules(Direction::Outbound, text).contains(&"too-complex".to_owned())
}

/// The letter A with so many layers of percent-encoding.
fn percent(layers: usize) -> String {
    format!("%{}41", "25".repeat(layers - 1))
}

/// The letter A with so many layers of escapes, each of which needs a decoder.
fn escapes(layers: usize) -> String {
    format!("\\{}x41", "x5c".repeat(layers - 1))
}

/// Lines with both forms. Their views are about as long as they are themselves, and there are as many as orders of the layers.
fn lines(count: usize, forms: &str) -> String {
    let line = |number: usize| format!("The ship {number:05} leaves the harbor in the morning {forms}\n");
    (0..count).map(line).collect()
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

#[test]
fn more_than_eight_layers_of_percent_encoding_are_too_complex() {
    let text = |layers: usize| format!("The word is {} today", percent(layers));
    assert!(!is_too_complex(&text(8)));
    assert!(is_too_complex(&text(9)));
}

#[test]
fn more_than_four_decoders_in_a_row_are_too_complex() {
    let text = |layers: usize| format!("The ship leaves the harbor {} in the morning.", escapes(layers));
    assert!(!is_too_complex(&text(4)));
    assert!(is_too_complex(&text(5)));
}

/// Layers of two forms can be decoded in many orders, each of which is a view.
#[test]
fn more_than_256_views_are_too_complex() {
    let text = |of_percent, of_escapes| format!("It is {} {}", percent(of_percent), escapes(of_escapes));
    // 250 and 460 views: neither their bytes nor their layers exceed a bound.
    assert!(!is_too_complex(&text(4, 4)));
    assert!(is_too_complex(&text(5, 4)));
}

#[test]
fn views_that_are_much_longer_than_a_short_text_are_too_complex() {
    let text = |count| lines(count, &format!("{} {}", percent(3), escapes(2)));
    // 33 views of 5 KiB, and of 20 KiB.
    assert!(!is_too_complex(&text(75)));
    assert!(is_too_complex(&text(300)));
}

/// The body is compressed, because one that is not is scanned in blocks that are too short for the bound.
#[test]
fn views_of_more_than_4_mib_are_too_complex() {
    let location = Location { compression: Some(Compression::Gzip), ..Location::new(At::Body) };
    let found = |count| {
        let text = lines(count, &format!("{} {}", percent(3), escapes(1)));
        let body = encode::compress(Compression::Gzip, text.as_bytes());
        rules_at(Direction::Outbound, &location, &body).contains(&"too-complex".to_owned())
    };
    // 13 views of 100 KiB, and of 1 MiB.
    assert!(!found(1_600));
    assert!(found(16_000));
}
