//! Ids of a message of JSON-RPC that is too long to be read: found while its bytes pass, with bounded memory.

use serde_json::Value;

/// Maximum bytes of a key or an id.
const TEXT: usize = 256;
/// Maximum messages of a batch.
const MESSAGES: usize = 1024;

/// Ids of the messages in one line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    /// Of requests, which wait for an answer.
    pub(super) requests: Vec<Value>,
    /// Of answers.
    pub(super) answers: Vec<Value>,
}

/// Finds the ids. A line that is not JSON may have any.
#[derive(Debug, Default)]
pub(super) struct Finder {
    ids: Ids,
    /// Open objects and lists.
    depth: usize,
    /// Depth within a message: 1, or 2 in a batch. Zero before the first byte.
    inside: usize,
    quoted: bool,
    escaped: bool,
    /// Key, or value of a member of the message, as far as it was read. `None` if it is too long or has parts.
    text: Option<Vec<u8>>,
    key: String,
    id: Option<Value>,
    is_request: bool,
}

impl Finder {
    /// Takes the next bytes of the line.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.step(*byte));
    }

    /// Returns the ids of the line.
    pub(super) fn finish(self) -> Ids {
        self.ids
    }

    fn step(&mut self, byte: u8) {
        if self.quoted {
            self.quoted = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return self.keep(byte);
        }
        match byte {
            b'"' => {
                self.quoted = true;
                self.keep(byte);
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => self.close(),
            b':' if self.depth == self.inside => {
                let text = self.text.replace(Vec::new()).unwrap_or_default();
                self.key = serde_json::from_slice(&text).unwrap_or_default();
            }
            b',' if self.depth == self.inside => self.member(),
            byte if byte.is_ascii_whitespace() => {}
            byte => self.keep(byte),
        }
    }

    /// Keeps a byte of a key, or of a value that is no object and no list.
    fn keep(&mut self, byte: u8) {
        if self.depth == self.inside
            && let Some(text) = &mut self.text
        {
            text.push(byte);
            if text.len() > TEXT {
                self.text = None;
            }
        }
    }

    fn open(&mut self, byte: u8) {
        if self.inside == 0 {
            self.inside = if byte == b'[' { 2 } else { 1 };
        }
        if self.depth == self.inside {
            self.text = None;
        }
        self.depth += 1;
        if self.depth == self.inside {
            (self.id, self.is_request, self.text) = (None, false, Some(Vec::new()));
        }
    }

    fn close(&mut self) {
        if self.depth == self.inside {
            self.member();
            let of = if self.is_request { &mut self.ids.requests } else { &mut self.ids.answers };
            if let Some(id) = self.id.take().filter(|_| of.len() < MESSAGES) {
                of.push(id);
            }
        }
        self.depth = self.depth.saturating_sub(1);
    }

    /// Takes a member of a message.
    fn member(&mut self) {
        let text = self.text.replace(Vec::new());
        match std::mem::take(&mut self.key).as_str() {
            "id" => self.id = text.and_then(|text| serde_json::from_slice(&text).ok()),
            "method" => self.is_request = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_found_wherever_they_stand() {
        let long = "x".repeat(1000);
        let nested =
            json!({"id": 9, "method": "m", "text": "a \" } ] , : { \\", "list": [[{"id": 8}], long]});
        let cases = [
            (json!({"id": 7, "jsonrpc": "2.0", "result": nested}).to_string(), vec![], vec![json!(7)]),
            (
                format!(r#"{{"result":{nested}, "jsonrpc":"2.0", "id" : "a\"b" }}"#),
                vec![],
                vec![json!("a\"b")],
            ),
            (format!(r#"{{"method":"m","params":{nested},"id":-1.5}}"#), vec![json!(-1.5)], vec![]),
            (format!(r#"{{"method":"m","params":{nested}}}"#), vec![], vec![]),
            (
                format!(r#" [{{"id":1,"result":{nested}}}, {{"id":2,"method":"m"}}]"#),
                vec![json!(2)],
                vec![json!(1)],
            ),
            (format!(r#"{{"id":"{long}","result":1}}"#), vec![], vec![]),
            (format!(r#"{{"id":{nested},"result":1}}"#), vec![], vec![]),
            ("no json } ] : , \" {".to_owned(), vec![], vec![]),
        ];
        for (text, requests, answers) in cases {
            let mut finder = Finder::default();
            text.as_bytes().chunks(3).for_each(|piece| finder.feed(piece));
            assert_eq!(finder.finish(), Ids { requests, answers }, "{text}");
        }
    }
}
