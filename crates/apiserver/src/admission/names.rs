//! Validates names, keys and paths inside built-in objects, with Kubernetes' messages. An empty list means valid.

use serde_json::Value;

use crate::failure::Cause;

/// Maximum bytes of a key of a ConfigMap or a Secret, and of a reference to one.
const KEY_BYTES: usize = 253;
/// Maximum bytes of the name of a port.
const PORT_NAME_BYTES: usize = 15;
/// Message for a key with other characters than a file name may have.
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
/// Message for the name of an environment variable.
const VARIABLE: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";

/// Validates a key of a ConfigMap or a Secret. It becomes the name of a file in a volume.
pub(crate) fn key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > KEY_BYTES {
        wrong.push(format!("must be no more than {KEY_BYTES} characters"));
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        wrong.push(KEY.into());
    }
    match text {
        "." | ".." => wrong.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => wrong.push("must not start with '..'".into()),
        _ => {}
    }
    wrong
}

/// Validates the name of an environment variable, or a prefix of such names.
pub(crate) fn variable(text: &str) -> Vec<String> {
    let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=');
    if printable { Vec::new() } else { vec![VARIABLE.into()] }
}

/// Validates the name of a container's port.
pub(crate) fn port(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let lower = |byte: u8| byte.is_ascii_lowercase();
    if text.len() > PORT_NAME_BYTES {
        wrong.push(format!("must be no more than {PORT_NAME_BYTES} characters"));
    }
    if !text.bytes().all(|byte| lower(byte) || byte.is_ascii_digit() || byte == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(lower) {
        wrong.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".into());
    }
    wrong
}

/// Validates a path below a volume, which cannot lead out of it.
pub(crate) fn descending_path(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.starts_with('/') {
        wrong.push("must be a relative path".into());
    }
    wrong.extend(no_backsteps(text));
    wrong
}

/// Validates the path of a file in a volume. Names that start with `..` are reserved for the volume itself.
pub(crate) fn file_path(text: &str) -> Vec<String> {
    let mut wrong = descending_path(text);
    if text.starts_with("..") && !text.starts_with("../") {
        wrong.push("must not start with '..'".into());
    }
    wrong
}

/// Validates a path of the machine, which need not be relative.
pub(crate) fn no_backsteps(text: &str) -> Vec<String> {
    let leads_up = text.split('/').any(|part| part == "..");
    if leads_up { vec!["must not contain '..'".into()] } else { Vec::new() }
}

/// One cause for each message about a field.
pub(crate) fn invalid(field: &str, value: &str, wrong: Vec<String>) -> impl Iterator<Item = Cause> {
    let (field, value) = (field.to_owned(), Value::from(value));
    wrong.into_iter().map(move |message| Cause::invalid(field.as_str(), &value, &message))
}

/// Checks a text that must be one of some; an absent one is not checked.
pub(crate) fn must_be_one_of(field: &str, value: &Value, allowed: &[&str]) -> Option<Cause> {
    let given = value.as_str()?;
    if allowed.contains(&given) {
        return None;
    }
    let allowed: Vec<String> = allowed.iter().map(|one| format!("{one:?}")).collect();
    let message = format!("Unsupported value: {given:?}: supported values: {}", allowed.join(", "));
    Some(Cause::new("FieldValueNotSupported", field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_file_names() {
        for valid in ["a", "A_b-c.d", ".hidden", "1"] {
            assert!(key(valid).is_empty(), "{valid}");
        }
        for (invalid, messages) in
            [("", 1), ("a/b", 1), (".", 1), ("..", 1), ("..data", 1), ("../x", 2), ("a\n", 1), ("ä", 1)]
        {
            assert_eq!(key(invalid).len(), messages, "{invalid:?}: {:?}", key(invalid));
        }
        assert_eq!(key(&"a".repeat(253)).len(), 0);
        assert_eq!(key(&"a".repeat(254)), ["must be no more than 253 characters"]);
    }

    #[test]
    fn paths_stay_in_their_volume() {
        assert!(file_path("a/b..c/.d").is_empty());
        assert_eq!(file_path("a/../b"), ["must not contain '..'"]);
        assert_eq!(file_path("../b"), ["must not contain '..'"]);
        assert_eq!(file_path("..data"), ["must not start with '..'"]);
        assert_eq!(file_path("/../b"), ["must be a relative path", "must not contain '..'"]);
        assert_eq!(descending_path("..data").len(), 0);
    }

    #[test]
    fn ports_and_variables_have_names() {
        assert!(port("http-1").is_empty() && variable("a.b-c d").is_empty());
        assert_eq!(port("-1--2-").len(), 3);
        assert_eq!(port("Http").len(), 1);
        assert_eq!(port("a234567890123456").len(), 1);
        assert_eq!(variable("a=b").len() + variable("a\n").len() + variable("ä").len(), 3);
    }
}
