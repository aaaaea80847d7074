//! Validates names and keys with Kubernetes' messages, which clients may compare; `None` means valid.

/// Message for an invalid DNS subdomain.
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// Message for an invalid DNS label.
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
/// Message for an invalid label value.
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// Message for an invalid name part, after the slash of a key.
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
/// Maximum bytes of a subdomain.
const SUBDOMAIN_BYTES: usize = 253;
/// Maximum bytes of a label, a label value and the name part of a key.
const LABEL_BYTES: usize = 63;

fn has_form_of_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn has_form_of_subdomain(text: &str) -> bool {
    text.split('.').all(has_form_of_label)
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// Returns `true` for a DNS label, the form of names of namespaces and of routable Sandboxes.
pub fn is_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES && has_form_of_label(text)
}

/// Returns `true` for a DNS subdomain, the form of names of most kinds.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_BYTES && has_form_of_subdomain(text)
}

/// Returns `true` for a valid path segment. Names of some kinds have other characters than a subdomain, but
/// never these: clients insert the name into a request path unescaped, so it could become another path.
pub fn is_path_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.len() <= SUBDOMAIN_BYTES
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%?#".contains(&byte))
}

/// Validates the name of most kinds.
pub fn subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_BYTES {
        wrong.push(format!("must be no more than {SUBDOMAIN_BYTES} characters"));
    }
    if !has_form_of_subdomain(text) {
        wrong.push(SUBDOMAIN.into());
    }
    wrong
}

/// Validates a name that is also a DNS label.
pub fn label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_BYTES {
        wrong.push(format!("must be no more than {LABEL_BYTES} characters"));
    }
    if !has_form_of_label(text) {
        let dots_alone = has_form_of_subdomain(text);
        wrong.push(if dots_alone { "must not contain dots".into() } else { LABEL.into() });
    }
    wrong
}

/// Validates a name that need only be a path segment, or a prefix of one.
pub fn segment(text: &str, whole: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if whole && matches!(text, "." | "..") {
        wrong.push(format!("may not be '{text}'"));
    }
    for sign in ['/', '%'] {
        if text.contains(sign) {
            wrong.push(format!("may not contain '{sign}'"));
        }
    }
    wrong
}

/// Validates the key of a label, an annotation or a finalizer.
pub fn key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".into());
            } else {
                if prefix.len() > SUBDOMAIN_BYTES {
                    wrong.push(format!("prefix part must be no more than {SUBDOMAIN_BYTES} bytes"));
                }
                if !has_form_of_subdomain(prefix) {
                    wrong.push(format!("prefix part {SUBDOMAIN}"));
                }
            }
            name
        }
        _ => {
            let sign = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            wrong.push(format!("a valid label key {NAME_PART} {sign}"));
            return wrong;
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > LABEL_BYTES {
        wrong.push(format!("name part must be no more than {LABEL_BYTES} bytes"));
    }
    if !is_name_part(name) {
        wrong.push(format!("name part {NAME_PART}"));
    }
    wrong
}

/// Returns `true` for a valid label value.
pub fn is_label_value(text: &str) -> bool {
    text.len() <= LABEL_BYTES && (text.is_empty() || is_name_part(text))
}

/// Validates a label value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_BYTES {
        wrong.push(format!("must be no more than {LABEL_BYTES} bytes"));
    }
    if !text.is_empty() && !is_name_part(text) {
        wrong.push(LABEL_VALUE.into());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_changes_the_path_is_invalid() {
        for name in ["a", "kube-root-ca.crt", "system:node"] {
            assert!(is_path_segment(name), "{name}");
        }
        for name in ["", ".", "..", "a/status", "../b", "a?watch=1", "a%2fb", "a#b", "a b", "a\n", "a\0", "ä"]
        {
            assert!(!is_path_segment(name), "{name:?}");
        }
        assert!(!is_path_segment(&"a".repeat(254)));
    }

    #[test]
    fn keys_and_values() {
        let long = "a".repeat(64);
        for (key, problems) in [
            ("a", vec![]),
            ("example.com/My_name.1", vec![]),
            ("", vec!["name part must be non-empty", "name part must consist of "]),
            ("/a", vec!["prefix part must be non-empty"]),
            ("Example/a", vec!["prefix part a lowercase RFC 1123 subdomain must consist of "]),
            ("a/b/c", vec!["a valid label key must consist of "]),
            ("a./b c", vec!["prefix part a lowercase", "name part must consist of "]),
            (&long, vec!["name part must be no more than 63 bytes"]),
        ] {
            let found = super::key(key);
            assert_eq!(found.len(), problems.len(), "{key:?}: {found:?}");
            assert!(found.iter().zip(&problems).all(|(found, start)| found.starts_with(start)), "{found:?}");
        }
        assert!(label_value("").is_empty() && label_value("a.b-c_d").is_empty());
        assert_eq!(label_value(&long), ["must be no more than 63 bytes"]);
        assert!(label_value("a b")[0].starts_with("a valid label must be an empty string or "));
    }
}
