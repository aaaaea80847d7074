//! Modules of a crate that depend on each other in a circle, found in their `crate::` paths.
//!
//! A module here is a top-level one with everything below it; dependencies inside it are not checked. Tests do not count.
//! A circle is named by its modules. `xtask/circles.txt` lists the accepted ones, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Item, UseTree};

/// File of the accepted circles: lines `CRATE: MODULE, MODULE: reason`.
const ACCEPTED: &str = "xtask/circles.txt";

/// Modules of a crate, and those that each one uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Checks all crates; the error names every circle that is not accepted, and every accepted one that no longer exists.
pub(super) fn check(root: &Path) -> anyhow::Result<()> {
    let accepted = accepted(root)?;
    let mut found = BTreeSet::new();
    let crates = std::fs::read_dir(root.join("crates")).context("crates")?;
    for folder in crates.flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        let graph = graph(&folder.path().join("src"))?;
        found.extend(circles(&graph).into_iter().map(|modules| format!("{name}: {}", modules.join(", "))));
    }
    let new: Vec<_> = found.difference(&accepted).collect();
    let gone: Vec<_> = accepted.difference(&found).collect();
    if !new.is_empty() {
        bail!(
            "modules depend on each other in a circle; move what they share into a module of its own:\n  {}",
            join(&new)
        );
    }
    if !gone.is_empty() {
        bail!("circles that no longer exist; remove them from {ACCEPTED}:\n  {}", join(&gone));
    }
    Ok(())
}

fn join(lines: &[&String]) -> String {
    lines.iter().map(|line| line.as_str()).collect::<Vec<_>>().join("\n  ")
}

/// Reads the accepted circles, each of which has a reason.
fn accepted(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(root.join(ACCEPTED)).context(ACCEPTED)?;
    let mut circles = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.splitn(3, ": ");
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(modules), Some(reason)) if !reason.trim().is_empty() => {
                circles.insert(format!("{name}: {modules}"));
            }
            _ => bail!("{ACCEPTED}: {line:?} is not `CRATE: MODULE, MODULE: reason`"),
        }
    }
    Ok(circles)
}

/// Returns the graph of the top-level modules below a `src` folder.
fn graph(src: &Path) -> anyhow::Result<Graph> {
    let top = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|file| file.is_file());
    let Some(top) = top else { return Ok(Graph::new()) };
    let roots = Roots::of(&read(&top)?).with_context(|| top.display().to_string())?;
    let mut graph = Graph::new();
    for module in &roots.modules {
        let mut used = BTreeSet::new();
        let mut parsed = Vec::new();
        let mut of_tests = BTreeSet::new();
        for file in files(src, module)? {
            let named = || file.display().to_string();
            let text = read(&file)?;
            of_tests.extend(test_files(&file, &text).with_context(named)?);
            let tokens: TokenStream =
                text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", named()))?;
            parsed.push((file, tokens));
        }
        for (_, tokens) in parsed.into_iter().filter(|(file, _)| !of_tests.contains(file)) {
            roots.used(tokens, &mut used);
        }
        used.remove(module);
        graph.insert(module.clone(), used);
    }
    Ok(graph)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// Returns the files of modules that a file declares only for tests.
fn test_files(file: &Path, text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let folder = if file.ends_with("mod.rs") { file.with_file_name("") } else { file.with_extension("") };
    let modules = syn::parse_file(text)?.items.into_iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => Some(module.ident),
        _ => None,
    });
    Ok(modules.map(|name| folder.join(format!("{name}.rs"))).collect())
}

/// Returns the files of a top-level module.
fn files(src: &Path, module: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> =
        Some(src.join(format!("{module}.rs"))).into_iter().filter(|file| file.is_file()).collect();
    let mut folders = vec![src.join(module)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_test = path.file_stem().is_some_and(|name| name == "tests");
            match path.extension() {
                _ if is_test => {}
                Some(extension) if extension == "rs" => found.push(path),
                _ if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Declarations of the root of a crate.
#[derive(Default)]
struct Roots {
    modules: BTreeSet<String>,
    /// Names that the root imports from a module, such as those of `pub use error::Error`.
    names: BTreeMap<String, String>,
}

impl Roots {
    fn of(text: &str) -> anyhow::Result<Roots> {
        let mut roots = Roots::default();
        roots.visit_file(&syn::parse_file(text)?);
        Ok(roots)
    }

    fn take(&mut self, tree: &UseTree, module: Option<&str>) {
        match tree {
            UseTree::Path(path) if path.ident == "self" || path.ident == "crate" => {
                self.take(&path.tree, module)
            }
            UseTree::Path(path) => self.take(&path.tree, Some(module.unwrap_or(&path.ident.to_string()))),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.take(tree, module)),
            UseTree::Name(name) => self.name(name.ident.to_string(), module),
            UseTree::Rename(rename) => self.name(rename.rename.to_string(), module),
            UseTree::Glob(_) => {}
        }
    }

    fn name(&mut self, name: String, module: Option<&str>) {
        if let Some(module) = module {
            self.names.insert(name, module.to_owned());
        }
    }

    /// Adds the modules that tokens name after `crate::`, without those of tests.
    fn used(&self, tokens: TokenStream, used: &mut BTreeSet<String>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_module(&tokens[at..]) {
                // `#`, `[cfg(test)]`, `mod`, the name, its content.
                at += 5;
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(ident) if ident == "crate" && is_path(&tokens[at + 1..]) => {
                    match tokens.get(at + 3) {
                        Some(TokenTree::Ident(name)) => self.add(&name.to_string(), used),
                        Some(TokenTree::Group(group)) => self.group(group.stream(), used),
                        _ => {}
                    }
                    at += 3;
                }
                TokenTree::Group(group) => self.used(group.stream(), used),
                _ => {}
            }
            at += 1;
        }
    }

    /// Adds the names at the beginning of each part of `{a, b::c}`.
    fn group(&self, tokens: TokenStream, used: &mut BTreeSet<String>) {
        let mut first = true;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if first => {
                    self.add(&name.to_string(), used);
                    first = false;
                }
                TokenTree::Punct(punct) if punct.as_char() == ',' => first = true,
                _ => {}
            }
        }
    }

    fn add(&self, name: &str, used: &mut BTreeSet<String>) {
        if self.modules.contains(name) {
            used.insert(name.to_owned());
        } else if let Some(module) = self.names.get(name).filter(|module| self.modules.contains(*module)) {
            used.insert(module.clone());
        }
    }
}

impl Visit<'_> for Roots {
    fn visit_item(&mut self, item: &Item) {
        match item {
            Item::Mod(module) if !is_for_tests(&module.attrs) => {
                self.modules.insert(module.ident.to_string());
            }
            Item::Use(item) => self.take(&item.tree, None),
            _ => {}
        }
    }
}

/// Reports whether attributes restrict an item to tests and fuzzing.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg")
            && list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
    })
}

/// Reports whether these tokens are `::`.
fn is_path(tokens: &[TokenTree]) -> bool {
    let colon =
        |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    colon(tokens.first()) && colon(tokens.get(1))
}

/// Reports whether these tokens begin with `#[cfg(test)] mod name { … }`.
fn is_test_module(tokens: &[TokenTree]) -> bool {
    let [
        TokenTree::Punct(sharp),
        TokenTree::Group(attribute),
        TokenTree::Ident(keyword),
        TokenTree::Ident(_),
        TokenTree::Group(content),
        ..,
    ] = tokens
    else {
        return false;
    };
    sharp.as_char() == '#'
        && attribute.stream().to_string().replace(' ', "") == "cfg(test)"
        && keyword == "mod"
        && content.delimiter() == Delimiter::Brace
}

/// Returns the sets of modules in which each module reaches every other.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reach(graph, module))).collect();
    let mut circles = BTreeSet::new();
    for module in graph.keys() {
        let circle: Vec<String> = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module))
            .map(|other| (*other).clone())
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reach<'a>(graph: &'a Graph, from: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[from].iter().collect();
    while let Some(module) = next.pop() {
        if let Some((module, used)) = graph.get_key_value(module)
            && reached.insert(module)
        {
            next.extend(used);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(text: &str) -> Vec<String> {
        let roots =
            Roots::of("mod a; mod b; mod c; #[cfg(test)] mod t; pub use b::{Error, deep::Name as Other};")
                .unwrap();
        let mut used = BTreeSet::new();
        roots.used(text.parse().unwrap(), &mut used);
        used.into_iter().collect()
    }

    #[test]
    fn path_names_its_module() {
        for (text, modules) in [
            ("use crate::a::X;", &["a"][..]),
            ("use crate::{a::X, c::{b::Y, Z}};", &["a", "c"]),
            ("fn f() -> crate::Error { crate::Other::new() }", &["b"]),
            ("m!(crate::c::x())", &["c"]),
            ("pub(crate) fn a() { super::b::f() }", &[]),
            ("use crate::t::X;", &[]),
            ("#[cfg(test)] mod tests { use crate::a::X; } use crate::c::Y;", &["c"]),
        ] {
            assert_eq!(used(text), modules, "{text}");
        }
    }

    #[test]
    fn circle_excludes_modules_that_only_lead_to_it() {
        let graph = |edges: &[(&str, &[&str])]| -> Graph {
            edges
                .iter()
                .map(|(from, to)| ((*from).into(), to.iter().map(|to| (*to).into()).collect()))
                .collect()
        };
        assert!(circles(&graph(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let found = circles(&graph(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["b"]),
            ("d", &["e"]),
            ("e", &["d", "a"]),
        ]));
        assert_eq!(found, [["b", "c"], ["d", "e"]]);
    }
}
