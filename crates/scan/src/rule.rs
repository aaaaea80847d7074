//! Rules as data: reads and checks rule sets.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use aho_corasick::AhoCorasick;
use regex_automata::{Anchored, Input};
use serde::Deserialize;

use crate::finding::{At, Direction, Kind, Severity};
use crate::lead;
use crate::pattern::{COMPILED, Pattern};
use crate::validate::{self, Validator};

/// Maximum rules of a scanner.
const RULES: usize = 2000;
/// Minimum bytes of a keyword.
const KEYWORD: usize = 2;
/// Minimum bytes on each side of a keyword that a rule without a maximum length inspects.
const WINDOW: usize = 256;
/// Minimum bytes on each side of a keyword.
const WINDOW_MIN: usize = 32;
/// Bytes after a keyword that a rule inspects whose matches start there and have no maximum length.
const WINDOW_LONG: usize = 1024;
/// Maximum bytes on each side of a keyword.
pub(crate) const WINDOW_MAX: usize = 4096;
/// Maximum bytes before a name that belong to its match.
const PREFIX: usize = 50;

const COMMON_WORDS: &str = include_str!("../rules/words.txt");

/// Error in a rule set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not TOML of this form.
    #[error("rule set: {0}")]
    Form(String),
    /// A rule has no keyword.
    #[error("rule {0}: keywords: a rule needs at least one keyword of {KEYWORD} or more bytes")]
    Keyword(String),
    /// A regular expression is invalid.
    #[error("rule {0}: {1}: {2}")]
    Regex(String, &'static str, String),
    /// A field has a wrong value.
    #[error("rule {0}: {1}: {2}")]
    Field(String, &'static str, &'static str),
    /// The same id twice.
    #[error("rule {0}: id: another rule has the same id")]
    Twice(String),
    /// Too many rules.
    #[error("more than {RULES} rules")]
    TooMany,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleText>,
    /// Exceptions of every rule of the file.
    #[serde(default)]
    allow: Vec<AllowText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    id: String,
    kind: Kind,
    regex: String,
    #[serde(default)]
    keywords: Vec<String>,
    #[serde(default)]
    scan: Scan,
    #[serde(default)]
    severity: Option<Severity>,
    #[serde(default)]
    entropy: Option<f32>,
    #[serde(default)]
    group: Option<usize>,
    #[serde(default)]
    prefix: bool,
    #[serde(default)]
    hint_in_text: bool,
    #[serde(default)]
    window: Option<usize>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    validate: Vec<Validator>,
    #[serde(default)]
    directions: Vec<Direction>,
    #[serde(default)]
    at: Vec<At>,
    #[serde(default)]
    score: Option<u32>,
    #[serde(default)]
    allow: Vec<AllowText>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct AllowText {
    #[serde(default)]
    target: Target,
    #[serde(default)]
    regexes: Vec<String>,
    #[serde(default)]
    words: Vec<String>,
    #[serde(default)]
    common_words: bool,
    #[serde(default)]
    directions: Vec<Direction>,
}

/// Selects the parts of a text that a rule inspects.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scan {
    /// Surroundings of its keywords.
    #[default]
    Keywords,
    /// Runs of digits.
    Numbers,
    /// Runs of words of BIP-39.
    Phrases,
    /// Long runs of letters and digits.
    Tokens,
    /// Runs of letters and digits before a dot.
    Dotted,
}

/// Text that an exception compares.
#[derive(Debug, Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Target {
    #[default]
    Secret,
    Match,
    Line,
}

/// Exception of a rule.
#[derive(Debug)]
struct Allow {
    target: Target,
    regexes: Vec<Pattern>,
    words: Option<AhoCorasick>,
    common_words: bool,
    directions: Vec<Direction>,
}

/// One rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    pub(crate) keywords: Vec<String>,
    pub(crate) scan: Scan,
    pub(crate) score: u32,
    /// Every match starts where a keyword starts.
    pub(crate) anchored: bool,
    /// For each keyword, whether no match that starts with it starts inside a word.
    pub(crate) start_words: Vec<bool>,
    /// Bytes without which no match starts.
    near: Option<lead::Near>,
    /// A search that finds nothing can read all of its window.
    pub(crate) reads_far: bool,
    /// Maximum bytes on each side of a keyword, at first.
    pub(crate) window: usize,
    pattern: Pattern,
    path: Option<Pattern>,
    entropy: f32,
    group: Option<usize>,
    /// A name before the match belongs to it: the rule is about a named value.
    pub(crate) prefix: bool,
    /// The severity is low in a body that is no short structure that the sandbox sends.
    pub(crate) hint_in_text: bool,
    validate: Vec<Validator>,
    directions: Vec<Direction>,
    at: Vec<At>,
    allow: Vec<Arc<Allow>>,
}

/// Match of a rule in a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matched {
    pub(crate) whole: Range<usize>,
    /// The part that is secret.
    pub(crate) secret: Range<usize>,
}

/// Result of a search.
pub(crate) enum Found {
    None,
    Match(Matched),
    /// The match ends where the bytes end for now.
    Cut,
}

impl Rule {
    fn read(text: RuleText, shared: &[Arc<Allow>]) -> Result<Rule, Error> {
        let id = text.id.clone();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(Error::Field(id, "id", "letters, digits, `-`, `_` and `.` only"));
        }
        let keywords: Vec<String> = text.keywords.iter().map(|word| word.to_ascii_lowercase()).collect();
        let needed = text.scan == Scan::Keywords;
        if keywords.is_empty() == needed || keywords.iter().any(|word| word.len() < KEYWORD) {
            return Err(Error::Keyword(id));
        }
        let regex = |field, source: &str| {
            Pattern::checked(source).map_err(|error| Error::Regex(id.clone(), field, error))
        };
        let (pattern, hir) = regex("regex", &text.regex)?;
        let path = text.path.as_deref().map(|path| regex("path", path)).transpose()?.map(|(path, _)| path);
        if text.kind == Kind::Injection && text.score.is_none() {
            return Err(Error::Field(id, "score", "a rule of the kind injection needs one"));
        }
        let leads = lead::leads(&hir);
        let anchored = needed
            && leads.is_some_and(|leads| {
                leads.iter().all(|lead| keywords.iter().any(|word| lead.starts_with(word.as_bytes())))
            });
        // An anchored search ends by itself.
        let unbounded = if anchored { WINDOW_LONG } else { WINDOW };
        // A keyword of a secret can stand before its match.
        let shortest = if text.kind == Kind::Secret { WINDOW } else { WINDOW_MIN };
        let longest = hir.properties().maximum_len().unwrap_or(unbounded).max(shortest);
        let longest = text.window.unwrap_or(longest);
        let mut allow = shared.to_vec();
        for exception in &text.allow {
            allow.push(Arc::new(Allow::read(&id, exception)?));
        }
        Ok(Rule {
            start_words: lead::keywords_start_words(&hir, &keywords),
            kind: text.kind,
            severity: text.severity.unwrap_or(Severity::High),
            keywords,
            scan: text.scan,
            score: text.score.unwrap_or(0),
            anchored,
            near: lead::Near::of(&hir),
            reads_far: lead::reads_far(&hir),
            window: longest.min(WINDOW_MAX),
            pattern,
            path,
            entropy: text.entropy.unwrap_or(0.0),
            group: text.group,
            prefix: text.prefix,
            hint_in_text: text.hint_in_text,
            validate: text.validate,
            directions: text.directions,
            at: text.at,
            allow,
            id: id.into(),
        })
    }

    /// Reports whether the rule applies to a part of a message.
    pub(crate) fn applies(&self, direction: Direction, at: At) -> bool {
        (self.directions.is_empty() || self.directions.contains(&direction))
            && (self.at.is_empty() || self.at.contains(&at))
    }

    /// Reports whether the rule applies to a file of this name.
    pub(crate) fn applies_to_file(&self, name: &str) -> bool {
        self.path.as_ref().is_none_or(|path| path.matches(name.as_bytes()))
    }

    /// Returns the first match in `range`, with the bytes around it as context. `last` means that no bytes follow `bytes`.
    /// Otherwise a match at their end is [`Found::Cut`].
    pub(crate) fn find(&self, bytes: &[u8], range: Range<usize>, last: bool) -> Found {
        self.search(bytes, range, Anchored::No, last)
    }

    /// Returns the match that starts where `range` starts, as [`Rule::find`] does.
    pub(crate) fn find_here(&self, bytes: &[u8], range: Range<usize>, last: bool) -> Found {
        if self.near.as_ref().is_some_and(|near| !near.may_match(&bytes[range.start..])) {
            return Found::None;
        }
        self.search(bytes, range, Anchored::Yes, last)
    }

    fn search(&self, bytes: &[u8], range: Range<usize>, mode: Anchored, last: bool) -> Found {
        let mut end = range.end.min(bytes.len());
        loop {
            let input = Input::new(&bytes[..end]).range(range.start..end).anchored(mode);
            if self.pattern.regex().search_half(&input).is_none() {
                return Found::None;
            }
            let mut captures = self.pattern.regex().create_captures();
            self.pattern.regex().search_captures(&input, &mut captures);
            let Some(whole) = captures.get_match().map(|whole| whole.range()) else { return Found::None };
            // The end of the window is not the end of the text: a longer window can have another match.
            let cut = whole.end == end && end < bytes.len();
            if cut && end - range.start < WINDOW_MAX * 2 {
                end = bytes.len().min(range.start + (end - range.start) * 4);
                continue;
            }
            if cut || (whole.end == bytes.len() && !last) {
                return Found::Cut;
            }
            let secret = match self.group {
                Some(group) => captures.get_group(group),
                None => (1..captures.group_len())
                    .filter_map(|group| captures.get_group(group))
                    .find(|span| span.start < span.end),
            };
            let secret = secret.map_or(whole.clone(), |span| span.range());
            return Found::Match(Matched { whole, secret });
        }
    }

    /// Reports whether a match counts: entropy, validators and exceptions.
    pub(crate) fn accepts(&self, bytes: &[u8], found: &Matched, direction: Direction) -> bool {
        let secret = &bytes[found.secret.clone()];
        if self.entropy > 0.0 && validate::entropy(secret) < f64::from(self.entropy) {
            return false;
        }
        if !self.validate.iter().all(|validator| validator.holds(secret)) {
            return false;
        }
        if self.scan == Scan::Numbers
            && self.validate.contains(&Validator::Luhn)
            && validate::is_in_table(bytes, &found.secret)
        {
            return false;
        }
        let mut whole = found.whole.clone();
        if self.prefix {
            let before = &bytes[whole.start.saturating_sub(PREFIX)..whole.start];
            let name = before.iter().rev().take_while(|byte| name_byte(**byte)).count();
            whole.start -= name;
        }
        !self.allow.iter().any(|allow| allow.covers(bytes, &whole, secret, direction))
    }
}

fn name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

impl Allow {
    fn read(id: &str, text: &AllowText) -> Result<Allow, Error> {
        let mut regexes = Vec::new();
        for source in &text.regexes {
            let (pattern, _) = Pattern::checked(source)
                .map_err(|error| Error::Regex(id.to_owned(), "allow.regexes", error))?;
            regexes.push(pattern);
        }
        let words = match text.words.is_empty() {
            true => None,
            false => Some(words(text.words.iter().map(String::as_str))),
        };
        if regexes.is_empty() && words.is_none() && !text.common_words {
            return Err(Error::Field(id.to_owned(), "allow", "needs `regexes`, `words` or `common_words`"));
        }
        let directions = text.directions.clone();
        Ok(Allow { target: text.target, regexes, words, common_words: text.common_words, directions })
    }

    fn covers(&self, bytes: &[u8], whole: &Range<usize>, secret: &[u8], direction: Direction) -> bool {
        if !self.directions.is_empty() && !self.directions.contains(&direction) {
            return false;
        }
        static COMMON: OnceLock<AhoCorasick> = OnceLock::new();
        if self.words.as_ref().is_some_and(|words| words.is_match(secret)) {
            return true;
        }
        if self.common_words && COMMON.get_or_init(|| words(COMMON_WORDS.lines())).is_match(secret) {
            return true;
        }
        let text = match self.target {
            Target::Secret => secret,
            Target::Match => &bytes[whole.clone()],
            Target::Line => line(bytes, whole),
        };
        self.regexes.iter().any(|regex| regex.matches(text))
    }
}

/// Returns the line that holds a match, within bounds.
pub(crate) fn line<'a>(bytes: &'a [u8], whole: &Range<usize>) -> &'a [u8] {
    let first = whole.start.saturating_sub(WINDOW_MAX);
    let start = memchr::memrchr(b'\n', &bytes[first..whole.start]).map_or(first, |at| first + at + 1);
    let last = bytes.len().min(whole.end + WINDOW_MAX);
    let end = memchr::memchr(b'\n', &bytes[whole.end..last]).map_or(last, |at| whole.end + at);
    &bytes[start..end]
}

fn words<'a>(words: impl Iterator<Item = &'a str>) -> AhoCorasick {
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    AhoCorasick::builder().ascii_case_insensitive(true).build(words).expect("words fit an automaton")
}

/// A set of rules, checked.
#[derive(Debug)]
pub struct RuleSet(pub(crate) Vec<Rule>);

impl RuleSet {
    /// Reads a rule set from TOML, and compiles its rules.
    ///
    /// # Errors
    /// The text is not a rule set; the error names the rule and the field.
    pub fn parse(text: &str) -> Result<RuleSet, Error> {
        let set = RuleSet::read(text)?;
        for rule in &set.0 {
            if rule.pattern.build().is_none() {
                let problem = format!("compiled, it exceeds {COMPILED} bytes");
                return Err(Error::Regex(rule.id.to_string(), "regex", problem));
            }
        }
        Ok(set)
    }

    /// Reads a rule set whose expressions are compiled at their first use.
    fn read(text: &str) -> Result<RuleSet, Error> {
        let file: File = toml::from_str(text).map_err(|error| Error::Form(error.to_string()))?;
        if file.rule.len() > RULES {
            return Err(Error::TooMany);
        }
        let mut shared = Vec::new();
        for exception in &file.allow {
            shared.push(Arc::new(Allow::read("(all)", exception)?));
        }
        let rules = file.rule.into_iter().map(|rule| Rule::read(rule, &shared));
        Ok(RuleSet(rules.collect::<Result<_, _>>()?))
    }

    /// Returns a rule set of this program: `secrets`, `services`, `pii`, `financial`, `injection`, `shell` or `waf`.
    pub fn builtin(name: &str) -> Option<RuleSet> {
        let text = BUILTIN.iter().find(|(set, _)| *set == name)?.1;
        Some(RuleSet::read(text).unwrap_or_else(|error| panic!("{name}: {error}")))
    }

    /// Returns the names of the rule sets of this program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }
}

const BUILTIN: [(&str, &str); 7] = [
    ("secrets", include_str!("../rules/secrets.toml")),
    ("services", include_str!("../rules/services.toml")),
    ("pii", include_str!("../rules/pii.toml")),
    ("financial", include_str!("../rules/financial.toml")),
    ("injection", include_str!("../rules/injection.toml")),
    ("shell", include_str!("../rules/shell.toml")),
    ("waf", include_str!("../rules/waf.toml")),
];

/// Checks that no two rules have the same id.
pub(crate) fn unique(rules: &[Arc<Rule>]) -> Result<(), Error> {
    let mut ids = std::collections::BTreeSet::new();
    match rules.iter().find(|rule| !ids.insert(rule.id.clone())) {
        Some(rule) => Err(Error::Twice(rule.id.to_string())),
        None if rules.len() > RULES => Err(Error::TooMany),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fields: &str) -> Result<RuleSet, Error> {
        RuleSet::parse(&format!("[[rule]]\nid = 'a'\nkind = 'secret'\n{fields}"))
    }

    #[test]
    fn rule_without_keyword_is_refused() {
        let error = set("regex = 'abc'\nkeywords = []").unwrap_err();
        assert_eq!(
            error.to_string(),
            "rule a: keywords: a rule needs at least one keyword of 2 or more bytes"
        );
    }

    #[test]
    fn invalid_regex_and_unknown_field_are_refused() {
        assert!(
            set("regex = '(a'\nkeywords = ['abc']").unwrap_err().to_string().starts_with("rule a: regex:")
        );
        assert!(set("regex = 'a'\nkeywords = ['abc']\nextra = 1").is_err());
    }

    #[test]
    fn every_rule_of_this_program_compiles() {
        for (name, text) in BUILTIN {
            assert!(!RuleSet::parse(text).unwrap_or_else(|error| panic!("{name}: {error}")).0.is_empty());
        }
    }

    #[test]
    fn too_large_regex_is_refused() {
        let error = set(r"regex = '(?:[a-z]{900}[0-9]{900}){90}'
keywords = ['abc']")
        .unwrap_err();
        assert_eq!(error.to_string(), "rule a: regex: compiled, it exceeds 4194304 bytes");
    }

    #[test]
    fn rule_that_starts_with_a_word_has_no_match_inside_one() {
        let starts = |regex: &str| {
            let set = set(&format!("regex = '{regex}'\nkeywords = ['key', '/dev']")).unwrap();
            let rule = &set.0[0];
            assert!(rule.anchored, "{regex}");
            let matches =
                |text: &[u8], start| matches!(rule.find_here(text, start..text.len(), true), Found::Match(_));
            let found = |text: &str, start| {
                let (text, may_start) =
                    (text.as_bytes(), !(rule.start_words[0] && lead::is_inside_word(text.as_bytes(), start)));
                assert!(may_start || !matches(text, start), "{regex}");
                may_start && matches(text, start)
            };
            assert!(found("a key1", 2) && found("key1", 0), "{regex}");
            (rule.start_words[0], found("mykey1", 2))
        };
        assert_eq!(starts(r"\b(key\d)"), (true, false));
        assert_eq!(starts(r"(?:/dev/x|\bkey)\d"), (true, false));
        assert_eq!(starts(r"\bkey\d|(?:\bkey){2,3}"), (true, false));
        assert_eq!(starts(r"key\d"), (false, true));
        assert_eq!(starts(r"\bkey|key\d"), (false, true));
        assert_eq!(starts(r"(?:\b)?key\d"), (false, true));
        assert_eq!(starts(r"/dev/x|keys\d|\bkey\d"), (false, false));
        let both = set("regex = '\\bkey\\d|nc \\d'\nkeywords = ['key', 'nc ']").unwrap();
        assert_eq!(both.0[0].start_words, [true, false]);
    }

    #[test]
    fn match_starts_only_where_the_bytes_of_its_next_parts_are_near() {
        let near = |regex: &str| {
            let mut set = set(&format!("regex = '{regex}'\nkeywords = ['key']")).unwrap();
            set.0.remove(0).near
        };
        let of_keys = near(r"key[a-z ]{0,9}(?::|=>?)\d").unwrap();
        assert!(of_keys.may_match(b"key of a:1") && of_keys.may_match(b"key abcdefgh=1"));
        assert!(!of_keys.may_match(b"key of a and b") && !of_keys.may_match(b"key abcdefghij="));
        assert!(near(r"key(?i)[a-z]?x").is_some_and(|near| near.may_match(b"keyX")));
        assert!(
            near(r"key[a-z]?\b(x|[0-3]y)")
                .is_some_and(|near| near.may_match(b"keya2") && !near.may_match(b"keya4"))
        );
        // Nothing limits these.
        assert!(near(r"key[a-z ]{0,9}[:=]?").is_none());
        assert!(near(r"key[^\n]*[:=]").is_none());
        assert!(near(r"key[:=]|key\d").is_none());
    }

    #[test]
    fn expression_reads_far_only_if_it_skips_any_text() {
        let reads_far =
            |regex: &str| set(&format!("regex = '{regex}'\nkeywords = ['key']")).unwrap().0[0].reads_far;
        assert!(reads_far(r"key(?:.*?|x)y"));
        assert!(reads_far(r"key[^\n]{0,300}y"));
        assert!(!reads_far(r"key[^\n]{0,100}y"));
        assert!(!reads_far(r"key[a-z]*y"));
    }

    #[test]
    fn rule_is_anchored_only_if_every_match_starts_with_a_keyword() {
        let anchored = |regex: &str| {
            let rules = set(&format!("regex = '{regex}'\nkeywords = ['ghp_', 'key']")).unwrap();
            rules.0[0].anchored
        };
        assert!(anchored(r"\b(ghp_[a-z]{3})"));
        assert!(anchored(r"(?i)(?:key|ghp_x)(?:[a-z]{0,3})="));
        assert!(!anchored(r"(?i)\bke?y"));
        assert!(anchored(r"(?:gh[p]_|key)[0-9]+"));
        assert!(!anchored(r"(?:a|key)?x"));
        assert!(!anchored(r"[a-z]{3}key"));
        assert!(!anchored(r"(?:key|token)=x"));
    }
}
