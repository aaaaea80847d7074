//! Masks of what is likely a secret: in commands and scripts, in paths of URLs, and in names of programs.

mod names;

use self::names::{CONFIG_WORDS, Program, is_variable, names_secret, names_secret_of_url};

/// Replaces a secret.
pub(super) const MASK: &str = "***";
/// Words before a secret.
const SCHEMES: [&str; 6] = ["bearer", "basic", "digest", "negotiate", "token", "apikey"];
/// Starts of well-known secrets.
const PREFIXES: [&str; 33] = [
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "glsa_",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xapp-",
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "whsec_",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "eyJ",
    "npm_",
    "pypi-",
    "hf_",
    "hvs.",
    "hvb.",
    "SG.",
    "dckr_pat_",
    "dop_v1_",
    "shpat_",
    "lin_api_",
    "AGE-SECRET-KEY-",
];
/// Minimum bytes of a word with such a start.
const SECRET_LENGTH: usize = 16;
/// Minimum bytes of a segment of a path that is a secret if it has digits and letters of both cases.
const RANDOM_LENGTH: usize = 24;

/// Secret that a word announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Secret {
    /// No secret.
    None,
    /// The next word, with its quotes.
    Word,
    /// Everything up to the end of the quotes or of the line.
    Line,
}

/// Masks the arguments of one command in their order.
#[derive(Default)]
pub(super) struct Masker {
    /// Last known program that was named. What it is called with is often the arguments of another one, such as `sudo`.
    program: Option<&'static Program>,
    /// The next argument is a secret.
    announced: bool,
}

impl Masker {
    /// Returns an argument with values of variables, of secret options and headers, and well-known secrets masked. It may be
    /// a script.
    pub(super) fn argument(&mut self, argument: &str) -> String {
        if std::mem::take(&mut self.announced) {
            return MASK.to_owned();
        }
        let mut scan = Scan { masker: self, shown: String::with_capacity(argument.len()), quote: None };
        let after = scan.text(argument);
        let shown = scan.shown;
        // `-p` and the like: the value is the next argument.
        let last = last_of_path(argument).to_ascii_lowercase();
        let is_name = argument.starts_with('-')
            || CONFIG_WORDS.contains(&last.as_str())
            || (argument.contains(':') && SCHEMES.contains(&last.as_str()));
        self.announced = after == Secret::Word && is_name && !argument.contains(char::is_whitespace);
        shown
    }
}

/// One argument that is read.
struct Scan<'a> {
    masker: &'a mut Masker,
    shown: String,
    /// Quote that is open.
    quote: Option<char>,
}

impl Scan<'_> {
    /// Adds a text. Returns the secret that follows it.
    fn text(&mut self, text: &str) -> Secret {
        let (mut rest, mut secret) = (text, Secret::None);
        while let Some(first) = rest.chars().next() {
            if secret == Secret::Line {
                rest = self.line(rest);
                secret = Secret::None;
                continue;
            }
            let word = &rest[..rest.find(separates).unwrap_or(rest.len())];
            if word.is_empty() {
                let is_quote = matches!(first, '"' | '\'');
                if secret == Secret::Word && is_quote && self.quote != Some(first) {
                    let end = rest[1..].find(first).map_or(rest.len(), |end| end + 2);
                    self.shown.push_str(&format!("{first}{MASK}{first}"));
                    (rest, secret) = (&rest[end..], Secret::None);
                    continue;
                }
                if is_quote {
                    self.quote = if self.quote == Some(first) { None } else { self.quote.or(Some(first)) };
                }
                if matches!(first, '\n' | '\r' | ';' | '&' | '|') {
                    secret = Secret::None;
                }
                self.shown.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            if secret == Secret::Word {
                // A value may have characters that separate others.
                let end =
                    rest.find(|c: char| c.is_whitespace() || "\"';|\\".contains(c)).unwrap_or(rest.len());
                self.shown.push_str(MASK);
                (rest, secret) = (&rest[end..], Secret::None);
                continue;
            }
            rest = &rest[word.len()..];
            secret = self.word(word, &mut rest);
        }
        secret
    }

    /// Masks up to the end of the quotes or of the line. A scheme such as `Bearer` is shown.
    fn line<'t>(&mut self, text: &'t str) -> &'t str {
        let ends = |c: char| c == '\n' || c == '\r' || Some(c) == self.quote;
        let (line, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        let value = line.trim_start();
        self.shown.push_str(&line[..line.len() - value.len()]);
        match value.split_once(' ') {
            Some((scheme, _)) if SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) => {
                self.shown.push_str(&format!("{scheme} {MASK}"));
            }
            _ if value.is_empty() => {}
            _ => self.shown.push_str(MASK),
        }
        rest
    }

    /// Adds a word. Returns the secret that follows it.
    fn word(&mut self, word: &str, rest: &mut &str) -> Secret {
        let before = self.shown.chars().next_back();
        if let Some(program) = Program::find(word) {
            self.masker.program = Some(program);
        }
        let url = word.split_once("://");
        if let Some((scheme, after)) = url.filter(|(scheme, _)| !scheme.contains('=')) {
            self.url(scheme, after);
            return Secret::None;
        }
        if word.starts_with('-')
            && let Some(secret) = self.option(word)
        {
            return secret;
        }
        if let Some(secret) = self.assignment(word, rest, matches!(before, Some('?' | '&' | '#'))) {
            return secret;
        }
        if let Some((scheme, after)) = url {
            self.url(scheme, after);
            return Secret::None;
        }
        // user:password@host, without a scheme.
        if let Some((login, place)) = word.rsplit_once('@')
            && login.contains(':')
        {
            self.shown.push_str(&format!("{MASK}@{place}"));
            return Secret::None;
        }
        self.shown.push_str(if is_known(word) { MASK } else { word });
        // environ['NAME']='VALUE'
        let is_key = is_variable(word) && rest.trim_start_matches(['\\', '"', '\'']).starts_with(']');
        if (names_secret(word) || is_key) && self.member(rest) {
            return Secret::Word;
        }
        let lower = word.to_ascii_lowercase();
        let is_announced = SCHEMES[..2].contains(&lower.as_str())
            || (word.starts_with('-') && names_secret(word))
            || CONFIG_WORDS.contains(&lower.as_str());
        if is_announced { Secret::Word } else { Secret::None }
    }

    /// Adds a URL without its user information.
    fn url(&mut self, scheme: &str, after: &str) {
        let (place, path) = after.split_at(after.find('/').unwrap_or(after.len()));
        match place.rsplit_once('@') {
            Some((_, host)) => self.shown.push_str(&format!("{scheme}://{MASK}@{host}")),
            None => self.shown.push_str(&format!("{scheme}://{place}")),
        }
        self.shown.push_str(&path_of_url(path));
    }

    /// Adds an option of the known program that has a secret. `None` if it is not one.
    fn option(&mut self, word: &str) -> Option<Secret> {
        let program = self.masker.program?;
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if program.long.contains(&name) {
            self.shown.push_str(name);
            if value.is_some() {
                self.shown.push('=');
                self.shown.push_str(MASK);
                return Some(Secret::None);
            }
            return Some(Secret::Word);
        }
        if word.starts_with("--") {
            return None;
        }
        let cluster = &word[1..];
        let at = cluster.find(|c: char| program.short.contains(c) || program.valued.contains(c))?;
        if cluster[at..].starts_with(|c: char| program.valued.contains(c)) {
            return None;
        }
        // Letters before it are options without a value.
        if !cluster[..at].bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return None;
        }
        let end = at + 2;
        self.shown.push_str(&word[..end]);
        if word.len() > end {
            self.shown.push_str(MASK);
            return Some(Secret::None);
        }
        Some(if program.is_glued { Secret::None } else { Secret::Word })
    }

    /// Adds `NAME=VALUE` or `NAME: VALUE` with a secret value. `None` if it is not one.
    fn assignment(&mut self, word: &str, rest: &mut &str, is_query: bool) -> Option<Secret> {
        let first = word.find(['=', ':'])?;
        let is_first = self.shown.is_empty();
        let is_assigned = |at: usize| word.as_bytes()[at] == b'=';
        let is_secret = |(name, at): &(&str, usize)| match *at == first {
            true => {
                names_secret(name)
                    || (is_assigned(*at) && is_variable(name))
                    || (is_assigned(*at) && is_query && names_secret_of_url(name))
            }
            // NAME=NAME=VALUE, as of `--from-literal` and `-c`, and `//HOST:PORT/:NAME=VALUE`.
            false => names_secret(last_of_path(name)),
        };
        let Some((_, at)) = names(word).find(is_secret) else {
            // `//HOST/:NAME VALUE`
            let is_setting = CONFIG_WORDS.contains(&last_of_path(word).to_ascii_lowercase().as_str());
            return is_setting.then(|| {
                self.shown.push_str(word);
                Secret::Word
            });
        };
        let (value, is_assigned) = (&word[at + 1..], is_assigned(at));
        self.shown.push_str(&word[..=at]);
        if !value.is_empty() {
            let is_scheme = !is_assigned && SCHEMES.contains(&value.to_ascii_lowercase().as_str());
            self.shown.push_str(if is_scheme { value } else { MASK });
            // The words after it are part of a header, if it has quotes or is an argument of its own.
            let is_header = !is_assigned && (is_first || self.quote.is_some());
            if is_header && !rest.is_empty() {
                return Some(Secret::Line);
            }
            if is_assigned && !is_scheme {
                self.rest_of_value(rest, is_query);
            }
            return Some(if is_scheme { Secret::Word } else { Secret::None });
        }
        Some(match rest.chars().next() {
            Some('"' | '\'') if is_assigned => Secret::Word,
            Some(' ') if !is_assigned => Secret::Line,
            _ => Secret::None,
        })
    }

    /// Skips what belongs to a value after its mask: characters that separate words elsewhere, and parts in quotes.
    fn rest_of_value(&mut self, rest: &mut &str, is_query: bool) {
        loop {
            let ends = |c: char| {
                c.is_whitespace() || "\"'`;&|\\)}]".contains(c) || (is_query && matches!(c, '#' | ','))
            };
            *rest = &rest[rest.find(ends).unwrap_or(rest.len())..];
            let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
            let Some(quote) = quote.filter(|quote| self.quote.is_none_or(|open| open != *quote)) else {
                return;
            };
            let Some(end) = rest[1..].find(quote) else { return };
            *rest = &rest[end + 2..];
        }
    }

    /// Adds the end of a name in JSON, or of a key in brackets, up to its value. Returns false if none follows.
    fn member(&mut self, rest: &mut &str) -> bool {
        let after = rest.trim_start_matches(['\\', '"', '\'', ' ', ']']);
        if after.len() == rest.len() || !after.starts_with([':', '=']) {
            return false;
        }
        let value = after[1..].trim_start_matches([' ', '\\', '=']);
        let (end, value) = rest.split_at(rest.len() - value.len());
        if self.quote.is_some_and(|quote| end.contains(quote)) {
            self.quote = None;
        }
        self.shown.push_str(end);
        *rest = value;
        let Some(quote @ ('"' | '\'')) = value.chars().next() else { return true };
        let end = value[1..].find(quote).map_or(value.len(), |end| end + 2);
        self.shown.push_str(&format!("{quote}{MASK}{quote}"));
        *rest = &value[end..];
        false
    }
}

/// Returns the names in a word that stand before a sign of an assignment, each with the place of that.
fn names(word: &str) -> impl Iterator<Item = (&str, usize)> {
    let signs = word.match_indices(['=', ':']).map(|(at, _)| at);
    signs.scan(0, |start, at| {
        let name = &word[*start..at];
        *start = at + 1;
        Some((name, at))
    })
}

/// Returns the part of a setting after its host and path.
fn last_of_path(name: &str) -> &str {
    name.rsplit([':', '/']).next().unwrap_or(name)
}

fn separates(character: char) -> bool {
    character.is_whitespace() || "\"'`;&|,?#(){}<>\\".contains(character)
}

fn is_known(word: &str) -> bool {
    word.len() >= SECRET_LENGTH && PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// Returns the name of a program of a caller, such as a user agent.
pub(super) fn agent(agent: &str) -> String {
    let shown = Masker::default().argument(agent);
    let words: Vec<&str> = shown.split(' ').map(|word| if is_random(word) { MASK } else { word }).collect();
    words.join(" ")
}

/// Returns the name of a program, which is the first argument of a command. It may be a whole script.
pub(super) fn program(argument: &str) -> String {
    let shown = Masker::default().argument(argument);
    segment(shown.rsplit('/').next().unwrap_or(&shown))
}

/// Returns a sentence or a name. Words with the start of a well-known secret, and long random ones, are masked.
pub(super) fn words(text: &str) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    masked_parts(text, is_part, |word| is_known(word) || word.split('.').any(is_random))
}

/// Returns the name of a host. Labels with the start of a well-known secret, in any case, and long random ones are masked.
pub(super) fn host(name: &str) -> String {
    let known = |label: &str| {
        let begins = |prefix: &&str| {
            let start = label.get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        label.len() >= SECRET_LENGTH && PREFIXES.iter().any(begins)
    };
    masked_parts(name, |character| character != '.', |label| known(label) || is_random(label))
}

/// Masks parts of a text that are secrets.
fn masked_parts(text: &str, is_part: impl Fn(char) -> bool, is_secret: impl Fn(&str) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|character| is_part(character) != is_part(first)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        shown.push_str(if is_part(first) && is_secret(part) { MASK } else { part });
        rest = after;
    }
    shown
}

/// Returns the path of a URL: segments that are likely secrets are masked.
pub(super) fn path_of_url(path: &str) -> String {
    let segments: Vec<String> = path.split('/').map(segment).collect();
    segments.join("/")
}

fn segment(segment: &str) -> String {
    let decoded = decoded(segment);
    let is_plain = decoded == segment;
    let masked = match decoded.find(['=', ':', '@', '%', '?', '&', ';', '#', ' ']) {
        // It may have the form of parameters or of another URL.
        Some(_) => Masker::default().argument(&decoded.replace(';', "&")),
        None => decoded.clone(),
    };
    let is_secret = is_known(&decoded) || decoded.split([':', '.', '=', '@', '&', ';']).any(is_random);
    match is_secret {
        true => MASK.to_owned(),
        false if masked.contains(MASK) && is_plain => masked,
        false if masked.contains(MASK) => MASK.to_owned(),
        false => segment.to_owned(),
    }
}

/// Returns true for a text that only a program makes: long, with digits and letters of both cases.
fn is_random(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    text.len() >= RANDOM_LENGTH
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'+'))
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
}

/// Returns a segment with its escapes decoded, also those that are escaped twice.
fn decoded(segment: &str) -> String {
    let mut text = segment.to_owned();
    for _ in 0..2 {
        if !text.contains('%') {
            break;
        }
        let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
        while let [first, tail @ ..] = rest {
            let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) if *first == b'%' => (bytes.push(byte), rest = &tail[2..]).0,
                _ => (bytes.push(*first), rest = tail).0,
            }
        }
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

#[cfg(test)]
mod tests;
