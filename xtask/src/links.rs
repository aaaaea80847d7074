//! Checks that Markdown refers to files that exist, and ARCHITECTURE.md to functions that exist.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Folders of the documentation.
const FOLDERS: [&str; 4] = ["", "deploy", "docs", "fuzz"];
/// Page whose numbered items name a file and functions in it.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Checks every page; the error names every broken reference.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let mut broken = Vec::new();
    for page in pages(root)? {
        let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        let folder = page.parent().unwrap_or(root);
        let targets = links(&text);
        let missing = targets.iter().filter(|link| !folder.join(link).exists());
        broken.extend(missing.map(|link| format!("{name}: {link} does not exist")));
        if name == ARCHITECTURE {
            broken.extend(unknown_functions(&text, |file| std::fs::read_to_string(root.join(file)).ok()));
        }
    }
    if !broken.is_empty() {
        bail!("broken references:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

fn pages(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Returns the files that the links of a page lead to, without anchors. Links to other sites are left out.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '\n']).next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://")).collect()
}

/// Checks the numbered items of a page: each links to a source file first, and names functions of it in backticks.
fn unknown_functions(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut unknown = Vec::new();
    for item in items(page) {
        let Some(source) = links(&item).first().and_then(|file| read(file)) else { continue };
        let names = item.split('`').skip(1).step_by(2);
        for name in names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
            if !source.contains(&format!("fn {name}(")) && !source.contains(&format!("fn {name}<")) {
                unknown.push(format!("{ARCHITECTURE}: no function {name} in {}", links(&item)[0]));
            }
        }
    }
    unknown
}

/// Returns the items of numbered lists, each with its continued lines.
fn items(page: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        let begins = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        open = begins || open && line.starts_with(' ');
        match items.last_mut() {
            _ if begins => items.push(line.to_owned()),
            Some(item) if open => {
                item.push('\n');
                item.push_str(line);
            }
            _ => {}
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_neither_anchor_nor_site() {
        let page = "[a](b.md#c) [d](#e) [f](https://g) [h](../i.md)";
        assert_eq!(links(page), ["b.md", "../i.md"]);
    }

    #[test]
    fn function_that_its_file_lacks_is_named() {
        let page = "1. [`x.rs`](x.rs): `here` and\n   `gone`.\n\n`elsewhere`\n";
        let unknown = unknown_functions(page, |_| Some("fn here() {}".to_owned()));
        assert_eq!(unknown, ["ARCHITECTURE.md: no function gone in x.rs"]);
    }
}
