//! Plain language: banned words and phrases, heads of doc comments, layout of Markdown.
//!
//! Counts of hits are compared with `xtask/language.txt`, a ceiling for each folder. A count above its ceiling fails the
//! check, and so does one below, until `cargo xtask tidy --lower` has lowered the ceiling. Ceilings never rise.

mod markdown;
mod rust;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Folders whose Rust files are checked.
const RUST: [&str; 4] = ["bench", "crates", "fuzz", "xtask"];
/// Folders whose scripts and manifests are checked: only their comments are prose.
const SCRIPTS: [&str; 4] = [".ci", "deploy", "scripts", "tests"];
/// Folders of recordings, of test input, of texts that others wrote, and of build output.
const SKIPPED: [&str; 7] = ["fixtures", "corpus", "recorded", "target", ".git", ".tools", "language"];
/// Hits that a failure lists for one folder.
const LISTED_MAX: usize = 30;

/// Number of hits in a folder, or the ceiling for it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    /// Banned words and phrases.
    words: usize,
    /// Doc comments that start with a relative clause.
    clauses: usize,
}

/// Result of a search: counts by folder, each hit as text, and layout breaches.
#[derive(Default)]
struct Findings {
    counts: BTreeMap<String, Count>,
    hits: BTreeMap<String, Vec<String>>,
    breaches: Vec<String>,
}

/// Options of `cargo xtask tidy`.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct Options {
    /// Records lower counts in xtask/language.txt.
    #[arg(long)]
    lower: bool,
    /// Lists the hits in files whose path starts with this text, for example `crates/api`.
    #[arg(long, value_name = "PATH")]
    list: Option<String>,
}

/// Prints the counts; an error when a count differs from its ceiling or a Markdown file breaks the layout rules.
pub(crate) fn check(root: &Path, options: &Options) -> anyhow::Result<()> {
    let findings = search(root)?;
    let table = root.join("xtask/language.txt");
    let recorded = std::fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let mut ceilings = parse(&recorded)?;
    if let Some(path) = &options.list {
        for hit in findings.hits.values().flatten().filter(|hit| hit.starts_with(path.as_str())) {
            println!("{hit}");
        }
    }
    if options.lower {
        lower(&mut ceilings, &findings.counts);
        std::fs::write(&table, render(&ceilings)).with_context(|| table.display().to_string())?;
    }
    for (folder, count) in &findings.counts {
        println!("{folder}: {} banned words, {} doc comments with a clause", count.words, count.clauses);
    }
    let mut breaches = compare(&findings, &ceilings);
    breaches.extend(findings.breaches);
    if !breaches.is_empty() {
        bail!("language rules broken:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

fn search(root: &Path) -> anyhow::Result<Findings> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    let mut findings = Findings::default();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let Some(folder) = folder_of(&name) else { continue };
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let (count, hits) = hits_of(&name, &text);
        let sum = findings.counts.entry(folder.clone()).or_default();
        sum.words += count.words;
        sum.clauses += count.clauses;
        findings.hits.entry(folder).or_default().extend(hits);
        if extension(&name) == "md" {
            findings.breaches.extend(markdown::breaches(&name, &text));
        }
    }
    Ok(findings)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        entries.push(entry?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let readme = path.join("README.md");
        if path.is_dir() && !path.is_symlink() && !SKIPPED.contains(&name.as_str()) {
            collect(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        } else if name == "fixtures" && readme.is_file() {
            files.push(readme);
        }
    }
    Ok(())
}

/// Line of the table to which a file belongs; none for a file that is not checked.
fn folder_of(name: &str) -> Option<String> {
    let mut parts = name.split('/');
    let top = parts.next().unwrap_or_default();
    match extension(name) {
        "md" => Some("Markdown".to_owned()),
        "rs" if top == "crates" => Some(format!("crates/{}", parts.next().unwrap_or_default())),
        "rs" if RUST.contains(&top) => Some(top.to_owned()),
        "py" | "sh" | "yaml" | "yml" | "toml" | "" if SCRIPTS.contains(&top) => Some(top.to_owned()),
        _ => None,
    }
}

fn extension(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map_or("", |(_, extension)| extension)
}

fn hits_of(name: &str, text: &str) -> (Count, Vec<String>) {
    let mut count = Count::default();
    let mut hits = Vec::new();
    let mut add = |found: Vec<words::Hit>| {
        count.words += found.len();
        hits.extend(
            found
                .into_iter()
                .map(|hit| format!("{name}:{}: \"{}\"; write {}", hit.line, hit.phrase, hit.instead)),
        );
    };
    let mut text = text.to_owned();
    for (_, quoted) in words::QUOTED.iter().filter(|(file, _)| *file == name) {
        text = text.replace(quoted, "");
    }
    match extension(name) {
        "md" => add(words::hits(&markdown::prose(&text), 1, true)),
        "rs" => {
            let pieces = rust::pieces(&text);
            for piece in &pieces {
                add(words::hits(&piece.text, piece.line, piece.kind != rust::Kind::Literal));
            }
            for piece in pieces.iter().filter(|piece| piece.kind == rust::Kind::DocComment) {
                if rust::starts_with_a_clause(&piece.text) {
                    count.clauses += 1;
                    hits.push(format!("{name}:{}: starts with a clause; write a verb or a noun", piece.line));
                }
            }
        }
        _ => add(words::hits(&script_comments(&text), 1, true)),
    }
    (count, hits)
}

/// Text after `#`, and lines that open a docstring; every other line is empty.
fn script_comments(text: &str) -> String {
    let comment = |line: &str| {
        let trimmed = line.trim_start();
        let docstring = trimmed.strip_prefix("\"\"\"").or_else(|| trimmed.strip_prefix('#'));
        docstring
            .or_else(|| line.split_once(" # ").map(|(_, comment)| comment))
            .unwrap_or_default()
            .to_owned()
    };
    text.lines().fold(String::new(), |all, line| all + &comment(line) + "\n")
}

/// A line for each count that differs from its ceiling.
fn compare(findings: &Findings, ceilings: &BTreeMap<String, Count>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (folder, count) in &findings.counts {
        let ceiling = ceilings.get(folder).copied().unwrap_or_default();
        if count.words > ceiling.words || count.clauses > ceiling.clauses {
            breaches.push(format!(
                "{folder}: {} banned words and {} clauses, at most {} and {}",
                count.words, count.clauses, ceiling.words, ceiling.clauses
            ));
            let hits = findings.hits.get(folder).map(Vec::as_slice).unwrap_or_default();
            breaches.extend(hits.iter().take(LISTED_MAX).cloned());
            if hits.len() > LISTED_MAX {
                breaches
                    .push(format!("{} more; `cargo xtask tidy --list {folder}`", hits.len() - LISTED_MAX));
            }
        }
    }
    for (folder, ceiling) in ceilings {
        let count = findings.counts.get(folder).copied().unwrap_or_default();
        if count.words < ceiling.words || count.clauses < ceiling.clauses {
            breaches.push(format!(
                "{folder}: {} banned words and {} clauses are fewer than {} and {}; `cargo xtask tidy --lower`",
                count.words, count.clauses, ceiling.words, ceiling.clauses
            ));
        }
    }
    breaches
}

/// Takes over counts that are below their ceilings. A folder without hits keeps no line.
fn lower(ceilings: &mut BTreeMap<String, Count>, counts: &BTreeMap<String, Count>) {
    for (folder, ceiling) in ceilings.iter_mut() {
        let count = counts.get(folder).copied().unwrap_or_default();
        ceiling.words = ceiling.words.min(count.words);
        ceiling.clauses = ceiling.clauses.min(count.clauses);
    }
    ceilings.retain(|_, ceiling| *ceiling != Count::default());
}

fn parse(table: &str) -> anyhow::Result<BTreeMap<String, Count>> {
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let [folder, words, clauses] = fields[..] else { bail!("not three fields: {row:?}") };
        let number = |field: &str| field.parse().with_context(|| format!("not a number: {field:?}"));
        Ok((folder.to_owned(), Count { words: number(words)?, clauses: number(clauses)? }))
    })
    .collect()
}

fn render(ceilings: &BTreeMap<String, Count>) -> String {
    let mut table = String::from(
        "# Hits that remain in each folder: banned words, doc comments that start with a clause.\n\
         # A folder without a line has none. `cargo xtask tidy --lower` writes this file.\n",
    );
    for (folder, count) in ceilings {
        let _ = writeln!(table, "{folder} {} {}", count.words, count.clauses);
    }
    table
}

#[cfg(test)]
mod tests;
