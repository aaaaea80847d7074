//! The table of messages, read from `messages.txt` when the first Protobuf body arrives.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The fields of one message.
pub(super) struct Message(Vec<Field>);

/// One field of a message.
pub(super) struct Field {
    number: u32,
    /// Its name in JSON; empty if its own fields stand in the parent.
    pub(super) name: &'static str,
    pub(super) kind: Type,
    pub(super) is_list: bool,
    pub(super) is_map: bool,
    /// True if JSON leaves it out when it is zero.
    pub(super) leave_out_zero: bool,
}

/// Type of a field.
pub(super) enum Type {
    Text,
    Bytes,
    Bool,
    Integer,
    Double,
    Message(&'static str),
    /// A message that code reads: times, quantities, embedded JSON.
    Special(&'static str),
}

impl Message {
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        self.0.iter().find(|field| field.number == number)
    }
}

/// Kind of the body of a delete.
const DELETE_OPTIONS: &str = "DeleteOptions";

static TEXT: &str = include_str!("messages.txt");

#[derive(Default)]
struct Table {
    roots: HashMap<(&'static str, &'static str), &'static str>,
    messages: HashMap<&'static str, Message>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::default();
    for line in TEXT.lines() {
        if let Some((kind, message)) = line.split_once(" = ") {
            table.roots.extend(kind.split_once(' ').map(|kind| (kind, message)));
        } else {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            table.messages.insert(name, Message(words.filter_map(field).collect()));
        }
    }
    table
});

fn field(word: &'static str) -> Option<Field> {
    let mut parts = word.splitn(3, ':');
    let (number, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let leave_out_zero = kind.starts_with('?');
    let kind = kind.trim_start_matches(['?', '*']);
    let (is_list, is_map) = (kind.starts_with("[]"), kind.starts_with("{}"));
    let kind = match kind.trim_start_matches(['[', ']', '{', '}']) {
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "int" => Type::Integer,
        "double" => Type::Double,
        name if name.contains('.') => Type::Message(name),
        name => Type::Special(name),
    };
    Some(Field { number, name, kind, is_list, is_map, leave_out_zero })
}

/// The message of a kind. As in Kubernetes, every group has `DeleteOptions`: clients send those of the group that they
/// delete from.
pub(super) fn root(api_version: &str, kind: &str) -> Option<&'static Message> {
    let api_version = if kind == DELETE_OPTIONS { "v1" } else { api_version };
    message(TABLE.roots.get(&(api_version, kind))?)
}

/// The message of that name.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    TABLE.messages.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let words: usize =
            TEXT.lines().filter(|l| !l.contains(" = ")).map(|l| l.split(' ').count() - 1).sum();
        assert_eq!(TABLE.messages.values().map(|m| m.0.len()).sum::<usize>(), words);
        assert!(TABLE.roots.values().all(|name| message(name).is_some()));
        for field in TABLE.messages.values().flat_map(|m| &m.0) {
            if let Type::Message(name) = field.kind {
                assert!(message(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn kinds_that_kubectl_sends_are_there() {
        for kind in crate::kinds::builtin() {
            assert!(root(&kind.api_version(), &kind.kind).is_some(), "{} {}", kind.api_version(), kind.kind);
        }
    }
}
