//! `--tools`: what the caller's tools have downloaded, as copies that the command can write and that are discarded.
//!
//! Of a tool's folder only downloads are shown, no settings and no credentials. The folder itself is in memory.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hutch_jail::{Error, Mount, MountSource, Spec};

use super::{SCRATCH_BYTES, named_folder};

/// Folder of a tool.
struct Tool {
    /// Variable that names the folder, outside and inside.
    variable: &'static str,
    /// Variable that names a folder above it, and the path below that.
    above: (&'static str, &'static str),
    /// Default below HOME.
    default: &'static str,
    /// Parts that are shown; without any, the whole folder.
    parts: &'static [&'static str],
}

const TOOLS: [Tool; 5] = [
    Tool { variable: "CARGO_HOME", above: ("", ""), default: ".cargo", parts: &["registry", "git"] },
    Tool { variable: "npm_config_cache", above: ("", ""), default: ".npm", parts: &["_cacache"] },
    Tool { variable: "GOMODCACHE", above: ("GOPATH", "pkg/mod"), default: "go/pkg/mod", parts: &[] },
    Tool { variable: "PIP_CACHE_DIR", above: ("XDG_CACHE_HOME", "pip"), default: ".cache/pip", parts: &[] },
    Tool { variable: "UV_CACHE_DIR", above: ("XDG_CACHE_HOME", "uv"), default: ".cache/uv", parts: &[] },
];

/// Modules of Go that are downloaded where the caller has none: `./...` would find them in the workspace, which is HOME.
pub(super) const MODULES: (&str, &str) = ("GOMODCACHE", "/tmp/go/pkg/mod");

/// The caches of a caller.
#[derive(Default)]
pub(super) struct Caches {
    /// Empty folders in memory, and copies in them.
    pub(super) mounts: Vec<Mount>,
    /// Variables that lead the tools to them.
    pub(super) env: Vec<(String, String)>,
}

/// Returns the folders of the tools, of which parts are shown.
pub(super) fn folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    TOOLS.iter().filter_map(|tool| tool.folder(&variable)).collect()
}

impl Caches {
    /// Returns those that exist and belong to `owner`, the user that the command is outside. What is in the workspace is
    /// there already.
    pub(super) fn find(variable: impl Fn(&str) -> Option<OsString>, workspace: &Path, owner: u32) -> Caches {
        let (mut caches, mut own_modules) = (Caches::default(), false);
        for tool in &TOOLS {
            let Some(folder) = tool.folder(&variable) else { continue };
            if folder.starts_with(workspace) || workspace.starts_with(&folder) {
                own_modules |= tool.variable == MODULES.0;
                continue;
            }
            let parts: &[&str] = if tool.parts.is_empty() { &[""] } else { tool.parts };
            let copies: Vec<Mount> = parts
                .iter()
                .filter_map(|part| copy(&folder.join(part).components().collect::<PathBuf>(), owner))
                .collect();
            let (false, Some(text)) = (copies.is_empty(), folder.to_str()) else { continue };
            if !tool.parts.is_empty() {
                let source = MountSource::Tmpfs { bytes: SCRATCH_BYTES, mode: 0o777 };
                caches.mounts.push(Mount { source, target: folder.clone(), read_only: false });
            }
            caches.mounts.extend(copies);
            caches.env.push((tool.variable.to_owned(), text.to_owned()));
            if tool.variable == "UV_CACHE_DIR" {
                // There are no hard links from one mount to another.
                caches.env.push(("UV_LINK_MODE".to_owned(), "copy".to_owned()));
            }
        }
        let (name, folder) = MODULES;
        if !own_modules && !caches.env.iter().any(|(other, _)| other == name) {
            caches.env.push((name.to_owned(), folder.to_owned()));
        }
        caches
    }
}

impl Tool {
    fn folder(&self, variable: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let (above, below) = self.above;
        // GOPATH is a list.
        let first = variable(above).and_then(|list| std::env::split_paths(&list).next());
        absolute(self.variable)
            .or_else(|| first.filter(|path| path.is_absolute()).map(|folder| folder.join(below)))
            .or_else(|| absolute("HOME").map(|home| home.join(self.default)))
    }
}

/// Returns the copy of a folder of this owner. A link on its path is not followed: code of an earlier run may have made it.
fn copy(folder: &Path, owner: u32) -> Option<Mount> {
    let is_owned = folder.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == owner);
    let checked = named_folder("--tools", folder).ok().filter(|_| is_owned)?;
    let source = MountSource::Layered { folder: checked, bytes: SCRATCH_BYTES };
    Some(Mount { source, target: folder.to_owned(), read_only: false })
}

/// Returns the jail with these folders read-only, if `error` says that there can be no copy of one.
pub(super) fn read_only(spec: &Spec, error: &Error) -> Option<Spec> {
    let Error::NoCopy { .. } = error else { return None };
    let plain = |mount: &Mount| match &mount.source {
        MountSource::Layered { folder, .. } => Mount {
            source: MountSource::Beneath { folder: folder.clone(), path: PathBuf::new() },
            target: mount.target.clone(),
            read_only: true,
        },
        _ => mount.clone(),
    };
    Some(Spec { mounts: spec.mounts.iter().map(plain).collect(), ..spec.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_are_copied_without_credentials() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        for folder in
            [".cargo/registry", ".cargo/bin", ".npm/_cacache", ".npm/_logs", "cache/uv", "go/pkg/mod"]
        {
            std::fs::create_dir_all(home.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(home.join("go"), home.join("cache/pip")).unwrap();
        let owner = home.metadata().unwrap().uid();
        let variable = |name: &str| match name {
            "HOME" => Some(home.clone().into()),
            "XDG_CACHE_HOME" => Some(home.join("cache").into()),
            _ => None,
        };
        let shown = |caches: &Caches| -> Vec<String> {
            let shown = |mount: &Mount| {
                let kind = if matches!(mount.source, MountSource::Tmpfs { .. }) { "new " } else { "" };
                format!("{kind}{}", mount.target.strip_prefix(&home).unwrap().display())
            };
            caches.mounts.iter().map(shown).collect()
        };
        let caches = Caches::find(variable, Path::new("/work"), owner);
        assert_eq!(
            shown(&caches),
            ["new .cargo", ".cargo/registry", "new .npm", ".npm/_cacache", "go/pkg/mod", "cache/uv"]
        );
        let names: Vec<&str> = caches.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["CARGO_HOME", "npm_config_cache", "GOMODCACHE", "UV_CACHE_DIR", "UV_LINK_MODE"]);
        assert_eq!(shown(&Caches::find(variable, &home.join(".npm/_cacache/x"), owner)).len(), 4);
        assert!(Caches::find(variable, &home, owner).mounts.is_empty(), "in the workspace already");
        let of_another_user = Caches::find(variable, Path::new("/work"), owner + 1);
        assert!(of_another_user.mounts.is_empty());
        let modules = ("GOMODCACHE".to_owned(), "/tmp/go/pkg/mod".to_owned());
        assert_eq!(of_another_user.env, [modules], "not within the workspace");
        assert!(Caches::find(variable, &home, owner).env.is_empty());
    }
}
