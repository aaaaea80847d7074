//! Regular expressions of rules.

use std::sync::OnceLock;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use regex_syntax::hir::Hir;

/// Maximum bytes of a regular expression.
const REGEX: usize = 16 << 10;
/// Maximum bytes of the compiled form of a regular expression.
pub(crate) const COMPILED: usize = 4 << 20;
/// Bytes of the cache of a regular expression in use.
const CACHE: usize = 512 << 10;

/// Regular expression that is compiled at its first use.
pub(crate) struct Pattern {
    source: String,
    compiled: OnceLock<Regex>,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.source)
    }
}

fn syntax() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false)
}

impl Pattern {
    /// Checks an expression, and returns it with its parsed form.
    pub(crate) fn checked(source: &str) -> Result<(Pattern, Hir), String> {
        if source.len() > REGEX {
            return Err(format!("longer than {REGEX} bytes"));
        }
        let hir = syntax::parse_with(source, &syntax()).map_err(|error| error.to_string())?;
        Ok((Pattern { source: source.to_owned(), compiled: OnceLock::new() }, hir))
    }

    /// Compiles the expression; `None` if it is too large.
    pub(crate) fn build(&self) -> Option<Regex> {
        let config = Regex::config()
            .utf8_empty(false)
            .hybrid_cache_capacity(CACHE)
            .nfa_size_limit(Some(COMPILED))
            .onepass(false)
            // Texts are short and near a keyword. A search for single bytes before each step of the expression costs more.
            .auto_prefilter(false)
            .backtrack(true);
        Regex::builder().configure(config).syntax(syntax()).build(&self.source).ok()
    }

    pub(crate) fn regex(&self) -> &Regex {
        // Rule sets whose expressions are too large were refused; an expression that fails here matches nothing.
        self.compiled.get_or_init(|| {
            self.build().unwrap_or_else(|| Regex::new(r"[^\s\S]").expect("an empty class is valid"))
        })
    }

    /// Reports whether the expression matches anywhere in a text.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        self.regex().is_match(text)
    }
}
