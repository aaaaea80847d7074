//! Hostile tests of the parsers, from arbitrary bytes.

use crate::event::Record;
use crate::head::Head;
use crate::line::{append, parse};
use crate::view::{Filter, Summary, View};

/// Parses any line of a log and shows its event. A line that is accepted is the one that would be written.
pub fn line(bytes: &[u8]) {
    if let Some(line) = parse(bytes) {
        let mut written = Vec::new();
        let hash = append(&mut written, line.seq, &line.prev, line.event);
        assert_eq!(line.is_intact(), hash == line.hash);
        if line.is_intact() {
            assert_eq!(written.strip_suffix(b"\n"), Some(bytes));
        }
        event(line.event);
    }
    event(bytes);
}

fn event(bytes: &[u8]) {
    let view = View::parse(bytes);
    let shown = view.to_string();
    assert!(!shown.contains(char::is_control) && shown.len() < 8192, "{shown:?}");
    let mut summary = Summary::default();
    summary.add(&view);
    assert!(!summary.to_string().contains(|c: char| c.is_control() && c != '\n'));
    let _ =
        Filter { sandbox: Some(crate::Selector::Sandbox("a/b".into())), ..Filter::default() }.selects(&view);
    if let Ok(record) = Record::from_bytes(bytes.to_vec()) {
        assert!(!record.as_bytes().contains(&b'\n'));
    }
}

/// Parses any signed head.
pub fn head(bytes: &[u8]) {
    if let Some(head) = Head::parse(bytes) {
        assert_eq!(head.line().as_bytes(), bytes);
        assert!(head.statement().is_some());
    }
}

/// Reads any part of an answer of a receiver: its body, its message of gRPC, and fields of its head.
pub fn answer(bytes: &[u8]) {
    crate::export::any_answer(bytes);
}

/// Answers a request to a receiver with any bytes.
pub fn exchange(bytes: &[u8]) {
    crate::export::any_exchange(bytes);
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_line_is_parsed() {
        feed("audit_lines", super::line);
    }

    #[test]
    fn any_answer_of_a_receiver_is_read() {
        feed("audit_answers", super::answer);
        feed("audit_exchanges", super::exchange);
    }

    #[test]
    fn any_head_is_parsed() {
        feed("audit_heads", super::head);
    }
}
