//! Figures of the scanner: recall on the examples of gitleaks in every encoding, false alarms in sources, speed.
//!
//! Sources are folders that `HUTCH_SCAN_SOURCES` names, separated by colons; without it the sources of Go, of crates and of
//! Python that this machine has. `HUTCH_SCAN_SHOW=1` prints each false alarm, and
//! `HUTCH_SCAN_ONLY` selects `recall`, `alarms` or `speed`. It runs in the folder of the repository.

#[path = "../../crates/scan/tests/scan/encode.rs"]
mod encode;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use hutch_scan::{At, Direction, Finding, Location, RuleSet, Scanner, Severity, State};

/// Folder of the examples of gitleaks.
const CORPUS: &str = "crates/scan/tests/scan/corpus";
/// Maximum bytes of sources of one kind.
const SOURCES: usize = 200 << 20;
/// Maximum bytes of a source file.
const FILE: u64 = 4 << 20;
/// Endings of source files.
const ENDINGS: [&str; 10] = ["go", "py", "rs", "toml", "md", "s", "c", "h", "txt", "json"];
/// Rules whose matches in sources are what the rule describes: keys and phrases of tests.
const REAL: [&str; 5] =
    ["private-key", "private-key-start", "private-key-bare", "openssh-private-key", "recovery-phrase"];
/// Rounds of a measurement; the best one counts.
const ROUNDS: usize = 5;

type Part = fn() -> anyhow::Result<()>;

/// Runs all measurements.
pub(crate) fn run() -> anyhow::Result<()> {
    let only = std::env::var("HUTCH_SCAN_ONLY").unwrap_or_default();
    let parts: [(&str, Part); 3] = [("recall", recall), ("alarms", false_alarms), ("speed", speed)];
    parts.into_iter().filter(|(name, _)| only.is_empty() || *name == only).try_for_each(|(_, part)| part())
}

fn scan(scanner: &Scanner, direction: Direction, location: &Location, bytes: &[u8]) -> Vec<Finding> {
    scanner.scan_whole(&mut State::new(direction), location, bytes)
}

fn recall() -> anyhow::Result<()> {
    let secrets = RuleSet::builtin("secrets").context("the rule set secrets")?;
    let scanner = Scanner::new(vec![secrets])?;
    let read = |name: &str| std::fs::read_to_string(Path::new(CORPUS).join(name)).context(CORPUS);
    let positives = encode::corpus(&read("positives")?);
    println!("\n| Encoding | Recall on {} positives |\n|---|---|", positives.len());
    let measure = |name: &str, found: &dyn Fn(&encode::Example) -> bool| {
        let missed: Vec<_> = positives.iter().filter(|example| !found(example)).collect();
        println!("| {name} | {:.4} |", 1.0 - missed.len() as f64 / positives.len() as f64);
        if std::env::var_os("HUTCH_SCAN_SHOW").is_some() {
            let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
            missed.iter().for_each(|example| *rules.entry(&example.rule).or_default() += 1);
            println!("{rules:?}");
        }
    };
    let has =
        |findings: Vec<Finding>, example: &encode::Example| findings.iter().any(|f| f.rule == example.rule);
    for encoding in encode::TEXTS {
        measure(encoding, &|example| {
            let location = Location::named(At::Body, &example.path);
            let bytes = encode::text(encoding, &example.text);
            has(scan(&scanner, Direction::Outbound, &location, &bytes), example)
        });
    }
    for (name, compression) in encode::COMPRESSIONS {
        measure(name, &|example| {
            let mut location = Location::compressed(compression);
            location.name.clone_from(&example.path);
            let bytes = encode::compress(compression, &example.text);
            has(scan(&scanner, Direction::Outbound, &location, &bytes), example)
        });
    }
    let negatives = encode::corpus(&read("negatives")?);
    let wrong: Vec<_> = negatives
        .iter()
        .filter(|example| {
            let location = Location::named(At::Body, &example.path);
            has(scan(&scanner, Direction::Outbound, &location, &example.text), example)
        })
        .collect();
    println!("\nFound {} of {} negatives.", wrong.len(), negatives.len());
    wrong.iter().for_each(|example| println!("  {}", example.rule));
    Ok(())
}

/// Returns the folders of sources, with a name for each.
fn sources() -> Vec<(String, PathBuf)> {
    if let Some(folders) = std::env::var_os("HUTCH_SCAN_SOURCES") {
        return std::env::split_paths(&folders).map(|path| (path.display().to_string(), path)).collect();
    }
    let home = std::env::var("HOME").unwrap_or_default();
    let output = |program: &str, arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    };
    let python = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let candidates = [
        ("Go", output("go", &["env", "GOROOT"]).map(|root| root.join("src"))),
        ("crates", Some(Path::new(&home).join(".cargo/registry/src"))),
        ("Python", output("python3", &["-c", python])),
    ];
    let existing = candidates.into_iter().filter_map(|(name, path)| Some((name.to_owned(), path?)));
    existing.filter(|(_, path)| path.is_dir()).collect()
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, u64)>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        match entry.metadata() {
            Ok(data) if data.is_dir() => collect(&path, files),
            Ok(data) if data.is_file() && data.len() <= FILE => {
                let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
                if ENDINGS.contains(&ending) {
                    files.push((path, data.len()));
                }
            }
            _ => {}
        }
    }
}

fn false_alarms() -> anyhow::Result<()> {
    let scanner = Scanner::builtin();
    println!(
        "\n| Sources | MB | Direction | Alarms | Alarms in 10 MB | Real keys of tests | Hints |\n|---|---|---|---|---|---|---|"
    );
    for (name, folder) in sources() {
        let mut files = Vec::new();
        collect(&folder, &mut files);
        for direction in [Direction::Outbound, Direction::Inbound] {
            let (mut bytes, mut alarms, mut real, mut hints) = (0, BTreeMap::<String, usize>::new(), 0, 0);
            for (path, _) in &files {
                let Ok(content) = std::fs::read(path) else { continue };
                bytes += content.len();
                if bytes > SOURCES {
                    break;
                }
                let location = Location::named(At::Body, path.to_string_lossy());
                for finding in scan(&scanner, direction, &location, &content) {
                    if finding.severity == Severity::Low {
                        hints += 1;
                        continue;
                    }
                    if REAL.contains(&finding.rule.as_str()) {
                        real += 1;
                        continue;
                    }
                    *alarms.entry(finding.rule.clone()).or_default() += 1;
                    show(&finding, path, &content);
                }
            }
            let megabytes = bytes as f64 / 1e6;
            let total: usize = alarms.values().sum();
            let rate = total as f64 * 10.0 / megabytes;
            println!("| {name} | {megabytes:.0} | {direction:?} | {total} | {rate:.2} | {real} | {hints} |");
            if total > 0 {
                println!("{alarms:?}");
            }
        }
    }
    Ok(())
}

fn show(finding: &Finding, path: &Path, content: &[u8]) {
    if std::env::var_os("HUTCH_SCAN_SHOW").is_none() {
        return;
    }
    let range = finding.range.clone().unwrap_or(0..0);
    let clamp = |place: u64| usize::try_from(place).unwrap_or(0).min(content.len());
    let (start, end) = (clamp(range.start.saturating_sub(40)), clamp(range.end.min(range.start + 120) + 10));
    let text = String::from_utf8_lossy(&content[start..end]);
    println!("  {} [{}] {}: {:?}", finding.rule, finding.view(), path.display(), text);
}

fn speed() -> anyhow::Result<()> {
    let scanner = Scanner::builtin();
    println!("\n| Input of 1 MiB | MB/s outbound | MB/s inbound |\n|---|---|---|");
    let mut inputs = vec![("base64 of random bytes", random()), ("prose", prose())];
    for (name, ending) in
        [("source code, Go", "go"), ("source code, Rust", "rs"), ("source code, Python", "py")]
    {
        let mut files = Vec::new();
        sources().iter().for_each(|(_, folder)| collect(folder, &mut files));
        let mut bytes = Vec::new();
        for (path, _) in
            files.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == ending)).step_by(7)
        {
            bytes.extend(std::fs::read(path)?);
            if bytes.len() > 1 << 20 {
                break;
            }
        }
        bytes.truncate(1 << 20);
        if !bytes.is_empty() {
            inputs.push((name, bytes));
        }
    }
    for (name, bytes) in inputs {
        let rate = |direction: Direction| {
            let mut best = f64::MAX;
            for _ in 0..ROUNDS {
                let start = cpu();
                let location = Location::new(At::Body);
                std::hint::black_box(scan(&scanner, direction, &location, &bytes));
                best = best.min(cpu() - start);
            }
            bytes.len() as f64 / best / 1e6
        };
        println!("| {name} | {:.0} | {:.0} |", rate(Direction::Outbound), rate(Direction::Inbound));
    }
    Ok(())
}

/// Returns the seconds of a processor that this thread used. Other work on the machine does not count.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns 1 MiB of base64 of bytes without a pattern.
fn random() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(768 << 10);
    while bytes.len() < 768 << 10 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.push((state >> 32) as u8);
    }
    encode::base64(&bytes, b"+/")
}

/// Returns 1 MiB of prose: the documentation of this repository, repeated.
fn prose() -> Vec<u8> {
    let mut text = Vec::new();
    for name in ["ARCHITECTURE.md", "CHANGELOG.md", "README.md", "LICENSE"] {
        text.extend(std::fs::read(name).unwrap_or_default());
    }
    text.iter().copied().cycle().take(1 << 20).collect()
}
