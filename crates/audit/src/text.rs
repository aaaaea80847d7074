//! Untrusted text: bounded, without control characters, and without what is likely a secret.

mod mask;

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
/// Maximum bytes of a text before secrets are masked.
const MASKED_MAX: usize = 2 * COMMAND_MAX;

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

    /// Returns the path of a URL without its query and without segments that are likely secrets.
    pub fn path(path: &str) -> Text {
        let end = path.find(['?', '#']).unwrap_or(path.len());
        Text::long(&mask::path_of_url(start(&path[..end])))
    }

    /// Returns the path of a file without parts that are likely secrets.
    pub fn file(path: &str) -> Text {
        Text::long(&mask::path_of_url(start(path)))
    }

    /// Returns the program of a caller, such as the user agent of a request. What is likely a secret is masked.
    pub fn agent(agent: &str) -> Text {
        Text::name(&mask::agent(start(agent)))
    }

    /// Returns the name of the program that a first argument names. What is likely a secret is masked.
    pub fn program(argument: &str) -> Text {
        Text::name(&mask::program(start(argument)))
    }

    /// Returns a sentence, such as a reason, or a name that a program chose. What is likely a secret is masked.
    pub fn words(text: &str) -> Text {
        Text::long(&mask::words(start(text)))
    }

    /// Returns the name of a host. Labels that are likely secrets are masked.
    pub fn host(name: &str) -> Text {
        Text::name(&mask::host(start(name)))
    }

    /// Returns a longer text of any form. What is likely a secret is masked.
    pub fn masked(text: &str) -> Text {
        Text::long(&mask::Masker::default().argument(start(text)))
    }

    /// Returns the arguments of a command in one line. What is likely a secret is masked.
    pub fn command(arguments: &[impl AsRef<str>]) -> Text {
        let mut line = String::new();
        let mut masker = mask::Masker::default();
        for argument in arguments {
            if !line.is_empty() {
                line.push(' ');
            }
            let shown = masker.argument(start(argument.as_ref()));
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

/// Returns as much of a text as is worth masking. A secret may not be cut before its mask.
fn start(text: &str) -> &str {
    let mut end = text.len().min(MASKED_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns true for characters that are not shown, or change how others are.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
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
    fn secrets_in_reasons_and_names_are_masked() {
        let token = "ghp_0123456789abcdef0123456789abcdef";
        for (text, shown) in [
            (format!("it is for {token:?}"), "it is for \"***\""),
            (format!("no rule allows it (tools/call {token})"), "no rule allows it (tools/call ***)"),
            (
                "the token of bearer x is over; eyJhbGciOiJIUzI1NiJ9.e30.abcdef".to_owned(),
                "the token of bearer x is over; ***",
            ),
            (
                "tools/call search_everything_2 in policy \"sk-1\"".to_owned(),
                "tools/call search_everything_2 in policy \"sk-1\"",
            ),
        ] {
            assert_eq!(Text::words(&text).as_str(), shown);
        }
        for (name, shown) in [
            (format!("{token}.evil.example"), "***.evil.example"),
            ("akiaiosfodnn7example1.a.example".to_owned(), "***.a.example"),
            ("a.Zm9vYmFyMTIzNDU2Nzg5MEFCQ0RFRg.example".to_owned(), "a.***.example"),
            (
                "ec2-3-120-1-2.eu-central-1.compute.example".to_owned(),
                "ec2-3-120-1-2.eu-central-1.compute.example",
            ),
            ("[::1]:443".to_owned(), "[::1]:443"),
        ] {
            assert_eq!(Text::host(&name).as_str(), shown);
        }
    }

    #[test]
    fn secrets_of_any_text_are_masked() {
        let masked = Text::masked("image from ghp_0123456789abcdef0123456789abcdef with password=hunter2 ok");
        assert_eq!(masked.as_str(), "image from *** with password=*** ok");
        assert_eq!(Text::masked("no tag: nginx").as_str(), "no tag: nginx");
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
