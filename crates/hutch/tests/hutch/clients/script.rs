//! The script in `tests/clients`: run, and compared with the document.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Where the cells' clients go.
pub(crate) struct Settings {
    pub(crate) kubeconfig: PathBuf,
    /// The router's URL, and what it lets in.
    pub(crate) router: String,
    pub(crate) token: String,
    /// `router`, `certificate`, `key` of a listener with TLS; else null.
    pub(crate) tls: Value,
    /// `router`, `key`, `hutch`: a router that wants tokens for one sandbox; else null.
    pub(crate) scoped: Value,
}

pub(crate) struct Script<'a> {
    settings: Option<&'a Settings>,
}

impl<'a> Script<'a> {
    pub(crate) fn new(settings: Option<&'a Settings>) -> Script<'a> {
        Script { settings }
    }

    fn run(&self, words: &[&str]) -> Output {
        let packages = ["1.0.8", "grpc", "async"].map(hutch_testkit::python_package);
        let ambient = std::env::var_os("PYTHONPATH").unwrap_or_default();
        let paths = packages.into_iter().chain(std::env::split_paths(&ambient));
        let mut command = Command::new("python3");
        command.arg(root().join("tests/clients")).args(words).stdin(Stdio::null());
        command
            .env("PYTHONPATH", std::env::join_paths(paths).expect("paths"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(settings) = self.settings {
            let given = json!({"namespace": "clients", "router": settings.router, "token": settings.token,
                "tls": settings.tls, "scoped": settings.scoped});
            command.env("KUBECONFIG", &settings.kubeconfig).env("CLIENTS_SETTINGS", given.to_string());
        }
        command.output().expect("python3 starts")
    }

    /// Runs it, which must succeed; what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs every cell of these columns, the columns at the same time: a cell waits more than it works. Those that pass are the
    /// ones in the document, with the same words.
    pub(crate) fn cells(&self, columns: &[&str]) {
        self.ok(&["--setup"]);
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let run = |column| scope.spawn(move || self.run(&["--columns", column]));
            let running: Vec<_> = columns.iter().copied().map(run).collect();
            running.into_iter().map(|one| one.join().expect("a column")).collect()
        });
        let mut passed = BTreeMap::new();
        let mut failed = Vec::new();
        for output in outputs {
            let printed = String::from_utf8_lossy(&output.stdout);
            for line in printed.lines() {
                let cell: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no cell: {line}"));
                let text = |field: &str| cell[field].as_str().unwrap_or_default().to_owned();
                match cell["error"].as_str() {
                    Some(error) => failed.push(format!("{} | {}\n{error}", text("column"), text("row"))),
                    None => {
                        assert_eq!(passed.insert((text("column"), text("row")), text("word")), None, "{line}")
                    }
                }
            }
            if !output.status.success() {
                failed.push(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        let wanted: BTreeMap<_, _> = cells_of(&documented())
            .into_iter()
            .filter(|((column, _), _)| columns.contains(&column.as_str()))
            .collect();
        assert!(wanted.len() > columns.len(), "docs/clients.md has no such columns");
        assert_eq!(passed, wanted, "docs/clients.md says something else than what ran");
    }
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The tables of the document, line by line.
pub(crate) fn documented() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/clients.md")).expect("docs/clients.md");
    tables(&text)
}

/// The tables as the script has them.
pub(crate) fn rendered() -> Vec<String> {
    tables(&Script::new(None).ok(&["--render"]))
}

/// Lines of tables whose first column has no name; other tables of the document are prose.
fn tables(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line.starts_with("| | ") || inside && line.starts_with('|');
        if inside {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Column and row, with the word of the cell, where there is something to run.
fn cells_of(lines: &[String]) -> BTreeMap<(String, String), String> {
    let mut columns: Vec<String> = Vec::new();
    let mut cells = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.starts_with("|---")) {
        let words: Vec<String> =
            line.trim_matches('|').split(" | ").map(|word| word.trim().to_owned()).collect();
        let Some((first, words)) = words.split_first() else { continue };
        if first.is_empty() {
            columns = words.to_vec();
            continue;
        }
        for (column, word) in columns.iter().zip(words).filter(|(_, word)| *word != "-") {
            cells.insert((column.clone(), first.trim_matches('`').to_owned()), word.clone());
        }
    }
    cells
}
