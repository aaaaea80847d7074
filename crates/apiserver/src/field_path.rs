//! Paths of fields in messages, such as `spec.containers[0].image`, and the messages about the fields of one object.
//!
//! A client chooses the names of fields and the number of values below them. So a walk keeps its steps and joins them for a
//! finding only, and both the findings and the length of a path in a message are bounded.

use std::fmt;
use std::iter;

/// Maximum number of findings that are reported about one object.
pub(crate) const MAX_FINDINGS: usize = 100;
/// Maximum number of findings that are compared with the reported ones: the same field may appear any number of times.
const MAX_COMPARED: usize = 1000;
/// Maximum length of a path in a message, in bytes. A longer one ends with three dots.
const MAX_LENGTH: usize = 1024;

/// Path of a value during a walk through an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldPath<'a> {
    above: Option<&'a FieldPath<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
    Key(&'a str),
}

impl<'a> FieldPath<'a> {
    /// Path of the object itself.
    pub(crate) const ROOT: FieldPath<'static> = FieldPath { above: None, step: Step::Root };

    /// Path of a field of this value.
    pub(crate) fn field(&'a self, name: &'a str) -> FieldPath<'a> {
        FieldPath { above: Some(self), step: Step::Field(name) }
    }

    /// Path of an item of this list.
    pub(crate) fn item(&'a self, index: usize) -> FieldPath<'a> {
        FieldPath { above: Some(self), step: Step::Item(index) }
    }

    /// Path of the value that this map has for a key, in brackets.
    pub(crate) fn key(&'a self, key: &'a str) -> FieldPath<'a> {
        FieldPath { above: Some(self), step: Step::Key(key) }
    }

    fn join(&self) -> String {
        let mut steps: Vec<Step<'_>> =
            iter::successors(Some(self), |path| path.above).map(|path| path.step).collect();
        let mut text = String::new();
        while let Some(step) = steps.pop() {
            match step {
                Step::Root => {}
                Step::Field(name) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(start(name));
                }
                Step::Item(index) => text.push_str(&format!("[{index}]")),
                Step::Key(key) => text.push_str(&format!("[{}]", start(key))),
            }
            if text.len() > MAX_LENGTH {
                break;
            }
        }
        let text = shortened(text);
        #[cfg(test)]
        tests::JOINED.with(|joined| joined.set(joined.get() + text.len()));
        text
    }
}

/// The part of a name that a path can contain.
pub(crate) fn start(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_LENGTH + 1)]
}

/// Cuts a path to the length that a message may contain.
pub(crate) fn shortened(mut path: String) -> String {
    if path.len() > MAX_LENGTH {
        path.truncate(path.floor_char_boundary(MAX_LENGTH - 3));
        path.push_str("...");
    }
    path
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.join())
    }
}

impl From<FieldPath<'_>> for String {
    fn from(path: FieldPath<'_>) -> String {
        path.join()
    }
}

/// Messages about the fields of one object, each once.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    messages: Vec<String>,
    compared: usize,
}

impl Findings {
    /// Adds a message that contains a path.
    pub(crate) fn add(&mut self, message: fmt::Arguments<'_>) {
        if self.messages.len() == MAX_FINDINGS || self.compared == MAX_COMPARED {
            return;
        }
        self.compared += 1;
        let message = message.to_string();
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    pub(crate) fn into_messages(self) -> Vec<String> {
        self.messages
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Length of all paths that this thread has joined, in bytes.
        pub(crate) static JOINED: Cell<usize> = const { Cell::new(0) };
    }

    /// Length of the paths that a call joins, in bytes.
    pub(crate) fn joined_by(call: impl FnOnce()) -> usize {
        let before = JOINED.get();
        call();
        JOINED.get() - before
    }

    /// Maximum length of the paths that are joined for one object, in bytes.
    pub(crate) const MAX_JOINED: usize = MAX_COMPARED * MAX_LENGTH;

    #[test]
    fn path_has_fields_items_and_keys() {
        let (spec, root) = (FieldPath::ROOT.field("spec"), FieldPath::ROOT);
        let list = spec.field("list");
        let item = list.item(7);
        assert_eq!(item.field("name").to_string(), "spec.list[7].name");
        assert_eq!(list.key("a.b").to_string(), "spec.list[a.b]");
        assert_eq!(root.to_string(), "");
        assert_eq!(root.item(0).to_string(), "[0]");
    }

    #[test]
    fn path_that_is_too_long_ends_with_dots() {
        let long = "é".repeat(5000);
        let field = FieldPath::ROOT.field(&long);
        let path = field.field("below").to_string();
        assert!(path.len() <= MAX_LENGTH, "{}", path.len());
        assert!(path.starts_with("éé") && path.ends_with("é..."), "{path}");
        assert!(field.key(&long).to_string().len() <= MAX_LENGTH);
    }

    #[test]
    fn findings_are_bounded_and_each_is_reported_once() {
        let mut findings = Findings::default();
        for index in 0..10_000 {
            findings.add(format_args!("field {}", index / 2));
        }
        assert_eq!(findings.messages.len(), MAX_FINDINGS);
        let mut findings = Findings::default();
        (0..10_000).for_each(|_| findings.add(format_args!("{}", FieldPath::ROOT.field("a"))));
        assert_eq!((findings.compared, findings.into_messages()), (MAX_COMPARED, vec!["a".to_owned()]));
    }
}
