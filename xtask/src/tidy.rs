//! House rules that the compiler does not check: length of files and functions, columns of lines, meaningless names.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Maximum lines of a file, without its tests.
const FILE_LINES_MAX: usize = 500;
/// Maximum lines of a function, signature and braces included.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum columns of a line of Rust.
const COLUMNS_MAX: usize = 130;
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "util.rs", "common.rs", "helpers.rs", "manager.rs"];

/// Checks all Rust files; the error names every breach.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "bench", "fuzz"] {
        collect(&root.join(folder), &mut files)?;
    }
    let mut breaches = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        breaches.extend(breaches_of(&name, &text));
    }
    if !breaches.is_empty() {
        bail!("house rules broken:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn breaches_of(name: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let file = name.rsplit('/').next().unwrap_or(name);
    if EMPTY_NAMES.contains(&file) {
        breaches.push(format!("{name}: meaningless file name; use a noun or a verb of the domain"));
    }
    let is_test = name.contains("/tests/") || name.contains("/examples/") || file == "tests.rs";
    let code: Vec<&str> = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).collect();
    if !is_test && code.len() > FILE_LINES_MAX {
        breaches.push(format!("{name}: {} lines without tests, at most {FILE_LINES_MAX}", code.len()));
    }
    let mut is_fenced = false;
    for (number, line) in text.lines().enumerate() {
        // rustfmt breaks code. A longer string or URL is left in one line on purpose.
        if !is_test && line.chars().count() > COLUMNS_MAX && !line.contains('"') && !line.contains("http") {
            breaches.push(format!("{name}:{}: longer than {COLUMNS_MAX} columns", number + 1));
        }
        // Their run compiles each crate once more, which takes CI a minute.
        let comment = line.trim().strip_prefix("///").or_else(|| line.trim().strip_prefix("//!"));
        if let Some(language) = comment.and_then(|comment| comment.trim().strip_prefix("```")) {
            is_fenced = !is_fenced;
            if is_fenced && language != "text" {
                breaches
                    .push(format!("{name}:{}: examples in comments are not run; write a test", number + 1));
            }
        }
    }
    if !is_test {
        breaches.extend(long_functions(name, &code));
    }
    breaches
}

/// Finds functions above the limit. A function starts at a line whose first word (after `pub`, `async`, ...) is `fn`
/// and ends at the closing brace in the same column: rustfmt guarantees both.
fn long_functions(name: &str, code: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (start, line) in code.iter().enumerate() {
        let trimmed = line.trim_start();
        let is_function =
            trimmed.split_whitespace().take(5).any(|word| word == "fn") && !trimmed.starts_with("//");
        if !is_function {
            continue;
        }
        let indent = line.len() - trimmed.len();
        let closing = format!("{}}}", " ".repeat(indent));
        let Some(length) = code[start..].iter().position(|l| {
            *l == closing || l.trim_end().ends_with(';') && l.len() - l.trim_start().len() == indent
        }) else {
            continue;
        };
        if length + 1 > FUNCTION_LINES_MAX {
            breaches.push(format!(
                "{name}:{}: a function of {} lines, at most {FUNCTION_LINES_MAX}",
                start + 1,
                length + 1
            ));
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_function_is_a_breach() {
        let long = format!("fn a() {{\n{}}}\n", "    x();\n".repeat(FUNCTION_LINES_MAX));
        assert_eq!(breaches_of("crates/a/src/b.rs", &long).len(), 1);
        assert_eq!(breaches_of("crates/a/src/b.rs", "fn a() {\n    x();\n}\n").len(), 0);
    }

    #[test]
    fn example_that_is_never_run_is_a_breach() {
        let example = "/// Adds.\n///\n/// ```\n/// add(1, 2);\n/// ```\n";
        assert_eq!(breaches_of("crates/a/src/b.rs", example).len(), 1);
        assert_eq!(breaches_of("crates/a/src/b.rs", &example.replacen("```", "```rust", 1)).len(), 1);
        assert_eq!(breaches_of("crates/a/src/b.rs", &example.replacen("```", "```text", 1)).len(), 0);
    }

    #[test]
    fn meaningless_file_name_is_a_breach() {
        assert_eq!(breaches_of("crates/a/src/utils.rs", "").len(), 1);
    }
}
