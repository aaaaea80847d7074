//! Host names that carry data in their labels.

use std::collections::{BTreeMap, HashSet};

use crate::decode;
use crate::finding::{At, Direction, Finding, Fingerprint, Kind, Location, Severity, Step};
use crate::runs;
use crate::scanner::Scanner;
use crate::state::State;
use crate::text;
use crate::validate;
use crate::view::View;

/// Maximum bytes of a label.
const LABEL: usize = 40;
/// Maximum letters of a word in a label.
const WORD: usize = 12;
/// Minimum bytes of a label without a pattern.
const RANDOM: usize = 20;
/// Minimum entropy of a label without a pattern, in bits a byte.
const ENTROPY: f64 = 3.6;
/// Maximum labels below the registrable domain, if they have at least [`LABELS_BYTES`] bytes.
const LABELS: usize = 6;
const LABELS_BYTES: usize = 24;
/// Maximum names of one parent in an hour.
const NAMES: usize = 100;
/// Maximum names of one parent in an hour whose first label has at least [`LONG_NAME`] bytes and a digit.
const LONG_NAMES: usize = 20;
const LONG_NAME: usize = 12;
/// Maximum parents whose names are counted.
const PARENTS: usize = 1024;
/// Seconds over which names are counted.
const HOUR: u64 = 3600;
/// Minimum bytes of decoded text.
const TEXT: usize = 8;
/// Letters that look like ASCII and are no letters of larger languages.
const RARE: [char; 6] = ['ӏ', 'ԁ', 'һ', 'ԛ', 'ԝ', 'ѵ'];

/// Names that a sandbox used, by their parent.
#[derive(Debug, Default)]
pub struct Hosts {
    parents: BTreeMap<String, Names>,
}

#[derive(Debug, Default)]
struct Names {
    since: u64,
    all: HashSet<Fingerprint>,
    long: usize,
}

impl Hosts {
    /// Inspects a host name at a time in seconds. Labels are also scanned: alone, joined, and together with those of earlier
    /// names.
    pub fn observe(&mut self, scanner: &Scanner, state: &mut State, host: &str, now: u64) -> Vec<Finding> {
        let host = host.trim_end_matches('.');
        let lower = host.to_ascii_lowercase();
        let twin = is_twin(&lower).then(|| finding("host-confusable", Severity::Medium, host));
        let Some(domain) = psl::domain_str(&lower).filter(|domain| domain.len() < host.len()) else {
            let mut findings = scanner.scan_whole(state, &Location::new(At::Host), host.as_bytes());
            findings.extend(twin);
            return findings;
        };
        // The original case matters: base64 has both.
        let labels = &host[..host.len() - domain.len() - 1];
        let mut findings = scanner.scan_whole(state, &Location::new(At::Host), labels.as_bytes());
        findings.extend(forms(labels).into_iter().map(|(rule, severity)| finding(rule, severity, labels)));
        // Some names are attacks as a whole, such as those of metadata services.
        let mut whole = State::new(Direction::Outbound);
        let attacks = scanner.scan_whole(&mut whole, &Location::new(At::Host), lower.as_bytes());
        findings.extend(attacks.into_iter().filter(|finding| finding.kind == Kind::Waf));
        findings.extend(twin);
        if self.too_many(domain, labels, now) {
            findings.push(finding("host-names-per-parent", Severity::Medium, domain));
        }
        findings
    }

    /// Scans the labels of a name, without the forms that labels have. For a name that was written in another case.
    pub fn scan(&self, scanner: &Scanner, state: &mut State, host: &str) -> Vec<Finding> {
        let lower = host.trim_end_matches('.').to_ascii_lowercase();
        let domain = psl::domain_str(&lower).map_or(0, str::len);
        let labels = &host[..lower.len().saturating_sub(domain)];
        scanner.scan_whole(state, &Location::new(At::Host), labels.trim_end_matches('.').as_bytes())
    }

    /// Counts a name; `true` for a new one of a parent that has too many names in this hour.
    fn too_many(&mut self, domain: &str, labels: &str, now: u64) -> bool {
        if self.parents.len() >= PARENTS && !self.parents.contains_key(domain) {
            self.parents.retain(|_, names| now.saturating_sub(names.since) < HOUR);
            if self.parents.len() >= PARENTS {
                return true;
            }
        }
        let names = self.parents.entry(domain.to_owned()).or_default();
        if names.all.is_empty() || now.saturating_sub(names.since) >= HOUR {
            *names = Names { since: now, ..Names::default() };
        }
        let name = Fingerprint::of(labels.as_bytes());
        if names.all.contains(&name) {
            return false;
        }
        let first = labels.split('.').next().unwrap_or_default();
        let long = first.len() >= LONG_NAME && first.bytes().any(|byte| byte.is_ascii_digit());
        if names.all.len() >= NAMES || (long && names.long >= LONG_NAMES) {
            return true;
        }
        names.all.insert(name);
        names.long += usize::from(long);
        false
    }
}

/// Returns the registrable domain of a host name, or the name if it has none.
pub fn domain(host: &str) -> &str {
    let host = host.trim_end_matches('.');
    psl::domain_str(host).unwrap_or(host)
}

/// Returns the forms of labels that are findings.
fn forms(labels: &str) -> Vec<(&'static str, Severity)> {
    let mut found = Vec::new();
    let parts: Vec<&str> = labels.split('.').collect();
    if parts.iter().any(|label| label.len() > LABEL && without_words(label) > LABEL) {
        found.push(("host-label-length", Severity::Medium));
    }
    if parts.len() > LABELS && labels.len() >= LABELS_BYTES {
        found.push(("host-many-labels", Severity::Medium));
    }
    let joined = parts.concat();
    if parts.iter().any(|label| carries_text(label)) || carries_text(&joined) {
        found.push(("host-label-encoded", Severity::High));
    } else if parts.iter().any(|label| is_random(label)) {
        found.push(("host-label-random", Severity::Low));
    }
    found
}

/// Returns the bytes of a label besides its words, as names of services have them between hyphens.
fn without_words(label: &str) -> usize {
    let is_word = |part: &&str| {
        part.len() <= WORD
            && part.bytes().all(|byte| byte.is_ascii_alphabetic())
            && (part.len() <= 2
                || part.contains(['a', 'e', 'i', 'o', 'u', 'y', 'A', 'E', 'I', 'O', 'U', 'Y']))
    };
    label.len() - label.split('-').filter(is_word).map(|word| word.len() + 1).sum::<usize>().min(label.len())
}

/// Reports whether a label of an internationalized name is written to look like ASCII: letters of other scripts that look like
/// ASCII, in a word with ASCII letters, or in a word that only has such letters and one that no language uses with the others.
fn is_twin(host: &str) -> bool {
    let mut names =
        host.split('.').filter_map(|label| idna::punycode::decode_to_string(label.strip_prefix("xn--")?));
    names.any(|name| {
        name.split(|letter: char| !letter.is_alphabetic()).any(|word| {
            let foreign = || word.chars().filter(|letter| !letter.is_ascii());
            foreign().count() > 0
                && foreign().all(|letter| text::is_foreign(letter) && text::confusable(letter).is_some())
                && (word.contains(|letter: char| letter.is_ascii()) || word.contains(RARE))
        })
    })
}

/// Reports whether a label decodes to text.
fn carries_text(label: &str) -> bool {
    let view = View::root(label.as_bytes());
    let decoded = decode::all(&view, &runs::long(label.as_bytes()));
    decoded.views.iter().any(|view| {
        let encoding = view.steps.last().is_some_and(|step| {
            matches!(step, Step::Base32 | Step::Hex) || *step == Step::Base64 && is_random(label)
        });
        // Most of the label is text, not a part of it by chance.
        let text = view.bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
        encoding && text >= TEXT && text * 3 >= label.len()
    })
}

fn is_random(label: &str) -> bool {
    let digits = label.bytes().filter(u8::is_ascii_digit).count();
    let letters = label.bytes().filter(u8::is_ascii_alphabetic).count();
    let longest_word = label.split(|letter: char| !letter.is_ascii_alphanumeric()).map(str::len).max();
    let uuid = label.len() == 36 && label.bytes().filter(|byte| *byte == b'-').count() == 4;
    longest_word.unwrap_or(0) >= RANDOM
        && !uuid
        && (digits >= 3 || label.bytes().any(|byte| byte.is_ascii_uppercase()))
        && letters >= 3
        && validate::entropy(label.as_bytes()) >= ENTROPY
}

fn finding(rule: &str, severity: Severity, value: &str) -> Finding {
    Finding {
        rule: rule.to_owned(),
        kind: Kind::Host,
        severity,
        at: At::Host,
        name: String::new(),
        range: None,
        steps: Vec::new(),
        fingerprint: Fingerprint::of(value.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(hosts: &mut Hosts, host: &str, now: u64) -> Vec<String> {
        let scanner = Scanner::new(Vec::new()).unwrap();
        let found = hosts.observe(&scanner, &mut State::new(Direction::Outbound), host, now);
        found.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn labels_that_carry_data_are_findings() {
        let found = |host: &str| rules(&mut Hosts::default(), host, 0);
        assert_eq!(found("68656c6c6f20776f726c6420616761696e.evil.example.com"), ["host-label-encoded"]);
        assert_eq!(found("NBSWY3DPEB3W64TMMQQHI33EMF4Q.evil.example.com"), ["host-label-encoded"]);
        assert_eq!(found("a1b2.c3d4.e5f6.g7h8.i9j0.k1l2.m3n4.evil.com"), ["host-many-labels"]);
        assert_eq!(found(&format!("{}.evil.com", "a".repeat(41))), ["host-label-length"]);
    }

    #[test]
    fn ordinary_hosts_are_no_findings() {
        for host in [
            "api.github.com",
            "d111111abcdef8.cloudfront.net",
            "objects.githubusercontent.com",
            "my-app-git-feature-branch-team.vercel.app",
            "ec2-203-0-113-25.compute-1.amazonaws.com",
            "prod-us-east-1-starport-layer-bucket.s3.us-east-1.amazonaws.com",
            "123e4567-e89b-12d3-a456-426614174000.tenant.example.com",
            "vpc-logs-production-aabbccddaabbccddaabbccdd11.us-east-1.es.amazonaws.com",
            "a-long-service-name-in-a-long-namespace-team-b.apps.example.com",
            "localhost",
            "10.0.0.1",
        ] {
            assert_eq!(rules(&mut Hosts::default(), host, 0), [] as [&str; 0], "{host}");
        }
    }

    #[test]
    fn names_that_are_written_to_look_like_ascii_are_findings() {
        let found = |name: &str| {
            let labels = name.split('.').map(|label| match label.is_ascii() {
                true => label.to_owned(),
                false => format!("xn--{}", idna::punycode::encode_str(label).unwrap()),
            });
            rules(&mut Hosts::default(), &labels.collect::<Vec<_>>().join("."), 0)
        };
        for name in [
            "gіthub.com",
            "аррӏе.com",
            "api.pаypal.com",
            "аԁоЬе.example.com",
            "gοοgle-login.com",
            "www.аmazon.co.uk",
        ] {
            assert_eq!(found(&name.to_lowercase()), ["host-confusable"], "{name}");
        }
        for name in [
            "пример.рф",
            "www.сахар.com",
            "кот-shop.com",
            "интернет-shop.com",
            "καλημέρα.gr",
            "münchen.de",
            "rødgrød.dk",
            "żółw.pl",
            "ısparta.com.tr",
            "日本語.jp",
            "xn--.com",
            "xn--99999999999.com",
        ] {
            assert_eq!(found(name), [] as [&str; 0], "{name}");
        }
    }

    #[test]
    fn new_names_of_a_parent_with_many_are_findings_for_an_hour() {
        let mut hosts = Hosts::default();
        let count = (0..50)
            .map(|number| format!("chunk{number:08}.evil.com"))
            .flat_map(|h| rules(&mut hosts, &h, 10))
            .count();
        assert_eq!(count, 50 - LONG_NAMES);
        assert_eq!(rules(&mut hosts, "chunk00000000.evil.com", 20).len(), 0);
        assert_eq!(rules(&mut hosts, "chunk99999999.evil.com", 4000).len(), 0);
    }
}
