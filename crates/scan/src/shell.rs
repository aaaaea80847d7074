//! Words of a command, as a shell reads them: quotes inside words, escapes, `$IFS`, variables, braces and wildcards resolved.
//!
//! This is no shell. It rewrites the tricks that hide a known command from a search, so that the rules can match it.

use std::collections::BTreeMap;

use crate::finding::Step;
use crate::view::View;

/// Maximum bytes of a command.
const COMMAND: usize = 64 << 10;
/// Maximum bytes of the rewritten command.
const OUTPUT: usize = 256 << 10;
/// Maximum variables.
const VARIABLES: usize = 64;
/// Maximum words of one pair of braces.
const WORDS: usize = 64;
/// Paths and programs that a wildcard can stand for.
const KNOWN: [&str; 18] = [
    "/bin/cat",
    "/bin/sh",
    "/bin/bash",
    "/bin/nc",
    "/bin/rm",
    "/bin/ls",
    "/usr/bin/curl",
    "/usr/bin/wget",
    "/usr/bin/id",
    "/usr/bin/env",
    "/usr/bin/base64",
    "/usr/bin/python3",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/sudoers",
    "/root/.ssh/id_rsa",
    "~/.ssh/id_rsa",
    "~/.aws/credentials",
];

/// Returns the rewritten command; `None` if the command holds no trick.
pub(crate) fn plain(command: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(command).ok().filter(|text| text.len() <= COMMAND)?;
    if !text.contains(['\'', '"', '\\', '$', '{', '`', '?', '*', '[']) {
        return None;
    }
    let mut reader =
        Reader { rest: text, output: String::with_capacity(text.len()), variables: BTreeMap::new() };
    reader.read();
    let output = wildcards(&substitutions(&reader.output));
    (output != text).then(|| output.into_bytes())
}

/// Returns the view of a rewritten command, all of which comes from `range` of the root.
pub(crate) fn view(command: &[u8], range: std::ops::Range<usize>) -> Option<View<'static>> {
    Some(View::fixed(plain(command)?, vec![Step::Shell], range))
}

struct Reader<'a> {
    rest: &'a str,
    output: String,
    variables: BTreeMap<String, String>,
}

impl Reader<'_> {
    fn read(&mut self) {
        while let Some(letter) = self.next() {
            if self.output.len() > OUTPUT {
                return;
            }
            match letter {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(escaped) => self.output.push(escaped),
                },
                '\'' => {
                    let quoted = self.until('\'');
                    self.output.push_str(&quoted);
                }
                '"' => self.double(),
                '$' => self.dollar(),
                '{' => self.braces(),
                '=' => self.assignment(),
                other => self.output.push(other),
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    /// Takes the text up to a character, and the character.
    fn until(&mut self, end: char) -> String {
        let at = self.rest.find(end).unwrap_or(self.rest.len());
        let taken = self.rest[..at].to_owned();
        self.rest = self.rest.get(at + end.len_utf8()..).unwrap_or("");
        taken
    }

    fn double(&mut self) {
        while let Some(letter) = self.next() {
            match letter {
                '"' => return,
                '\\' => {
                    let escaped = self.next();
                    self.output.extend(escaped);
                }
                '$' => self.dollar(),
                other => self.output.push(other),
            }
            if self.output.len() > OUTPUT {
                return;
            }
        }
    }

    /// Reads what follows a dollar sign.
    fn dollar(&mut self) {
        if self.rest.starts_with('\'') {
            self.next();
            let quoted = self.until('\'');
            return self.output.push_str(&escapes(&quoted));
        }
        if self.rest.starts_with('(') {
            return self.output.push('$');
        }
        let (name, expression) = if self.rest.starts_with('{') {
            self.next();
            let inside = self.until('}');
            let length =
                inside.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
            (inside[..length].to_owned(), inside[length..].to_owned())
        } else {
            let name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            let first = self.rest.bytes().next();
            // A parameter with a number or a sign is one character long.
            let length = match first {
                Some(b'0'..=b'9' | b'@' | b'*') => 1,
                _ => self.rest.bytes().take_while(name).count(),
            };
            let (name, rest) = self.rest.split_at(length);
            let name = name.to_owned();
            self.rest = rest;
            (name, String::new())
        };
        match name.as_str() {
            "IFS" => self.output.push(' '),
            // No arguments: nothing.
            "@" | "*" => {}
            digit if digit.len() == 1 && digit.as_bytes()[0].is_ascii_digit() && digit != "0" => {}
            _ => match self.variables.get(&name) {
                Some(value) => {
                    let part = slice(value, &expression);
                    // A shell splits the value at the characters of this variable.
                    let separators = self.variables.get("IFS").map_or("", String::as_str);
                    let is_separator = |letter: char| separators.contains(letter);
                    self.output.extend(part.chars().map(|one| if is_separator(one) { ' ' } else { one }));
                }
                None if expression.is_empty() => {
                    self.output.push('$');
                    self.output.push_str(&name);
                }
                None => self.output.push_str(&format!("${{{name}{expression}}}")),
            },
        }
    }

    /// Reads `{a,b}` as words. Other braces stay.
    fn braces(&mut self) {
        let Some(end) = self.rest.find('}') else { return self.output.push('{') };
        let inside = &self.rest[..end];
        let is_list = inside.contains(',') && !inside.contains([' ', '{', ':', '"', '\n', ';']);
        if !is_list {
            return self.output.push('{');
        }
        let words: Vec<_> = inside.split(',').take(WORDS).map(str::to_owned).collect();
        self.rest = &self.rest[end + 1..];
        self.output.push_str(&words.join(" "));
    }

    /// Remembers the value of a variable.
    fn assignment(&mut self) {
        let is_separator = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_');
        let name = self.output.rsplit(is_separator).next().unwrap_or_default().to_owned();
        self.output.push('=');
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !first || self.variables.len() >= VARIABLES || self.rest.starts_with('$') {
            return;
        }
        let before = self.output.len();
        while let Some(letter) = self.rest.chars().next() {
            if letter.is_whitespace()
                || matches!(letter, ';' | '&' | '|' | '$' | '{')
                || self.output.len() > OUTPUT
            {
                break;
            }
            self.next();
            match letter {
                '\'' => {
                    let quoted = self.until('\'');
                    self.output.push_str(&quoted);
                }
                '"' => self.double(),
                '\\' => {
                    let escaped = self.next();
                    self.output.extend(escaped);
                }
                other => self.output.push(other),
            }
        }
        let value = self.output[before..].to_owned();
        self.variables.insert(name, value);
    }
}

/// Returns the part of a value that `:offset:length` selects; without it the whole.
fn slice(value: &str, expression: &str) -> String {
    let mut numbers = expression.split(':').skip(1).map(|number| number.trim().parse::<usize>().ok());
    let (offset, length) = (numbers.next().flatten(), numbers.next().flatten());
    let letters = value.chars().skip(offset.unwrap_or(0));
    match length {
        Some(length) => letters.take(length).collect(),
        None => letters.collect(),
    }
}

/// Decodes the escapes of `$'...'`.
fn escapes(quoted: &str) -> String {
    let mut output = String::new();
    let mut rest = quoted;
    while let Some(at) = rest.find('\\') {
        output.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (skip, radix, longest) = match rest.bytes().next() {
            Some(b'x') => (1, 16, 2),
            Some(b'u') => (1, 16, 4),
            Some(b'0'..=b'7') => (0, 8, 3),
            _ => {
                let letter = rest.chars().next();
                rest = &rest[letter.map_or(0, char::len_utf8)..];
                output.extend(letter.map(|letter| match letter {
                    'n' => '\n',
                    't' => '\t',
                    other => other,
                }));
                continue;
            }
        };
        let digits: String =
            rest[skip..].chars().take(longest).take_while(|digit| digit.is_digit(radix)).collect();
        output.extend(u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32));
        rest = &rest[skip + digits.len()..];
    }
    output + rest
}

/// Replaces `$(echo X)`, `$(printf X)` and the same in backticks by `X`, and by reversed `X` if `rev` follows.
fn substitutions(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['$', '`']) {
        let (opening, closing) = if rest[at..].starts_with('`') { ("`", '`') } else { ("$(", ')') };
        output.push_str(&rest[..at]);
        rest = &rest[at..];
        let inside = rest.strip_prefix(opening).and_then(|inside| Some((inside, inside.find(closing)?)));
        let echoed = inside.and_then(|(inside, end)| {
            let command = inside[..end].trim();
            let words = command.strip_prefix("echo ").or_else(|| command.strip_prefix("printf "))?;
            let words = words.trim_start().trim_start_matches("-n ").trim_start_matches("-e ");
            match words.split_once('|') {
                Some((words, filter)) if filter.trim() == "rev" => {
                    Some((words.trim().chars().rev().collect::<String>(), end))
                }
                Some(_) => None,
                None => Some((words.to_owned(), end)),
            }
        });
        match echoed {
            Some((words, end)) => {
                output.push_str(&words);
                rest = &rest[opening.len() + end + 1..];
            }
            None => {
                let length = rest.chars().next().map_or(0, char::len_utf8);
                output.push_str(&rest[..length]);
                rest = &rest[length..];
            }
        }
    }
    output + rest
}

/// Replaces words with wildcards by the known path that they match.
fn wildcards(text: &str) -> String {
    let word = |word: &str| {
        if !word.contains('/') || !word.contains(['?', '*', '[']) || word.len() > 64 {
            return word.to_owned();
        }
        let known = KNOWN.iter().find(|known| glob(word.as_bytes(), known.as_bytes()));
        known.map_or_else(|| word.to_owned(), |known| (*known).to_owned())
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            glob(rest, text)
                || text.split_first().is_some_and(|(byte, after)| *byte != b'/' && glob(pattern, after))
        }
        ([b'?', rest @ ..], [byte, after @ ..]) => *byte != b'/' && glob(rest, after),
        ([b'[', rest @ ..], [byte, after @ ..]) => rest
            .iter()
            .position(|end| *end == b']')
            .is_some_and(|end| rest[..end].contains(byte) && glob(&rest[end + 1..], after)),
        ([first, rest @ ..], [byte, after @ ..]) => first == byte && glob(rest, after),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: &str) -> String {
        plain(command.as_bytes()).map_or_else(|| command.to_owned(), |text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn tricks_are_rewritten() {
        for (trick, plain) in [
            ("c'a't /etc/pass\"wd\"", "cat /etc/passwd"),
            ("c\\at /e\\tc/passwd", "cat /etc/passwd"),
            ("cat${IFS}/etc/passwd", "cat /etc/passwd"),
            ("cat$IFS$9/etc/passwd", "cat /etc/passwd"),
            ("{cat,/etc/passwd}", "cat /etc/passwd"),
            ("$'\\x63\\x61\\164' /etc/passwd", "cat /etc/passwd"),
            ("c$@at /etc/passwd", "cat /etc/passwd"),
            ("a=ca;b=t;$a$b /etc/passwd", "a=ca;b=t;cat /etc/passwd"),
            ("x=xcatx; ${x:1:3} /etc/passwd", "x=xcatx; cat /etc/passwd"),
            ("/b?n/c?t /etc/p*swd", "/bin/cat /etc/passwd"),
            ("$(echo cat) /etc/passwd", "cat /etc/passwd"),
            ("$(echo 'tac' | rev) /etc/passwd", "cat /etc/passwd"),
        ] {
            assert_eq!(read(trick), plain);
        }
    }

    #[test]
    fn plain_commands_and_text_keep_their_meaning() {
        assert_eq!(plain(b"ls -la /tmp"), None);
        assert_eq!(read("echo $(date)"), "echo $(date)");
        assert_eq!(read("awk '{print $1}' file"), "awk {print $1} file");
        assert_eq!(read("echo \"$HOME\""), "echo $HOME");
        // Regression: a name after a letter of several bytes ended the program.
        assert_eq!(read("é='a'"), "é=a");
    }
}
