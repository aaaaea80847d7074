//! The scanner: rules over all views of one text.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use aho_corasick::AhoCorasick;

use crate::compression::{self, Failure};
use crate::credential::Credentials;
use crate::effort::Efforts;
use crate::finding::{At, Compression, Direction, Fingerprint, Kind, Location, Severity, Step};
use crate::keywords::Keywords;
use crate::rule::{self, Error, Found, Rule, RuleSet, Scan};
use crate::view::View;
use crate::{decode, disguise, escape, lead, phrase, runs, text};

/// Maximum decoders in a row, percent-encoding excepted.
const DEPTH: usize = 4;
/// Maximum layers of percent-encoding.
const PERCENT: usize = 8;
/// Layers of percent-encoding that are a finding by themselves.
const PERCENT_FINDING: usize = 3;
/// Maximum bytes of all views of one text.
const VIEWS: usize = 4 << 20;
/// Maximum bytes of views for each byte of a text, and bytes of views that are accepted for any text. A short one must not take
/// long.
const RATIO: usize = 16;
const FREE: usize = 256 << 10;
/// Maximum views of one text.
const VIEW_COUNT: usize = 256;
/// Maximum hits of one text.
const LISTED: usize = 1 << 14;
/// Maximum bytes of a view that is read also beyond [`DEPTH`].
const SHORT: usize = 24;
/// Bytes around a run of digits that its rules inspect.
const AROUND: usize = 24;

/// Rules of one or several sets, ready for use.
#[derive(Debug)]
pub struct Scanner {
    rules: Vec<Arc<Rule>>,
    /// Search of each part in each direction, built at its first use.
    searches: BTreeMap<(Direction, At), OnceLock<Search>>,
    /// Values that documentation publishes.
    examples: AhoCorasick,
}

/// Rules that apply to a part in one direction, and the search for their keywords.
#[derive(Debug)]
struct Search {
    /// Keywords of rules, and then the texts of disguises.
    keywords: Keywords,
    /// Rules of each keyword.
    owners: Vec<Vec<Owner>>,
    numbers: Vec<usize>,
    phrases: Vec<usize>,
    tokens: Vec<usize>,
    dotted: Vec<usize>,
}

/// A rule of a keyword.
#[derive(Debug)]
struct Owner {
    number: usize,
    /// Matches start with the keyword and not inside a word. Most keywords are not at such a place.
    starts_word: bool,
}

impl Search {
    fn new(rules: &[Arc<Rule>], direction: Direction, at: At) -> Search {
        let active: Vec<usize> =
            (0..rules.len()).filter(|number| rules[*number].applies(direction, at)).collect();
        let mut by_keyword: BTreeMap<&str, Vec<Owner>> = BTreeMap::new();
        for number in active.iter().copied() {
            let rule = &rules[number];
            for (keyword, starts_word) in rule.keywords.iter().zip(&rule.start_words) {
                let starts_word = rule.anchored && *starts_word;
                by_keyword.entry(keyword).or_default().push(Owner { number, starts_word });
            }
        }
        let needles = disguise::needles(direction).map(|needle: &str| needle);
        let keywords = Keywords::new(by_keyword.keys().copied().chain(needles));
        let owners = by_keyword.into_values().collect();
        let of = |scan: Scan| active.iter().copied().filter(|number| rules[*number].scan == scan).collect();
        let (numbers, phrases) = (of(Scan::Numbers), of(Scan::Phrases));
        let (tokens, dotted) = (of(Scan::Tokens), of(Scan::Dotted));
        Search { keywords, owners, numbers, phrases, tokens, dotted }
    }
}

const EXAMPLES: &str = include_str!("../rules/examples.txt");

/// One match in one view.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    pub(crate) rule: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    pub(crate) score: u32,
    pub(crate) range: Range<usize>,
    /// Place in the text, compressed texts decompressed, if it is known; in a stream from its beginning.
    pub(crate) place: Option<u64>,
    pub(crate) steps: Vec<Step>,
    pub(crate) fingerprint: Fingerprint,
    /// It is a quotation. Known of rules that have a score.
    pub(crate) quoted: bool,
}

/// Text and its circumstances.
pub(crate) struct Subject<'a> {
    pub(crate) direction: Direction,
    pub(crate) location: &'a Location,
    pub(crate) credentials: Option<&'a Credentials>,
    /// No bytes follow.
    pub(crate) last: bool,
    /// The text is a field of a short structure, and not a part of a longer text.
    pub(crate) message: bool,
}

/// Hits of one text.
#[derive(Default)]
pub(crate) struct Hits {
    pub(crate) list: Vec<Hit>,
    seen: std::collections::HashSet<(Arc<str>, Range<usize>, Fingerprint)>,
    bytes: usize,
    views: usize,
    /// Bytes that were decompressed inside of texts.
    decompressed: usize,
    /// Maximum bytes of views, and of what is decompressed.
    bound: usize,
    /// A match ended where the text ends for now.
    pub(crate) cut: bool,
    /// There are more hits than are listed.
    pub(crate) overfull: bool,
}

impl Hits {
    fn add(&mut self, hit: Hit) {
        if self.list.len() >= LISTED {
            self.overfull = true;
        } else if self.seen.insert((hit.rule.clone(), hit.range.clone(), hit.fingerprint)) {
            self.list.push(hit);
        }
    }

    /// Adds a hit of no rule.
    pub(crate) fn form(
        &mut self,
        id: &'static str,
        kind: Kind,
        severity: Severity,
        view: &View<'_>,
        range: Range<usize>,
    ) {
        let fingerprint = Fingerprint::of(&view.bytes[range.clone()]);
        let (rule, range, steps) = (id.into(), view.origin(&range), view.steps.clone());
        let place = None;
        self.add(Hit { rule, kind, severity, score: 0, range, place, steps, fingerprint, quoted: false });
    }

    fn too_complex(&mut self, view: &View<'_>) {
        self.form("too-complex", Kind::TooComplex, Severity::High, view, 0..0);
    }

    /// Accounts for a view; `false` if the bounds are exceeded.
    fn spend(&mut self, view: &View<'_>) -> bool {
        self.bytes += view.bytes.len();
        self.views += 1;
        self.bytes <= self.bound && self.views <= VIEW_COUNT
    }
}

impl Scanner {
    /// Prepares the rules of sets.
    ///
    /// # Errors
    /// Two rules have the same id, or there are too many.
    pub fn new(sets: Vec<RuleSet>) -> Result<Scanner, Error> {
        let rules: Vec<Arc<Rule>> = sets.into_iter().flat_map(|set| set.0).map(Arc::new).collect();
        rule::unique(&rules)?;
        let examples = EXAMPLES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let examples = AhoCorasick::new(examples).map_err(|_| Error::TooMany)?;
        let mut searches = BTreeMap::new();
        for direction in [Direction::Outbound, Direction::Inbound] {
            searches.extend(At::ALL.map(|at| ((direction, at), OnceLock::new())));
        }
        Ok(Scanner { rules, searches, examples })
    }

    /// Returns a scanner of all rule sets of this program.
    pub fn builtin() -> Scanner {
        let sets = RuleSet::names().filter_map(RuleSet::builtin).collect();
        Scanner::new(sets).expect("the built-in rules have distinct ids")
    }

    /// Scans a text in all its views.
    pub(crate) fn scan(&self, subject: &Subject<'_>, root: View<'_>, nameless: bool, hits: &mut Hits) {
        hits.bound = VIEWS.min(hits.bound + FREE.max(root.bytes.len() * RATIO));
        let mut views = self.step(subject, &root, nameless, hits);
        while let Some(view) = views.pop() {
            if !hits.spend(&view) {
                hits.too_complex(&view);
                return;
            }
            views.extend(self.step(subject, &view, nameless, hits));
        }
    }

    /// Decompresses a text and scans it. One whose compression is declared is also scanned as it is: a server may take it
    /// as plain.
    pub(crate) fn scan_compressed(
        &self,
        subject: &Subject<'_>,
        compression: Compression,
        bytes: &[u8],
        hits: &mut Hits,
    ) {
        let step = Step::from(compression);
        let is_declared = subject.location.compression.is_some();
        if is_declared && let Some(plain) = decode::plain(&View::root(bytes)) {
            self.scan(subject, plain, false, hits);
        }
        let whole = match compression::decompress(compression, bytes) {
            Ok(found) => {
                self.scan(subject, View::fixed(found.bytes, vec![step], 0..bytes.len()), false, hits);
                found.whole || !is_declared
            }
            Err(_) => false,
        };
        if !whole {
            hits.too_complex(&View::fixed(Vec::new(), vec![step], 0..bytes.len()));
        }
    }

    /// Scans one view, and returns the views that it decodes to.
    fn step(
        &self,
        subject: &Subject<'_>,
        view: &View<'_>,
        nameless: bool,
        hits: &mut Hits,
    ) -> Vec<View<'static>> {
        let long = runs::long(&view.bytes);
        let disguised = self.rules_in(subject, view, &long, nameless, hits);
        if let Some(credentials) = subject.credentials {
            for (name, range) in credentials.find(&view.bytes) {
                let rule = format!("credential:{name}").into();
                let fingerprint = Fingerprint::of(name.as_bytes());
                let (range, steps) = (view.origin(&range), view.steps.clone());
                let (kind, severity) = (Kind::Credential, Severity::Critical);
                let (score, place, quoted) = (0, None, false);
                hits.add(Hit { rule, kind, severity, score, range, place, steps, fingerprint, quoted });
            }
        }
        // Programs and tests name such characters by escapes. Those of a text that flows are found in the text.
        if !view.steps.iter().any(|step| matches!(step, Step::Escapes | Step::Percent | Step::Flow)) {
            for (form, range) in text::hidden(&view.bytes) {
                hits.form(form.id(), Kind::Form, Severity::Medium, view, range);
            }
        }
        self.decode(view, &long, disguised, hits)
    }

    fn decode(
        &self,
        view: &View<'_>,
        long: &[Range<usize>],
        disguised: disguise::Places,
        hits: &mut Hits,
    ) -> Vec<View<'static>> {
        if view.steps.last() == Some(&Step::Flow) {
            // The text from which it comes is decoded.
            return Vec::new();
        }
        let layers = view.steps.iter().filter(|step| **step == Step::Percent).count();
        let depth = view.steps.len() - layers;
        let mut views = Vec::new();
        if let Some(decoded) = escape::percent(view) {
            if layers + 1 == PERCENT_FINDING {
                hits.form("percent-layers", Kind::Form, Severity::Medium, view, 0..view.bytes.len());
            }
            match layers < PERCENT {
                true => views.push(decoded),
                false => hits.too_complex(view),
            }
        }
        let mut decoded = decode::all(view, long);
        decoded.views.extend(text::normalized(view));
        decoded.views.extend(text::narrowed(view));
        decoded.views.extend(disguised.views(view));
        let binary = std::mem::take(&mut decoded.binary);
        self.decompress_parts(view, binary, &mut decoded.views, hits);
        // Short views are read further: a key fits.
        let is_long = |view: &View<'_>| view.bytes.len() > SHORT && view.steps.last() != Some(&Step::Flow);
        match depth >= DEPTH && decoded.views.iter().any(is_long) {
            true => hits.too_complex(view),
            false => views.extend(decoded.views),
        }
        views
    }

    /// Decompresses parts of a view that may be compressed.
    fn decompress_parts(
        &self,
        view: &View<'_>,
        parts: Vec<(Vec<u8>, Vec<Step>, Range<usize>)>,
        views: &mut Vec<View<'static>>,
        hits: &mut Hits,
    ) {
        for (bytes, steps, range) in parts {
            let magic = compression::recognized(&bytes);
            let guesses = [
                (Compression::Deflate, compression::may_be_deflate(&bytes)),
                (Compression::Brotli, compression::may_be_brotli(&bytes)),
            ];
            let guesses = guesses.into_iter().filter(|(_, may_be)| magic.is_none() && *may_be);
            for compression in magic.into_iter().chain(guesses.map(|(guess, _)| guess)) {
                if hits.decompressed > hits.bound {
                    return hits.too_complex(view);
                }
                let mut steps = steps.clone();
                steps.push(compression.into());
                let result = compression::decompress(compression, &bytes);
                hits.decompressed += match &result {
                    Ok(found) => found.bytes.len(),
                    Err(Failure::Bound) => compression::bound(bytes.len()),
                    Err(Failure::Form) => 0,
                };
                match result {
                    Ok(found) if magic.is_some() || found.bytes.is_ascii() => {
                        views.push(View::fixed(found.bytes, steps, range.clone()));
                    }
                    Err(Failure::Bound) if magic.is_some() => {
                        hits.too_complex(&View::fixed(Vec::new(), steps, range.clone()));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Adds the hits of the rules. Returns the places of disguises, which the same search finds.
    fn rules_in(
        &self,
        subject: &Subject<'_>,
        view: &View<'_>,
        long: &[Range<usize>],
        nameless: bool,
        hits: &mut Hits,
    ) -> disguise::Places {
        let bytes = view.bytes.as_ref();
        let mut disguised = disguise::Places::default();
        let Some(search) = self.search(subject.direction, subject.location.at) else { return disguised };
        let active = |number: usize| {
            let rule = &self.rules[number];
            !(nameless && rule.prefix) && rule.applies_to_file(&subject.location.name)
        };
        let mut windows: Vec<(usize, Range<usize>)> = Vec::new();
        let mut efforts = Efforts::new(bytes.len());
        search.keywords.find(bytes, |keyword, range| {
            let Some(owners) = search.owners.get(keyword) else {
                return disguised.add(bytes, keyword - search.owners.len(), range);
            };
            let is_inside = lead::is_inside_word(bytes, range.start);
            for number in
                owners.iter().filter(|owner| !(owner.starts_word && is_inside)).map(|owner| owner.number)
            {
                let rule = &self.rules[number];
                if !active(number) {
                    continue;
                }
                if rule.anchored {
                    let window = range.start..bytes.len().min(range.start + rule.window);
                    if !efforts.permit(number) {
                        windows.push((number, window));
                        continue;
                    }
                    let found = rule.find_here(bytes, window.clone(), subject.last);
                    efforts.add(number, rule, &window, &found);
                    self.accept(subject, view, number, found, hits);
                } else {
                    let start = range.start.saturating_sub(rule.window);
                    windows.push((number, start..bytes.len().min(range.end + rule.window)));
                }
            }
        });
        let around = |run: Range<usize>| run.start.saturating_sub(AROUND)..bytes.len().min(run.end + AROUND);
        let mut sample = |rules: &[usize], find: &dyn Fn() -> Vec<Range<usize>>| {
            let rules = || rules.iter().copied().filter(|number| active(*number));
            if rules().next().is_some() {
                for run in find() {
                    windows.extend(rules().map(|number| (number, around(run.clone()))));
                }
            }
        };
        sample(&search.numbers, &|| runs::numbers(bytes));
        sample(&search.tokens, &|| runs::tokens(long));
        sample(&search.dotted, &|| runs::dotted(bytes, long));
        sample(&search.phrases, &|| phrase::runs(bytes));
        for (number, window) in merged(windows) {
            let mut start = window.start;
            while start < window.end {
                let found = self.rules[number].find(bytes, start..window.end, subject.last);
                start = match &found {
                    Found::Match(found) => found.whole.end.max(start + 1),
                    Found::None | Found::Cut => window.end,
                };
                self.accept(subject, view, number, found, hits);
            }
        }
        disguised
    }

    fn search(&self, direction: Direction, at: At) -> Option<&Search> {
        let cell = self.searches.get(&(direction, at))?;
        Some(cell.get_or_init(|| Search::new(&self.rules, direction, at)))
    }

    fn accept(&self, subject: &Subject<'_>, view: &View<'_>, number: usize, found: Found, hits: &mut Hits) {
        let found = match found {
            Found::Match(found) => found,
            Found::Cut => return hits.cut = true,
            Found::None => return,
        };
        let rule = &self.rules[number];
        let bytes = view.bytes.as_ref();
        if !view.is_new(&found.whole)
            || !rule.accepts(bytes, &found, subject.direction)
            || (subject.direction == Direction::Inbound
                && self.examples.is_match(&bytes[found.whole.clone()]))
        {
            return;
        }
        let is_quoted = || {
            let line = rule::line(bytes, &found.whole);
            let start = line.as_ptr() as usize - bytes.as_ptr() as usize;
            crate::quotation::quoted(line, &(found.whole.start - start..found.whole.end - start))
        };
        hits.add(Hit {
            rule: rule.id.clone(),
            kind: rule.kind,
            severity: match rule.hint_in_text && is_text(subject.location.at) && !subject.message {
                true => Severity::Low,
                false => rule.severity,
            },
            score: rule.score,
            range: view.origin(&found.secret),
            place: view.place(&found.secret),
            steps: view.steps.clone(),
            fingerprint: Fingerprint::of(&bytes[found.secret.clone()]),
            quoted: rule.score > 0 && is_quoted(),
        });
    }

    /// Returns the ids of rules that apply to a part.
    pub fn rules(&self, direction: Direction, at: At) -> impl Iterator<Item = &str> {
        self.rules.iter().filter(move |rule| rule.applies(direction, at)).map(|rule| rule.id.as_ref())
    }
}

/// Returns true for parts that are text of any kind.
fn is_text(at: At) -> bool {
    matches!(at, At::Body | At::Output)
}

/// Merges windows of the same rule that touch.
fn merged(mut windows: Vec<(usize, Range<usize>)>) -> Vec<(usize, Range<usize>)> {
    windows.sort_by_key(|(number, range)| (*number, range.start));
    let mut merged: Vec<(usize, Range<usize>)> = Vec::new();
    for (number, range) in windows {
        match merged.last_mut() {
            Some((last, before)) if *last == number && range.start <= before.end => {
                before.end = before.end.max(range.end);
            }
            _ => merged.push((number, range)),
        }
    }
    merged
}
