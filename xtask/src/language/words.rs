//! Banned words and phrases, and the search for them.

/// A word or phrase that must not occur, with what to write instead.
pub(super) struct Banned {
    /// Words in lower case, separated by one space.
    pub(super) phrase: &'static str,
    pub(super) instead: &'static str,
}

/// One occurrence of a banned phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) line: usize,
    pub(super) phrase: &'static str,
    pub(super) instead: &'static str,
}

const fn ban(phrase: &'static str, instead: &'static str) -> Banned {
    Banned { phrase, instead }
}

const NOUN: &str = "name the person, program or object";
const REPORT: &str = "`reports`, `logs`, `documents`, or drop it";
const REQUEST: &str = "`requests`, `is configured by`";
const RECONCILE: &str = "`reconcile`, `requeue`, `inspect`";
const SPEC: &str = "`desired state`, `spec`";
const BURST: &str = "`burst`, `coalesced writes`";
const POOLED: &str = "`pooled Sandbox`";
const VERB: &str = "a verb";
const AMERICAN: &str = "the American spelling";

/// Every banned phrase. Each stands for itself only: other forms of a word have an entry of their own.
pub(super) const BANNED: [Banned; 72] = [
    ban("somebody", NOUN),
    ban("nobody", NOUN),
    ban("everybody", NOUN),
    ban("anybody", NOUN),
    ban("whoever", NOUN),
    ban("what of", "the noun, then the verb"),
    ban("told", REPORT),
    ban("tells", REPORT),
    ban("said", REPORT),
    ban("asked for", REQUEST),
    ban("asks for", REQUEST),
    ban("is asked", REQUEST),
    ban("are asked", REQUEST),
    ban("a look", RECONCILE),
    ban("next look", RECONCILE),
    ban("another look", RECONCILE),
    ban("look again", RECONCILE),
    ban("looks again", RECONCILE),
    ban("looked at", RECONCILE),
    ban("is none", "a positive statement: `invalid`, `absent`, `not a number`"),
    ban("are none", "a positive statement: `invalid`, `absent`, `not numbers`"),
    ban("goes on", "`continues`, `is thawed`"),
    ban("go on", "`continue`, `are thawed`"),
    ban("stands on", "`is set on`"),
    ban("stand on", "`are set on`"),
    ban("stands still", "`is frozen`"),
    ban("stand still", "`are frozen`"),
    ban("so-manieth", "`restart count`, `index`"),
    ban("gives way", "`is deferred`"),
    ban("give way", "`are deferred`"),
    ban("make way", "`are deferred`, `are closed`"),
    ban("wish", SPEC),
    ban("wishes", SPEC),
    ban("wished", SPEC),
    ban("meets a claim", "`binds a claim`"),
    ban("claim that is met", "`bound claim`"),
    ban("claims that are met", "`bound claims`"),
    ban("gets a sandbox", "`adopts a Sandbox`"),
    ban("member of a pool", POOLED),
    ban("member of the pool", POOLED),
    ban("members of a pool", POOLED),
    ban("members of the pool", POOLED),
    ban("members of pools", POOLED),
    ban("pool member", POOLED),
    ban("pool members", POOLED),
    ban("crowd", BURST),
    ban("rush", BURST),
    ban("upkeep", "`controller-manager controllers`, or the controller's name"),
    ban("keeper", "`certificate manager`"),
    ban("patience", "`timeout`, `retry policy`, `backoff`"),
    ban("foreign bytes", "`untrusted input`"),
    ban("name of a place", "`address`, `path`, `key`"),
    ban("unread", "`undecodable`, `unparsed`"),
    ban("let go of", "`released`, `dropped`"),
    ban("lets go of", "`releases`, `drops`"),
    ban("for ever", "`forever`"),
    ban("what is no", VERB),
    ban("has the right", "`may`, `is allowed to`"),
    ban("behaviour", AMERICAN),
    ban("colour", AMERICAN),
    ban("colours", AMERICAN),
    ban("dialled", AMERICAN),
    ban("favour", AMERICAN),
    ban("honour", AMERICAN),
    ban("honoured", AMERICAN),
    ban("initialise", AMERICAN),
    ban("labelled", AMERICAN),
    ban("licence", AMERICAN),
    ban("licences", AMERICAN),
    ban("neighbour", AMERICAN),
    ban("neighbours", AMERICAN),
    ban("normalise", AMERICAN),
];

/// Texts that are quoted byte for byte, with the file that quotes them.
pub(super) const QUOTED: [(&str, &str); 2] = [
    ("crates/image/src/host.rs", "nobody:x:65534:65534:nobody:"),
    ("docs/jail.md", "| privileged | asks for all rights |"),
];

/// A word of a text.
struct Word {
    text: String,
    line: usize,
    /// Only white space separates it from the word before.
    adjoining: bool,
}

/// Finds banned phrases in a text whose first line has the number `first_line`. A phrase may continue on the next line.
/// Text between backticks is code and is skipped when `code_spans` is set.
pub(super) fn hits(text: &str, first_line: usize, code_spans: bool) -> Vec<Hit> {
    let words = split(text, first_line, code_spans);
    let mut found = Vec::new();
    for start in 0..words.len() {
        for banned in &BANNED {
            if starts_with(&words[start..], banned.phrase) {
                found.push(Hit { line: words[start].line, phrase: banned.phrase, instead: banned.instead });
            }
        }
    }
    found
}

fn starts_with(words: &[Word], phrase: &str) -> bool {
    let mut count = 0;
    phrase.split(' ').enumerate().all(|(index, wanted)| {
        count += 1;
        words.get(index).is_some_and(|word| word.text == wanted && (index == 0 || word.adjoining))
    }) && count > 0
}

/// Words are letters, digits and underscores; a hyphen between two of them is part of the word, a possessive is not.
fn split(text: &str, first_line: usize, code_spans: bool) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let (mut line, mut in_code, mut adjoining) = (first_line, false, false);
    let mut word = String::new();
    let mut chars = text.chars().peekable();
    while let Some(next) = chars.next() {
        let inner = next == '-' && !word.is_empty() && chars.peek().is_some_and(|c| c.is_alphanumeric());
        if next.is_alphanumeric() || next == '_' || inner {
            word.extend(next.to_lowercase());
            continue;
        }
        if !word.is_empty() {
            if !in_code {
                words.push(Word { text: std::mem::take(&mut word), line, adjoining });
            }
            word.clear();
            adjoining = true;
        }
        match next {
            '\n' => line += 1,
            '\'' if chars.peek() == Some(&'s') => {
                chars.next();
            }
            '`' if code_spans => {
                in_code = !in_code;
                adjoining = false;
            }
            c if c.is_whitespace() => {}
            _ => adjoining = false,
        }
    }
    if !word.is_empty() && !in_code {
        words.push(Word { text: word, line, adjoining });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(text: &str) -> Vec<(usize, &'static str)> {
        hits(text, 1, true).into_iter().map(|hit| (hit.line, hit.phrase)).collect()
    }

    #[test]
    fn words_are_found_in_any_case_and_only_as_a_whole() {
        assert_eq!(phrases("Somebody's claim.\nNobody waits."), [(1, "somebody"), (2, "nobody")]);
        assert_eq!(phrases("untold wishbone foretold brushes crowded"), []);
    }

    #[test]
    fn phrase_across_a_line_end_is_found() {
        assert_eq!(phrases("what was asked\nfor is made"), [(1, "asked for")]);
    }

    #[test]
    fn punctuation_between_words_breaks_a_phrase() {
        assert_eq!(phrases("it goes; on the other hand"), []);
        assert_eq!(phrases("the API is asked, for example"), [(1, "is asked")]);
    }

    #[test]
    fn code_spans_are_skipped_only_on_request() {
        assert_eq!(phrases("the field `said` and `a wish`"), []);
        assert_eq!(hits("`said`", 1, false).len(), 1);
    }

    #[test]
    fn banned_phrases_are_lower_case_and_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for banned in &BANNED {
            assert_eq!(banned.phrase, banned.phrase.to_lowercase());
            assert!(seen.insert(banned.phrase), "{}", banned.phrase);
        }
    }
}
