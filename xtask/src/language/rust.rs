//! Extracts the prose of a Rust file: comments, string literals, names of functions, modules and types.

/// What kind of prose a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Consecutive `///` or `//!` lines.
    DocComment,
    /// Any other comment.
    Comment,
    Literal,
    /// Name of a function, module or type, split into words.
    Name,
}

/// A piece of prose and the line on which it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns the prose of a file. It never fails: on text that is not Rust it returns whatever looks like prose.
pub(super) fn pieces(source: &str) -> Vec<Piece> {
    let mut scanner = Scanner { rest: source, line: 1, pieces: Vec::new(), keyword: false };
    while scanner.step() {}
    scanner.pieces
}

/// Reports whether a doc comment starts with a relative clause instead of a verb or a noun phrase.
pub(super) fn starts_with_a_clause(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    ["What", "Whether", "Who"].contains(&first)
}

/// Keywords that a name follows.
const KEYWORDS: [&str; 6] = ["enum", "fn", "mod", "struct", "trait", "type"];

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    pieces: Vec<Piece>,
    /// The last word was one of [`KEYWORDS`], so the next one is a name.
    keyword: bool,
}

impl Scanner<'_> {
    /// Consumes one token; false at the end of the file.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            let end = self.rest.find("*/").map_or(self.rest.len(), |at| at + 2);
            let line = self.line;
            let text = self.take(end).trim_matches(['/', '*']).to_owned();
            self.push(Kind::Comment, line, text);
        } else if let Some(hashes) = raw_string(self.rest) {
            self.raw(hashes);
        } else if first == '"' {
            self.string();
        } else if first == '\'' {
            let length = character(self.rest);
            self.take(length);
        } else if first.is_alphanumeric() || first == '_' {
            self.word();
        } else {
            self.keyword &= first.is_whitespace();
            self.take(first.len_utf8());
        }
        true
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let line = self.line;
        let text = self.take(end);
        let doc = (text.starts_with("///") && !text.starts_with("////")) || text.starts_with("//!");
        let kind = if doc { Kind::DocComment } else { Kind::Comment };
        let text = text.trim_start_matches(['/', '!']).to_owned();
        let continued =
            |last: &&mut Piece| last.kind == kind && last.line + last.text.lines().count() == line;
        if let Some(last) = self.pieces.last_mut().filter(continued) {
            last.text.push_str(&text);
            last.text.push('\n');
        } else {
            self.push(kind, line, text + "\n");
        }
    }

    fn string(&mut self) {
        let line = self.line;
        let mut end = 1;
        let mut escaped = false;
        for c in self.rest[1..].chars() {
            end += c.len_utf8();
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => break,
                _ => {}
            }
        }
        // An escape must not become part of the word after it.
        let text = self.take(end).trim_matches('"').replace("\\n", " ").replace("\\t", " ");
        self.push(Kind::Literal, line, without_placeholders(&text));
    }

    fn raw(&mut self, hashes: usize) {
        let open = self.rest.find('"').map_or(self.rest.len(), |at| at + 1);
        let close = format!("\"{}", "#".repeat(hashes));
        let line = self.line;
        let end = self.rest[open..].find(&close).map_or(self.rest.len(), |at| open + at + close.len());
        let text = without_placeholders(self.take(end));
        self.push(Kind::Literal, line, text);
    }

    fn word(&mut self) {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let line = self.line;
        let word = self.take(end).to_owned();
        if std::mem::take(&mut self.keyword) {
            self.push(Kind::Name, line, words_of(&word));
        }
        self.keyword = KEYWORDS.contains(&word.as_str());
    }

    fn push(&mut self, kind: Kind, line: usize, text: String) {
        self.keyword = false;
        self.pieces.push(Piece { kind, line, text });
    }

    fn take(&mut self, end: usize) -> &str {
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }
}

/// Splits an identifier at underscores and capital letters.
fn words_of(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() || letter == '_' {
            words.push(' ');
        }
        if letter != '_' {
            words.push(letter);
        }
    }
    words
}

/// Empties `{name}` and `{name:?}`: these are identifiers, not prose.
fn without_placeholders(text: &str) -> String {
    let mut prose = String::new();
    for (index, part) in text.split('{').enumerate() {
        let placeholder =
            part.split_once('}').filter(|(name, _)| index > 0 && !name.contains(char::is_whitespace));
        prose.push_str(if index > 0 { "{" } else { "" });
        prose.push_str(placeholder.map_or(part, |(_, rest)| rest));
    }
    prose
}

/// Number of `#` of a raw string that starts here.
fn raw_string(rest: &str) -> Option<usize> {
    let after = ["br", "cr", "r"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// Length of a character literal, or 1 for the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..].find('\'').map_or(1, |end| from + end + 1)
        }
        (Some((_, c)), Some((at, '\''))) if c != '\'' => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &str) -> Vec<(Kind, usize, String)> {
        pieces(source).into_iter().map(|p| (p.kind, p.line, p.text.trim().to_owned())).collect()
    }

    #[test]
    fn comments_of_consecutive_lines_are_one_piece() {
        assert_eq!(
            all("/// One\n/// two.\nfn a() {}\n// three\n"),
            [
                (Kind::DocComment, 1, "One\n two.".to_owned()),
                (Kind::Name, 3, "a".to_owned()),
                (Kind::Comment, 4, "three".to_owned()),
            ]
        );
    }

    #[test]
    fn strings_and_characters_do_not_open_comments() {
        let source = "let a = \"// \\\" x\"; let b = '\"'; let c = '\\''; let d: &'a str = r#\"\"//\"#;";
        let kinds: Vec<Kind> = pieces(source).iter().map(|p| p.kind).collect();
        assert_eq!(kinds, [Kind::Literal, Kind::Literal]);
    }

    #[test]
    fn names_of_functions_modules_and_types_are_prose() {
        assert_eq!(
            all("mod a_look;\nfn is_asked(x: fn(u8)) {}\nstruct GoesOn;"),
            [
                (Kind::Name, 1, "a look".to_owned()),
                (Kind::Name, 2, "is asked".to_owned()),
                (Kind::Name, 3, "Goes On".to_owned()),
            ]
        );
    }

    #[test]
    fn placeholders_of_a_format_string_are_not_prose() {
        assert_eq!(without_placeholders("{told:?}: a {b}, {c d}"), "{: a {, {c d}");
    }

    #[test]
    fn doc_comment_that_starts_with_a_clause_is_recognized() {
        assert!(starts_with_a_clause(" What a claim gets."));
        assert!(!starts_with_a_clause(" Whatever. Returns what a claim gets."));
    }
}
