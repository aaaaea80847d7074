//! Untrusted text: bounded, without control characters, and without what is likely a secret.

use serde::Serialize;

/// Text of a record. Control characters and invisible ones are escaped, and its length is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Text(String);

/// Maximum bytes of a name.
pub const NAME_MAX: usize = 253;
/// Maximum bytes of a longer text, such as a path or a reason.
pub const TEXT_MAX: usize = 1024;
/// Maximum bytes of the arguments of a command.
pub const COMMAND_MAX: usize = 2048;
/// Mark of a text that was cut.
const CUT: char = '…';
/// Replaces a secret.
const MASK: &str = "***";

impl Text {
    /// Returns a text of at most this many bytes, and the mark of a cut.
    pub fn new(text: &str, max: usize) -> Text {
        let mut plain = String::with_capacity(text.len().min(max));
        for character in text.chars() {
            let escaped = character.is_control() || is_invisible(character);
            let length = if escaped { character.escape_unicode().len() } else { character.len_utf8() };
            if plain.len() + length > max {
                plain.push(CUT);
                break;
            }
            match escaped {
                true => plain.extend(character.escape_unicode()),
                false => plain.push(character),
            }
        }
        Text(plain)
    }

    /// Returns a short text.
    pub fn name(text: &str) -> Text {
        Text::new(text, NAME_MAX)
    }

    /// Returns a longer text.
    pub fn long(text: &str) -> Text {
        Text::new(text, TEXT_MAX)
    }

    /// Returns the path of a URL without its query, which may hold secrets.
    pub fn path(path: &str) -> Text {
        let end = path.find(['?', '#']).unwrap_or(path.len());
        Text::long(&path[..end])
    }

    /// Returns the arguments of a command in one line. What is likely a secret is masked.
    pub fn command(arguments: &[impl AsRef<str>]) -> Text {
        let mut line = String::new();
        let mut follows_secret = false;
        for argument in arguments {
            let argument = argument.as_ref();
            if !line.is_empty() {
                line.push(' ');
            }
            let shown = if follows_secret { MASK.to_owned() } else { masked(argument) };
            follows_secret = argument.starts_with('-') && !argument.contains('=') && names_secret(argument);
            let plain =
                !shown.is_empty() && !shown.contains(|c: char| c.is_whitespace() || "'\"\\".contains(c));
            match plain {
                true => line.push_str(&shown),
                false => line.push_str(&format!("'{}'", shown.replace('\'', "'\\''"))),
            }
            // The rest would be cut.
            if line.len() > COMMAND_MAX {
                break;
            }
        }
        Text::new(&line, COMMAND_MAX)
    }

    /// Returns it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns true for characters that are not shown, or change how others are.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Names of options, variables and headers whose values are secrets, in lower case.
const SECRET_NAMES: [&str; 13] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "access-key",
    "access_key",
];
/// Words before a secret.
const SCHEMES: [&str; 4] = ["bearer", "basic", "token", "apikey"];
/// Starts of well-known secrets.
const PREFIXES: [&str; 12] =
    ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "sk-", "AKIA", "ASIA", "eyJ", "npm_"];
/// Minimum bytes of a word with such a start.
const SECRET_LENGTH: usize = 16;

fn names_secret(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
        || matches!(name.as_str(), "pwd" | "pass" | "auth")
}

/// Returns true for the name of an environment variable.
fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Secret that a word announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Secret {
    /// No secret.
    None,
    /// The next word.
    Word,
    /// The words up to a quote or the end of the command.
    Words,
    /// Everything up to this quote.
    Quoted(char),
}

/// Returns an argument with values of variables, of secret options and headers, and well-known secrets masked. It may be
/// a script.
fn masked(argument: &str) -> String {
    let mut shown = String::with_capacity(argument.len());
    let mut secret = Secret::None;
    let mut rest = argument;
    while let Some(first) = rest.chars().next() {
        if let Secret::Quoted(quote) = secret {
            let end = rest[1..].find(quote).map_or(rest.len(), |end| end + 2);
            shown.push_str(&format!("{quote}{MASK}{quote}"));
            (rest, secret) = (&rest[end..], Secret::None);
            continue;
        }
        let separates = |c: char| c.is_whitespace() || "\"'`;&|,?(){}<>".contains(c);
        let word = &rest[..rest.find(separates).unwrap_or(rest.len())];
        if word.is_empty() {
            if matches!(first, '"' | '\'' | '\n' | '\r' | ';' | '&' | '|') {
                secret = Secret::None;
            }
            shown.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        rest = &rest[word.len()..];
        secret = match secret {
            Secret::Words | Secret::Word => {
                let is_scheme = SCHEMES.contains(&word.to_ascii_lowercase().as_str());
                shown.push_str(if is_scheme { word } else { MASK });
                if secret == Secret::Words || is_scheme { Secret::Words } else { Secret::None }
            }
            _ => mask_word(word, rest, &mut shown),
        };
    }
    shown
}

/// Adds a word. Returns the secret that follows it.
fn mask_word(word: &str, rest: &str, shown: &mut String) -> Secret {
    if let Some((scheme, after)) = word.split_once("://")
        && let Some((_, place)) = after.split('/').next().and_then(|place| place.rsplit_once('@'))
    {
        let path = &after[after.find('/').unwrap_or(after.len())..];
        shown.push_str(&format!("{scheme}://{MASK}@{place}{path}"));
        return Secret::None;
    }
    if let Some(at) = word.find(['=', ':']) {
        let (name, value) = (&word[..at], &word[at + 1..]);
        let is_assigned = word.as_bytes()[at] == b'=';
        if names_secret(name) || (is_variable(name) && is_assigned) {
            shown.push_str(&word[..=at]);
            if !value.is_empty() {
                shown.push_str(MASK);
                return Secret::None;
            }
            return match rest.chars().next() {
                Some(quote @ ('"' | '\'')) if is_assigned => Secret::Quoted(quote),
                Some(' ') if !is_assigned => Secret::Words,
                _ => Secret::None,
            };
        }
    }
    let known = word.len() >= SECRET_LENGTH && PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    shown.push_str(if known { MASK } else { word });
    let lower = word.to_ascii_lowercase();
    match SCHEMES[..2].contains(&lower.as_str()) || (word.starts_with('-') && names_secret(word)) {
        true => Secret::Word,
        false => Secret::None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        assert_eq!(Text::long("a\u{1b}[2J\n\u{202e}b").as_str(), "a\\u{1b}[2J\\u{a}\\u{202e}b");
        assert_eq!(Text::new("äääää", 5).as_str(), "ää…");
    }

    #[test]
    fn command_masks_secrets_and_quotes_arguments() {
        for (arguments, shown) in [
            (&["ls", "-l", "a b", ""][..], "ls -l 'a b' ''"),
            (&["env", "API_KEY=abc", "FOO=bar", "cmd"], "env API_KEY=*** FOO=*** cmd"),
            (&["curl", "-H", "Authorization: Bearer abc"], "curl -H 'Authorization: Bearer ***'"),
            (&["curl", "-H", "x-api-key: abc def"], "curl -H 'x-api-key: *** ***'"),
            (&["login", "--password", "hunter2", "--user=me"], "login --password *** --user=me"),
            (&["login", "--token=abc"], "login --token=***"),
            (&["git", "clone", "https://me:pw@a.example/b"], "git clone https://***@a.example/b"),
            (&["echo", "ghp_0123456789abcdefghij"], "echo ***"),
            (
                &["sh", "-c", "export TOKEN=\"a b\"; curl --password x y"],
                "sh -c 'export TOKEN=\"***\"; curl --password *** y'",
            ),
            (
                &["sh", "-c", "curl -H \"Authorization: Basic abc\" u"],
                "sh -c 'curl -H \"Authorization: Basic ***\" u'",
            ),
            (
                &["curl", "https://a.example/?access_token=abc&b=c"],
                "curl https://a.example/?access_token=***&b=c",
            ),
        ] {
            assert_eq!(Text::command(arguments).as_str(), shown);
        }
    }

    #[test]
    fn path_has_no_query() {
        assert_eq!(Text::path("/a?token=x").as_str(), "/a");
        assert_eq!(Text::path("/a#b").as_str(), "/a");
    }

    proptest! {
        #[test]
        fn any_command_is_bounded_and_plain(arguments in proptest::collection::vec(".{0,200}", 0..20)) {
            let text = Text::command(&arguments);
            prop_assert!(text.as_str().len() <= COMMAND_MAX + CUT.len_utf8());
            prop_assert!(!text.as_str().contains(|c: char| c.is_control() || is_invisible(c)));
        }
    }
}
