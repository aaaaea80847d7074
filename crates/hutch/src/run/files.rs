//! `spec.files` of policies, as flags: what a command cannot read or write. Policies open nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hutch_policy::{Access, PolicyFiles, access_at};

use super::workspace::{ALIAS, TEMPORARY};
use crate::cli::{Listed, RunArguments};
use crate::place::below_folder;
use crate::protect::is_protected;

/// Folders that are in memory in every sandbox, whatever the machine has there.
const IN_MEMORY: [&str; 2] = [TEMPORARY, "/dev"];

/// Folders of the kernel.
const OF_KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Puts the rules for files of `--policy` into the flags. Returns what is not enforced and to be reported.
pub(super) fn apply(policies: &[PolicyFiles], arguments: &mut RunArguments) -> anyhow::Result<Vec<String>> {
    let (restrictions, needed) = PolicyFiles::combined(policies);
    let mut unenforced = Vec::new();
    if restrictions.is_empty() {
        return Ok(unenforced);
    }
    let absolute = |path: &Path| super::absolute(path).map(|path| super::below_root(&path));
    let workspace = arguments.workspace.as_deref().map(absolute).transpose().context("--workspace")?;
    for mount in &mut arguments.mount {
        mount.source = super::absolute(&mount.source).context("--mount")?;
    }
    // A policy opens nothing that the caller has closed.
    let closed = arguments.read_only;
    let mut listed = arguments.listed.take().unwrap_or_default();
    keep_open(&mut listed.write_within, &restrictions, workspace.as_deref());
    let denied: Vec<PathBuf> =
        listed.deny_write.iter().flat_map(|(path, _)| super::every_name(path.clone())).collect();
    for (path, access) in &restrictions {
        let (path, access) = (path.clone(), *access);
        let is_denied = |path: PathBuf| {
            super::every_name(path).any(|name| denied.iter().any(|denied| name.starts_with(denied)))
        };
        let is_denied = || outside(&path, workspace.as_deref()).is_ok_and(is_denied);
        if access == Access::Write && (closed || is_denied()) {
            continue;
        }
        let named = |path: &Path| format!("--policy: {}: {}", rules_of(policies, path), path.display());
        let mut close = |path: &Path, access| {
            let outside = outside(path, workspace.as_deref())?;
            restrict(&outside, access, workspace.as_deref(), arguments, &mut listed)?;
            check_nested(path, access, &restrictions)
        };
        let Err(error) = close(&path, access).with_context(|| named(&path)) else { continue };
        let least = access_at(&needed, &path);
        let needs = match access {
            Access::Write => needed.iter().any(|entry| *entry == (path.clone(), access)),
            access => least <= access,
        };
        if needs {
            return Err(error);
        }
        // Only policies that report it close the path as much, or open it again. The others close less, or less of it.
        let others = needed.iter().filter(|(below, _)| below.starts_with(&path) && *below != path);
        let own = (path.clone(), least);
        let others = others.chain([&own]).filter(|(_, access)| *access != Access::Write);
        for (other, access) in others.filter(|_| access != Access::Write) {
            close(other, *access).with_context(|| named(other))?;
        }
        unenforced.push(format!("{error:#}"));
    }
    arguments.listed = Some(listed);
    Ok(unenforced)
}

/// Refuses what a command does not open again: a path in a hidden one, and one to be written in what is closed within a path that
/// is to be written.
fn check_nested(path: &Path, access: Access, restrictions: &[(PathBuf, Access)]) -> anyhow::Result<()> {
    let above = |other: &Path| other != path && path.starts_with(other);
    let mut above: Vec<_> = restrictions.iter().filter(|(other, _)| above(other)).collect();
    above.sort_by_key(|(other, _)| std::cmp::Reverse(other.components().count()));
    match above.first() {
        Some((hidden, Access::None)) if access != Access::None => {
            bail!(
                "{} is hidden, and a command shows nothing within it; name what is to be hidden there",
                hidden.display()
            )
        }
        Some((closed, Access::Read))
            if access == Access::Write && above.iter().any(|(_, access)| *access == Access::Write) =>
        {
            bail!(
                "a command opens nothing again within {}, which is closed in a folder that is open",
                closed.display()
            )
        }
        _ => Ok(()),
    }
}

/// Keeps those of the paths that settings open within a read-only workspace which the policies let be written too.
fn keep_open(opened: &mut Vec<PathBuf>, restrictions: &[(PathBuf, Access)], workspace: Option<&Path>) {
    let outside =
        restrictions.iter().filter_map(|(path, access)| Some((outside(path, workspace).ok()?, *access)));
    let names = |(path, access)| super::every_name(path).map(move |name| (name, access));
    let mut restrictions: Vec<(PathBuf, Access)> = outside.flat_map(names).collect();
    // The strictest last: that one counts for a path.
    restrictions.sort_by(|a, b| (&a.0, b.1).cmp(&(&b.0, a.1)));
    opened.retain(|path| {
        super::every_name(path.clone()).all(|name| access_at(&restrictions, &name) == Access::Write)
    });
}

/// Returns the places of the rules for a path.
fn rules_of(policies: &[PolicyFiles], path: &Path) -> String {
    let all = policies
        .iter()
        .flat_map(|of| of.rules.iter().enumerate().map(move |(index, rule)| (of, index, rule)));
    let about = all.filter(|(_, _, rule)| rule.path.as_path() == path);
    let places: Vec<_> =
        about.map(|(of, index, _)| format!("policy {:?}: spec.files[{index}]", of.policy)).collect();
    places.join(", ")
}

/// Returns the path that a file has on the machine.
fn outside(path: &Path, workspace: Option<&Path>) -> anyhow::Result<PathBuf> {
    match (path.strip_prefix(ALIAS), workspace) {
        (Ok(rest), Some(workspace)) if !workspace.starts_with(ALIAS) => Ok(below_folder(workspace, rest)),
        (Ok(_), None) => bail!("there is no --workspace"),
        _ => Ok(path.to_owned()),
    }
}

fn restrict(
    path: &Path,
    access: Access,
    workspace: Option<&Path>,
    arguments: &mut RunArguments,
    listed: &mut Listed,
) -> anyhow::Result<()> {
    // As the workspace has it, which is opened without a link below `/`.
    let plain = super::below_root(path);
    let in_workspace = workspace.and_then(|workspace| plain.strip_prefix(workspace).ok());
    let in_mount = arguments.mount.iter().any(|mount| path.starts_with(&mount.source));
    let in_memory = IN_MEMORY.iter().any(|folder| path.starts_with(folder));
    if OF_KERNEL.iter().any(|folder| path.starts_with(folder)) {
        bail!("each sandbox has its own");
    }
    if in_memory && in_workspace.is_none() && !in_mount {
        bail!("it is in memory in a sandbox, and each command has its own");
    }
    match access {
        // A path that does not exist cannot be read, and must not be made.
        Access::None if path.symlink_metadata().is_err_and(|error| super::is_missing(&error)) => {
            listed.deny_write.push((path.to_owned(), false))
        }
        Access::None => arguments.deny_read.push(path.to_owned()),
        Access::Read => {
            arguments.read_only |= workspace.is_some_and(|workspace| workspace.starts_with(&plain));
            listed.deny_write.push((path.to_owned(), path.is_dir()));
        }
        Access::Write => {
            let within = in_workspace.filter(|rest| *rest != Path::new(""));
            let Some(rest) = within.filter(|_| arguments.read_only) else {
                bail!(
                    "`Write` has an effect only within the workspace, and only if the workspace itself has `Read`"
                );
            };
            let is_home = workspace.is_some_and(super::guard::is_home);
            ensure!(!is_protected(rest, is_home), "programs of this machine run it, so it stays protected");
            ensure!(path.is_dir(), "a folder that can be written in a read-only workspace must exist");
            listed.write_within.push(plain);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_for_a_file_is_named_with_its_policy_and_place() {
        let policy = |name: &str, paths: &[&str]| PolicyFiles {
            policy: name.to_owned(),
            reports: false,
            rules: serde_json::from_value(
                paths.iter().map(|path| serde_json::json!({"path": path, "access": "Read"})).collect(),
            )
            .unwrap(),
        };
        let policies = [policy("a", &["/x", "/y"]), policy("b", &["/y"])];
        let both = "policy \"a\": spec.files[1], policy \"b\": spec.files[0]";
        assert_eq!(rules_of(&policies, Path::new("/y")), both);
        assert_eq!(rules_of(&policies, Path::new("/x")), "policy \"a\": spec.files[0]");
    }

    #[test]
    fn path_that_would_be_opened_again_is_refused() {
        use Access::{None, Read, Write};
        let rules = [
            ("/w", Read),
            ("/w/secret", None),
            ("/w/secret/out", Read),
            ("/w/secret/new", Write),
            ("/w/secret/deep", None),
            ("/w/out", Write),
            ("/w/out/x", Read),
            ("/w/out/x/y", Write),
            ("/w/out/x/z", None),
        ];
        let all: Vec<(PathBuf, Access)> = rules.iter().map(|(path, access)| (path.into(), *access)).collect();
        let refused = all.iter().filter(|(path, access)| check_nested(path, *access, &all).is_err());
        let refused: Vec<_> = refused.map(|(path, _)| path.display().to_string()).collect();
        assert_eq!(refused, ["/w/secret/out", "/w/secret/new", "/w/out/x/y"]);
    }

    #[test]
    fn alias_names_the_workspace() {
        let of = |path: &str, workspace: Option<&str>| {
            outside(Path::new(path), workspace.map(Path::new)).map(|path| path.display().to_string()).ok()
        };
        assert_eq!(of("/workspace/a", Some("/home/u/p")), Some("/home/u/p/a".to_owned()));
        assert_eq!(of("/workspace", Some("/home/u/p")), Some("/home/u/p".to_owned()));
        assert_eq!(of("/home/u/p/a", Some("/home/u/p")), Some("/home/u/p/a".to_owned()));
        assert_eq!(of("/workspace/p/a", Some("/workspace/p")), Some("/workspace/p/a".to_owned()));
        assert_eq!(of("/workspace/a", None), None);
    }
}
