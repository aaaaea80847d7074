//! What a label's key and value may look like, in the words of Kubernetes' own validation, which clients may compare. Pure.

/// Longest name, and longest label value, in bytes.
const NAME_BYTES: usize = 63;
/// Longest domain, in bytes.
const DOMAIN_BYTES: usize = 253;
/// What a name consists of.
const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
    character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
/// What a label's value consists of.
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
    start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// What a domain consists of.
const DOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
    start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Of a qualified name: `name` or `domain/name`.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    let mut problems = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [domain, name] => {
            problems
                .extend(domain_problems(domain).into_iter().map(|problem| format!("prefix part {problem}")));
            *name
        }
        _ => {
            let optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return Err(format!("a valid label key {NAME} {optional}"));
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    }
    problems.extend(too_long(name, NAME_BYTES).map(|problem| format!("name part {problem}")));
    if !is_name(name) {
        problems.push(format!("name part {NAME}"));
    }
    joined(problems)
}

pub(super) fn check_value(value: &str) -> Result<(), String> {
    let mut problems: Vec<_> = too_long(value, NAME_BYTES).into_iter().collect();
    if !value.is_empty() && !is_name(value) {
        problems.push(VALUE.to_owned());
    }
    joined(problems)
}

fn domain_problems(domain: &str) -> Vec<String> {
    if domain.is_empty() {
        return vec!["must be non-empty".to_owned()];
    }
    let mut problems: Vec<_> = too_long(domain, DOMAIN_BYTES).into_iter().collect();
    if !is_domain(domain) {
        problems.push(DOMAIN.to_owned());
    }
    problems
}

fn too_long(text: &str, longest: usize) -> Option<String> {
    (text.len() > longest).then(|| format!("must be no more than {longest} bytes"))
}

fn joined(problems: Vec<String>) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn is_name(text: &str) -> bool {
    let ends = text.bytes().next().zip(text.bytes().last());
    ends.is_some_and(|(first, last)| first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_domain(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.bytes().next().is_some_and(allowed)
            && part.bytes().last().is_some_and(allowed)
            && part.bytes().all(|byte| allowed(byte) || byte == b'-')
    };
    text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = check_key(key).err().unwrap_or_default();
            let found: Vec<_> = found.split("; ").filter(|problem| !problem.is_empty()).collect();
            assert_eq!(found.len(), problems.len(), "{key:?}: {found:?}");
            assert!(found.iter().zip(&problems).all(|(found, start)| found.starts_with(start)), "{found:?}");
        }
        assert_eq!((check_value(""), check_value("a.b-c_d")), (Ok(()), Ok(())));
        assert_eq!(check_value(&long), Err("must be no more than 63 bytes".into()));
        assert!(check_value("a b").unwrap_err().starts_with("a valid label must be an empty string or "));
    }
}
